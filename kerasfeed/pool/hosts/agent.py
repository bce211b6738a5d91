"""The agent of a host: a pool of worker processes that does what the driver asks, and answers whole batches.

Invariant: decides nothing about scenes. A task that ends its worker is told to the driver at once, which counts. All
methods but `start` may be called from several threads.
"""

import os
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kerasfeed
from kerasfeed.errors import WorkerStartError
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.hosts.engine import Parcel, pack
from kerasfeed.pool.hosts.held_runner import NOTE_RANDOM, READY, HeldRunner
from kerasfeed.pool.hosts.messages import Answer, Error, Outcome, Region, Setup, Started, Work
from kerasfeed.pool.processes.pool import ProcessPool
from kerasfeed.pool.task import NOWHERE, Crash, FutureTask, Place, Record, Task
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import full_text, message_of, summary
from kerasfeed.util.resources import cores

_STATES_SECONDS = 60.0  # a version that work needs is on its way, or the host is lost
Fetch = Callable[[Any], Parcel]


def versions() -> str:
    """What must be the same on all hosts."""
    return f"kerasfeed {kerasfeed.__version__} on Python {'.'.join(platform.python_version_tuple()[:2])}"


class Agent:
    """The worker processes of one host, and what the driver asks of them."""

    def __init__(self, fetch: Fetch) -> None:
        """`fetch`: from what `Engine.share` has returned to the parcel."""
        self._fetch = fetch
        self._pool: ProcessPool | None = None
        self._changed = threading.Condition()
        self._versions = {"runner": 0, "posted": 0}
        self._posted: Any = None
        self._warnings = _Collected()

    # ---- what the driver asks for

    def start(self, version: str, setup: Parcel, runner: Any) -> Parcel:
        """Start the workers; returns when one of them can take work, or why none can."""
        name = platform.node()
        if version != versions():
            return pack(Started(name, version=versions()))
        try:
            return pack(self._started(name, setup.unpack(), runner))
        except ModuleNotFoundError as error:
            return pack(Started(name, module=error.name or message_of(error), version=version))
        except BaseException as error:  # noqa: BLE001 - the driver raises it where the user sees it
            return pack(Started(name, error=Error.of(_start_error(error)), version=version))

    def _started(self, name: str, setup: Setup, runner: Any) -> Started:
        sys.path.extend(entry for entry in setup.search_path if entry not in sys.path and Path(entry).exists())
        count = setup.workers or cores()
        held = HeldRunner(self._fetch(runner).unpack(), setup.number * count, setup.hosts * count)
        self._versions["runner"] = setup.runner_version
        options = PoolOptions(
            workers=count, who=setup.who, seed=setup.seed, timeout=setup.timeout, tries=1, tries_in_time=1,
            environment=_environment(setup), deferred_warnings=self._warnings,
        )  # fmt: skip
        self._held, self._carrier = held, held.runner.carrier()
        self._pool = ProcessPool(held, options)
        self._pool.run(FutureTask(READY, 0)).result()
        return Started(name, count, version=versions())

    def run(self, work: Parcel, shared: dict[str, Any]) -> Parcel:
        """Do the tasks; returns what became of each, and what they have written."""
        try:
            return self._run(work.unpack(), shared)
        except BaseException as error:  # noqa: BLE001 - as above
            return pack(Answer(failure=Error.of(error)))

    def _run(self, work: Work, shared: dict[str, Any]) -> Parcel:
        pool = self._pool
        assert pool is not None
        self._bring_up_to_date(work, shared)
        if work.used_random & ~pool.used_random:
            pool.run(FutureTask(NOTE_RANDOM, work.used_random)).result()
        region = None
        if work.memory:
            region = self._carrier.region(pool.memory, self._posted, work.records, work.memory)
        records = region.records if region else work.records
        told = _Told(len(records))
        tasks = [
            _HostTask(record, number, items, told, region)
            for number, (record, items) in enumerate(zip(records, work.items, strict=True))
        ]
        try:
            pool.submit(tasks)
        except Exception as error:  # noqa: BLE001 - it has ended
            for task in tasks:
                task.give_up(error)
        outcomes = told.wait()
        del tasks
        written = region.written([outcome.method == "done" for outcome in outcomes]) if region else []
        answer = Answer(
            outcomes,
            tuple(place for place, _ in written),
            pool.respawns,
            pool.used_random,
            self._warnings.taken(),
            None if pool.failure is None else Error.of(pool.failure),
        )
        packed = pack(answer)
        return Parcel(packed.data, (*packed.buffers, *(array for _, array in written)))

    def stop(self) -> Parcel:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
        return pack(Answer(warnings=self._warnings.taken()))

    # ---- what changes

    def _bring_up_to_date(self, work: Work, shared: dict[str, Any]) -> None:
        """See what work needs: what comes with it, or with what was sent before it and may come after."""
        assert self._pool is not None
        with self._changed:
            if "runner" in shared and work.runner_version > self._versions["runner"]:
                self._held.runner = self._fetch(shared["runner"]).unpack()
                self._pool.renew()
                self._versions["runner"] = work.runner_version
            if "posted" in shared and work.posted_version > self._versions["posted"]:
                self._posted = self._fetch(shared["posted"]).unpack()
                self._pool.post(self._posted)
                self._versions["posted"] = work.posted_version
            self._changed.notify_all()
            if not self._changed.wait_for(
                lambda: (
                    self._versions["runner"] >= work.runner_version and self._versions["posted"] >= work.posted_version
                ),
                _STATES_SECONDS,
            ):
                raise WorkerStartError(f"what its work needs has not come in {_STATES_SECONDS:g} s")


