"""What a worker is to do, and what becomes of it.

Invariant: a task is a value, so it may be given to another worker, or to several one after the other. The pool knows
when it has been done, has failed or has ended its workers; what follows from that the task says, by the tasks that are
to be done in its place. Its methods run on a thread of the pool, and one that was given up is
told of its outcome nevertheless, where there is one.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.errors import SceneTimeoutError, WorkerDiedError

# What is to be done, for the runner: its kind, and at most seven numbers.
Record = tuple[int, ...]
MOST_NUMBERS = 8
# Item 1 is where a worker is within its task, for whoever looks from outside: a list, or the worker's line in a shared
# file. An item costs 15 ns, a call 70.
Note = list[int] | memoryview
UNKNOWN_ENDING = "ended in an unknown way (this program ignores SIGCHLD, or collects its child processes itself)"
NOWHERE = -2  # the task has begun, and has not yet come to a place of its own


@dataclass(frozen=True)
class Place:
    """Where in a task something failed; text is made of it where the user sees it.

    Attributes:
        scene: Index of the scene, or number of it in its generator; None where several were at work.
        row: Its row in the batch; None likewise.
        method: The method that was at work, where it was not `__getitem__`.
    """

    scene: int | None = None
    row: int | None = None
    method: str = ""


class FailedTaskError(Exception):
    """Internal carrier of a failure within a task: its place. What the user's code raised is its cause."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place

    @property
    def error(self) -> BaseException:
        """What the user's code raised."""
        assert self.__cause__ is not None
        return self.__cause__


class CancelledTaskError(Exception):
    """Internal: nobody waits for the task any more."""


class UnseededTaskError(Exception):
    """Internal: the task uses random generators, which only worker processes seed."""


@dataclass(frozen=True)
class Crash:
    """How a worker was lost.

    Attributes:
        worker: Its name, with its process id if it has one.
        ending: "was killed by SIGKILL", "ended with exit code 7"; empty for a thread, which cannot be ended.
        place: What it was at, in words; empty where it was between two tasks.
        peak: Most memory it was seen to hold, bytes; 0 where unknown. Exact where it is more than this process held.
        stack: Where it was; empty where unknown.
        hung: Whether it was given up for outlasting the timeout.
        started: Whether it had begun to take tasks.
        timeout: The timeout, s; None for none.
    """

    worker: str
    ending: str = ""
    place: str = ""
    peak: int = 0
    stack: str = ""
    hung: bool = False
    started: bool = True
    timeout: float | None = None

    @property
    def killed(self) -> bool:
        """Whether somebody may have killed it from outside."""
        return "SIGKILL" in self.ending or "SIGTERM" in self.ending or self.ending == UNKNOWN_ENDING

    @property
    def kind(self) -> type[SceneTimeoutError | WorkerDiedError]:
        """The class of the error to raise for it."""
        return SceneTimeoutError if self.hung else WorkerDiedError

    def __str__(self) -> str:
        between = " between two scenes" if self.started else " while it started"
        where = f" while it loaded {self.place}" if self.place else between
        return f"{self.worker} {self.ending}{where}{self.memory}"

    @property
    def memory(self) -> str:
        """Its peak memory, in words."""
        return f" (its peak memory was {self.peak / 1e6:,.0f} MB)" if self.peak else ""

    @property
    def thread_text(self) -> str:
        """What is said of a thread that hangs, behind what it was at."""
        return (
            f"took longer than timeout={self.timeout} s in {self.worker}, which cannot be ended because it is a thread;"
            " it goes on, and another thread has taken its place. Use worker_type='process', where such a worker is "
            f"replaced and its scene tried again. The thread is at\n{self.stack}"
        )

    @property
    def stack_text(self) -> str:
        """Where it was, in words."""
        return f" It was at\n{self.stack}\n" if self.stack else ""


class Task(ABC):
    """What a worker is to do. Subclasses are frozen.

    Attributes:
        worker: Number of the worker that is to do it; None for any.
    """

    worker: int | None = None

    @abstractmethod
    def record(self) -> Record:
        """The task as the runner gets it."""

    @abstractmethod
    def done(self, payload: Any, seconds: float, worker: str) -> Sequence["Task"]:
        """It was done by `worker`, in so many seconds; returns what is to be done next."""

    @abstractmethod
    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence["Task"]:
        """The user's code has raised `error`; `traceback` is that of another process, as text. Returns what to do."""

    @abstractmethod
    def crashed(self, note: int, crash: Crash, count: int) -> Sequence["Task"]:
        """Its workers were lost so often at the place `note` that it is not tried again; returns what to do instead."""

    @abstractmethod
    def give_up(self, error: BaseException) -> None:
        """Nobody is to wait for it any more; where a worker is still at it, its outcome is told afterwards."""

    @abstractmethod
    def stuck(self, note: int, crash: Crash) -> None:
        """A thread hangs in it, and is waited for no more; where it comes back, it tells the outcome nevertheless."""

    def cancelled(self) -> None:  # noqa: B027 - most cannot be
        """Nobody waits for it, and no worker is at it any more."""

    @abstractmethod
    def text(self, note: int) -> str:
        """Where a worker is that has noted `note`, in words; empty for nowhere."""

    def culprit(self, note: int) -> Hashable | None:
        """What a worker is at that has noted `note`, equal for all tasks that contain it; None where it is unknown."""
        return None if note == NOWHERE else self.record()

    def culprits(self) -> Iterable[Hashable]:
        """All that `culprit` may name."""
        return (self.record(),)

    def items_at(self, note: int) -> int:
        """How many scenes a worker loads at once that has noted `note`: the timeout is that of one."""
        return 1

    def parts(self, note: int) -> Sequence["Task"]:
        """The same cut up, where which part of it ends workers is to be found out; empty where it has no parts."""
        return ()


@dataclass(frozen=True, eq=False)
class FutureTask(Task):
    """A task whose outcome is a future's.

    Attributes:
        kind: What the runner takes it for.
        number: What it is about: an index, the number of a file or of a shard.
        future: Done with what the runner has returned, or what went wrong.
    """

    kind: int
    number: int
    worker: int | None = None
    future: "Future[Any]" = field(default_factory=Future)

    def record(self) -> Record:
        """See `Task.record`."""
        return self.kind, self.number

    def done(self, payload: Any, seconds: float, worker: str) -> Sequence[Task]:
        """See `Task.done`."""
        self.set_result(payload)
        return ()

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        self.set_exception(error)
        return ()

    def crashed(self, note: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        self.set_exception(crash.kind(f"{crash}, {count} times.{crash.stack_text}"))
        return ()

    def give_up(self, error: BaseException) -> None:
        """See `Task.give_up`."""
        self.set_exception(error)

    def stuck(self, note: int, crash: Crash) -> None:
        """See `Task.stuck`."""
        self.set_exception(crash.kind(f"{self.text(note) or 'a task'} {crash.thread_text}"))

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else f"task {self.number}"

    def set_result(self, result: Any) -> None:
        """Give whoever waits a result, unless something was given before."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def set_exception(self, error: BaseException) -> None:
        """Give whoever waits an error, unless something was given before."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
