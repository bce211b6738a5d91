"""`Patches` and `Windows`: boxes of arrays that are too large for a scene, as scenes.

Invariant: which box a scene is follows from its index by arithmetic alone, and only what it holds is read.
"""

import dataclasses
import math
from abc import abstractmethod
from typing import Any, Literal

import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.grid import BORDERS, Axis, assembled, blocks, corner
from kerasfeed.sequences.indexing import place_in
from kerasfeed.sequences.view_base import is_thread_safe, parts_of
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.util.frames import as_sequence
from kerasfeed.util.optional_methods import name_of
from kerasfeed.util.validate import check_integer


class _Boxes(SceneSequence):
    """What patches and windows do alike.

    Args:
        axes: The boxes, one for each of the leading axes.
        fields: The arrays, one for each field of a scene.
        shapes: Shape of each field of a scene.
        treespec: Nesting of a scene.
    """

    _offset = 0  # rows from the start of a window to its target

    def __init__(
        self, axes: tuple[Axis, ...], fields: list[Any], shapes: list[tuple[int, ...]], treespec: optree.PyTreeSpec
    ) -> None:
        self._axes, self._fields, self._shapes, self._treespec = axes, fields, shapes, treespec
        self._length = math.prod(axis.count for axis in axes)

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may read scenes at once: they may read all of the arrays."""
        return all(map(is_thread_safe, self._fields))

    def __len__(self) -> int:
        return self._length

    def _identity(self) -> str:
        """Which boxes of how long axes, for a feed's saved state; what the arrays hold is no part of it."""
        axes = [
            f"{axis.size}{f' (each {axis.step})' if axis.step > 1 else ''} every {axis.stride} to {axis.last} of "
            f"{axis.length}"
            for axis in self._axes
        ]
        return f"{type(self).__qualname__} {' x '.join(axes)}{f', target {self._offset}' if self._offset else ''}"

    def __getitem__(self, index: Any) -> Any:
        """Scene `index`, a copy nested as the source; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            Exception: What an array of the source raises as it is read.
        """
        place = place_in(index, self._length, self)
        out = [np.empty(shape, field.dtype) for shape, field in zip(self._shapes, self._fields, strict=True)]
        self._read(place, out)
        return self._treespec.unflatten([array if array.ndim else array[()] for array in out])

    def read_into(self, index: int, out: Any) -> None:
        """Write scene `index` into `out`; see `SceneSequence`."""
        self._read(place_in(index, self._length, self), flatten(out)[0])

    @abstractmethod
    def _read(self, place: int, out: list[NDArray[Any]]) -> None:
        """Write the scene at `place`, in [0, len(self)), into an array for each field."""

    @property
    def block_of(self) -> NDArray[np.int64]:
        """The block of each scene, int64[len(self)], for `kerasfeed.BlockShuffled`: scenes of one block share chunks.

        It is made of the chunks of the largest array, where scenes start in the same chunk, or in the same few if one
        is smaller than a scene. An array without chunks has no blocks.
        """
        chunked = [(math.prod(shape) * field.dtype.itemsize, chunks)
                   for shape, field in zip(self._shapes, self._fields, strict=True)
                   if (chunks := _chunks_of(field)) is not None]  # fmt: skip
        if not chunked:
            raise AttributeError(f"{self!r} has no block_of: its arrays are not stored in chunks")
        return blocks(self._axes, max(chunked)[1][: len(self._axes)])

    def assemble(self, outputs: Any, *, weights: Literal["uniform", "gaussian"] = "uniform", out: Any = None) -> Any:
        """Put outputs of a model, one for each scene, together to one array; where they overlap, to their mean.

        Memory is taken for the rows of the first axis that one scene spans, not for all of them: rows that no later
        scene holds are written to `out` as the outputs come.

        Args:
            outputs: What a model makes of each scene, in the order of the scenes: an array
                [len(self), *size of a scene, ...], such as `model.predict` returns, or an iterable of batches
                [B, *size of a scene, ...], of any B. Numbers; the axes behind those of the scene are yours.
            weights: How outputs count where they overlap: "uniform" all alike, "gaussian" less the further they are
                from the middle of their scene (a standard deviation of 1/8 of its size), where models know less.
            out: Where the result goes: a writable array or a dataset of an `h5py.File`, [*source, ...]. Chunks of a
                dataset are written once if their rows divide the stride. None makes a new array.

        Returns:
            `out`, or a new array [*source, ...] of the leading axes of the source, then those of an output behind its
            scene. Of the dtype of the outputs, for integers float32 or float64. NaN where no scene is.

        Raises:
            TypeError: Outputs are not arrays of numbers, or `out` cannot be written, or cannot hold their mean.
            ValueError: The outputs are more or fewer than the scenes, or do not have their shape; `out` has another
                shape, or `weights` are unknown.

        Examples:
            >>> patches = kf.Patches(np.arange(6.0), (4,), stride=2)
            >>> patches.assemble(np.stack([patches[0], patches[1] + 1]))
            array([0. , 1. , 2.5, 3.5, 5. , 6. ])
        """
        return assembled(self._axes, outputs, weights, out)


