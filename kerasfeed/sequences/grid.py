"""Boxes of one size on a grid over an array: where each stands, and one array put together of results for them.

Invariant: pure, but for `out`. Boxes are numbered row by row, so their starts on the first axis never go back: what
stands before the start of the box at hand is complete.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WEIGHTS = ("uniform", "gaussian")
BORDERS = ("inside", "shift", "pad")
_SLACK = 1 << 20  # bytes of rows kept beyond a box, so that small boxes are not written out one by one
_ORDERED = (
    "predict with a feed of all of them in order, without shuffle, order, shard, drop_remainder and pad_remainder"
)


@dataclass(frozen=True)
class Axis:
    """The boxes along one axis.

    Attributes:
        length: Items of the axis, at least 1.
        size: Items of a box, at least 1.
        stride: Items from the start of a box to that of the next, at least 1; less for the last one.
        step: Items of the axis from one item of a box to the next, at least 1.
        count: Boxes, at least 1.
        last: Start of the last box.
    """

    length: int
    size: int
    stride: int
    step: int
    count: int
    last: int

    @classmethod
    def of(cls, length: int, size: int, stride: int, *, border: str = "inside", step: int = 1) -> "Axis":
        """The boxes on an axis of `length` items; a box reaches beyond it with the border "pad" alone."""
        room = length - ((size - 1) * step + 1)
        count = room // stride + 1 if border == "inside" else max(0, -(-room // stride)) + 1
        if border == "pad":
            count = min(count, -(-length // stride))  # a box that is further away holds nothing
        last = room if border == "shift" else (count - 1) * stride
        return cls(length, size, stride, step, count, last)

    @property
    def extent(self) -> int:
        """Items of the axis from the first of a box to its last."""
        return (self.size - 1) * self.step + 1

    @property
    def reach(self) -> int:
        """End of the last box or of the axis, whichever is further."""
        return max(self.length, self.last + self.extent)

    def starts(self) -> NDArray[np.int64]:
        """int64[count], where each box begins."""
        return np.minimum(np.arange(self.count, dtype=np.int64) * self.stride, self.last)

    def totals(self, weights: NDArray[Any]) -> NDArray[Any]:
        """The sum of the weights of all boxes at each item of the axis, [length]; `weights` are those of a box."""
        totals, starts = np.zeros(self.reach, weights.dtype), self.starts()
        for item, weight in enumerate(weights):
            totals[starts + item * self.step] += weight
        return totals[: self.length]


def corner(axes: tuple[Axis, ...], number: int) -> tuple[int, ...]:
    """Start of box `number` on each axis."""
    starts = []
    for axis in reversed(axes):
        number, rank = divmod(number, axis.count)
        starts.append(min(rank * axis.stride, axis.last))
    return tuple(reversed(starts))


def blocks(axes: tuple[Axis, ...], chunks: tuple[int, ...]) -> NDArray[np.int64]:
    """The block of each box, int64[number of boxes]: boxes that start in the same cell are of one block.

    Args:
        axes: The boxes.
        chunks: Sizes of a chunk, one an axis. A cell is the fewest whole chunks that are at least as large as a box:
            chunks are then shared by many boxes of a block, and by its neighbours alone.
    """
    found = np.zeros(1, np.int64)
    for axis, chunk in zip(axes, chunks, strict=True):
        cells = axis.starts() // (-(-axis.extent // chunk) * chunk)
        found = (found[:, None] * (cells[-1] + 1) + cells).ravel()
    return found


def assembled(axes: tuple[Axis, ...], outputs: Any, weights: str, out: Any) -> Any:
    """One array of the results for all boxes, the weighted mean where they overlap, NaN where there is none.

    Args:
        axes: The boxes.
        outputs: Results, [number of boxes, *sizes, ...]; or batches of them, [B, *sizes, ...], in their order.
        weights: One of `WEIGHTS`.
        out: Where the array goes, [*lengths, ...]; None makes one.

    Returns:
        `out`, or the new array.

    Raises:
        ValueError: `weights` is unknown; the outputs have another shape, or are not one a box; or `out` has another
            shape.
        TypeError: The outputs are no arrays of numbers, or `out` cannot hold their mean.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be 'uniform' or 'gaussian', received {weights!r}")
    boxes = math.prod(axis.count for axis in axes)
    sums: _Sums | None = None
    done = 0
    for batch in _batches(outputs, boxes, tuple(axis.size for axis in axes)):
        if sums is None:
            sums = _Sums(axes, weights, batch[0], out)
        if batch.shape[1:] != sums.box:
            raise ValueError(f"outputs must be of one shape, received {batch.shape[1:]} after {sums.box}")
        if done + len(batch) > boxes:
            raise ValueError(f"assemble needs one output for each of the {boxes:,} scenes, received more: {_ORDERED}")
        for result in batch:
            sums.add(corner(axes, done), result)
            done += 1
    if sums is None or done < boxes:
        raise ValueError(f"assemble needs one output for each of the {boxes:,} scenes, received {done:,}: {_ORDERED}")
    sums.write(axes[0].length)
    return sums.out