def _start_error(error: BaseException) -> BaseException:
    if isinstance(error, WorkerStartError):
        return error
    found = WorkerStartError(f"the sequence could not be loaded: {summary(error)}\n{full_text(error)}")
    found.__cause__ = error
    return found


def _environment(setup: Setup) -> Environment:
    """That of this process, but for what would make batches differ, and in the driver's directory where it is here."""
    variables = dict(os.environ)
    variables.pop("PYTHONHASHSEED", None)
    if setup.hash_seed:
        variables["PYTHONHASHSEED"] = setup.hash_seed
    if variables.get("RAY_RAYLET_PID"):  # Ray sets it to the CPUs of the actor; each worker would start so many threads
        variables.pop("OMP_NUM_THREADS", None)
    directory = setup.directory
    if directory is None or not Path(directory).is_dir():
        directory = Environment.now().directory
    return Environment(directory, variables)


class _Told:
    """What became of tasks."""

    def __init__(self, count: int) -> None:
        self._outcomes: dict[int, Outcome] = {}
        self._count = count
        self._complete = threading.Condition()

    def tell(self, number: int, method: str, *arguments: Any) -> Sequence[Task]:
        with self._complete:
            self._outcomes.setdefault(number, Outcome(method, arguments))
            self._complete.notify_all()
        return ()

    def wait(self) -> tuple[Outcome, ...]:
        with self._complete:
            self._complete.wait_for(lambda: len(self._outcomes) == self._count)
        return tuple(self._outcomes[number] for number in range(self._count))


class _HostTask(Task):
    """A task of the driver's, on this host."""

    def __init__(self, record: Record, number: int, items: int, told: _Told, region: Region | None) -> None:
        self.sent, self.number, self.items, self.told, self.region = record, number, items, told, region

    def record(self) -> Record:
        return self.sent

    def done(self, payload: Any, seconds: float, worker: str) -> Sequence[Task]:
        return self.told.tell(self.number, "done", payload, seconds, worker)

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        return self.told.tell(self.number, "failed", place, Error.of(error), worker, traceback)

    def crashed(self, note: int, crash: Crash, count: int) -> Sequence[Task]:
        return self.told.tell(self.number, "crashed", note, crash, count)

    def broken(self, error: BaseException) -> None:
        self.told.tell(self.number, "broken", Error.of(error))

    def give_up(self, error: BaseException) -> None:
        self.told.tell(self.number, "give_up", Error.of(error))

    def stuck(self, note: int, crash: Crash) -> None:
        raise AssertionError("of processes none is stuck")

    def cancelled(self) -> None:
        self.told.tell(self.number, "cancelled")

    def items_at(self, note: int) -> int:
        return self.items if note < 0 else 1  # a row, or no place of one scene alone

    def text(self, note: int) -> str:
        if note == NOWHERE:
            return ""
        return f"task {self.sent[1]}" if self.region is None else self.region.text(self.sent, note)


class _Collected(DeferredWarnings):
    """Warnings that are for the driver's user."""

    def __init__(self) -> None:
        super().__init__()
        self._collected: list[tuple[str, str, type[Warning]]] = []

    def defer(self, kind: str, text: str, category: type[Warning]) -> None:
        """See `DeferredWarnings.defer`."""
        if not self.is_known(kind):
            self.mute(kind)
            self._collected.append((kind, text, category))

    def issue_now(self, kind: str, text: str, category: type[Warning], consumer: int | None = None) -> None:
        """See `DeferredWarnings.issue_now`; it is told with the next answer."""
        self.defer(kind, text, category)

    def taken(self) -> list[tuple[str, str, type[Warning]]]:
        """Those since the last call."""
        found, self._collected = self._collected, []
        return found
