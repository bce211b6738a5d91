"""A host: a loader with worker processes of its own, which answers batches.

Invariant: a call brings with it what the host must know to answer it: the `State`, and the packed job, or None where
the host has said that it has the one of that generation. All methods may be called by several threads at once, but for
`start`, which all but `live` come after.
"""

import os
import platform
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerasfeed.errors import WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import READY
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.calls import MOST_CALLS, Failure, HostAnswer, Packed, State, pack, unpack, versions
from kerasfeed.loaders.loader import Loader
from kerasfeed.pool.base import HostPlace
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.task import FutureTask
from kerasfeed.util.error_text import add_note, full_text, message_of, wrapped
from kerasfeed.util.resources import cores, memory

_CAUSES = 2  # of an exception, one behind the other, that are sent along


class FeedHost:
    """One host. Each method returns a `HostAnswer`."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._taking = threading.Lock()
        self._loader: Loader | None = None
        self._generation = 0
        self._urgent: queue.SimpleQueue[tuple[str, str, type[Warning]]] = queue.SimpleQueue()
        # By epoch and step, which are None for scenes that were read to infer the spec.
        self._failures: defaultdict[tuple[int | None, int | None], list[Failure]] = defaultdict(list)

    def start(
        self, job: Packed, state: State, number: int, hosts: int, version: str, search_path: Sequence[str]
    ) -> HostAnswer:
        """Start the workers, and wait until one can take work: the name of this machine, and how many there are."""
        name = f"host {number} ({platform.node()})"
        try:
            if version != versions():
                raise WorkerStartError(
                    f"{name} has {versions()}, and this process {version}: batches might differ. Install the same on "
                    "all hosts"
                )
            sys.path.extend(entry for entry in search_path if entry not in sys.path and Path(entry).exists())
            given: Job = unpack(job)
            count = cores() if given.every_core else given.workers
            log = FailureLog(given.policy, given.plan.length, given.plan.shard_count)
            log.on_note = self._note
            log.deferred_warnings.mute("copied")  # of memory of this host alone
            log.deferred_warnings.urgent = self._urgent
            own = replace(
                given, workers=count, look_ahead=MOST_CALLS, max_memory=max(given.max_memory, memory() // 4),
                environment=_environment(given.environment),
                place=HostPlace(number * count, hosts * count, f" on {name}"),
            )  # fmt: skip
            self._loader, self._generation = Loader(own, "process", failure_log=log), state.generation
            self._loader.start()
            assert self._loader.pool is not None
            self._loader.pool.run(FutureTask(READY, 0)).result()
            return HostAnswer(pack((platform.node(), count)), generation=state.generation)
        except BaseException as error:  # noqa: BLE001 - the driver raises it where the user sees it
            return HostAnswer(error=Sent.of(_start_error(error, name), causes=_CAUSES))

    def infer(self, job: Packed | None, state: State, epoch: int, least: int) -> HostAnswer:
        """The layout; scenes are read as in `epoch`, at least so many where items are batches."""
        return self._answer(job, state, (None, None), lambda loader: loader.infer(epoch, least))

    def batch(self, job: Packed | None, state: State, epoch: int, step: int) -> HostAnswer:
        """The batch."""
        return self._answer(job, state, (epoch, step), lambda loader: loader.submit(epoch, step).result())

    def live(self, *_: Any) -> HostAnswer:
        """Wait for a warning that is not to wait for an answer; whoever waits is also told when the host ends."""
        return HostAnswer(warnings=[self._urgent.get()])

    def stop(self, *_: Any) -> HostAnswer:
        """End the workers."""
        if self._loader is None:
            return HostAnswer()
        self._loader.close()
        return HostAnswer(warnings=self._loader.failure_log.deferred_warnings.taken())

    def _answer(
        self, job: Packed | None, state: State, place: tuple[int | None, int | None], make: Callable[[Loader], Any]
    ) -> HostAnswer:
        loader = self._loader
        assert loader is not None
        value: Packed = ()
        error, has_failed = None, False
        try:
            with self._taking:
                if job is not None and state.generation > self._generation:
                    loader.replace_sequence(unpack(job).sequence)
                    self._generation = state.generation
                loader.layout = loader.layout or state.layout
                if loader.pool is not None:
                    loader.pool.note_random(state.used_random)
            value = pack(make(loader), beside_from=1)  # all arrays, for the driver copies them to 64-byte boundaries
        except BaseException as found:  # noqa: BLE001 - as above
            error, pool = Sent.of(found, causes=_CAUSES), loader.pool
            has_failed = pool is not None and pool.failure is found
        # Other threads are answering, too: each failure is taken out once.
        failures = [failure for key in {place, (None, None)} for failure in self._failures.pop(key, ())]
        return HostAnswer(
            value, error, has_failed, failures, loader.failure_log.deferred_warnings.taken(), loader.stats().respawns,
            loader.pool.used_random if loader.pool else 0, loader.waste(), self._generation,
        )  # fmt: skip

    def _note(self, index: int | None, epoch: int | None, step: int | None, error: BaseException) -> None:
        """See `FailureLog.on_note`."""
        self._failures[epoch, step].append((index, epoch, step, Sent.of(error, causes=_CAUSES)))


def _start_error(error: BaseException, name: str) -> BaseException:
    if isinstance(error, ModuleNotFoundError):
        module = error.name or message_of(error)
        package = module.split(".")[0]
        return WorkerStartError(
            f"{name} has no module {module!r}, which the sequence needs. A module of yours can be sent along: "
            f"kf.RayHosts(ship=({package},)); others are installed on the hosts, or with "
            f"kf.RayHosts(runtime_env={{'pip': [{package!r}]}})"
        )
    if isinstance(error, WorkerStartError) and name in message_of(error):
        return error
    found = wrapped(error, f"{name} can take no work: ", WorkerStartError)
    add_note(found, full_text(error))
    return found


def _was_given(variable: str) -> bool:
    """Whether this process was started with that variable, as far as the system tells."""
    with suppress(OSError):
        return f"\0{variable}=".encode() in b"\0" + Path("/proc/self/environ").read_bytes()
    return False


def _environment(driver: Environment) -> Environment:
    """That of this process, with the driver's seed of text hashes, and the driver's directory where that is here."""
    variables = {**os.environ, "PYTHONHASHSEED": driver.environment.get("PYTHONHASHSEED", "")}
    # Where the user has set none, Ray sets it to the CPUs of the actor, and each worker would start so many threads.
    if variables.get("RAY_RAYLET_PID") and not _was_given("OMP_NUM_THREADS"):
        variables.pop("OMP_NUM_THREADS", None)
    here = driver.directory is not None and Path(driver.directory).is_dir()
    return Environment(driver.directory if here else Environment.now().directory, variables, driver.modules)
