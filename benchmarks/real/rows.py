"""The rows of the table: workloads, and their readers.

Invariant: pure values; importing this module loads no framework.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.catalog import Case
from benchmarks.peers.job import stack
from benchmarks.real import scenes

_PROCESSES = ("torch", "grain_processes", "keras_enqueuer_processes")
_THREADS = ("grain_threads", "spdl", "keras_enqueuer_threads")
_ALL = ("plain", *_PROCESSES, *_THREADS)
_INLINE = "kerasfeed_inline"
_OURS = ("kerasfeed_auto", "kerasfeed_process", "kerasfeed_thread")


@dataclass(frozen=True)
class Row:
    """A workload.

    Attributes:
        name: Key on the command line.
        title: Words for the table.
        make: Makes the scenes that peers read.
        tiny: Its arguments for tests, which make only a few.
        ours: Name of the function of `benchmarks.real.ours` from these scenes to kerasfeed's.
        peers: Keys of `benchmarks.catalog.PEERS`.
        batch_size: Scenes per batch (packed rows, if `scenes_in` is given), which divides an epoch.
        workers: Concurrent reads of all readers that have workers.
        ours_by: The set-ups of kerasfeed.
        collate: From a list of scenes to a batch.
        torch_collate: The same for PyTorch.
        scenes_in: From a batch to its number of scenes, if that varies.
        for_fit: Whether `model.fit` consumes the batches.
    """

    name: str
    title: str
    make: Callable[..., Any]
    tiny: dict[str, Any]
    ours: str
    peers: tuple[str, ...]
    batch_size: int = 32
    workers: int = 2
    ours_by: tuple[str, ...] = (*_OURS, _INLINE)
    collate: Callable[[list[Any]], Any] = stack
    torch_collate: Callable[[list[Any]], Any] | None = None
    scenes_in: Callable[[Any], int] | None = None
    for_fit: bool = False


_VOLUME = {"volumes": 1, "side": 64}
_FEW_IMAGES = {"stored": 4, "length": 8}
_MANY_A_CHUNK = {"chunk": 64, "stored": 1536, "length": 3072, "cache": 96 << 20}  # the cache holds two windows
_ROWS = (
    Row("images", "JPEG files: crop, flip, normalise", scenes.Images, _FEW_IMAGES, "images", (*_ALL, "decoded_images")),
    Row("images-fit", "the same in `fit`", partial(scenes.Images, length=1024), _FEW_IMAGES, "images",
        ("torch", "grain_threads", "keras_threads", "keras_processes", "decoded_images"), for_fit=True),
    Row("clouds", "HDF5 clouds, one a chunk", scenes.Clouds, {"stored": 4, "length": 8}, "clouds", _ALL),
    Row("clouds-64", "HDF5 clouds, 64 a chunk", partial(scenes.Clouds, **_MANY_A_CHUNK),
        {"chunk": 2, "stored": 4, "length": 8}, "clouds", ("torch", "grain_processes", "grain_windows", "spdl")),
    Row("patches", "patches of volumes, gzip", partial(scenes.VolumePatches, "gzip"), _VOLUME, "patches", _ALL, 25),
    Row("patches-lzf", "patches of volumes, lzf, without the extra `hdf5`", partial(scenes.VolumePatches, "lzf"),
        _VOLUME, "patches_without_extra", _ALL, 25),
    Row("windows-hdf5", "windows of an HDF5 series", scenes.StoredWindows, {"length": 128}, "stored_windows", _ALL, 64),
    Row("windows", "windows of an array in memory", scenes.Windows, {"length": 128}, "windows",
        (*_ALL, "keras_windows"), 64),
    Row("tokens", "padded token lists", scenes.Tokens, {"length": 256}, "padded", (*_ALL, "torch_inline"), 128,
        collate=scenes.pad, torch_collate=scenes.pad_torch),
    Row("packing", "packed token lists", scenes.Texts, {"length": 256}, "packed",
        ("plain_first_fit", "grain_first_fit"), 16, scenes_in=scenes.texts_in),
    Row("python", "3 ms of pure Python", scenes.Counting, {"length": 32, "turns": 10}, "as_they_are", _ALL),
    Row("waits", "20 ms waits, 16 at once", scenes.Waiting, {"length": 32, "seconds": 0.0}, "as_they_are",
        ("torch", *_THREADS), 16, 16, _OURS),
    Row("table", "rows of a table, from a class", scenes.Rows, {"length": 512}, "as_they_are",
        (*_ALL, "torch_inline"), 256),
    Row("table-batches", "rows of a table, with `get_batch`", scenes.RowsAtOnce, {"length": 512}, "rows_at_once",
        ("plain", "torch", "torch_inline", "spdl", "keras_enqueuer_threads"), 256, collate=tuple),
)  # fmt: skip
ROWS = {row.name: row for row in _ROWS}


def cases_of(row: Row) -> list[Case]:
    """The cases of a row, in the order of their turns."""
    return [Case(row.name, "fit" if row.for_fit else "loop", peer) for peer in (*row.ours_by, *row.peers)]
