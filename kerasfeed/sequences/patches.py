"""`Patches` and `Windows`: boxes of large arrays, as scenes.

Invariant: the index of a scene determines its box by arithmetic alone, and only the values in the box are read. Boxes
are numbered row by row, so their starts on the first axis never decrease. So while results are assembled, all rows
before the start of the current box are complete.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import optree
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.indexing import position_in
from kerasfeed.sequences.optional_methods import is_ours
from kerasfeed.sequences.view_base import identity_of, is_number_array, is_plain_number, is_thread_safe, parts_of
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.util.error_text import class_name
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.known_words import with_known_words
from kerasfeed.util.validate import check_integer

_JOINED_BYTES = 1 << 16  # larger windows are written into the batch one by one, without a copy in between
_TAKEN_ROWS = 256  # a longer window is read in its own call: a list of its rows would cost more than it saves
_SLACK = 1 << 20  # bytes of rows kept beyond a box, so that small boxes are not written one by one
_ORDERED = (
    "predict with a feed of all of them in order, without shuffle, order, shard, drop_remainder and pad_remainder"
)


@dataclass(frozen=True)
class _Axis:
    """The boxes along one axis.

    Attributes:
        length: Number of items of the axis, at least 1.
        size: Number of items of a box, at least 1.
        stride: Items from the start of a box to the start of the next, at least 1; the last box may be nearer.
        step: Items of the axis from one item of a box to the next, at least 1.
        count: Number of boxes, at least 1.
        last: Start of the last box.
    """

    length: int
    size: int
    stride: int
    step: int
    count: int
    last: int

    @classmethod
    def of(cls, length: int, size: int, stride: int, border: str) -> "_Axis":
        """Return the boxes on an axis of `length` items.

        A box may reach beyond the axis only with border "pad".
        """
        room = length - size
        count = room // stride + 1 if border == "inside" else max(0, -(-room // stride)) + 1
        if border == "pad":
            count = min(count, -(-length // stride))  # a later box would be empty
        last = room if border == "shift" else (count - 1) * stride
        return cls(length, size, stride, 1, count, last)

    @property
    def extent(self) -> int:
        """Number of axis items from a box's first item to its last."""
        return (self.size - 1) * self.step + 1

    @property
    def reach(self) -> int:
        """End of the last box or of the axis, whichever is larger."""
        return max(self.length, self.last + self.extent)

    def starts(self) -> NDArray[np.int64]:
        """Return the start of each box, int64[count]."""
        return np.minimum(np.arange(self.count, dtype=np.int64) * self.stride, self.last)

    def totals(self, weights: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of all boxes' weights at each item, [length]."""
        totals, starts = np.zeros(self.reach, weights.dtype), self.starts()
        for item, weight in enumerate(weights):
            totals[starts + item * self.step] += weight
        return totals[: self.length]


class _Boxes(SceneSequence):
    """Base class of `Patches` and `Windows`.

    Args:
        axes: The boxes, one for each of the leading axes.
        fields: The arrays, one for each field of a scene.
        shapes: Shape of each field of a scene.
        treespec: Nesting of a scene.
    """

    _offset = 0  # rows from the start of a window to its target
    _fills: list[Any] | None = None  # value beyond the end of the array for each field; None without

    def __init__(
        self, axes: tuple[_Axis, ...], fields: list[Any], shapes: list[tuple[int, ...]], treespec: optree.PyTreeSpec
    ) -> None:
        self._axes, self._fields, self._shapes, self._treespec = axes, fields, shapes, treespec
        self._dtypes = [field.dtype for field in fields]
        self._length = math.prod(axis.count for axis in axes)

    def _inside_is_thread_safe(self) -> bool:
        return all(map(is_thread_safe, self._fields))

    def __len__(self) -> int:
        return self._length

    def _identity(self) -> str:
        """Describe the boxes, lengths of axes and names of datasets."""
        axes = [
            f"{axis.size}{f' (each {axis.step})' if axis.step > 1 else ''} every {axis.stride} to {axis.last} of "
            f"{axis.length}"
            for axis in self._axes
        ]
        target = f", target {self._offset}" if self._offset else ""
        target += f", fill {digest(self._fills)}" if self._fills else ""
        datasets = [f" of {identity_of(field)}" for field in self._fields if is_ours(type(field))]  # of HDF5 files
        return f"{type(self).__qualname__} {' x '.join(axes)}{target}{''.join(datasets)}"

    def __getitem__(self, index: Any) -> Any:
        """Return scene `index`, a copy nested like the source.

        Negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            Exception: An array of the source raised it.
        """
        position = position_in(index, self)
        out = [np.empty(shape, dtype) for shape, dtype in zip(self._shapes, self._dtypes, strict=True)]
        self._read(position, out)
        return self._treespec.unflatten([array if array.ndim else array[()] for array in out])

    def read_into(self, index: int, out: Any) -> None:
        """Write scene `index` into `out`; see `SceneSequence`."""
        self._read(position_in(index, self), flatten(out)[0])

    @abstractmethod
    def _read(self, position: int, out: list[NDArray[Any]]) -> None:
        """Write the scene at `position` into an array for each field."""

    @property
    def block_of(self) -> NDArray[np.int64]:
        """The block of each scene, int64[len(self)], for `kerasfeed.BlockShuffled`.

        Blocks follow the chunks, or the shards in zarr, of the array with the most bytes per scene. A block has the
        scenes that start in the same chunk, or in the same few chunks if a chunk is smaller than a scene.

        Raises:
            AttributeError: No array is stored in chunks.
        """
        chunked = [(math.prod(shape) * field.dtype.itemsize, chunks)
                   for shape, field in zip(self._shapes, self._fields, strict=True)
                   if (chunks := _chunks_of(field)) is not None]  # fmt: skip
        if not chunked:
            raise AttributeError(f"{self!r} has no block_of: its arrays are not stored in chunks")
        blocks = np.zeros(1, np.int64)
        for axis, chunk in zip(self._axes, max(chunked)[1], strict=False):
            # A cell is the fewest whole chunks that are at least as large as a box. So many boxes of a block share
            # chunks, and boxes of different blocks share chunks only if the blocks are neighbours.
            cells = axis.starts() // (-(-axis.extent // chunk) * chunk)
            blocks = (blocks[:, None] * (cells[-1] + 1) + cells).ravel()
        return blocks

    def _corner(self, position: int) -> tuple[int, ...]:
        """Return the start of the scene at `position` on each axis."""
        starts = []
        for axis in reversed(self._axes):
            position, rank = divmod(position, axis.count)
            starts.append(min(rank * axis.stride, axis.last))
        return tuple(reversed(starts))

    def assemble(self, outputs: Any, *, weights: Literal["uniform", "gaussian"] = "uniform", out: Any = None) -> Any:
        """Assemble a model's outputs, one for each scene, into one array.

        Overlapping values are averaged. The rows of the first axis that one scene spans, and 1 MiB more, are kept in
        memory. Rows that no later scene contains are written to `out` while outputs arrive.

        Args:
            outputs: The model's output for each scene, in the order of the scenes: an array
                [len(self), *size of a scene, ...], such as `model.predict` returns, or an iterable of batches
                [B, *size of a scene, ...], of any B. The outputs are numbers; further axes are free.
            weights: Weights of overlapping outputs: "uniform" is 1; "gaussian" decreases with the distance from the
                middle of the scene (standard deviation: 1/8 of its size), because models know less near the border.
            out: The array for the result: a writable array or a dataset of an `h5py.File`, [*source, ...]. Chunks of a
                dataset are written once if their rows divide the stride. None makes a new array.

        Returns:
            `out`, or a new array [*source, ...]: the leading axes of the source, then the further axes of an output. It
            has the dtype of the outputs, or float32 or float64 for integers. It is NaN outside all scenes.

        Raises:
            TypeError: Outputs are not arrays of numbers, or `out` cannot be written, or cannot hold their mean.
            ValueError: The outputs are more or fewer than the scenes, or do not have their shape; `out` has another
                shape or is read-only, or `weights` are unknown.

        Examples:
            >>> patches = kf.Patches(np.arange(6.0), (4,), stride=2)
            >>> patches.assemble(np.stack([patches[0], patches[1] + 1]))
            array([0. , 1. , 2.5, 3.5, 5. , 6. ])
        """
        if weights not in ("uniform", "gaussian"):
            raise ValueError(f"weights must be 'uniform' or 'gaussian', received {weights!r}")
        sums: _Sums | None = None
        done = 0
        need = f"assemble needs one output for each of the {len(self):,} scenes, received"
        for batch in _batches(outputs, need, len(self), tuple(axis.size for axis in self._axes)):
            if sums is None:
                sums = _Sums(self._axes, weights, batch[0], out)
            if batch.shape[1:] != sums.box:
                raise ValueError(f"outputs must be of one shape, received {batch.shape[1:]} after {sums.box}")
            if done + len(batch) > len(self):
                received = f"more: {_ORDERED}"
                if isinstance(outputs, list | tuple) and len(outputs) == len(self):
                    received = f"that many arrays, each read as a batch of {len(batch)}: pass np.stack(outputs)"
                raise ValueError(f"{need} {received}")
            for result in batch:
                sums.add(self._corner(done), result)
                done += 1
        if sums is None or done < len(self):
            raise ValueError(f"{need} {done:,}: {_ORDERED}")
        sums.write(self._axes[0].length)
        return sums.out


class Patches(_Boxes):
    """Patches of a large array, such as a CT volume.

    Patch `index` is read on access, and only its values are read. For several volumes, use a `kf.Concat` of the patches
    of each.

    If the array is stored in chunks or shards, as in HDF5 and zarr, the order `kf.BlockShuffled(patches)` reads patches
    of the same chunks together. `kf.Map(patches, function)` changes the patches.

    Args:
        source: An array: a NumPy array, a memory map, a dataset of a `kf.HDF5File`, a zarr array, or any object with
            `shape`, `dtype` and slices. Or several arrays that share the axes of `size`, nested like a scene, such as
            `(file["image"], file["mask"])`.
        size: Number of items of a patch on each of the leading axes, such as `(64, 64, 64)`; a patch contains all items
            of the other axes.
        stride: Items from one patch to the next, one number for all these axes or one for each. None is `size`.
        border: The treatment of the end of an axis if patches do not reach it exactly. "inside" leaves it out. "shift"
            adds a patch that ends there. "pad" adds a patch that reaches beyond it, with `fill` there.
        fill: Value beyond the end, with "pad": a number, or text if the array holds text; or one for each array,
            nested like `source`.

    Attributes:
        size: Number of items of a patch on each of its axes.
        grid: Number of patches on each of its axes.

    Raises:
        TypeError: `source` holds something other than arrays, or a number has the wrong type.
        ValueError: A number is below 1, or missing for an axis; the arrays differ in the axes of `size`; an axis is
            shorter than a patch and `border` is not "pad"; `border` is unknown; an array cannot hold `fill`.

    Examples:
        >>> scan = np.arange(30).reshape(5, 6)
        >>> patches = kf.Patches(scan, (2, 4), border="shift")
        >>> len(patches), patches.grid, patches.corner(5)
        (6, (3, 2), (3, 2))
        >>> patches[5]
        array([[20, 21, 22, 23],
               [26, 27, 28, 29]])
        >>> np.array_equal(patches.assemble(np.stack(list(patches))), scan)
        True
    """

    @with_known_words("kf.Patches")
    def __init__(
        self,
        source: Any,
        size: tuple[int, ...],
        *,
        stride: int | tuple[int, ...] | None = None,
        border: Literal["inside", "shift", "pad"] = "inside",
        fill: Any = 0,
    ) -> None:
        if not isinstance(size, tuple | list) or not size:
            raise TypeError(
                f"size must hold an integer for each axis that is divided, such as (64, 64), received {size!r:.60}"
            )
        if border not in ("inside", "shift", "pad"):
            raise ValueError(f"border must be 'inside', 'shift' or 'pad', received {border!r}")
        strides = size if stride is None else stride if isinstance(stride, tuple | list) else [stride] * len(size)
        if len(strides) != len(size):
            raise ValueError(f"stride must be one integer or {len(size)}, as size has, received {stride!r}")
        fields, treespec = _arrays("kf.Patches", source, len(size))
        axes = []
        for number, length in enumerate(fields[0].shape[: len(size)]):
            items = check_integer(f"size[{number}]", size[number], 1)
            apart = check_integer(f"stride[{number}]", strides[number], 1)
            if length < items and (border != "pad" or not length):
                remedy = "use border='pad' to fill the rest" if length else "it has no items"
                raise ValueError(f"a patch has {items} items on axis {number}, but the source has {length}: {remedy}")
            axes.append(_Axis.of(length, items, apart, border))
        self.size = tuple(axis.size for axis in axes)
        self.grid = tuple(axis.count for axis in axes)
        super().__init__(tuple(axes), fields, [self.size + field.shape[len(size) :] for field in fields], treespec)
        self._fills = _fills(fill, fields, treespec) if border == "pad" else None

    def corner(self, index: int) -> tuple[int, ...]:
        """Return the start of patch `index` on each axis of `size`.

        Raises:
            IndexError: `index` is out of range.

        Examples:
            >>> kf.Patches(np.zeros((4, 8)), (2, 4)).corner(3)
            (2, 4)
        """
        return self._corner(position_in(index, self))

    def _read(self, position: int, out: list[NDArray[Any]]) -> None:
        starts = self._corner(position)
        stops = [min(start + axis.size, axis.length) for start, axis in zip(starts, self._axes, strict=True)]
        where = tuple(map(slice, starts, stops))
        inside = tuple(slice(stop - start) for start, stop in zip(starts, stops, strict=True))
        for number, (field, target) in enumerate(zip(self._fields, out, strict=True)):
            if self._fills is not None:
                target[...] = self._fills[number]
            _read_into(field, where, target[inside])


class Windows(_Boxes):
    """Windows of a time series: `length` rows, every `stride` rows.

    These are the scenes of `keras.utils.timeseries_dataset_from_array`, in the same order, read on access. For several
    series, use a `kf.Concat` of the windows of each.

    Args:
        source: An array [T, ...] whose first axis is time: a NumPy array, a memory map, a dataset of a `kf.HDF5File`, a
            zarr array, a column of a table, or any object with `shape`, `dtype` and slices. Or several arrays of the
            same T, nested like a scene.
        length: Number of rows of a window: `sequence_length` in Keras.
        stride: Rows from the start of a window to the start of the next: `sequence_stride` in Keras.
        sampling_rate: Rows from one row of a window to the next: 1 takes all, 2 every other one.
        targets: An array [N, ...], or several of the same N, nested. A scene is then `(window, target)`. The target of
            a window that starts at row `s` is `targets[s + offset]`. Windows whose target is beyond the end are left
            out.
        offset: See `targets`; at least 0. With `targets=None` the target is row `s + offset` of the source itself:
            `offset=length` is the row after the window. With `targets`, None is 0, as in Keras; without, None means
            that scenes have no target.

    Raises:
        TypeError: `source` or `targets` hold something other than arrays, or a number has the wrong type.
        ValueError: A number is too small; arrays differ in their first axis; there is no whole window, or no target.

    Examples:
        >>> windows = kf.Windows(np.arange(10), 3, sampling_rate=2)
        >>> [window.tolist() for window in windows][:3]
        [[0, 2, 4], [1, 3, 5], [2, 4, 6]]

        The row after the window as its target:

        >>> series = kf.Windows(np.arange(10), 3, stride=4, offset=3)
        >>> [(window.tolist(), int(target)) for window, target in series]
        [([0, 1, 2], 3), ([4, 5, 6], 7)]
    """

    @with_known_words("kf.Windows")
    def __init__(
        self,
        source: Any,
        length: int,
        *,
        stride: int = 1,
        sampling_rate: int = 1,
        targets: Any = None,
        offset: int | None = None,
    ) -> None:
        length, stride = check_integer("length", length, 1), check_integer("stride", stride, 1)
        step = check_integer("sampling_rate", sampling_rate, 1)
        fields, treespec = _arrays("kf.Windows", source, 1)
        self._windowed = len(fields)
        shapes = [(length, *field.shape[1:]) for field in fields]
        rows = fields[0].shape[0]
        starts = rows - (length - 1) * step
        if starts < 1:
            raise ValueError(f"a window spans {(length - 1) * step + 1} rows, but the source has {rows}")
        self._offset = 0 if offset is None else check_integer("offset", offset, 0)
        if targets is not None or offset is not None:
            targeted, nesting = (fields, treespec) if targets is None else _arrays("targets of kf.Windows", targets, 1)
            if (with_target := targeted[0].shape[0] - self._offset) < 1:
                raise ValueError(f"the target of the first window is row {self._offset} of {targeted[0].shape[0]}")
            starts = min(starts, with_target)
            fields, shapes = [*fields, *targeted], [*shapes, *(field.shape[1:] for field in targeted)]
            treespec = optree.treespec_tuple([treespec, nesting])
        count = (starts - 1) // stride + 1
        super().__init__((_Axis(rows, length, stride, step, count, (count - 1) * stride),), fields, shapes, treespec)

    def start(self, index: int) -> int:
        """Return the first row of window `index` in the source.

        Raises:
            IndexError: `index` is out of range.

        Examples:
            >>> kf.Windows(np.zeros(100), 10, stride=5).start(3)
            15
        """
        return self._corner(position_in(index, self))[0]

    def _read(self, position: int, out: list[NDArray[Any]]) -> None:
        (axis,) = self._axes
        start = position * axis.stride
        window = (slice(start, start + axis.extent, axis.step),)
        for number, (field, target) in enumerate(zip(self._fields, out, strict=True)):
            _read_into(field, window if number < self._windowed else (start + self._offset,), target)

    def _offers(self, name: str) -> bool:
        """Whether windows have the optional method `name`; called by `optional_method`."""
        if name == "get_batch":
            sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in zip(self._shapes, self._dtypes, strict=True))
            if sum(sizes) > _JOINED_BYTES:
                return False
            is_short = self._axes[0].size <= _TAKEN_ROWS
            return all(is_number_array(field) or (is_short and _takes_rows(field)) for field in self._fields)
        return name != "out"

    def get_batch(self, indices: NDArray[np.int64]) -> Any:
        """Return the scenes at `indices`, int64[B] in [0, len(self)); see `SceneSequence`.

        Windows have this method only if they are small, and all arrays hold numbers and are in memory, in memory maps
        or, if windows are short, in HDF5.
        """
        (axis,) = self._axes
        starts = np.asarray(indices, np.int64) * axis.stride
        windows = [_windows_at(starts, field, axis) for field in self._fields[: self._windowed]]
        targets = [field[starts + self._offset] for field in self._fields[self._windowed :]]
        return self._treespec.unflatten(windows + targets)


