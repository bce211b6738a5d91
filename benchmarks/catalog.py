"""The catalogue: the workloads, the peers, and the cases that join them.

Invariant: pure values; importing this module loads no framework.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch

from benchmarks import workloads
from benchmarks.hdf5 import tables
from benchmarks.kinds import Peer, Workload

START_SECONDS = 0.2
"""Seconds of one core that a new interpreter with NumPy takes to start."""
LOOP_SCENES = 4_000_000
"""Length of an epoch in loop cases: longer than any measurement, so that no peer pays for the end of an epoch."""


@dataclass(frozen=True)
class Case:
    """A peer on a workload, and its consumer.

    The consumer is a loop, `fit`, the loop that watches memory ("flat"), a loop over whole epochs ("epoch"), or one
    that ends with the first row ("open").

    Attributes:
        workload: Key of `WORKLOADS`.
        consumer: "loop", "fit", "flat", "epoch" or "open".
        peer: Key of `PEERS`.
    """

    workload: str
    consumer: str
    peer: str

    @property
    def name(self) -> str:
        """`workload/consumer/peer`, as the command line matches it."""
        return f"{self.workload}/{self.consumer}/{self.peer}"

    @property
    def warm_up(self) -> float:
        """Seconds until all worker processes are surely up. The steady state begins then."""
        processes = WORKLOADS[self.workload].workers if "process" in self.peer else 0
        return processes * START_SECONDS


def _waiting(workers: int, batch_size: int, fit_scenes: int) -> Workload:
    return Workload(
        f"waiting-{workers}",
        f"waiting: 10 ms a scene, {workers} workers",
        workloads.WaitingScenes,
        batch_size,
        workers,
        fit_scenes,
        "ideal",
        ideal=workers / 0.010,
    )


_WORKLOADS = (
    Workload(
        "tiny",
        "tiny: float32[1024, 9] + int32[1024]",
        workloads.PointScenes,
        32,
        2,
        8192,
        "plain",
        fit_steps_per_call=16,
    ),
    Workload("gil", "GIL-bound: 4 ms of Python a scene", workloads.CountingScenes, 16, 2, 512, "plain"),
    _waiting(2, 8, 400),
    _waiting(8, 8, 1600),
    _waiting(64, 32, 12800),
    Workload(
        "images",
        "images: 100 ms a read, 256x256x3 + mask, 8 workers",
        workloads.MaskedImages,
        8,
        8,
        128,
        "ideal",
        ideal=80.0,
    ),
    Workload(
        "big",
        "big: uint8[512, 512, 3]",
        workloads.BigImages,
        32,
        2,
        1024,
        "memcpy",
        fit_steps_per_call=16,
    ),
)
WORKLOADS = {workload.name: workload for workload in (*_WORKLOADS, *tables.WORKLOADS)}

_PEERS = (
    Peer("memcpy", "memcpy limit (np.copyto)", "plain", "memcpy", "numpy"),
    Peer("plain", "plain loop (NumPy)", "plain", "plain", "numpy"),
    Peer("plain_first_fit", "plain first fit (NumPy)", "plain", "first_fit", "numpy"),
    Peer("decoded_images", "tf.data's own decode", "tf_data", "decoded_images", "tensorflow"),
    Peer("from_generator", "tf.data from_generator", "tf_data", "from_generator", "tensorflow"),
    Peer("range_map", "tf.data range.map(numpy_function)", "tf_data", "range_map", "tensorflow"),
    Peer("interleave", "tf.data interleave of generators", "tf_data", "interleave", "tensorflow"),
    Peer("keras_threads", "Keras PyDataset threads", "keras_pydataset", "threads", "keras"),
    Peer("keras_processes", "Keras PyDataset multiprocessing", "keras_pydataset", "processes", "keras"),
    Peer(
        "keras_enqueuer_threads",
        "Keras enqueuer threads (NumPy)",
        "keras_pydataset",
        "enqueued_threads",
        "keras",
    ),
    Peer(
        "keras_enqueuer_processes",
        "Keras enqueuer multiprocessing (NumPy)",
        "keras_pydataset",
        "enqueued_processes",
        "keras",
    ),
    Peer("keras_windows", "Keras timeseries_dataset_from_array", "keras_pydataset", "windows", "keras"),
    Peer("torch", "torch DataLoader", "torch_loader", "loader", "torch"),
    Peer("torch_inline", "torch DataLoader, no workers", "torch_loader", "inline", "torch"),
    Peer("grain_threads", "Grain threads", "grain_loader", "threads", "grain"),
    Peer("grain_processes", "Grain mp_prefetch", "grain_loader", "processes", "grain"),
    Peer("grain_windows", "Grain mp_prefetch, shuffled in windows", "grain_loader", "windows", "grain"),
    Peer("grain_first_fit", "Grain mp_prefetch, first fit", "grain_loader", "first_fit", "grain"),
    Peer("spdl", "SPDL threads", "spdl_loader", "threads", "spdl"),
    Peer("kerasfeed_auto", "kerasfeed auto", "kerasfeed_feed", "auto", "kerasfeed"),
    Peer("kerasfeed_inline", "kerasfeed workers=0", "kerasfeed_feed", "inline", "kerasfeed"),
    Peer("kerasfeed_thread", "kerasfeed threads", "kerasfeed_feed", "threads", "kerasfeed"),
    Peer("kerasfeed_process", "kerasfeed processes", "kerasfeed_feed", "processes", "kerasfeed"),
    Peer("kerasfeed_tf_thread", "kerasfeed threads, to_tf_dataset", "kerasfeed_feed", "tf_threads", "kerasfeed"),
    Peer(
        "kerasfeed_tf_process",
        "kerasfeed processes, to_tf_dataset",
        "kerasfeed_feed",
        "tf_processes",
        "kerasfeed",
    ),
    Peer("kerasfeed_scenes", "kerasfeed from_indexable", "kerasfeed_feed", "tf_scenes", "kerasfeed"),
    Peer("kerasfeed_jax_thread", "kerasfeed threads, to_jax", "kerasfeed_jax", "threads", "jax"),
    Peer("kerasfeed_jax_process", "kerasfeed processes, to_jax", "kerasfeed_jax", "processes", "jax"),
    Peer("kerasfeed_torch_thread", "kerasfeed threads, to_torch", "kerasfeed_torch", "threads", "torch"),
    Peer("kerasfeed_torch_process", "kerasfeed processes, to_torch", "kerasfeed_torch", "processes", "torch"),
)
PEERS = {peer.name: peer for peer in (*_PEERS, *tables.PEERS)}

_OTHERS = [
    "from_generator",
    "range_map",
    "interleave",
    "keras_threads",
    "keras_processes",
    "torch",
    "grain_threads",
    "grain_processes",
    "spdl",
]
_ENQUEUERS = ["keras_enqueuer_threads", "keras_enqueuer_processes"]
_OURS = ["kerasfeed_thread", "kerasfeed_process", "kerasfeed_tf_thread", "kerasfeed_tf_process"]
_LOOPS_OF_FRAMEWORKS = [
    "kerasfeed_jax_thread",
    "kerasfeed_jax_process",
    "kerasfeed_torch_thread",
    "kerasfeed_torch_process",
]
_FIT = [
    "from_generator",
    "keras_threads",
    "keras_processes",
    "kerasfeed_thread",
    "kerasfeed_process",
    "kerasfeed_tf_process",
]

_LOOPS = {
    "tiny": ["memcpy", "plain", *_OTHERS, *_ENQUEUERS, "kerasfeed_inline", *_OURS, *_LOOPS_OF_FRAMEWORKS],
    "gil": ["plain", *_OTHERS, *_OURS, *_LOOPS_OF_FRAMEWORKS],
    "waiting-2": _OURS[:3],
    "waiting-8": ["plain", *_OTHERS, *_OURS],
    "waiting-64": ["range_map", "grain_threads", "spdl", *_OURS[:3], "kerasfeed_scenes"],
    "images": [*_OTHERS, *_OURS[:3]],
    "big": ["memcpy", "plain", *_OTHERS, *_OURS, *_LOOPS_OF_FRAMEWORKS],
}
_FITS = {
    "tiny": _FIT,
    "gil": _FIT,
    "waiting-2": ["kerasfeed_thread"],
    "waiting-8": _FIT,
    "waiting-64": ["kerasfeed_thread"],
    "images": _FIT[:-1],
    "big": _FIT,
}
_FLATS = {"tiny": ["kerasfeed_process", "kerasfeed_tf_process"]}


def all_cases() -> list[Case]:
    """Every case, in the order of a report."""
    kinds = (("loop", _LOOPS), ("fit", _FITS), ("flat", _FLATS), *tables.CASES.items())
    return [
        Case(workload, consumer, peer)
        for workload in WORKLOADS
        for consumer, peers in kinds
        for peer in peers.get(workload, [])
    ]


def select_cases(workload_globs: Iterable[str], case_globs: Iterable[str]) -> list[Case]:
    """The cases whose workload matches one of the first globs and whose name matches one of the second."""
    workload_globs, case_globs = list(workload_globs), list(case_globs)
    return [
        case
        for case in all_cases()
        if any(fnmatch(case.workload, glob) for glob in workload_globs)
        and any(fnmatch(case.name, glob) for glob in case_globs)
    ]
