"""The `Loader` protocol: batches of a plan, made somewhere, promised as futures.

Invariant: a batch is a pure function of (sequence, plan, epoch, step). Every loader returns the same bits for the same
four, whatever its workers; `kerasfeed.load.inline` is the reference. `submit` is the only data path: whoever wants
parallelism calls it ahead.

`kerasfeed.load` is also the name of a public function, `kerasfeed.reproduce.load`: importing this package binds the
name to it, so a call of the package is a call of the function.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from kerasfeed.costs import ReadCost
from kerasfeed.plan import Plan
from kerasfeed.spec import SceneSpec


@dataclass(frozen=True)
class Job:
    """What a loader is to load.

    Attributes:
        sequence: Any object with `__len__` and `__getitem__`.
        plan: The indices of every step; `plan.seed` also seeds each scene's `rng`.
        workers: Concurrent `__getitem__` calls, at least 1; the inline loader ignores it.
        max_memory: Ceiling of the slots, bytes.
        look_ahead: Batches that the consumer means to keep in flight, at least 1.
    """

    sequence: Any
    plan: Plan
    workers: int
    max_memory: int
    look_ahead: int


@dataclass(frozen=True)
class LoaderStats:
    """A snapshot of a loader.

    Attributes:
        worker_type: "inline", "thread" or "process".
        workers: Concurrent `__getitem__` calls.
        batches: Batches delivered so far.
        copied: Of these, batches copied out to ordinary memory because the slots had reached `max_memory`.
        slots: Slots that exist.
        slot_bytes: Bytes of one slot.
        pids: Process ids of the workers, for "process".
    """

    worker_type: str
    workers: int
    batches: int
    copied: int
    slots: int
    slot_bytes: int
    pids: tuple[int, ...] = ()


class Loader(ABC):
    """Makes the batches of a job. All methods may be called from any thread."""

    @property
    @abstractmethod
    def spec(self) -> SceneSpec:
        """Spec of a scene; the first use reads a few scenes spread over the sequence."""

    @property
    @abstractmethod
    def look_ahead(self) -> int:
        """Batches worth keeping in flight, at least 1; 1 where `submit` itself does the work."""

    @abstractmethod
    def submit(self, epoch: int, step: int) -> Future[Any]:
        """Promise one batch: the scene's nesting, each field an ndarray with a leading axis.

        Cancelling the future skips the scenes not yet begun. Callbacks of the future run on a thread that other batches
        wait for: they must not block, and must not submit. Errors of the sequence are the future's; errors of the
        call are raised here.

        Raises:
            IndexError: `step` is out of range.
            FeedClosedError: The loader is closed.
        """

    @abstractmethod
    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change`, which alters `job.sequence`, while no scene is being loaded; workers then see the result."""

    @abstractmethod
    def close(self) -> None:
        """Stop the workers and free what they hold; idempotent. Batches already delivered stay valid."""

    @abstractmethod
    def stats(self) -> LoaderStats:
        """A snapshot of counters."""

    @abstractmethod
    def waste(self) -> ReadCost | None:
        """What one worker reads wastefully, as measured there; None as long as none does. Cheap: 1 us."""


class _LoadPackage(ModuleType):
    def __call__(self, feed: Any, *, epoch: int, step: int | None = None, index: int | None = None) -> Any:
        """Load one batch or scene of a feed in the calling thread; see `kerasfeed.reproduce.load`."""
        room = import_module("kerasfeed.reproduce")  # by name: it stands above this room, and knows it
        return room.load(feed, epoch=epoch, step=step, index=index)


sys.modules[__name__].__class__ = _LoadPackage