def _takes_rows(array: Any) -> bool:
    """Whether `array` is numeric HDF5, which reads many rows at once."""
    return is_ours(type(array)) and hasattr(type(array), "take") and is_plain_number(array.dtype)


def _windows_at(starts: NDArray[np.int64], array: Any, axis: _Axis) -> NDArray[Any]:
    """Return the windows that begin at `starts`, dtype[len(starts), size, ...]."""
    if not isinstance(array, np.ndarray):
        rows = starts[:, None] + np.arange(axis.size) * axis.step
        return array.take(rows.ravel()).reshape(*rows.shape, *array.shape[1:])  # type: ignore[no-any-return]
    row, *inner = array.strides
    shape = (axis.length - axis.extent + 1, axis.size, *array.shape[1:])
    return as_strided(array, shape, (row, row * axis.step, *inner), writeable=False)[starts]


def is_of_boxes(sequence: Any) -> bool:
    """Whether a sequence is patches or windows, or a view of some."""
    return any(isinstance(part, _Boxes) for part in parts_of(sequence))


def _read_into(array: Any, where: tuple[Any, ...], out: NDArray[Any]) -> None:
    """Read a selection, without a copy for numbers in HDF5."""
    if hasattr(type(array), "read_into") and not out.dtype.hasobject:
        array.read_into(where, out)
        return
    selected = array[where]
    if np.ma.is_masked(selected):
        raise SpecError(
            "an array of the source has masked values in this scene, but a batch holds no masks: pass "
            "array.filled(value), and the mask as another array if the model needs it"
        )
    out[...] = selected


