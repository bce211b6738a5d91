"""A host: a loader with worker processes that returns batches.

Invariant: each call contains the packed job and the `State`, which the host needs to answer. Several threads may call
all methods at once. After a restart a host has no state, and raises an error until `start` is called again.
"""

import os
import platform
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerasfeed import __version__
from kerasfeed.errors import WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import READY
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.session import MOST_CALLS, HostAnswer, Packed, State, pack, unpack
from kerasfeed.loaders.loader import Loader
from kerasfeed.pool.base import HostPlace
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.task import FutureTask
from kerasfeed.util.error_text import message_of, wrapped
from kerasfeed.util.resources import cores, memory

_CAUSES = 2  # length of the chain of causes sent with an exception


class FeedHost:
    """One host. Each method returns a `HostAnswer`."""

    def __init__(self) -> None:
        """Create a host; `start` starts its workers."""
        self._lock = threading.Lock()
        self._loader: Loader | None = None
        self._generation = 0
        self._urgent: queue.SimpleQueue[tuple[str, str, type[Warning]]] = queue.SimpleQueue()
        # By epoch and step, which are None for scenes read to infer the spec.
        self._failures: defaultdict[tuple[int | None, int | None], list[Any]] = defaultdict(list)

    def start(
        self, job: Packed, state: State, number: int, hosts: int, version: str, search_path: Sequence[str]
    ) -> HostAnswer:
        """Start the workers and wait for the first.

        The answer holds the name of the host and its number of workers.
        """
        name = f"host {number} ({platform.node()})"
        try:
            if version != __version__:
                raise WorkerStartError(f"kerasfeed is {__version__} there and {version} here: install the same on all")
            sys.path.extend(entry for entry in search_path if entry not in sys.path and Path(entry).exists())
            given: Job = unpack(job)
            count = cores() if given.every_core else given.workers
            log = FailureLog(given.policy, given.plan.length, given.plan.shard_count)
            log.on_note = self._note
            log.deferred_warnings.mute("copied")  # concerns only the memory of this host
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
            return HostAnswer(pack((name, count)))
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            return HostAnswer(error=Sent.of(_start_error(error, name), causes=_CAUSES))

    def infer(self, job: Packed, state: State, epoch: int, least: int) -> HostAnswer:
        """Infer the layout from scenes of `epoch`.

        Read at least `least` items if items are batches.
        """
        return self._answer(job, state, (None, None), lambda loader: loader.infer(epoch, least))

    def batch(self, job: Packed, state: State, epoch: int, step: int) -> HostAnswer:
        """Load a batch."""
        return self._answer(job, state, (epoch, step), lambda loader: loader.submit(epoch, step).result())

    def live(self, *_: Any) -> HostAnswer:
        """Wait for an urgent warning; the call fails if the host ends."""
        return HostAnswer(warnings=[self._urgent.get()])

    def stop(self, *_: Any) -> HostAnswer:
        """End the workers."""
        if self._loader is None:
            return HostAnswer()
        self._loader.close()
        return HostAnswer(warnings=self._loader.failure_log.deferred_warnings.taken())

    def _answer(
        self, job: Packed, state: State, step: tuple[int | None, int | None], load: Callable[[Loader], Any]
    ) -> HostAnswer:
        loader, error = self._loader, None
        value: Packed = ()
        if loader is None:
            raise RuntimeError("the host was restarted")
        try:
            with self._lock:
                if state.generation > self._generation:
                    loader.replace_sequence(unpack(job).sequence)
                    self._generation = state.generation
                loader.layout = loader.layout or state.layout
                if loader.pool is not None:
                    loader.pool.note_random(state.used_random)
            value = pack(load(loader), beside_from=1)  # from 1 byte, so all arrays: the driver aligns them to 64 bytes
        except BaseException as raised:  # noqa: BLE001 - as above
            error = Sent.of(raised, causes=_CAUSES)
        # pop: several threads answer, and each failure is sent once.
        failures = [failure for key in {step, (None, None)} for failure in self._failures.pop(key, ())]
        used_random = loader.pool.used_random if loader.pool else 0
        return HostAnswer(value, error, failures, loader.failure_log.deferred_warnings.taken(), used_random)

    def _note(self, index: int | None, epoch: int | None, step: int | None, error: BaseException) -> None:
        """See `FailureLog.on_note`."""
        self._failures[epoch, step].append((index, epoch, step, Sent.of(error, causes=_CAUSES)))


def _start_error(error: BaseException, name: str) -> WorkerStartError:
    if not isinstance(error, ModuleNotFoundError):
        return wrapped(error, f"{name} can take no work: ", WorkerStartError)
    module = error.name or message_of(error)
    package = module.split(".")[0]
    return WorkerStartError(
        f"{name} has no module {module!r}, which the sequence needs. A module of yours can be sent along: "
        f"kf.RayHosts(ship=({package},)); others are installed on the hosts, or with "
        f"kf.RayHosts(runtime_env={{'pip': [{package!r}]}})"
    )


def _environment(driver: Environment) -> Environment:
    """Return the environment of the worker processes.

    It is this process's environment with the driver's hash seed, and with the driver's directory if it exists here.
    """
    variables = {**os.environ, "PYTHONHASHSEED": driver.environment.get("PYTHONHASHSEED", "")}
    here = driver.directory is not None and Path(driver.directory).is_dir()
    return Environment(driver.directory if here else Environment.now().directory, variables, driver.modules)
