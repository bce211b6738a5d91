"""The HDF5 part of the catalogue: its workloads, its peers, and their cases.

Invariant: pure values; importing this module loads no framework.
"""

from importlib import import_module
from typing import Any

from benchmarks.kinds import Peer, Workload

OPTIONAL_CODECS = ("deflate", "zlib_into")
"""Optional packages of kerasfeed; without them it decodes with its required packages."""


def _stored(file: str, count: str, repeated: bool = True) -> Any:
    """Makes the sequence of a user of h5py, over the file of this name in `files`."""

    def make(length: int) -> Any:
        files, scenes = import_module("benchmarks.hdf5.files"), import_module("benchmarks.hdf5.scenes")
        return scenes.StoredScenes(getattr(files, file), getattr(files, count), length if repeated else None)

    return make


def _direct(file: str, count: str, repeated: bool = True) -> Any:
    """Makes the sequence that kerasfeed reads."""

    def make(length: int, hides: tuple[str, ...]) -> Any:
        files, scenes = import_module("benchmarks.hdf5.files"), import_module("benchmarks.hdf5.scenes")
        # Compressed scenes must not come from the cache.
        cache = scenes.SMALL_CACHE_BYTES if repeated else scenes.CACHE_BYTES
        length = length if repeated else None
        return scenes.DirectScenes(getattr(files, file), getattr(files, count), length, hides=hides, chunk_cache=cache)

    return make


def _grouped(length: int) -> Any:
    files, scenes = import_module("benchmarks.hdf5.files"), import_module("benchmarks.hdf5.scenes")
    return scenes.GroupedScenes(files.GROUPS, files.GROUP_SCENES)


def _workload(name: str, title: str, batch_size: int, reference: str, *data: Any, **more: Any) -> Workload:
    return Workload(
        name,
        title,
        _stored(*data),
        batch_size,
        2,
        fit_scenes=3072,
        reference=reference,
        make_ours=_direct(*data),
        fit_steps_per_call=16,
        **more,
    )


WORKLOADS = (
    _workload("hdf5-gzip", "HDF5: gzip+shuffle, a scene a chunk, random", 32, "h5py_1", "GZIP", "SCENES"),
    _workload("hdf5-contiguous", "HDF5: contiguous scenes of 147 kB, random", 32, "h5py_1", "CONTIGUOUS", "SCENES"),
    _workload("hdf5-rows", "HDF5: rows of 784 bytes, random", 1024, "h5py_1", "ROW_FILE", "ROWS"),
    _workload("hdf5-chunks", "HDF5: gzip+shuffle, 64 scenes a chunk", 32, "h5py_1", "CHUNKED", "CHUNKED_SCENES", False),
    _workload("hdf5-feed", "HDF5: gzip+shuffle, end to end", 32, "torch", "GZIP", "SCENES", fit_reference="torch"),
    _workload("hdf5-busy", "HDF5: gzip+shuffle beside a busy main loop", 32, "h5py_busy_2", "GZIP", "SCENES"),
    Workload(
        "hdf5-open",
        "HDF5: open a dataset of 1,000,000 chunks",
        _stored("MANY", "MANY_CHUNKS", False),
        1,
        1,
        1,
        "h5py_open",
    ),
    Workload("hdf5-groups", "HDF5: read 2,000 gzip datasets, one a scene, once", _grouped, 1, 1, 1, "h5py_pass"),
)

_READERS = "hdf5_readers"
_FEEDS = "hdf5_feeds"


def _reader(name: str, title: str, function: str, workers: int, requires: str, hides: tuple[str, ...] = ()) -> Peer:
    return Peer(name, title, _READERS, function, requires, workers, hides)


def _both(name: str, title: str, requires: str, hides: tuple[str, ...] = ()) -> list[Peer]:
    return [
        _reader(f"{name}_1", f"{title}, 1 thread", requires, 1, requires, hides),
        _reader(f"{name}_2", f"{title}, 2 threads", requires, 2, requires, hides),
    ]


def _feed(name: str, title: str, function: str, hides: tuple[str, ...] = ()) -> Peer:
    return Peer(name, title, _FEEDS, function, "kerasfeed", 2, hides)


