"""A task for a worker, and its outcome.

Invariant: a task is a value, so several workers may receive it one after another. The pool reports that it was done,
has failed or has ended its workers. The task answers with the tasks to do next. The pool calls its methods on a pool
thread, and may report an outcome even after `give_up`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.errors import SceneTimeoutError, WorkerDiedError

# A task as the runner receives it: its kind, and at most seven numbers.
Record = tuple[int, ...]
MOST_NUMBERS = 8
# Item 1 is the worker's position within its task, which other threads and processes read: a list, or the worker's line
# in a shared file. Setting an item takes 15 ns, a call 70 ns.
TaskProgress = list[int] | memoryview
UNKNOWN_ENDING = "ended in an unknown way (this program ignores SIGCHLD, or collects its child processes itself)"
NOWHERE = -2  # the task has begun and has not set a position yet


@dataclass(frozen=True)
class FailurePosition:
    """The position of a failure in a task.

    Attributes:
        scene: Index of the scene, or its number in its generator; None if several were being loaded.
        row: Its row in the batch; None if several were being loaded.
        method: The method that failed, if not `__getitem__`.
    """

    scene: int | None = None
    row: int | None = None
    method: str = ""


class FailedTaskError(Exception):
    """A failure in a task, caused by the user's exception."""

    def __init__(self, position: FailurePosition) -> None:
        super().__init__(position)
        self.position = position

    @property
    def error(self) -> BaseException:
        """The exception of the user's code."""
        assert self.__cause__ is not None
        return self.__cause__


class CancelledTaskError(Exception):
    """Internal: the consumer no longer waits for the task."""


class UnseededTaskError(Exception):
    """Internal: the task uses random generators, and only worker processes seed these."""


@dataclass(frozen=True)
class Crash:
    """How a worker was lost.

    Attributes:
        worker: Its name, with its process id if it has one.
        ending: "was killed by SIGKILL", "ended with exit code 7"; empty for a thread, which cannot be ended.
        position: Its position, in words; empty between two tasks.
        peak: Its peak memory, bytes; 0 if unknown. Exact if larger than the peak of this process.
        stack: Its stack; empty if unknown.
        hung: Whether it exceeded the timeout.
        started: Whether it had begun to take tasks.
        timeout: The timeout, s; None for none.
    """

    worker: str
    ending: str = ""
    position: str = ""
    peak: int = 0
    stack: str = ""
    hung: bool = False
    started: bool = True
    timeout: float | None = None

    @property
    def killed(self) -> bool:
        """Whether another process may have killed it."""
        return "SIGKILL" in self.ending or "SIGTERM" in self.ending or self.ending == UNKNOWN_ENDING

    @property
    def kind(self) -> type[SceneTimeoutError | WorkerDiedError]:
        """The exception class to raise for it."""
        return SceneTimeoutError if self.hung else WorkerDiedError

    def __str__(self) -> str:
        between = " between two scenes" if self.started else " while it started"
        where = f" while it loaded {self.position}" if self.position else between
        return f"{self.worker} {self.ending}{where}{self.memory}"

    @property
    def memory(self) -> str:
        """Its peak memory, for messages."""
        return f" (its peak memory was {self.peak / 1e6:,.0f} MB)" if self.peak else ""

    @property
    def thread_text(self) -> str:
        """The end of the message for a thread that hangs.

        It follows the name of the task.
        """
        return (
            f"took longer than timeout={self.timeout} s in {self.worker}. A thread cannot be ended: it continues, and "
            "another thread has replaced it. Use worker_type='process', which ends such a worker and tries its "
            f"scene again. The thread is at\n{self.stack}"
        )

    @property
    def stack_text(self) -> str:
        """Its stack, for messages."""
        return f" It was at\n{self.stack}\n" if self.stack else ""


class Task(ABC):
    """A task for a worker. Subclasses are frozen.

    Attributes:
        worker: Number of the worker that must do it; None for any.
    """

    worker: int | None = None

    @abstractmethod
    def record(self) -> Record:
        """Return the task as the runner receives it."""

    @abstractmethod
    def done(self, payload: Any, seconds: float, worker: str) -> Sequence["Task"]:
        """Report that `worker` did the task in so many seconds.

        Return the tasks to do next.
        """

    @abstractmethod
    def failed(self, position: FailurePosition, error: BaseException, worker: str, traceback: str) -> Sequence["Task"]:
        """Report that the user's code raised `error`.

        Return the tasks to do next. `traceback` is the text of a traceback in another process.
        """

    @abstractmethod
    def crashed(self, position: int, crash: Crash, count: int) -> Sequence["Task"]:
        """Report that `count` workers were lost at `position`.

        Return the tasks to do instead.
        """

    @abstractmethod
    def give_up(self, error: BaseException) -> None:
        """Fail the task now. A worker may still report its outcome later."""

    @abstractmethod
    def stuck(self, position: int, crash: Crash) -> None:
        """Fail the task because its thread hangs.

        The thread may still report the outcome later.
        """

    def cancelled(self) -> None:  # noqa: B027 - most cannot be
        """Report that the task was cancelled and no worker runs it."""

    @abstractmethod
    def text(self, position: int) -> str:
        """`position` in words; empty for none."""

    def culprit(self, position: int) -> Hashable | None:
        """Key of the work at `position`; None if unknown.

        It is equal in all tasks that contain this work.
        """
        return None if position == NOWHERE else self.record()

    def culprits(self) -> Iterable[Hashable]:
        """All keys that `culprit` may return."""
        return (self.record(),)

    def items_at(self, position: int) -> int:
        """Scenes that a worker loads at once at `position`.

        The timeout is per scene.
        """
        return 1

    def parts(self, position: int) -> Sequence["Task"]:
        """Split the task, to find the part that ends workers.

        Empty if it has no parts.
        """
        return ()


@dataclass(frozen=True, eq=False)
class FutureTask(Task):
    """A task whose outcome is a future.

    Attributes:
        kind: Kind of the task for the runner.
        number: Index of the scene, or number of the generator, file or shard.
        future: Resolved with the payload or the error.
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

    def failed(self, position: FailurePosition, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        self.set_exception(error)
        return ()

    def crashed(self, position: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        self.set_exception(crash.kind(f"{crash}, {count} times.{crash.stack_text}"))
        return ()

    def give_up(self, error: BaseException) -> None:
        """See `Task.give_up`."""
        self.set_exception(error)

    def stuck(self, position: int, crash: Crash) -> None:
        """See `Task.stuck`."""
        self.set_exception(crash.kind(f"{self.text(position) or 'a task'} {crash.thread_text}"))

    def text(self, position: int) -> str:
        """See `Task.text`."""
        return "" if position == NOWHERE else f"task {self.number}"

    def set_result(self, result: Any) -> None:
        """Resolve the future with a result, unless it is already resolved."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def set_exception(self, error: BaseException) -> None:
        """Resolve the future with an error, unless it is already resolved."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
