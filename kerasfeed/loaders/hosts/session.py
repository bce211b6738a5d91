"""Batches of a job that other hosts make: one of them is asked for each, and what it answers is copied into our slots.

Invariant: a batch is a pure function of (sequence, plan, epoch, step), so it is the one that workers of this machine
make. What has failed is counted here, for all hosts together.
"""

import dataclasses
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import BatchRunner
from kerasfeed.loaders.batches.layout import Layout, aligned_empty
from kerasfeed.loaders.batches.slots import SlotPool
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.calls import HostAnswer, HostCalls, HostStats, Packed, pack, unpack
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.memory import PoolMemory, align
from kerasfeed.util.error_text import class_name
from kerasfeed.util.read_cost import ReadCost


class HostsSession:
    """Batches of one job, asked of the hosts of one cluster; `Session` says what each method is for.

    Attributes:
        job: What is loaded.
        runner: What workers would hold on this machine.
        pool: The hosts.
        slots: Memory of batches; None until the layout is known.
        batches: Delivered so far.
        copied: Of these, not in slots.
    """

    def __init__(self, job: Job, failure_log: FailureLog) -> None:
        """Start the hosts, without waiting for them.

        Raises:
            TypeError: The job cannot be pickled, or needs what other machines do not have.
            ImportError, WorkerStartError: See `Hosts.join`.
        """
        assert job.hosts is not None
        if job.inherit:
            raise TypeError(
                "hosts load any batch anywhere, and this sequence needs open files of this process: leave hosts out"
            )
        self.job, self.failure_log, self.runner = job, failure_log, BatchRunner(job)
        options = PoolOptions(
            workers=job.workers, who=f"the feed of {class_name(job.sequence)}", tries=job.policy.tries,
            deferred_warnings=failure_log.deferred_warnings,
        )  # fmt: skip
        self.pool = HostCalls(job.hosts, options, partial(_packed, job, self.runner), partial(_depth, job))
        self.memory = PoolMemory(shared=False, who=options.who)
        self.slots: SlotPool | None = None
        self.batches = self.copied = 0

    def close(self) -> None:
        """End the hosts and free everything; idempotent."""
        self.pool.close()
        if self.slots is not None:
            self.slots.free(flying=False)
        self.memory.close()

    def infer(self, layout: Layout | None, epoch: int, least: int = 1) -> None:
        """See `Session.infer`; one host infers the layout, and the others are told."""
        if layout is None:
            what = "the scenes that are read to infer the spec"
            layout = self.pool.ask(what, lambda answer: unpack(self._value(answer)), "infer", epoch, least).result()
        self.pool.tell(layout=layout)
        self.slots = SlotPool(layout, self.memory, max_memory=self.job.max_memory, in_flight=1)

    def submit(self, epoch: int, step: int, timeout: float | None = None, kept: Any = None) -> Future[Any]:
        """See `Session.submit`; waits for nothing."""
        self.job.plan.indices(epoch, step)  # refuses a step that is out of range
        return self.pool.ask(f"several scenes at once (epoch {epoch}, step {step})", self._batch, "batch", epoch, step)

    @property
    def look_ahead(self) -> int:
        """See `Session.look_ahead`."""
        return max(self.job.look_ahead, self.pool.stats().wanted * _depth(self.job, self.job.workers))

    def pids(self) -> tuple[int, ...]:
        """See `Session.pids`; workers of hosts are not of this machine."""
        return ()

    def host_stats(self) -> HostStats:
        """What became of batches on hosts."""
        return self.pool.stats()

    def wasted(self) -> ReadCost | None:
        """See `Session.wasted`."""
        return self.pool.waste

    # ---- answers; on the thread of the hosts

    def _value(self, answer: HostAnswer) -> Packed:
        """What a host was asked for.

        Raises:
            Exception: What the host says, or that too many scenes have failed.
        """
        log, refusal = self.failure_log, None
        for index, epoch, step, sent in answer.failures:
            error = sent.arrived()
            log.note(index, epoch, step, error)
            if index is not None and log.policy.on_error != "raise":
                refusal = log.refusal(index, epoch or 0, error) or refusal
        if answer.error is not None:
            raise answer.error.arrived()
        if refusal is not None:
            raise refusal
        return answer.value

    def _batch(self, answer: HostAnswer) -> Any:
        packed = self._value(answer)
        batch = unpack(packed, self._copies(packed[1:]))
        self.batches += 1
        return batch

    def _copies(self, arrays: Packed) -> list[NDArray[np.uint8]]:
        """The arrays of a batch in a slot, as far as one is free, and has room."""
        assert self.slots is not None
        room, used, found = np.empty(0, np.uint8), 0, []
        if arrays:
            held = self.slots.acquire()
            try:
                exporter = self.slots.lease(held)
            finally:
                self.slots.release(held)  # unless it was leased
            if exporter is None:
                self.copied += 1
                self.failure_log.note_copied(self.slots.ceiling)
            else:
                room = np.frombuffer(exporter, np.uint8)
        for array in arrays:
            fits = used + len(array) <= len(room)
            target = room[used : used + len(array)] if fits else aligned_empty((len(array),), np.dtype(np.uint8))
            target[:] = array
            used += align(len(array)) * fits
            found.append(target)
        return found


def _packed(job: Job, runner: BatchRunner) -> Packed:
    """What hosts are to load."""
    assert job.hosts is not None
    seed = {name: value for name, value in job.environment.environment.items() if name == "PYTHONHASHSEED"}
    environment = Environment(job.environment.directory, seed)  # the rest may hold passwords
    policy = dataclasses.replace(job.policy, error_log=None)  # which is of this machine
    sent = dataclasses.replace(job, hosts=None, free=frozenset(), policy=policy, environment=environment)
    try:
        return pack(sent, job.hosts.ship)
    except Exception as error:
        raise runner.unpicklable(error) from error


def _depth(job: Job, workers: int) -> int:
    """Batches that a host has at once: one to work on and one on its way, and two scenes a worker."""
    return max(2, job.ahead_for(workers))