def _batches(outputs: Any, boxes: int, sizes: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    wanted = f"[B, {', '.join(map(str, sizes))}, ...]"
    batches: Iterable[Any] = outputs
    if hasattr(outputs, "shape"):
        if tuple(outputs.shape[:1]) != (boxes,):
            came = f"received shape {tuple(outputs.shape)}"
            raise ValueError(f"assemble needs one output for each of the {boxes:,} scenes, {came}: {_ORDERED}")
        batches = [outputs] if isinstance(outputs, np.ndarray) else (outputs[box : box + 1] for box in range(boxes))
    elif isinstance(outputs, dict) or not hasattr(type(outputs), "__iter__"):
        raise TypeError(f"outputs must be an array {wanted} or batches of one, received a {type(outputs).__name__}")
    for number, batch in enumerate(batches):
        if isinstance(batch, list | tuple | dict):
            raise TypeError(
                f"batch {number} of the outputs must be one array {wanted}, received a {type(batch).__name__}: "
                "assemble each output of a model on its own, and give what the model makes of a batch, not the batch"
            )
        array = np.asarray(batch)
        if array.ndim <= len(sizes) or array.shape[1 : 1 + len(sizes)] != sizes:
            raise ValueError(f"outputs must be of shape {wanted}, received {array.shape} in batch {number}")
        if len(array):
            yield array


class _Sums:
    """Weighted sums of the rows of the first axis that are open, from `_start` on; complete ones go to `out`.

    Args:
        axes: The boxes.
        weights: One of `WEIGHTS`.
        first: The result for the first box, whose shape and dtype all have.
        out: See `assembled`.
    """

    def __init__(self, axes: tuple[Axis, ...], weights: str, first: NDArray[Any], out: Any) -> None:
        dtype = _dtype_of_sums(first.dtype)
        trailing = first.shape[len(axes) :]
        self.box = first.shape
        mean = dtype if first.dtype.kind in "biu" else first.dtype
        shape = (*(axis.length for axis in axes), *trailing)
        self.out = np.empty(shape, mean) if out is None else _checked_out(out, shape, mean)
        self._axes = axes
        lines = [_line(axis.size, weights) for axis in axes]
        after = (1,) * len(trailing)
        self._weights = (
            functools.reduce(np.multiply.outer, lines).astype(dtype).reshape(*first.shape[: len(axes)], *after)
        )
        self._totals = [
            axis.totals(line).astype(dtype).reshape(-1, *(1,) * (len(axes) - number - 1), *after)
            for number, (axis, line) in enumerate(zip(axes, lines, strict=True))
        ]
        row = (*(axis.reach for axis in axes[1:]), *trailing)
        spare = _SLACK // max(1, math.prod(row) * dtype.itemsize)
        self._rows = np.zeros((min(axes[0].extent + spare, axes[0].reach), *row), dtype)
        self._start = 0

    def add(self, starts: tuple[int, ...], result: NDArray[Any]) -> None:
        """Add the result for the box at `starts`, which are not before those of the boxes added before."""
        if starts[0] + self._axes[0].extent > self._start + len(self._rows):
            self.write(starts[0])
        first, *others = starts
        where = zip(self._axes, (first - self._start, *others), strict=True)
        self._rows[tuple(slice(start, start + axis.extent, axis.step) for axis, start in where)] += (
            self._weights * result
        )

    def write(self, stop: int) -> None:
        """Write the means of all rows before `stop`, to which nothing will be added."""
        while self._start < stop:
            count = min(len(self._rows), stop - self._start)
            end = self._start + count
            means = self._rows[(slice(count), *(slice(axis.length) for axis in self._axes[1:]))]
            with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, where there is no box
                means = means / self._totals[0][self._start : end]
                for totals in self._totals[1:]:
                    means /= totals
            self.out[self._start : end] = means
            self._rows[:-count] = self._rows[count:]
            self._rows[-count:] = 0
            self._start = end


def _line(size: int, weights: str) -> NDArray[Any]:
    """Weights along one axis of a box, float64[size]; the Gaussian has a standard deviation of 1/8 of the box."""
    if weights == "uniform":
        return np.ones(size)
    line: NDArray[Any] = np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / (size / 8)) ** 2)
    return line


def _dtype_of_sums(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which outputs are summed: at least float32."""
    found = np.result_type(dtype, np.float32) if dtype.kind not in "OSUmM" and dtype.names is None else dtype
    if found.kind not in "fc":
        raise TypeError(f"outputs must be numbers, of which there is a mean, received dtype {dtype}")
    return found


def _checked_out(out: Any, shape: tuple[int, ...], mean: np.dtype[Any]) -> Any:
    if not hasattr(type(out), "__setitem__") or not hasattr(out, "shape") or not hasattr(out, "dtype"):
        raise TypeError(
            f"out must be an array that can be written, such as a dataset of h5py.File(path, 'a'), received a "
            f"{type(out).__name__}"
        )
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have the shape {shape}, received {tuple(out.shape)}")
    if not np.can_cast(mean, out.dtype, "same_kind"):
        raise TypeError(f"out must be able to hold means of dtype {mean}, received dtype {out.dtype}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only: give an array that may be written")
    return out