def _arrays(caller: str, source: Any, axes: int) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return a source's arrays and nesting; their leading axes are equal."""
    leaves, treespec = flatten(source)
    paths = field_paths(treespec)
    fields = [_array(caller, path, leaf) for path, leaf in zip(paths, leaves, strict=True)]
    if not fields:
        raise TypeError(f"{caller} needs an array, or a nesting of arrays, received {source!r:.60}")
    for path, field in zip(paths, fields, strict=True):
        if len(field.shape) < axes or field.shape[:axes] != fields[0].shape[:axes]:
            first = "" if field is fields[0] else f", but {paths[0]!r} of shape {fields[0].shape}"
            raise ValueError(
                f"{caller}: all arrays must have the same {axes} leading axes, received {path!r} of shape "
                f"{field.shape}{first}"
            )
    return fields, treespec


def _array(caller: str, path: str, leaf: Any) -> Any:
    """Return a leaf as an array with a NumPy dtype."""
    if hasattr(type(leaf), "to_numpy"):  # a column of a table
        leaf = as_sequence(leaf)
    is_array = not isinstance(leaf, type) and hasattr(leaf, "shape")
    if is_array and not isinstance(getattr(leaf, "dtype", None), np.dtype):  # a tensor
        leaf = np.asarray(leaf)
    if not is_array or not isinstance(leaf.shape, tuple):
        raise TypeError(
            f"{caller} needs arrays with a shape and a dtype, received a {class_name(leaf)} for {path!r}: pass a "
            "dataset of a file, file['image'], or several, {'image': file['image'], 'mask': file['mask']}; "
            "np.asarray(...) of a list, and to_numpy() of a table"
        )
    return leaf


