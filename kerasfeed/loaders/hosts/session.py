"""Batches from other hosts: calls, answers, and choice of host.

Invariant: a batch is a pure function of (sequence, plan, epoch, step), so any host may load it, also repeatedly. The
first answer is used, and is copied to memory of this process. The session counts the failures of all hosts. The cluster
restarts hosts that end. Only the session's thread assigns calls to hosts; it takes events from a queue.
"""

import dataclasses
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from kerasfeed import __version__
from kerasfeed.errors import FeedClosedError, FeedWarning, HostLostError, KerasfeedError, WorkerStartError
from kerasfeed.loaders.base import HostStats, Job
from kerasfeed.loaders.batch_runner import BatchRunner
from kerasfeed.loaders.batches.layout import Layout, aligned_copy
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, LOGGER, PoolOptions
from kerasfeed.pool.environment import Environment, search_path
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.processes.shared_objects import pickled
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_text import class_name, summary, wrapped
from kerasfeed.util.user_modules import module_values

MOST_CALLS = 32  # batches that a host has at once
_TICK = 0.5  # s
_GRACE = 6.0  # s, for hosts to end their workers
_RELEASE_SECONDS = 4.0 + _GRACE

# cloudpickle has one global registry. Without the lock, one thread would remove the modules of another.
_registering = threading.RLock()
Packed = Sequence[NDArray[np.uint8]]  # an object as bytes: first everything except its large arrays, then the arrays


def pack(value: Any, ship: Sequence[str] = (), **how: Any) -> Packed:
    """Return `value` as bytes, with the definitions of the modules `ship`.

    See `pickled` for `how`.

    Raises:
        Exception: `value` cannot be pickled.
    """
    with _registering:  # modules registered by the program stay registered
        modules = [import_module(name) for name in ship if name not in cloudpickle.list_registry_pickle_by_value()]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return [np.frombuffer(part, np.uint8) for part in pickled(value, **how)]
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def unpack(packed: Packed) -> Any:
    """Return the object, which refers to the memory of its packed arrays."""
    return cloudpickle.loads(packed[0], buffers=packed[1:])


@dataclass(frozen=True)
class State:
    """The current state of the session, sent with each call.

    Attributes:
        generation: How often the job has changed; a host with an older job unpacks the new one first.
        layout: Layout of a batch; None until a host has inferred it.
        used_random: See `Pool.used_random`.
    """

    generation: int = 0
    layout: Layout | None = None
    used_random: int = 0


@dataclass(frozen=True)
class HostAnswer:
    """The result of a call.

    Attributes:
        value: The packed result; empty if there is an error.
        error: The exception of the sequence or its loader. A call itself raises only errors of the cluster.
        failures: Failed scenes: index, epoch, step, error.
        warnings: Kind, text and class of warnings for the user.
        used_random: See `Pool.used_random`.
    """

    value: Packed = ()
    error: Sent | None = None
    failures: Sequence[tuple[int | None, int | None, int | None, Sent]] = ()
    warnings: Sequence[tuple[str, str, type[Warning]]] = ()
    used_random: int = 0


@dataclass(eq=False)
class _Call:
    """A pending call for a batch or the spec.

    Attributes:
        method: Method of `FeedHost`.
        arguments: Arguments after the job and the `State`.
        future: Future of the result.
        lost: Number of hosts that ended during the call.
    """

    method: str
    arguments: tuple[int, ...]
    future: Future[Any] = field(default_factory=Future)
    lost: int = 0


@dataclass(eq=False)
class _Host:
    """A host.

    Attributes:
        handle: Its handle in the cluster.
        name: Its name in messages.
        depth: Maximum number of concurrent calls; 0 while it starts.
        calls: Its pending calls.
        batches: Batches made so far.
        losses: How often it has ended.
        listens: Whether a call waits for its warnings.
    """

    handle: Any
    name: str
    depth: int = 0
    calls: list[_Call] = field(default_factory=list)
    batches: int = 0
    losses: int = 0
    listens: bool = False


