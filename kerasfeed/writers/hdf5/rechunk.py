"""Rewrite datasets of an HDF5 file into chunks that suit the reading of whole scenes.

Invariant: `out` is either what it was or a complete, compared copy. Values, dtypes, fill values, attributes and maximal
shapes are kept; storage alone changes. Every link, group, attribute and other dataset is what it was: hard links to one
object stay hard links to one object, references and dimension scales refer to the copies. What cannot be kept is
refused by name. Memory is bounded by 256 MiB or a few chunks, whichever is more.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kerasfeed.readers.hdf5.describe import entries
from kerasfeed.readers.hdf5.error_messages import listing, stored_name
from kerasfeed.util.atomic_write import appearing
from kerasfeed.util.error_text import message_of, reworded
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import check_integer, local_path
from kerasfeed.writers.hdf5.columns import (
    CHUNK_LIMIT,
    LEAST_CHUNK_BYTES,
    Filters,
    copied_rows,
    filters_for,
    links_in_utf8,
)
from kerasfeed.writers.hdf5.sink import Sink, interruptible

_MEMORY = 1 << 28
# Written by HDF5 as dimension scales are attached to datasets.
_SCALE_LISTS = ("DIMENSION_LIST", "REFERENCE_LIST")
Key = tuple[int, int]


@dataclass(frozen=True)
class RechunkedDataset:
    """What became of one dataset.

    Attributes:
        name: Its path in the file.
        chunks_before: Shape of a chunk before; None where storage was contiguous.
        chunks: Shape of a chunk now.
        count: Number of chunks now.
        bytes_before: Stored bytes before, compressed.
        bytes_after: Stored bytes now, compressed.
    """

    name: str
    chunks_before: tuple[int, ...] | None
    chunks: tuple[int, ...]
    count: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class RechunkReport:
    """What `rechunk` did; `str` of it has one line for the file and one for each dataset.

    Attributes:
        out: The file written.
        datasets: The datasets rewritten.
        bytes_before: Size of the file read, bytes.
        bytes_after: Size of the file written, bytes.
        seconds: Wall time with the comparison, s.
    """

    out: str
    datasets: tuple[RechunkedDataset, ...]
    bytes_before: int
    bytes_after: int
    seconds: float

    def __str__(self) -> str:
        lines = [f"{self.out}: {self.bytes_before:,} -> {self.bytes_after:,} bytes in {self.seconds:.1f} s, compared"]
        for item in self.datasets:
            before = "contiguous" if item.chunks_before is None else f"chunks {item.chunks_before}"
            lines.append(
                f"  {item.name}: {before} -> chunks {item.chunks} ({item.count:,} of them), {item.bytes_before:,} -> "
                f"{item.bytes_after:,} bytes"
            )
        return "\n".join(lines)


def rechunk(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    name: str | Sequence[str] | None = None,
    scenes_per_chunk: int | None = None,
    compression: str | int | None = "gzip",
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> RechunkReport:
    """Copy an HDF5 file, with datasets rewritten into chunks of whole scenes: (scenes_per_chunk, *scene shape).

    Each scene (the row of one index) then lies in a single chunk. Everything else in the file is copied unchanged. The
    copy is compared with the original before it gets its name.

    Args:
        path: The file to read.
        out: The file to write; may be `path` itself with `overwrite=True`.
        name: The dataset to rewrite, or several; None for all that have an axis of scenes.
        scenes_per_chunk: Scenes in a chunk, at least 1. None is for reading in any order: one scene, or as many as
            take 16 KiB, in each dataset as its own scenes want. A chunk has at most as many scenes as the dataset,
            unless the dataset can grow.
        compression: "gzip" (level 4, after byte shuffling), an integer from 0 to 9 (gzip of that level), "lzf", None
            for no compression; or "blosc", "zstd" or "lz4", if `hdf5plugin` is installed.
        overwrite: Whether `out` may be replaced.
        progress: Whether to show a progress bar.

    Returns:
        A [RechunkReport][kerasfeed.writers.hdf5.rechunk.RechunkReport].

    Raises:
        FileExistsError: `out` exists and `overwrite` is False.
        FileNotFoundError: There is no file `path`, or no folder for `out`.
        KeyError: There is no such dataset; the message lists those that exist.
        ValueError: A dataset has no axis of scenes, a chunk would take 4 GiB or more, the compression is unknown, or
            the file holds something that cannot be copied.
        OSError: Reading, writing or comparing failed (a full disk, a damaged file); `out` has not changed.

    Examples:
        >>> import h5py
        >>> with h5py.File("rooms.h5", "w") as file:
        ...     file["points"] = np.zeros((64, 128, 3), np.float32)
        >>> report = kf.rechunk("rooms.h5", "by-scene.h5", progress=False)
        >>> report.datasets[0].chunks
        (11, 128, 3)
    """
    begin = time.perf_counter()
    source = local_path("path", path, remedy="copy it to a disk first").absolute()
    target = local_path("out", out).absolute()
    filters = filters_for(compression)
    if scenes_per_chunk is not None:
        scenes_per_chunk = check_integer("scenes_per_chunk", scenes_per_chunk, 1)
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {str(source)!r} to rechunk")

    def job(check: Callable[[], None]) -> tuple[RechunkedDataset, ...]:
        with h5py.File(source, "r", rdcc_nbytes=_MEMORY // 2, rdcc_nslots=10_007) as file:
            moves = [_Move(file[found], scenes_per_chunk, filters) for found in _names(file, str(source), name)]
            total = sum(2 * move.nbytes for move in moves)
            with progress_bar("rechunking", total, progress, unit="bytes") as advance:
                _write(file, part, fd, moves, check, advance)
                os.fsync(fd)
                return _compare(part, moves, check, advance)

    with appearing(target, overwrite=overwrite) as (part, fd):
        try:
            datasets = interruptible(job)
        except OSError as error:
            message = (
                f"rechunking {str(source)!r} into {str(target)!r} failed and left nothing behind: {message_of(error)}"
            )
            raise reworded(error, message) from error
        bytes_before, bytes_after = source.stat().st_size, os.fstat(fd).st_size
    return RechunkReport(str(target), datasets, bytes_before, bytes_after, time.perf_counter() - begin)


def _names(file: h5py.File, path: str, name: str | Sequence[str] | None) -> list[str]:
    """Names of the datasets to rewrite, each object once."""
    datasets = [entry for entry in entries(file, path) if entry.is_dataset]
    if name is None:
        found: list[Any] = [stored_name(entry.path) for entry in datasets if not entry.target]
        return [each for each in found if _why_not(file[each]) is None]
    wanted: dict[Key, str] = {}
    for each in [name] if isinstance(name, str) else name:
        item = file.get(each)
        if not isinstance(item, h5py.Dataset):
            kind = "a group" if isinstance(item, h5py.Group) else "not in the file"
            raise KeyError(
                f"{str(each)!r} is {kind}; {path!r} holds the datasets {listing([each.path for each in datasets])}"
            )
        if _key_of(item)[0] != _key_of(file)[0]:
            raise ValueError(f"{each!r} of {path!r} is a link to {item.file.filename!r}: rechunk that file")
        if why_not := _why_not(item):
            raise ValueError(f"{each!r} of {path!r} {why_not}")
        wanted.setdefault(_key_of(item), each)
    if not wanted:
        raise ValueError("name is an empty list: name a dataset, or pass None for all")
    return list(wanted.values())


def _why_not(dataset: h5py.Dataset) -> str | None:
    if not dataset.shape:
        return "is a single value: it has no axis of scenes to cut into chunks"
    if 0 in dataset.maxshape:
        return f"is empty for ever (shape {dataset.shape}): there is nothing to cut into chunks"
    if _holds_references(dataset.dtype):
        return "holds references to objects, which no reader wants in chunks; it is copied as it is"
    return None


class _Move:
    """One dataset on its way into other chunks."""

    def __init__(self, source: h5py.Dataset, scenes_per_chunk: int | None, filters: Filters) -> None:
        self.source = source
        self.name: str = source.name
        self.digests: list[tuple[range, str]] = []
        self._filters = filters
        row = max(1, math.prod(source.shape[1:])) * source.dtype.itemsize
        self.nbytes = source.shape[0] * row
        if scenes_per_chunk is None:
            scenes_per_chunk = -(-LEAST_CHUNK_BYTES // row)
        grows = source.maxshape[0] is None or source.maxshape[0] >= scenes_per_chunk
        rows = scenes_per_chunk if grows else max(1, source.shape[0])
        self.chunks = (rows, *(max(1, size) for size in source.shape[1:]))
        if rows * row > CHUNK_LIMIT:
            raise ValueError(
                f"a chunk of {rows:,} scenes of {self.name!r} would take {rows * row:,} bytes, and HDF5 allows "
                f"{CHUNK_LIMIT:,}. "
                + (f"Use scenes_per_chunk={CHUNK_LIMIT // row} or less" if row <= CHUNK_LIMIT else "One scene is more")
            )
        # Whole chunks of both sides at a time where they fit, so that each is decoded and encoded once.
        both = math.lcm(rows, source.chunks[0]) if source.chunks else rows
        unit = both if both * row <= _MEMORY // 2 else rows
        self.step = unit * max(1, _MEMORY // 8 // (unit * row))

    def make(self, group: h5py.Group, name: bytes) -> h5py.Dataset:
        """Create the dataset, without values and attributes."""
        source, old = self.source, self.source.id.get_create_plist()
        new = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        new.set_chunk(self.chunks)
        new.set_fill_time(old.get_fill_time())
        new.set_obj_track_times(old.get_obj_track_times())
        new.set_attr_creation_order(old.get_attr_creation_order())
        if old.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            new.set_fill_value(np.array(source.fillvalue, source.dtype))
        self._filters.add_to(new, source.dtype)
        if old.get_filter_by_id(h5py.h5z.FILTER_FLETCHER32) is not None:
            new.set_fletcher32()
        space = source.id.get_space()
        return h5py.Dataset(h5py.h5d.create(group.id, name, source.id.get_type(), space, new, links_in_utf8()))


def _write(
    file: h5py.File, part: Path, fd: int, moves: list[_Move], check: Callable[[], None], advance: Callable[[int], None]
) -> None:
    sink = Sink(fd)
    tracked = bool(file["/"].id.get_create_plist().get_link_creation_order())
    block = file.userblock_size
    with h5py.File(sink, "w", userblock_size=block or None, track_order=tracked, libver="v110") as made:
        _TreeCopy(file, made, {_key_of(move.source): move.make for move in moves}).run()
        for move in moves:
            for places, rows in copied_rows(move.source, made[move.name], 0, move.step):
                check()
                sink.check()
                move.digests.append((places, digest(rows)))
                advance(len(places) * move.nbytes // move.source.shape[0])
    sink.check()
    if block:
        with Path(file.filename).open("rb") as original:
            os.pwrite(fd, original.read(block), 0)


def _compare(
    part: Path, moves: list[_Move], check: Callable[[], None], advance: Callable[[int], None]
) -> tuple[RechunkedDataset, ...]:
    with h5py.File(part, "r") as made:
        done = []
        for move in moves:
            old, new = move.source, made[move.name]
            if (new.shape, new.maxshape, new.dtype) != (old.shape, old.maxshape, old.dtype):
                raise OSError(f"comparison failed: {move.name!r} became {new}")
            for places, written in move.digests:
                check()
                if digest(new[places.start : places.stop]) != written:
                    raise OSError(
                        f"comparison failed: rows {places.start} to {places.stop} of {move.name!r} are not what was "
                        "written"
                    )
                advance(len(places) * move.nbytes // old.shape[0])
            sizes = old.id.get_storage_size(), new.id.get_storage_size()
            count = math.prod(-(-size // chunk) for size, chunk in zip(old.shape, move.chunks, strict=True))
            done.append(RechunkedDataset(move.name, old.chunks, move.chunks, count, *sizes))
        return tuple(done)


def _key_of(item: Any) -> Key:
    """What identifies an object of an open file, by whichever name it was reached."""
    info = h5py.h5o.get_info(item.id)
    return int(info.fileno), int(info.addr)


class _TreeCopy:
    """Copies `source` into the empty file `target`."""

    def __init__(
        self, source: h5py.File, target: h5py.File, remake: dict[Key, Callable[[h5py.Group, bytes], h5py.Dataset]]
    ) -> None:
        """Prepare.

        Args:
            source: The file to copy.
            target: An empty file, open for writing.
            remake: For each dataset that is made anew, what makes it, without attributes, in a group under a name.
        """
        self._source = source
        self._target = target
        self._remake = remake
        self._names: dict[Key, str] = {}  # where the copy of an object first stands
        self._lcpl = links_in_utf8()

    def run(self) -> None:
        """Copy everything.

        Raises:
            ValueError: The file holds something that cannot be kept; the message names it.
        """
        source, target = self._source["/"], self._target["/"]
        self._names[_key_of(source)] = "/"
        self._copy_attributes(source, target)
        groups = [(source, target)]
        while groups:
            self._copy_links(*groups.pop(), groups)
        for name in list(self._names.values()):
            self._rewrite_references(self._target[name], name)
        for name in self._names.values():  # not before all are mended: attaching writes to both sides
            self._attach_scales(self._source[name], self._target[name])

    def _copy_links(self, source: h5py.Group, target: h5py.Group, groups: list[tuple[h5py.Group, h5py.Group]]) -> None:
        for name in source:
            try:
                link = source.get(name, getlink=True)
            except TypeError as error:
                raise ValueError(
                    f"the link {name!r} of {source.name!r} cannot be copied: {message_of(error)}"
                ) from None
            if not isinstance(link, h5py.HardLink):
                target[name] = link
                continue
            item = source[name]
            key = _key_of(item)
            if key in self._names:
                target[name] = self._target[self._names[key]]
                continue
            self._names[key] = f"{target.name.rstrip('/')}/{name}"
            raw = name.encode("utf-8", "surrogateescape")
            if isinstance(item, h5py.Group):
                made = h5py.Group(h5py.h5g.create(target.id, raw, self._lcpl, _properties(item)))
                self._copy_attributes(item, made)
                groups.append((item, made))
            elif key in self._remake:
                self._copy_attributes(item, self._remake[key](target, raw))
            else:
                h5py.h5o.copy(source.id, raw, target.id, raw, lcpl=self._lcpl)

    def _copy_attributes(self, source: Any, target: Any) -> None:
        for name in source.attrs:
            raw = name.encode("utf-8", "surrogateescape")
            attribute = h5py.h5a.open(source.id, raw)
            if name in _SCALE_LISTS or _holds_references(attribute.dtype):
                continue  # when all objects have their copies
            try:
                made = h5py.h5a.create(target.id, raw, attribute.get_type(), attribute.get_space())
                if attribute.get_space().get_simple_extent_type() != h5py.h5s.NULL:
                    value = np.empty(attribute.shape, attribute.dtype)
                    attribute.read(value)
                    made.write(value)
            except (TypeError, OSError, ValueError) as error:
                raise ValueError(
                    f"the attribute {name!r} of {source.name!r} cannot be copied: {message_of(error)}"
                ) from error

    def _rewrite_references(self, copy: Any, name: str) -> None:
        original = self._source[name]
        for attribute_name in original.attrs:
            if attribute_name in _SCALE_LISTS:
                continue
            dtype = original.attrs.get_id(attribute_name).dtype
            if _holds_references(dtype):
                where = f"the attribute {attribute_name!r} of {name!r}"
                value = self._translated(original.attrs[attribute_name], dtype, where)
                copy.attrs.create(attribute_name, value, dtype=dtype)
        if not isinstance(original, h5py.Dataset):
            return
        if _holds_references(original.dtype):
            copy[...] = self._translated(original[...], original.dtype, f"the dataset {name!r}")
        for attribute_name in _SCALE_LISTS:
            if attribute_name in copy.attrs and attribute_name in original.attrs:
                del copy.attrs[attribute_name]  # it refers to the original file's objects

    def _attach_scales(self, original: Any, copy: Any) -> None:
        if not isinstance(original, h5py.Dataset) or "DIMENSION_LIST" not in original.attrs:
            return
        for axis, dimension in enumerate(original.dims):
            for scale in dimension.values():
                copy.dims[axis].attach_scale(self._target[self._names[_key_of(scale)]])

    def _translated(self, value: Any, dtype: np.dtype[Any], where: str) -> Any:
        if h5py.check_ref_dtype(dtype) is not h5py.Reference:
            raise ValueError(
                f"{where} holds references to regions, or references within other values, which cannot be copied to "
                "another file; remove it from a copy of the file first"
            )
        references = np.empty(np.shape(value), dtype)
        for place, reference in np.ndenumerate(np.asarray(value, object)):
            if not reference:
                references[place] = h5py.Reference()
                continue
            name = self._names.get(_key_of(self._source[reference]))
            if name is None:
                raise ValueError(f"{where} refers to an object that no link leads to, which cannot be copied")
            references[place] = self._target[name].ref
        return references if references.shape else references[()]


def _properties(group: h5py.Group) -> Any:
    # Not the group's own list: of a group in the newer format it names the heap of that very group.
    old, new = group.id.get_create_plist(), h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    new.set_link_creation_order(old.get_link_creation_order())
    new.set_attr_creation_order(old.get_attr_creation_order())
    return new


def _holds_references(dtype: np.dtype[Any]) -> bool:
    """Whether values of `dtype` refer, somewhere within, to objects of their file."""
    if h5py.check_ref_dtype(dtype) is not None:
        return True
    inner = h5py.check_vlen_dtype(dtype)
    if isinstance(inner, np.dtype):
        return _holds_references(inner)
    if dtype.subdtype is not None:
        return _holds_references(dtype.base)
    return any(_holds_references(dtype[name]) for name in dtype.names or ())