class Patches(_Boxes):
    """Patches of an array that is too large for a scene, such as a CT volume, a satellite image or a simulation.

    Patch `index` is read when it is wanted, and no more than it holds. Several volumes are a `kf.Concat` of the patches
    of each.

    `kf.BlockShuffled(patches)` visits them chunk by chunk where the array is stored in chunks, as HDF5 and zarr do.
    `kf.Map(patches, function)` changes them.

    Args:
        source: An array: of NumPy, a dataset of a `kf.HDF5File`, a memory map, of zarr, or another with `shape`,
            `dtype` and slices. Or several, nested as a scene shall be, that share the axes of `size`, such as
            `(file["image"], file["mask"])`.
        size: Items of a patch on each of the leading axes, such as `(64, 64, 64)`; patches are whole on the others.
        stride: Items from one patch to the next, one number for all these axes or one for each. None is `size`.
        border: What becomes of the end of an axis that the stride does not meet. "inside": it is left out, for patches
            are whole. "shift": one more patch is moved in, so that it ends there. "pad": one more patch reaches beyond
            it, and holds `fill` there.
        fill: Value beyond the end, with "pad": a number, or text where the array holds text; or one for each array,
            nested as `source`.

    Attributes:
        size: Items of a patch on each of its axes.
        grid: Number of patches on each of its axes.

    Raises:
        TypeError: `source` holds something else than arrays, or a number is none.
        ValueError: A number is below 1, or there is none for an axis; the arrays differ in the axes of `size`; an axis
            is shorter than a patch, but for "pad"; `border` is unknown; an array cannot hold `fill`.

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
        if border not in BORDERS:
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
                remedy = "border='pad' fills what is missing" if length else "it holds nothing"
                raise ValueError(f"a patch has {items} items on axis {number}, and the source {length}: {remedy}")
            axes.append(Axis.of(length, items, apart, border=border))
        self.size = tuple(axis.size for axis in axes)
        self.grid = tuple(axis.count for axis in axes)
        super().__init__(tuple(axes), fields, [self.size + field.shape[len(size) :] for field in fields], treespec)
        self._fills = _fills(fill, fields, treespec) if border == "pad" else None

    def corner(self, index: int) -> tuple[int, ...]:
        """Where patch `index` begins in the source, one integer for each axis of `size`.

        Raises:
            IndexError: `index` is out of range.

        Examples:
            >>> kf.Patches(np.zeros((4, 8)), (2, 4)).corner(3)
            (2, 4)
        """
        return corner(self._axes, place_in(index, len(self), self))

    def _read(self, place: int, out: list[NDArray[Any]]) -> None:
        starts = corner(self._axes, place)
        stops = [min(start + axis.size, axis.length) for start, axis in zip(starts, self._axes, strict=True)]
        where = tuple(map(slice, starts, stops))
        held = tuple(slice(stop - start) for start, stop in zip(starts, stops, strict=True))
        for number, (field, target) in enumerate(zip(self._fields, out, strict=True)):
            if self._fills is not None:
                target[...] = self._fills[number]
            _read_into(field, where, target[held])


class Windows(_Boxes):
    """Windows of a time series: `length` rows each, one window every `stride` rows.

    The scenes of `keras.utils.timeseries_dataset_from_array` in the same order, read when they are wanted. Several
    series are a `kf.Concat` of the windows of each.

    Args:
        source: An array [T, ...] whose first axis is time: of NumPy, a dataset of a `kf.HDF5File`, a memory map, of
            zarr, a column of a table, or another with `shape`, `dtype` and slices. Or several of the same T, nested as
            a scene shall be.
        length: Rows of a window: `sequence_length` in Keras.
        stride: Rows from the start of a window to that of the next: `sequence_stride` in Keras.
        sampling_rate: Rows from one row of a window to the next: 1 takes all, 2 every other one.
        targets: An array [N, ...], or several of the same N, nested. A scene is then `(window, target)`. The target of
            a window that starts at row `s` is `targets[s + offset]`, and windows whose target is beyond the end are
            left out.
        offset: See `targets`; at least 0. With `targets=None` the target is row `s + offset` of the source itself:
            `offset=length` is the row after the window. None is 0 where there are targets, as in Keras, and else no
            target.

    Raises:
        TypeError: `source` or `targets` hold something else than arrays, or a number is none.
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
            raise ValueError(f"a window spans {(length - 1) * step + 1} rows, and the source has {rows}")
        self._offset = 0 if offset is None else check_integer("offset", offset, 0)
        if targets is not None or offset is not None:
            targeted, nesting = (fields, treespec) if targets is None else _arrays("targets of kf.Windows", targets, 1)
            if (with_target := targeted[0].shape[0] - self._offset) < 1:
                raise ValueError(f"the target of the first window is row {self._offset} of {targeted[0].shape[0]}")
            starts = min(starts, with_target)
            fields, shapes = [*fields, *targeted], [*shapes, *(field.shape[1:] for field in targeted)]
            treespec = optree.treespec_tuple([treespec, nesting])
        axis = Axis.of(starts + (length - 1) * step, length, stride, step=step)
        super().__init__((dataclasses.replace(axis, length=rows),), fields, shapes, treespec)

    def start(self, index: int) -> int:
        """The row of the source with which window `index` begins.

        Raises:
            IndexError: `index` is out of range.

        Examples:
            >>> kf.Windows(np.zeros(100), 10, stride=5).start(3)
            15
        """
        return corner(self._axes, place_in(index, len(self), self))[0]

    def _read(self, place: int, out: list[NDArray[Any]]) -> None:
        (axis,) = self._axes
        start = place * axis.stride
        window = (slice(start, start + axis.extent, axis.step),)
        for number, (field, target) in enumerate(zip(self._fields, out, strict=True)):
            _read_into(field, window if number < self._windowed else (start + self._offset,), target)