class HostsSession:
    """Batches of one job from the hosts of one cluster; see `Session`.

    Any thread may call any method.

    Attributes:
        job: The job to load.
        runner: The runner of workers on this machine.
        options: Name the feed in messages, and hold its warnings.
        failure: The error that ended the session; None while it is usable.
        layout: Layout of a batch; None until known.
        batches: Batches delivered so far.
        respawns: How often a host has ended and was started again.
    """

    def __init__(self, job: Job, failure_log: FailureLog) -> None:
        """Start the hosts, without waiting for them.

        Raises:
            TypeError: The job cannot be pickled, or needs resources that other machines do not have.
            ImportError, WorkerStartError: See `RayHosts.join`.
        """
        assert job.hosts is not None
        if job.inherit:
            raise TypeError(
                "hosts load any batch anywhere, and this sequence needs open files of this process: leave hosts out"
            )
        self.job, self.failure_log, self.runner, self._given = job, failure_log, BatchRunner(job), job.hosts
        who = f"the feed of {class_name(job.sequence)}"
        self.options = PoolOptions(job.workers, who, deferred_warnings=failure_log.deferred_warnings)
        self.layout: Layout | None = None
        self.failure: BaseException | None = None
        self.batches = self.respawns = 0
        # No lock needed: `_ask` adds a call, then reads `failure`; `_fail` sets `failure`, then reads the calls.
        self._open: set[_Call] = set()
        self._waiting: deque[_Call] = deque()  # calls not yet assigned to a host
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        packed = self._packed_job()
        self._cluster = job.hosts.join()  # may take long
        try:
            self._hosts = [_Host(handle, f"host {number}") for number, handle in enumerate(self._cluster.hosts)]
            self._shared: tuple[int, Any] = 0, self._cluster.share(packed)  # generation, and job to pass in calls
            self._thread = threading.Thread(target=self._run, name="kerasfeed-hosts", daemon=True)
            start_thread(self._thread, who)
        except BaseException:
            self._cluster.close()
            raise

    def _packed_job(self) -> Packed:
        """Return the job for the hosts."""
        job = self.job
        seed = {name: value for name, value in job.environment.environment.items() if name == "PYTHONHASHSEED"}
        environment = Environment(job.environment.directory, seed, module_values())  # the rest may hold passwords
        policy = dataclasses.replace(job.policy, error_log=None)  # a path of this machine
        sent = dataclasses.replace(job, hosts=None, free=frozenset(), policy=policy, environment=environment)
        try:
            return pack(sent, self._given.ship)
        except Exception as error:
            raise self.runner.unpicklable(error) from error

    @property
    def pool(self) -> "HostsSession":
        """The session itself, which a loader refreshes and renews like a pool."""
        return self

    def infer(self, layout: Layout | None, epoch: int, least: int = 1) -> None:
        """See `Session.infer`.

        One host infers the layout, and calls pass the layout to the other hosts.
        """
        self.layout = layout or self._ask("infer", epoch, least).result()

    def submit(self, epoch: int, step: int, timeout: float | None = None) -> Future[Any]:
        """See `Session.submit`; does not block."""
        self.job.plan.indices(epoch, step)  # refuses a step that is out of range
        return self._ask("batch", epoch, step)

    def _ask(self, method: str, *arguments: int) -> Future[Any]:
        call = _Call(method, arguments)
        self._open.add(call)
        if self.failure is not None:
            self._settle(call, error=self.failure)
        self._events.put(partial(self._waiting.append, call))
        return call.future

    def renew(self) -> None:
        """Pass the current job to the hosts, from the next call on."""
        packed = self._packed_job()
        try:
            self._shared = self._shared[0] + 1, self._cluster.share(packed)
        except HostLostError as error:  # the next session packs the job again
            self._fail(error)

    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change` while no call is pending, then renew the job."""
        while self._open:
            time.sleep(0.005)
        change()
        self.renew()

    def _depth(self, workers: int) -> int:
        """Return the number of concurrent batches of a host.

        That is one loading and one in transfer, and at least two scenes a worker.
        """
        return min(MOST_CALLS, max(2, self.job.ahead_for(workers)))

    @property
    def look_ahead(self) -> int:
        """See `Session.look_ahead`.

        Until a host has started, its number of workers is assumed to be the local one.
        """
        wanted = max(self.job.look_ahead, sum(host.depth or self._depth(self.job.workers) for host in self._hosts))
        return wanted if self.layout is None else max(1, min(wanted, self.job.max_memory // self.layout.nbytes - 1))

    def wasted(self) -> None:
        """See `Session.wasted`; unknown for hosts."""

    def host_stats(self) -> HostStats:
        """Return the number of hosts, and the batches of each."""
        batches = {number: host.batches for number, host in enumerate(self._hosts) if host.batches}
        return HostStats(len(self._hosts), sum(host.depth > 0 for host in self._hosts), batches)

    def close(self) -> None:
        """End the hosts and free everything; pending calls fail with `FeedClosedError`. Idempotent."""
        self._fail(FeedClosedError(CLOSED_BEFORE_DONE))
        if self._thread is not threading.current_thread():  # the garbage collector may close a feed in the thread
            self._thread.join(_RELEASE_SECONDS)

    def _settle(self, call: _Call, value: Any = None, error: BaseException | None = None) -> None:
        with suppress(InvalidStateError):  # it was cancelled
            if error is None:
                call.future.set_result(value)
            else:
                call.future.set_exception(error)
        self._open.discard(call)

    def _fail(self, error: BaseException) -> None:
        """End the session; pending and later calls fail with `error`."""
        if self.failure is None:
            self.failure = error
        self._events.put(lambda: None)  # wakes the thread
        for call in list(self._open):
            self._settle(call, error=error)

    # ---- the thread

    def _run(self) -> None:
        """Start the hosts, assign calls until the session ends, stop the hosts."""
        try:
            for host in self._hosts:
                self._start(host)
            had_host = time.monotonic()
            while self.failure is None:
                with suppress(queue.Empty):
                    self._events.get(timeout=_TICK)()
                    while True:
                        self._events.get_nowait()()
                self._assign()
                self._cluster.check()
                had_host = self._check(had_host)
        except BaseException as error:  # noqa: BLE001 - else pending calls would wait forever
            known = isinstance(error, KerasfeedError)
            self._fail(error if known else wrapped(error, "hosts can no longer be asked: ", HostLostError))
        with suppress(Exception):  # calls fail if the cluster is gone
            stops = [self._call(host, "stop") for host in self._hosts if host.depth]
            for stop in wait(stops, _GRACE).done:
                self._note(stop.result())
        self._cluster.close()

    def _check(self, had_host: float) -> float:
        """Return the last time with a running host, s.

        Raises:
            WorkerStartError: No host has started in time.
            HostLostError: No host has restarted in time.
        """
        now, timeout = time.monotonic(), self._given.start_timeout
        if any(host.depth for host in self._hosts):
            return now
        if now - had_host > timeout:
            kind = HostLostError if self.respawns else WorkerStartError
            raise kind(f"{self.options.who} has had no host for start_timeout={timeout:g} s: {self._cluster.asked}")
        return had_host

    def _start(self, host: _Host) -> None:
        self._send(host, self._started, "start", self._hosts.index(host), len(self._hosts), __version__, search_path())
        self._listen(host)

    def _listen(self, host: _Host) -> None:
        """Wait for an urgent warning of the host, or for its end."""
        host.listens = True
        self._send(host, self._warned, "live")

    def _call(self, host: _Host, method: str, *arguments: Any) -> Future[Any]:
        generation, job = self._shared
        state = State(generation, self.layout, self.failure_log.used_random)
        brought = job if method != "live" else None  # Ray keeps the job in memory during the call
        future: Future[Any] = self._cluster.call(host.handle, method, brought, state, *arguments)
        return future

    def _send(self, host: _Host, do: Callable[[_Host, Any], None], method: str, *arguments: Any) -> None:
        """Call a host.

        The thread later calls `do(host, answer)`, or `_lose` if the host has ended.
        """
        losses = host.losses

        def put(future: Future[Any]) -> None:  # in a thread of the cluster
            error = future.exception()
            if error is None:
                self._events.put(partial(do, host, future.result()))
            else:
                self._events.put(partial(self._lose, host, losses, method, error))

        self._call(host, method, *arguments).add_done_callback(put)

    def _assign(self) -> None:
        """Assign waiting calls, each to the host with the fewest calls."""
        free = [host for host in self._hosts if len(host.calls) < host.depth]
        while free and self._waiting:
            call = self._waiting.popleft()
            if call.future.done():  # cancelled, or answered before its host was lost
                self._open.discard(call)
                continue
            host = min(free, key=lambda host: len(host.calls))
            host.calls.append(call)
            if len(host.calls) == host.depth:
                free.remove(host)
            self._send(host, partial(self._answered, call), call.method, *call.arguments)

    def _started(self, host: _Host, answer: HostAnswer) -> None:
        if answer.error is not None:
            raise answer.error.arrived()
        host.name, workers = unpack(answer.value)
        host.depth = self._depth(workers)
        LOGGER.info("%s: %s started", self.options.who, host.name)
        if not host.listens:
            self._listen(host)

    def _warned(self, host: _Host, answer: HostAnswer) -> None:
        for warning in answer.warnings:
            self.options.deferred_warnings.issue_now(*warning)
        self._listen(host)

    def _lose(self, host: _Host, losses: int, method: str, error: BaseException) -> None:
        """Restart a lost host, and assign its calls to other hosts.

        Args:
            host: The host.
            losses: Value of `host.losses` when the failed call was sent.
            method: Method of the failed call.
            error: The error of the failed call.

        Raises:
            HostLostError: The cluster does not start the host again.
        """
        if losses != host.losses:  # handled already
            return
        if method == "live" and not host.depth:  # the call of "start" restarts the host, or fails too
            host.listens = False
            return
        lost = f"{host.name} was lost ({summary(error)[:300]})"
        LOGGER.warning("%s: %s", self.options.who, lost)
        if not host.depth:
            raise HostLostError(f"{lost}, and is not started again")
        self.options.deferred_warnings.defer(
            "host", f"{lost}. It is started again, and other hosts are asked for its batches: none is lost, none "
            "changes. feed.stats().respawns counts; this is said once", FeedWarning,
        )  # fmt: skip
        calls, host.calls, host.depth = host.calls, [], 0
        host.losses += 1
        self.respawns += 1
        self._start(host)
        for call in reversed(calls):
            call.lost += 1
            if call.lost < self.job.policy.tries:
                self._waiting.appendleft(call)
                continue
            text = f"epoch {call.arguments[0]}, step {call.arguments[1]} lost its host {call.lost} times (max_failures)"
            self._settle(
                call, error=HostLostError(f"{text}: this batch, or another on the same host, may end hosts. {lost}")
            )

    def _answered(self, call: _Call, host: _Host, answer: HostAnswer) -> None:
        """Settle a call with a host's answer, unless it has an answer."""
        if call in host.calls:
            host.calls.remove(call)
        self._note(answer)
        if call not in self._open:
            return
        try:
            value = self._value(answer)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            BaseException.with_traceback(error, None)  # breaks a reference cycle with this frame
            self._settle(call, error=error)
            return
        if call.method == "batch":
            self.batches += 1
            host.batches += 1
        self._settle(call, value)

    def _note(self, answer: HostAnswer) -> None:
        """Record the warnings and `used_random` of an answer."""
        for warning in answer.warnings:
            self.options.deferred_warnings.defer(*warning)
        self.failure_log.used_random |= answer.used_random

    def _value(self, answer: HostAnswer) -> Any:
        """Return the value of an answer.

        Raises:
            Exception: The error of the answer; too many scenes have failed; or the answer cannot be unpacked.
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
        packed = answer.value
        return unpack([packed[0], *map(aligned_copy, packed[1:])])  # received arrays may be read-only
