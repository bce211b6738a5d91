"""The rows of the table and their cells: workloads, and who reads them.

Invariant: pure values; importing this module loads no framework.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from benchmarks.kinds import Peer
from benchmarks.peers.job import stack
from benchmarks.real import scenes

_PEERS = (
    Peer("auto", "auto", "kerasfeed_feed", "auto", "kerasfeed"),
    Peer("process", "processes", "kerasfeed_feed", "processes", "kerasfeed"),
    Peer("thread", "threads", "kerasfeed_feed", "threads", "kerasfeed"),
    Peer("inline", "no workers", "kerasfeed_feed", "inline", "kerasfeed"),
    Peer("plain", "plain loop, NumPy", "plain", "plain", "numpy"),
    Peer("plain_fit", "plain first fit, NumPy", "plain", "first_fit", "numpy"),
    Peer("torch", "torch DataLoader, processes", "torch_loader", "loader", "torch"),
    Peer("torch_inline", "torch DataLoader, no workers", "torch_loader", "inline", "torch"),
    Peer("grain", "Grain processes", "grain_loader", "processes", "grain"),
    Peer("grain_threads", "Grain threads", "grain_loader", "threads", "grain"),
    Peer("grain_windows", "Grain processes, shuffled in windows", "grain_loader", "windows", "grain"),
    Peer("grain_fit", "Grain first fit, processes", "grain_loader", "first_fit", "grain"),
    Peer("spdl", "SPDL threads", "spdl_loader", "threads", "spdl"),
    Peer("keras", "Keras PyDataset threads", "keras_pydataset", "enqueued_threads", "keras"),
    Peer("keras_processes", "Keras PyDataset processes", "keras_pydataset", "enqueued_processes", "keras"),
    Peer("keras_fit", "Keras PyDataset threads", "keras_pydataset", "threads", "keras"),
    Peer("keras_fit_processes", "Keras PyDataset processes", "keras_pydataset", "processes", "keras"),
    Peer("keras_windows", "Keras timeseries_dataset_from_array", "keras_pydataset", "windows", "keras"),
    Peer("tf_data", "tf.data's own decode", "tf_data", "decoded_images", "tensorflow"),
)
PEERS = {peer.name: peer for peer in _PEERS}
_PROCESSES = ("torch", "grain", "keras_processes")
_THREADS = ("grain_threads", "spdl", "keras")
_ALL = ("plain", *_PROCESSES, *_THREADS)


@dataclass(frozen=True)
class Row:
    """A workload.

    Attributes:
        name: Key on the command line.
        title: Words for the table.
        make: Makes the scenes that peers read.
        tiny: Its arguments for tests, which make a few.
        ours: Name of the function of `benchmarks.real.ours` from these to what kerasfeed reads.
        peers: Keys of `PEERS`, without kerasfeed's.
        batch_size: Scenes a batch (packed rows, if `scenes_in` is given), which divides an epoch.
        workers: Concurrent reads asked of all that have workers.
        set_ups: Keys of `PEERS`: kerasfeed's.
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
    set_ups: tuple[str, ...] = ("auto", "process", "thread", "inline")
    collate: Callable[[list[Any]], Any] = stack
    torch_collate: Callable[[list[Any]], Any] | None = None
    scenes_in: Callable[[Any], int] | None = None
    for_fit: bool = False


_VOLUME = {"volumes": 1, "side": 64}
_FEW_IMAGES = {"stored": 4, "length": 8}
_MANY_A_CHUNK = {"chunk": 64, "stored": 1536, "length": 3072, "cache": 96 << 20}  # the cache holds two windows
_ROWS = (
    Row("images", "JPEG files: crop, flip, normalise", scenes.Images, _FEW_IMAGES, "images", (*_ALL, "tf_data")),
    Row("images-fit", "the same in `fit`", partial(scenes.Images, length=1024), _FEW_IMAGES, "images",
        ("torch", "grain_threads", "keras_fit", "keras_fit_processes", "tf_data"), for_fit=True),
    Row("clouds", "HDF5 clouds, one a chunk", scenes.Clouds, {"stored": 4, "length": 8}, "clouds", _ALL),
    Row("clouds-64", "HDF5 clouds, 64 a chunk", partial(scenes.Clouds, **_MANY_A_CHUNK),
        {"chunk": 2, "stored": 4, "length": 8}, "clouds", ("torch", "grain", "grain_windows", "spdl")),
    Row("patches", "patches of volumes, gzip", partial(scenes.VolumePatches, "gzip"), _VOLUME, "patches", _ALL, 25),
    Row("patches-lzf", "patches of volumes, lzf, without the extra `hdf5`", partial(scenes.VolumePatches, "lzf"),
        _VOLUME, "patches_without_extra", _ALL, 25),
    Row("windows-hdf5", "windows of an HDF5 series", scenes.StoredWindows, {"length": 128}, "stored_windows", _ALL, 64),
    Row("windows", "windows of an array in memory", scenes.Windows, {"length": 128}, "windows",
        (*_ALL, "keras_windows"), 64),
    Row("tokens", "padded token lists", scenes.Tokens, {"length": 256}, "padded", (*_ALL, "torch_inline"), 128,
        collate=scenes.pad, torch_collate=scenes.pad_torch),
    Row("packing", "packed token lists", scenes.Texts, {"length": 256}, "packed", ("plain_fit", "grain_fit"), 16,
        scenes_in=scenes.texts_in),
    Row("python", "3 ms of pure Python", scenes.Counting, {"length": 32, "turns": 10}, "as_they_are", _ALL),
    Row("waits", "20 ms waits, 16 at once", scenes.Waiting, {"length": 32, "seconds": 0.0}, "as_they_are",
        ("torch", *_THREADS), 16, 16, ("auto", "process", "thread")),
    Row("table", "rows of a table, from a class", scenes.Rows, {"length": 512}, "as_they_are",
        (*_ALL, "torch_inline"), 256),
    Row("table-batches", "rows of a table, with `get_batch`", scenes.RowsAtOnce, {"length": 512}, "as_they_are",
        ("plain", "torch", "torch_inline", "spdl", "keras"), 256, collate=tuple, torch_collate=tuple),
)  # fmt: skip
ROWS = {row.name: row for row in _ROWS}


@dataclass(frozen=True)
class Cell:
    """One way to read one workload.

    Attributes:
        row: Key of `ROWS`.
        peer: Key of `PEERS`.
    """

    program: ClassVar[str] = "benchmarks.real.program"
    row: str
    peer: str

    @property
    def name(self) -> str:
        """`row/peer`, as the command line matches it."""
        return f"{self.row}/{self.peer}"

    @property
    def requires(self) -> str:
        """Top-level module without which the cell is left out."""
        return PEERS[self.peer].requires

    @property
    def is_ours(self) -> bool:
        """Whether kerasfeed reads."""
        return self.peer in ROWS[self.row].set_ups

    @property
    def title(self) -> str:
        """Words for the table."""
        return PEERS[self.peer].title


def cells_of(row: Row) -> list[Cell]:
    """The cells of a row, in the order of their turns."""
    return [Cell(row.name, peer) for peer in (*row.set_ups, *row.peers)]
