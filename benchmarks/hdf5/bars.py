"""The bars of the HDF5 cases.

Invariant: pure. A ratio compares with the fastest of the peers that the title names.
"""

from benchmarks.bar import Bar, ratio, ratio_to_best
from benchmarks.catalog import PEERS
from benchmarks.figures import Figures

NOISE = 0.98
"""Never slower: at least this ratio, because two equally fast cases differ only by noise."""
OPEN_SECONDS = 2.0
FIRST_PASS = 1.5
ONCE = 1.001
"""Decodes per chunk and epoch that count as one."""
USERS = ("keras_threads", "keras_processes", "torch")
"""Ways to feed Keras from h5py without kerasfeed."""


def _best(title: str, goal: float, ours: str, prefix: str, peers: tuple[str, ...]) -> Bar:
    return ratio_to_best(title, goal, ours, {f"{prefix}{peer}": PEERS[peer].title for peer in peers})


def hdf5_bars() -> list[Bar]:
    """The bars, built from the names of their cases."""
    gzip, contiguous, rows = "hdf5-gzip/loop/", "hdf5-contiguous/loop/", "hdf5-rows/loop/"
    blocks, sequential = "hdf5-chunks/epoch/kerasfeed_blocks_thread", "hdf5-chunks/epoch/kerasfeed_sequential_thread"
    h5py, feed = ("h5py_1", "h5py_2"), "hdf5-feed/loop/kerasfeed_"
    return [
        _best("HDF5 gzip: 2 threads, default codecs, over h5py", 3.4, gzip + "kerasfeed_default_2", gzip, h5py),
        _best("HDF5 gzip: 2 threads, optional codecs, over h5py", 4.5, gzip + "kerasfeed_2", gzip, h5py),
        ratio("HDF5 gzip: 2 processes over 2 threads", NOISE, gzip + "kerasfeed_processes", gzip + "kerasfeed_2"),
        ratio("HDF5 gzip: feed, processes over threads", NOISE, feed + "process", feed + "thread"),
        _best("HDF5 contiguous: 2 threads over h5py", 1.8, contiguous + "kerasfeed_2", contiguous, h5py),
        ratio("HDF5 contiguous: 2 threads over memcpy in 2", 0.8, contiguous + "kerasfeed_2", contiguous + "memcpy_2"),
        ratio("HDF5 contiguous: 1 thread over memcpy in 1", 0.8, contiguous + "kerasfeed_1", contiguous + "memcpy_1"),
        _best("HDF5 rows of 784 bytes: take over h5py row by row", 4, rows + "kerasfeed_take", rows, h5py),
        Bar("HDF5 64 scenes a chunk: decodes a chunk and epoch, block order", ONCE, False, "", _decodes),
        _best("HDF5 64 scenes a chunk: block order over h5py at random", 100, blocks, "hdf5-chunks/loop/", h5py),
        ratio("HDF5 64 scenes a chunk: block order over file order", 0.7, blocks, sequential),
        *_end_to_end(),
        Bar("HDF5: open 1,000,000 chunks", OPEN_SECONDS, False, "s", _opening),
        Bar("HDF5: first pass over 2,000 datasets, time over h5py's", FIRST_PASS, False, "x", _first_pass),
    ]


def _end_to_end() -> list[Bar]:
    bars = []
    for codecs, words in (("default_", "default codecs"), ("", "optional codecs")):
        bars += [
            _best(
                f"HDF5 end to end: to_tf_dataset, {words}, over h5py in PyDataset and torch",
                3,
                f"hdf5-feed/loop/kerasfeed_{codecs}tf_thread",
                "hdf5-feed/loop/",
                USERS,
            ),
            _best(
                f"HDF5 end to end: fit, {words}, over h5py in PyDataset and torch",
                3,
                f"hdf5-feed/fit/kerasfeed_{codecs}thread",
                "hdf5-feed/fit/",
                USERS,
            ),
        ]
    return bars


def _decodes(figures: Figures) -> tuple[float | None, str]:
    row = figures.find("hdf5-chunks/epoch/kerasfeed_blocks_thread")
    return (row.decodes.high if row and row.decodes else None), ""


def _opening(figures: Figures) -> tuple[float | None, str]:
    row = figures.find("hdf5-open/open/kerasfeed_open")
    if row is None or row.opening is None or row.index_mb is None:
        return None, ""
    return row.opening.median, f"index of {row.index_mb.median:.3g} MB"


def _first_pass(figures: Figures) -> tuple[float | None, str]:
    rows = [figures.find(f"hdf5-groups/open/{peer}_pass") for peer in ("h5py", "kerasfeed", "kerasfeed_later")]
    theirs, ours, later = [row.opening.median if row and row.opening else None for row in rows]
    if theirs is None or ours is None:
        return None, ""
    return ours / theirs, "" if later is None else f"later ones {later / theirs:.2g} x"