def _chunks_of(array: Any) -> tuple[int, ...] | None:
    chunks = getattr(array, "shards", None) or getattr(array, "chunks", None)  # zarr stores many chunks in a shard
    return chunks if isinstance(chunks, tuple) and all(isinstance(size, int) for size in chunks) else None


def _fills(fill: Any, fields: list[Any], treespec: optree.PyTreeSpec) -> list[Any]:
    """Return the fill of each field, in its dtype."""
    fills, nesting = flatten(fill)
    if nesting.is_leaf():
        fills = fills * len(fields)
    elif nesting != treespec:
        raise ValueError(
            f"fill must be one number, or nested like the source, {structure_text(treespec)}, received "
            f"{structure_text(nesting)}"
        )
    return [_fill(*each) for each in zip(fills, fields, field_paths(treespec), strict=True)]


def _fill(fill: Any, field: Any, path: str) -> Any:
    kind, given = field.dtype.kind, np.asarray(fill).dtype.kind
    # NumPy would drop an imaginary part, and parse a number in a text. Object arrays hold text.
    fits = isinstance(fill, str | bytes) if kind == "O" else kind not in "fc" or given in f"biuf{kind}"
    value = None
    try:
        if fits:
            with np.errstate(invalid="ignore", over="raise"):  # NaN as an integer differs from NaN
                value = np.full((), fill, field.dtype)[()]
            fits = kind not in "biuSU" or value == fill
    except (TypeError, ValueError, ArithmeticError):
        fits = False
    if not fits:
        raise ValueError(f"fill must be a value of dtype {field.dtype}, as {path!r} has, received {fill!r:.60}")
    return value


