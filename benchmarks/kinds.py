"""The terms of the catalogue: workload, peer and case.

Invariant: frozen values; importing this module loads no framework.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """One kind of scene and how it is batched.

    Attributes:
        name: Key in case names and on the command line.
        title: Words for tables and charts.
        make: From a number of scenes to the sequence.
        batch_size: Scenes per batch, at least 1.
        workers: Concurrent reads of every peer that supports it, at least 1.
        fit_scenes: Scenes in an epoch of the `fit` cases, a multiple of `batch_size`.
        reference: Peer that rates are compared with; "ideal" if `ideal` is given.
        ideal: Scenes per second if every worker only waited; None if scenes do not wait.
        fit_steps_per_call: Keras's `steps_per_execution` in the `fit` cases, for every peer alike. Keras
            spends about 1.5 ms on a call of its training function, more than any input of fast scenes.
        fit_reference: Peer that the `fit` cases are compared with.
        make_ours: From a number of scenes and the modules to hide to the sequence that kerasfeed reads, if it has
            its own class: the same scenes read through `kerasfeed.HDF5File`. None: the sequence of `make`.
    """

    name: str
    title: str
    make: Callable[[int], Any]
    batch_size: int
    workers: int
    fit_scenes: int
    reference: str
    ideal: float | None = None
    fit_steps_per_call: int = 1
    fit_reference: str = "keras_threads"
    make_ours: Callable[[int, tuple[str, ...]], Any] | None = None


@dataclass(frozen=True)
class Peer:
    """One way of feeding batches.

    Attributes:
        name: Key in case names.
        title: Words for tables and charts.
        module: Module of `benchmarks.peers` that holds `function`.
        function: Name of the function from a `Job` to a context manager around the batches.
        requires: Top-level module; without it, the peer is skipped.
        workers: Concurrent reads, if the peer does not use the workload's; else None.
        hides: Optional modules that the process of the case, and its workers, must not import.
    """

    name: str
    title: str
    module: str
    function: str
    requires: str
    workers: int | None = None
    hides: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether this is a path of kerasfeed."""
        return self.name.startswith("kerasfeed")

    @property
    def is_limit(self) -> bool:
        """Whether this is a limit or a plain loop, which loaders are compared with."""
        return self.name.startswith(("memcpy", "plain"))
