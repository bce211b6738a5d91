"""A host: a loader with worker processes that returns batches.

Invariant: a call contains the packed job and all that the host needs to answer. Several threads may call all
methods at once. After a restart a host has no loader, and raises an error until `start` is called again.
"""

import os
import platform
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerasfeed import __version__
from kerasfeed.errors import WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.session import MOST_CALLS, HostAnswer, Packed, pack, unpack
from kerasfeed.loaders.loader import Loader
from kerasfeed.pool.base import HostNumbers
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.util.error_text import message_of, wrapped
from kerasfeed.util.resources import cores, memory

_CAUSES = 2  # length of the chain of causes sent with an exception


class FeedHost:
    """One host."""

    def __init__(self, number: int, hosts: int, version: str, search_path: Sequence[str]) -> None:
        """Create host `number` of `hosts`; `start` starts its workers.

        Args:
            number: Number of the host, from 0.
            hosts: Number of hosts.
            version: The driver's version of kerasfeed.
            search_path: The driver's module search path.
        """
        self._number, self._hosts, self._version, self._search_path = number, hosts, version, search_path
        self._name = f"host {number} ({platform.node()})"
        self._lock = threading.Lock()
        self._loader: Loader | None = None
        self._generation = 0
        # By epoch and step, which are None for scenes read to infer the spec.
        self._failures: defaultdict[tuple[int | None, int | None], list[Any]] = defaultdict(list)

    def start(self, generation: int, job: Packed) -> HostAnswer:
        """Start the workers, without waiting for them.

        The answer's value is the host's name and its number of workers. See `load` for the arguments.
        """
        try:
            if self._version != __version__:
                raise WorkerStartError(
                    f"kerasfeed is {__version__} there and {self._version} here: install the same on all"
                )
            sys.path.extend(entry for entry in self._search_path if entry not in sys.path and Path(entry).exists())
            driver_job: Job = unpack(job)
            driver = driver_job.environment
            is_here = driver.directory is not None and Path(driver.directory).is_dir()
            directory = driver.directory if is_here else str(Path.cwd())
            environment = Environment(directory, {**os.environ, **driver.environment}, driver.modules)
            count = cores() if driver_job.every_core else driver_job.workers
            log = FailureLog(driver_job.policy, driver_job.plan.length, driver_job.plan.shard_count)
            log.on_record = self._record
            log.deferred_warnings.mute("copied")  # the warning concerns only the memory of this host
            own = replace(
                driver_job, workers=count, look_ahead=MOST_CALLS, max_memory=max(driver_job.max_memory, memory() // 4),
                environment=environment,
                host_numbers=HostNumbers(self._number * count, self._hosts * count, f" on {self._name}"),
            )  # fmt: skip
            self._loader, self._generation = Loader(own, "process", failure_log=log), generation
            self._loader.start()
            return HostAnswer(pack((self._name, count)))
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            return HostAnswer(error=Sent.of(_start_error(error, self._name), causes=_CAUSES))

    def live(self) -> None:
        """Never return; the call fails if the host ends."""
        threading.Event().wait()

    def stop(self) -> None:
        """End the workers."""
        if self._loader is not None:
            self._loader.close()

    def load(
        self,
        generation: int,
        job: Packed,
        layout: Layout | None,
        used_random: int,
        epoch: int,
        step: int | None,
        least: int,
    ) -> HostAnswer:
        """Load a batch.

        If `step` is None, infer the layout from scenes of `epoch` instead.

        Args:
            generation: How often the job has changed; a host with an older job unpacks `job` first.
            job: The packed job.
            layout: Layout of a batch; None until a host has inferred it.
            used_random: The random generators that scenes on any host have used; see `Pool.used_random`.
            epoch: Epoch of the batch or the scenes.
            step: Step of the epoch.
            least: Number of items to read at least to infer the layout, if items are batches.
        """
        loader, error = self._loader, None
        value: Packed = ()
        if loader is None:
            raise RuntimeError("the host was restarted")
        log = loader.failure_log
        try:
            with self._lock:
                if generation > self._generation:
                    loader.replace_sequence(unpack(job).sequence)
                    self._generation = generation
                loader.layout = loader.layout or layout
                loader.record_random(used_random)
            result = loader.infer(epoch, least) if step is None else loader.submit(epoch, step).result()
            value = pack(result, out_of_band_from=1)  # from 1 byte, so all arrays: the driver aligns them to 64 bytes
        except BaseException as raised:  # noqa: BLE001 - as above
            error = Sent.of(raised, causes=_CAUSES)
        # pop: several threads answer, and each failure is sent once.
        failures = [failure for key in {(epoch, step), (None, None)} for failure in self._failures.pop(key, ())]
        return HostAnswer(value, error, failures, log.deferred_warnings.taken(), log.used_random)

    def _record(self, index: int | None, epoch: int | None, step: int | None, error: BaseException) -> None:
        """See `FailureLog.on_record`."""
        self._failures[epoch, step].append((index, epoch, step, Sent.of(error, causes=_CAUSES)))


def _start_error(error: BaseException, name: str) -> WorkerStartError:
    if not isinstance(error, ModuleNotFoundError):
        return wrapped(error, f"{name} could not start: ", WorkerStartError)
    module = error.name or message_of(error)
    package = module.split(".")[0]
    return WorkerStartError(
        f"{name} has no module {module!r}, which the sequence needs. A module of yours can be sent along: "
        f"kf.RayHosts(ship=({package},)); others are installed on the hosts, or with "
        f"kf.RayHosts(runtime_env={{'pip': [{package!r}]}})"
    )