_DEFAULT = "default codecs"
PEERS = (
    *_both("h5py", "h5py", "h5py"),
    _reader("h5py_processes", "h5py, 2 processes", "h5py_processes", 2, "h5py"),
    _reader("h5py_list", "h5py, a sorted list a batch", "h5py_list", 1, "h5py"),
    _reader("h5py_sequential", "h5py in file order, cache of 5 chunks", "h5py_sequential", 1, "h5py"),
    _reader("h5py_blocks", "h5py in block order, cache of 5 chunks", "h5py_blocks", 1, "h5py"),
    _reader("h5py_busy_2", "h5py, 2 threads, main loop busy", "h5py_busy", 2, "h5py"),
    _reader("h5py_busy_processes", "h5py, 2 processes, main loop busy", "h5py_busy_processes", 2, "h5py"),
    *_both("hidefix", "hidefix", "hidefix"),
    *_both("pyfive", "pyfive", "pyfive"),
    *_both("zarr", "zarr 3 (own store)", "zarr"),
    _reader("memcpy_1", "memcpy limit, 1 thread", "memcpy", 1, "numpy"),
    _reader("memcpy_2", "memcpy limit, 2 threads", "memcpy", 2, "numpy"),
    *_both("kerasfeed", "kerasfeed reader", "kerasfeed"),
    *_both("kerasfeed_default", f"kerasfeed reader, {_DEFAULT}", "kerasfeed", OPTIONAL_CODECS),
    _reader("kerasfeed_processes", "kerasfeed reader, 2 processes", "kerasfeed_processes", 2, "kerasfeed"),
    _reader(
        "kerasfeed_default_processes",
        f"kerasfeed reader, 2 processes, {_DEFAULT}",
        "kerasfeed_processes",
        2,
        "kerasfeed",
        OPTIONAL_CODECS,
    ),
    _reader("kerasfeed_take", "kerasfeed take, a batch at once", "kerasfeed_take", 1, "kerasfeed"),
    _reader("kerasfeed_busy_2", "kerasfeed reader, 2 threads, main loop busy", "kerasfeed_busy", 2, "kerasfeed"),
    _reader(
        "kerasfeed_busy_processes",
        "kerasfeed reader, 2 processes, main loop busy",
        "kerasfeed_busy_processes",
        2,
        "kerasfeed",
    ),
    _feed("kerasfeed_feed_busy_thread", "kerasfeed feed, threads, main loop busy", "busy_threads"),
    _feed("kerasfeed_feed_busy_process", "kerasfeed feed, processes, main loop busy", "busy_processes"),
    _feed("kerasfeed_blocks_thread", "kerasfeed BlockShuffled, threads", "blocks_threads"),
    _feed("kerasfeed_blocks_process", "kerasfeed BlockShuffled, processes", "blocks_processes"),
    _feed("kerasfeed_shuffled_thread", "kerasfeed full shuffle, threads", "shuffled_threads"),
    _feed("kerasfeed_sequential_thread", "kerasfeed in file order, threads", "sequential_threads"),
    _feed("kerasfeed_sequential_process", "kerasfeed in file order, processes", "sequential_processes"),
    *(
        Peer(
            f"kerasfeed_default_{name}",
            f"{title}, {_DEFAULT}",
            "kerasfeed_feed",
            function,
            "kerasfeed",
            2,
            OPTIONAL_CODECS,
        )
        for name, title, function in (
            ("thread", "kerasfeed threads", "threads"),
            ("process", "kerasfeed processes", "processes"),
            ("tf_thread", "kerasfeed threads, to_tf_dataset", "tf_threads"),
            ("tf_process", "kerasfeed processes, to_tf_dataset", "tf_processes"),
        )
    ),
    Peer("h5py_open", "h5py", "hdf5_open", "by_h5py", "h5py", 1),
    Peer("kerasfeed_open", "kerasfeed", "hdf5_open", "by_kerasfeed", "kerasfeed", 1),
    Peer("h5py_pass", "h5py", "hdf5_open", "pass_by_h5py", "h5py", 1),
    Peer("kerasfeed_pass", "kerasfeed, first pass", "hdf5_open", "pass_by_kerasfeed", "kerasfeed", 1),
    Peer("kerasfeed_later_pass", "kerasfeed, second pass", "hdf5_open", "later_pass_by_kerasfeed", "kerasfeed", 1),
)

_LIBRARIES = [f"{name}_{threads}" for name in ("hidefix", "pyfive", "zarr") for threads in (1, 2)]
_USERS = ["keras_threads", "keras_processes", "torch"]
_OURS = [
    f"kerasfeed_{codecs}{path}"
    for path in ("thread", "process", "tf_thread", "tf_process")
    for codecs in ("", "default_")
]

CASES = {
    "loop": {
        "hdf5-gzip": [
            "h5py_1",
            "h5py_2",
            "h5py_processes",
            "torch",
            *_LIBRARIES,
            "kerasfeed_default_1",
            "kerasfeed_default_2",
            "kerasfeed_default_processes",
            "kerasfeed_1",
            "kerasfeed_2",
            "kerasfeed_processes",
        ],
        "hdf5-contiguous": ["h5py_1", "h5py_2", "memcpy_1", "memcpy_2", "kerasfeed_1", "kerasfeed_2"],
        "hdf5-rows": ["h5py_1", "h5py_2", "h5py_list", "kerasfeed_1", "kerasfeed_take"],
        "hdf5-chunks": ["h5py_1", "h5py_2", "h5py_sequential", "h5py_blocks"],
        "hdf5-feed": ["from_generator", *_USERS, *_OURS],
        "hdf5-busy": [
            "h5py_busy_2",
            "h5py_busy_processes",
            "kerasfeed_busy_2",
            "kerasfeed_busy_processes",
            "kerasfeed_feed_busy_thread",
            "kerasfeed_feed_busy_process",
        ],
    },
    "fit": {"hdf5-feed": ["from_generator", *_USERS, *_OURS]},
    "epoch": {
        "hdf5-chunks": [
            "kerasfeed_shuffled_thread",
            "kerasfeed_sequential_thread",
            "kerasfeed_sequential_process",
            "kerasfeed_blocks_thread",
            "kerasfeed_blocks_process",
        ]
    },
    "open": {
        "hdf5-open": ["h5py_open", "kerasfeed_open"],
        "hdf5-groups": ["h5py_pass", "kerasfeed_pass", "kerasfeed_later_pass"],
    },
}
"""From consumer and workload to peers."""
