"""The faults, the libraries, and the cases that join them.

Invariant: pure values; importing this module loads no framework.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

BATCH_SIZE = 8
WORKERS = 2
PATIENCE = 10.0
"""Seconds without a batch after which a case counts as hung."""
LONG_PATIENCE = 40.0
"""The same if a scene hangs: long enough to see whether a library reports it."""

Workers = Literal["process", "thread"]


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: Key on the command line, and of `scenes.FAULTS` if a scene is faulty.
        title: Words for the table.
        strikes: Target of a kill from outside: one "worker", a worker "often", the "program" itself; None for no kill.
        consumer: Behaviour of the consumer: "reads" all, "breaks" off in mid-epoch, "hoards" all batches.
        names_scene: Whether one scene is faulty, so that an error should name it.
        needs_processes: Whether it can only affect worker processes.
        patience: Seconds without a batch after which it counts as hung.
        length: Number of scenes, a multiple of `BATCH_SIZE`.
        seconds: Wait per scene, in seconds.
        values: float32 numbers a scene.
    """

    name: str
    title: str
    strikes: Literal["worker", "often", "program"] | None = None
    consumer: Literal["reads", "breaks", "hoards"] = "reads"
    names_scene: bool = True
    needs_processes: bool = False
    patience: float = PATIENCE
    length: int = 200
    seconds: float = 0.01
    values: int = 4096


@dataclass(frozen=True)
class Library:
    """One way of feeding batches.

    Attributes:
        name: Key on the command line.
        title: Words for the table.
        module: Module that holds `function`.
        function: Name of the function from a `Job` to a context manager around the batches.
        package: Package whose version is reported; without it the library is skipped.
        workers: Kind of its workers.
        consumers: Consumers of the batches, "loop" or `fit`, each in its own case.
        replaces: Whether it is asked to replace a failing scene by another scene.
    """

    name: str
    title: str
    module: str
    function: str
    package: str
    workers: Workers
    consumers: tuple[str, ...] = ("loop",)
    replaces: bool = False


@dataclass(frozen=True)
class Case:
    """A library, a fault, and a consumer ("loop" or "fit")."""

    peer: Library
    fault: Fault
    consumer: str

    @property
    def name(self) -> str:
        """`peer/fault/consumer`: the key of results."""
        return f"{self.peer.name}/{self.fault.name}/{self.consumer}"


_FAULTS = (
    Fault("worker-killed", "a worker is killed once (SIGKILL)", "worker", names_scene=False, needs_processes=True),
    Fault(
        "killer",
        "a worker is killed every 0.2 s",
        "often",
        names_scene=False,
        needs_processes=True,
        length=400,
        seconds=0.02,
    ),
    Fault("segfault-once", "a scene crashes in C, the first time"),
    Fault("segfault", "a scene crashes in C, always"),
    Fault("os-exit", "a scene calls `os._exit`"),
    Fault("memory-limit", "a scene exceeds `RLIMIT_AS`"),
    Fault("hang", "a scene hangs (`time.sleep`)", patience=LONG_PATIENCE),
    Fault("hang-gil", "a scene hangs in C, holding the GIL", patience=LONG_PATIENCE),
    Fault("raise", "a scene raises `ValueError`"),
    Fault("raise-unpicklable", "an exception that does not pickle"),
    Fault("raise-two-arguments", "an exception whose class needs two arguments"),
    Fault("sys-exit", "a scene calls `sys.exit`"),
    Fault("keyboard-interrupt", "a scene raises `KeyboardInterrupt`"),
    Fault("program-killed", "the program is killed (SIGKILL)", "program", names_scene=False, needs_processes=True),
    Fault("break", "the consumer leaves the loop in mid-epoch", consumer="breaks", names_scene=False),
    Fault(
        "hoard",
        "the consumer keeps all 700 batches (92 MB)",
        consumer="hoards",
        names_scene=False,
        length=5600,
        seconds=0.002,
    ),
)
FAULTS = {fault.name: fault for fault in _FAULTS}

_BOTH = ("loop", "fit")
_PEERS = "benchmarks.peers."
_REPLACING = "benchmarks.faults.replacing"
_LIBRARIES = (
    Library(
        "keras_processes",
        "Keras PyDataset, multiprocessing",
        _PEERS + "keras_pydataset",
        "processes",
        "keras",
        "process",
        _BOTH,
    ),
    Library("torch", "torch DataLoader", _PEERS + "torch_loader", "loader", "torch", "process"),
    Library("grain_processes", "Grain mp_prefetch", _PEERS + "grain_loader", "processes", "grain", "process"),
    Library("kerasfeed_process", "kerasfeed", _PEERS + "kerasfeed_feed", "processes", "kerasfeed", "process", _BOTH),
    Library(
        "kerasfeed_process_replace",
        'kerasfeed, `on_error="replace", timeout=2`',
        _REPLACING,
        "processes",
        "kerasfeed",
        "process",
        _BOTH,
        replaces=True,
    ),
    Library(
        "keras_threads", "Keras PyDataset, threads", _PEERS + "keras_pydataset", "threads", "keras", "thread", _BOTH
    ),
    Library("range_map", "tf.data `range.map`", _PEERS + "tf_data", "range_map", "tensorflow", "thread"),
    Library("grain_threads", "Grain threads", _PEERS + "grain_loader", "threads", "grain", "thread"),
    Library("kerasfeed_thread", "kerasfeed", _PEERS + "kerasfeed_feed", "threads", "kerasfeed", "thread", _BOTH),
    Library(
        "kerasfeed_thread_replace",
        'kerasfeed, `on_error="replace", timeout=2`',
        _REPLACING,
        "threads",
        "kerasfeed",
        "thread",
        _BOTH,
        replaces=True,
    ),
)
LIBRARIES = {library.name: library for library in _LIBRARIES}


def befalls(fault: Fault, library: Library, consumer: str) -> bool:
    """Whether a fault can affect a library with this consumer."""
    if fault.needs_processes and library.workers != "process":
        return False
    return not (fault.consumer == "hoards" and consumer == "fit")


def select_cases(faults: Iterable[str], libraries: Iterable[str]) -> list[Case]:
    """The cases whose fault and library match one of the globs each, in the order of the tables."""
    wanted_faults = [fault for fault in _FAULTS if any(fnmatch(fault.name, glob) for glob in faults)]
    wanted = [library for library in _LIBRARIES if any(fnmatch(library.name, glob) for glob in libraries)]
    return [
        Case(library, fault, consumer)
        for fault in wanted_faults
        for library in wanted
        for consumer in library.consumers
        if befalls(fault, library, consumer)
    ]
