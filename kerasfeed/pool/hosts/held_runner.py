"""The runner on a host: the driver's, which may be exchanged, and whose workers are numbered through all hosts."""

from dataclasses import dataclass, replace
from typing import Any

from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import Note, Record
from kerasfeed.sequences.context import Worker
from kerasfeed.util.optional_methods import optional_method

READY, NOTE_RANDOM = 0, -1  # kinds of records that only hosts have


class HeldRunner(Runner):
    """A runner that may be exchanged, and whose workers are numbered through all hosts."""

    def __init__(self, runner: Runner, first: int, count: int) -> None:
        self.runner = runner
        self._first, self._count = first, count

    @property
    def target(self) -> Any:
        """See `Runner`."""
        return _Numbered(self.runner.target, self._first, self._count)

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """See `Runner.run`."""
        if record[0] == READY:
            return None
        if record[0] == NOTE_RANDOM:
            return context.note_random(record[1])
        return self.runner.run(record, note, context)

    def follow(self, previous: Runner) -> None:
        """See `Runner.follow`."""
        assert isinstance(previous, HeldRunner)
        self.runner.follow(previous.runner)

    def unpicklable(self, error: Exception) -> TypeError:
        """See `Runner.unpicklable`."""
        return self.runner.unpicklable(error)


@dataclass(frozen=True)
class _Numbered:
    """The hooks of an object, told the number of a worker among those of all hosts."""

    inner: Any
    first: int
    count: int

    def on_worker_begin(self, worker: Worker) -> None:
        begin = optional_method(self.inner, "on_worker_begin")
        if begin is not None:
            begin(replace(worker, index=self.first + worker.index, count=max(self.count, self.first + worker.count)))

    def on_worker_end(self) -> None:
        end = optional_method(self.inner, "on_worker_end")
        if end is not None:
            end()