def _batches(outputs: Any, need: str, boxes: int, sizes: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    wanted = f"[B, {', '.join(map(str, sizes))}, ...]"
    batches: Iterable[Any] = outputs
    if hasattr(outputs, "shape"):
        if tuple(outputs.shape[:1]) != (boxes,):
            raise ValueError(f"{need} shape {tuple(outputs.shape)}: {_ORDERED}")
        batches = [outputs] if isinstance(outputs, np.ndarray) else (outputs[box : box + 1] for box in range(boxes))
    elif isinstance(outputs, dict) or not hasattr(type(outputs), "__iter__"):
        raise TypeError(f"outputs must be an array {wanted} or batches of one, received a {type(outputs).__name__}")
    for number, batch in enumerate(batches):
        if isinstance(batch, list | tuple | dict):
            raise TypeError(
                f"batch {number} of the outputs must be one array {wanted}, received a {type(batch).__name__}: "
                "assemble each output of a model by itself, and pass the model's output for a batch, not the batch"
            )
        array = np.asarray(batch)
        if array.ndim <= len(sizes) or array.shape[1 : 1 + len(sizes)] != sizes:
            raise ValueError(f"outputs must be of shape {wanted}, received {array.shape} in batch {number}")
        if len(array):
            yield array


class _Sums:
    """Weighted sums of unfinished rows; finished rows are written to `out`.

    Args:
        axes: The boxes.
        weights: Weights of overlapping outputs.
        first: The result for the first box; all results have its shape and dtype.
        out: The array for the result, [*lengths, ...]; None makes one.
    """

    def __init__(self, axes: tuple[_Axis, ...], weights: str, first: NDArray[Any], out: Any) -> None:
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
        """Add the result for the box at `starts`.

        The first start must not decrease between calls.
        """
        if starts[0] + self._axes[0].extent > self._start + len(self._rows):
            self.write(starts[0])
        first, *others = starts
        where = zip(self._axes, (first - self._start, *others), strict=True)
        self._rows[tuple(slice(start, start + axis.extent, axis.step) for axis, start in where)] += (
            self._weights * result
        )

    def write(self, stop: int) -> None:
        """Write the means of all rows before `stop`.

        Nothing more may be added to them.
        """
        while self._start < stop:
            count = min(len(self._rows), stop - self._start)
            end = self._start + count
            means = self._rows[(slice(count), *(slice(axis.length) for axis in self._axes[1:]))]
            with np.errstate(invalid="ignore"):  # outside all boxes, 0 / 0 is NaN
                means = means / self._totals[0][self._start : end]
                for totals in self._totals[1:]:
                    means /= totals
            self.out[self._start : end] = means
            self._rows[:-count] = self._rows[count:]
            self._rows[-count:] = 0
            self._start = end


def _line(size: int, weights: str) -> NDArray[Any]:
    """Return weights along one axis of a box, float64[size].

    The Gaussian's standard deviation is 1/8 of the box.
    """
    if weights == "uniform":
        return np.ones(size)
    line: NDArray[Any] = np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / (size / 8)) ** 2)
    return line


def _dtype_of_sums(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype for sums of outputs: at least float32."""
    sums = np.result_type(dtype, np.float32) if dtype.kind not in "OSUmM" and dtype.names is None else dtype
    if sums.kind not in "fc":
        raise TypeError(f"outputs must be numbers, so that they have a mean, received dtype {dtype}")
    return sums


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
        raise ValueError("out is read-only: pass a writable array")
    return out