def is_of_boxes(sequence: Any) -> bool:
    """Whether a sequence is patches or windows, or a view that holds some."""
    return any(isinstance(part, _Boxes) for part in parts_of(sequence))


def _read_into(array: Any, where: tuple[Any, ...], out: NDArray[Any]) -> None:
    """Read a selection, numbers of HDF5 without a copy."""
    if hasattr(type(array), "read_into") and not out.dtype.hasobject:
        array.read_into(where, out)
        return
    selected = array[where]
    if np.ma.is_masked(selected):
        raise SpecError(
            "an array of the source has masked values in this scene, and a batch holds no masks: pass "
            "array.filled(value), and the mask as an array of its own if the model needs it"
        )
    out[...] = selected


def _arrays(who: str, source: Any, axes: int) -> tuple[list[Any], optree.PyTreeSpec]:
    """The arrays of a source, which share that many leading axes, and their nesting."""
    leaves, treespec = flatten(source)
    paths = field_paths(treespec)
    fields = [_array(who, path, leaf) for path, leaf in zip(paths, leaves, strict=True)]
    if not fields:
        raise TypeError(f"{who} needs an array, or a nesting of arrays, received {source!r:.60}")
    for path, field in zip(paths, fields, strict=True):
        if len(field.shape) < axes or field.shape[:axes] != fields[0].shape[:axes]:
            first = "" if field is fields[0] else f", and {paths[0]!r} {fields[0].shape}"
            raise ValueError(
                f"{who}: all arrays must have the same {axes} leading axes, received {path!r} of shape "
                f"{field.shape}{first}"
            )
    return fields, treespec


def _array(who: str, path: str, leaf: Any) -> Any:
    """What is given for an array, as one that has a NumPy dtype and is indexed by position."""
    if hasattr(type(leaf), "to_numpy"):  # a column of a table
        leaf = as_sequence(leaf)
    is_array = not isinstance(leaf, type) and hasattr(leaf, "shape")
    if is_array and not isinstance(getattr(leaf, "dtype", None), np.dtype):  # a tensor
        leaf = np.asarray(leaf)
    if not is_array or not isinstance(leaf.shape, tuple):
        raise TypeError(
            f"{who} needs arrays with a shape and a dtype, received a {name_of(leaf)} for {path!r}: pass a dataset of "
            "a file, file['image'], or several, {'image': file['image'], 'mask': file['mask']}; np.asarray(...) of a "
            "list, and to_numpy() of a table"
        )
    return leaf


def _chunks_of(array: Any) -> tuple[int, ...] | None:
    chunks = getattr(array, "chunks", None)
    return chunks if isinstance(chunks, tuple) and all(isinstance(size, int) for size in chunks) else None


def _fills(fill: Any, fields: list[Any], treespec: optree.PyTreeSpec) -> list[Any]:
    """The fill of each field, of its dtype."""
    fills, nesting = flatten(fill)
    if nesting.is_leaf():
        fills = fills * len(fields)
    elif nesting != treespec:
        raise ValueError(
            f"fill must be one number, or nested as the source, {structure_text(treespec)}, received "
            f"{structure_text(nesting)}"
        )
    return [_fill(*each) for each in zip(fills, fields, field_paths(treespec), strict=True)]


def _fill(fill: Any, field: Any, path: str) -> Any:
    try:
        with np.errstate(invalid="ignore", over="raise"):  # NaN as an integer then differs
            value = np.full((), fill, field.dtype)[()]
        kind = field.dtype.kind  # objects are text
        fits = isinstance(fill, str | bytes) if kind == "O" else kind not in "biuSU" or value == fill
    except (TypeError, ValueError, ArithmeticError):
        fits = False
    if not fits:
        raise ValueError(f"fill must be a value of dtype {field.dtype}, as {path!r} has, received {fill!r:.60}")
    return value
