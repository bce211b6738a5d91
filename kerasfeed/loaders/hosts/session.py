"""Batches from other hosts: calls, answers, and choice of host.

Invariant: a batch is a pure function of (sequence, plan, epoch, step), so any host may load it, also repeatedly. The
answer is copied to memory of this process. The session counts the failures of all hosts. The cluster restarts hosts
that end; late answers of an ended host are dropped. Only the session's thread assigns calls to hosts; it takes events
from a queue.
"""

import dataclasses
import queue
import threading
import time
from collections import Counter, deque
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

from kerasfeed.errors import FeedClosedError, FeedWarning, HostLostError
from kerasfeed.loaders.base import HostStats, Job
from kerasfeed.loaders.batch_runner import BatchRunner
from kerasfeed.loaders.batches.layout import Layout, aligned_copy
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, LOGGER, PoolOptions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.processes.shared_objects import pickled
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.pool.settings import Settings
from kerasfeed.util.error_text import class_name, summary
from kerasfeed.util.user_modules import module_values

MOST_CALLS = 32  # batches that a host has at once
_TICK = 0.5  # s
_GRACE = 6.0  # s, for hosts to end their workers
_RELEASE_SECONDS = 4.0 + _GRACE

# cloudpickle has one global registry. Without the lock, one thread would remove the modules of another.
_registering = threading.RLock()
Packed = Sequence[NDArray[np.uint8]]  # an object as bytes: first everything except its large arrays, then the arrays


def pack(value: Any, ship: Sequence[str] = (), **how: Any) -> Packed:
    """Return `value` as bytes.

    Args:
        value: The object.
        ship: Names of modules whose definitions become part of the bytes, because the receiver cannot import them.
        how: Arguments of `pickled`.

    Raises:
        ImportError: There is no such module.
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
    """A pending call of `FeedHost.load`, for a batch or the layout.

    Attributes:
        epoch: Epoch.
        step: Step of the epoch; None for the layout.
        least: Number of items to read at least to infer the layout.
        future: Future of the result.
        lost: Number of hosts that ended during the call.
    """

    epoch: int
    step: int | None
    least: int
    future: Future[Any]
    lost: int = 0


@dataclass(eq=False)
class _Host:
    """A host until it ends; another object is the restarted host.

    Attributes:
        number: Its number in the cluster.
        name: Its name in messages.
        depth: Maximum number of concurrent calls; 0 while it starts.
        calls: Its pending calls.
    """

    number: int
    name: str
    depth: int = 0
    calls: list[_Call] = field(default_factory=list)


class HostsSession:
    """Batches of one job from the hosts of one cluster; see `Session`.

    Any thread may call any method.

    Attributes:
        job: The job to load.
        settings: See `Pool`.
        runner: The runner of workers on this machine.
        options: The options that name the feed in messages, and hold its warnings.
        failure: The error that ended the session; None while it is usable.
        layout: Layout of a batch; None until known.
        batches: Batches delivered so far.
        respawns: How often a host has ended and was started again.
    """

    def __init__(self, job: Job, failure_log: FailureLog) -> None:
        """Start the hosts, without waiting for them.

        Raises:
            TypeError: The job cannot be pickled.
            ImportError, WorkerStartError: See `RayHosts.join`.
        """
        self.job, self.failure_log, self.runner = job, failure_log, BatchRunner(job)
        owner = f"the feed of {class_name(job.sequence)}"
        self.options = PoolOptions(job.workers, owner, deferred_warnings=failure_log.deferred_warnings)
        self.layout: Layout | None = None
        self.failure: BaseException | None = None
        self.batches = self.respawns = 0
        self._made: Counter[int] = Counter()  # batches by the number of the host
        # No lock needed: `_opened` adds a future, then reads `failure`; `_fail` sets `failure`, then reads the futures.
        self._open: set[Future[Any]] = set()
        self._waiting: deque[_Call] = deque()  # calls not yet assigned to a host
        self._events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._shared: tuple[int, Any] = 0, None  # generation, and job to pass in calls
        self.renew()
        self._cluster = job.hosts.join()  # may take long
        self._hosts = [_Host(number, f"host {number}") for number in range(len(self._cluster.hosts))]
        for host in self._hosts:
            self._events.put(partial(self._start, host))
        self._thread = threading.Thread(target=self._run, name="kerasfeed-hosts", daemon=True)
        start_thread(self._thread, owner)

    def renew(self) -> None:
        """Pass the current job to the hosts, from the next call on.

        Raises:
            TypeError: The job cannot be pickled.
        """
        job, driver = self.job, self.job.environment
        self.settings = Settings(*self.runner.objects)
        seed = {"PYTHONHASHSEED": driver.environment.get("PYTHONHASHSEED", "")}
        environment = Environment(driver.directory, seed, module_values())  # the rest may hold passwords
        policy = dataclasses.replace(job.policy, error_log=None)  # a path of this machine
        sent = dataclasses.replace(job, hosts=None, policy=policy, environment=environment)
        try:
            packed = pack(sent, job.hosts.ship)
        except Exception as error:
            raise self.runner.unpicklable(error) from error
        self._events.put(partial(self._share, packed, self._opened()))

    def _share(self, packed: Packed, shared: Future[Any]) -> None:
        self._shared = self._shared[0] + 1, self._cluster.share(packed)
        _settle(shared)

    def _opened(self) -> Future[Any]:
        """Return a future that fails when the session ends."""
        future: Future[Any] = Future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if self.failure is not None:
            _settle(future, error=self.failure)
        return future

    @property
    def pool(self) -> "HostsSession":
        """The session itself, which a loader refreshes and renews like a pool."""
        return self

    def infer(self, layout: Layout | None, epoch: int, least: int = 1) -> None:
        """See `Session.infer`.

        One host infers the layout, and calls pass it to the other hosts. This waits for the first host.
        """
        self.layout = layout or self._ask(epoch, None, least).result()

    def submit(self, epoch: int, step: int, timeout: float | None = None) -> Future[Any]:
        """See `Session.submit`; does not block."""
        self.job.plan.indices(epoch, step)  # refuses a step that is out of range
        return self._ask(epoch, step)

    def _ask(self, epoch: int, step: int | None, least: int = 1) -> Future[Any]:
        call = _Call(epoch, step, least, self._opened())
        self._events.put(partial(self._waiting.append, call))
        return call.future

    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change` while no call is pending, then renew the job.

        If the cluster was lost meanwhile, the session ends here, and not in the next call.
        """
        self._wait_for_all()
        change()
        self.renew()
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        while self._open:
            time.sleep(0.005)

    def _depth(self, workers: int) -> int:
        """Return the number of concurrent batches of a host.

        A host loads one batch while another is in transfer, and each worker gets at least two scenes.
        """
        return min(MOST_CALLS, max(2, self.job.ahead_for(workers)))

    @property
    def look_ahead(self) -> int:
        """See `Session.look_ahead`.

        Until a host has started, its number of workers is assumed to be the local one.
        """
        wanted = max(self.job.look_ahead, sum(host.depth or self._depth(self.job.workers) for host in self._hosts))
        return wanted if self.layout is None else max(1, min(wanted, self.job.max_memory // self.layout.nbytes - 1))

    def host_stats(self) -> HostStats:
        """Return the number of hosts, and the batches of each."""
        return HostStats(len(self._hosts), sum(host.depth > 0 for host in self._hosts), dict(self._made))

    def close(self) -> None:
        """End the hosts and free everything; pending calls fail with `FeedClosedError`. Idempotent."""
        self._fail(FeedClosedError(CLOSED_BEFORE_DONE))
        if self._thread is not threading.current_thread():  # the garbage collector may close a feed in the thread
            self._thread.join(_RELEASE_SECONDS)

    def _fail(self, error: BaseException) -> None:
        """End the session; pending and later calls fail with `error`."""
        if self.failure is None:
            self.failure = error
        self._events.put(lambda: None)  # wakes the thread
        for future in list(self._open):
            _settle(future, error=error)

    # ---- the thread

    def _run(self) -> None:
        """Assign calls until the session ends, then stop the hosts."""
        had_host, timeout = time.monotonic(), self.job.hosts.start_timeout
        try:
            while self.failure is None:
                with suppress(queue.Empty):
                    self._events.get(timeout=_TICK)()
                self._cluster.check()
                self._assign()
                if any(host.depth for host in self._hosts):
                    had_host = time.monotonic()
                elif time.monotonic() - had_host > timeout:
                    feed = self.options.owner
                    raise HostLostError(
                        f"{feed} has had no host for start_timeout={timeout:g} s: {self._cluster.asked}"
                    )
        except BaseException as error:  # noqa: BLE001 - else pending calls would wait forever
            self._fail(error)
        with suppress(Exception):  # calls fail if the cluster is gone
            wait([self._call(host, "stop") for host in self._hosts if host.depth], _GRACE)
        self._cluster.close()

    def _start(self, host: _Host) -> None:
        self._hosts[host.number] = host
        self._send(host, self._started, "start", *self._shared)

    def _call(self, host: _Host, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = self._cluster.call(self._cluster.hosts[host.number], method, *arguments)
        return future

    def _send(self, host: _Host, do: Callable[[_Host, HostAnswer], None], method: str, *arguments: Any) -> None:
        """Call a host; `do` gets its answer."""
        future = self._call(host, method, *arguments)
        future.add_done_callback(lambda future: self._events.put(partial(self._receive, host, do, future)))

    def _receive(self, host: _Host, do: Callable[[_Host, HostAnswer], None], future: Future[HostAnswer]) -> None:
        error = future.exception()
        if self._hosts[host.number] is not host:  # lost meanwhile: its calls are with other hosts
            return
        if error is not None:
            self._lose(host, error)
            return
        answer = future.result()
        for warning in answer.warnings:
            self.options.deferred_warnings.defer(*warning)
        self.failure_log.used_random |= answer.used_random
        do(host, answer)

    def _assign(self) -> None:
        """Assign waiting calls, each to the host with the fewest calls."""
        while self._waiting:
            ready = [host for host in self._hosts if len(host.calls) < host.depth]
            if not ready:
                return
            call = self._waiting.popleft()
            if not call.future.done():  # else it was cancelled
                host = min(ready, key=lambda host: len(host.calls))
                host.calls.append(call)
                do = partial(self._answered, call)
                used_random = self.failure_log.used_random
                self._send(host, do, "load", *self._shared, self.layout, used_random, call.epoch, call.step, call.least)

    def _started(self, host: _Host, answer: HostAnswer) -> None:
        host.name, workers = self._value(answer)
        host.depth = self._depth(workers)
        LOGGER.info("%s: %s started", self.options.owner, host.name)
        self._send(host, lambda *_: None, "live")  # never returns; fails if the host ends

    def _lose(self, host: _Host, error: BaseException) -> None:
        """Restart a lost host, and assign its calls to other hosts.

        Raises:
            HostLostError: The cluster does not start the host again.
        """
        lost = f"{host.name} was lost ({summary(error)[:300]})"
        if not host.depth:
            raise HostLostError(f"{lost}, and is not started again")
        self.options.deferred_warnings.defer(
            "host", f"{lost}. Ray starts it again, and other hosts load its batches. No batch is lost or changed. "
            "feed.stats().respawns counts the restarts; this warning comes once", FeedWarning,
        )  # fmt: skip
        self.respawns += 1
        self._start(_Host(host.number, host.name))
        for call in reversed(host.calls):
            call.lost += 1
            if call.lost < self.job.policy.tries:
                self._waiting.appendleft(call)
            else:
                text = f"epoch {call.epoch}, step {call.step} lost its host {call.lost} times (max_failures)"
                text += f": this batch, or another on the same host, may end hosts. {lost}"
                _settle(call.future, error=HostLostError(text))

    def _answered(self, call: _Call, host: _Host, answer: HostAnswer) -> None:
        """Settle a call with its host's answer."""
        host.calls.remove(call)
        try:
            value = self._value(answer)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            BaseException.with_traceback(error, None)  # breaks a reference cycle with this frame
            _settle(call.future, error=error)
            return
        if call.step is not None:
            self._made[host.number] += 1
            self.batches += 1
        _settle(call.future, value)

    def _value(self, answer: HostAnswer) -> Any:
        """Return the value of an answer.

        Raises:
            Exception: The error of the answer; too many scenes have failed; or the answer cannot be unpacked.
        """
        log, refusal = self.failure_log, None
        for index, epoch, step, sent in answer.failures:
            error = sent.as_exception()
            log.record(index, epoch, step, error)
            if index is not None and log.policy.on_error != "raise":
                refusal = log.refusal(index, epoch or 0, error) or refusal
        if answer.error is not None:
            raise answer.error.as_exception()
        if refusal is not None:
            raise refusal
        packed = answer.value
        return unpack([packed[0], *map(aligned_copy, packed[1:])])  # received arrays may be read-only


def _settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    with suppress(InvalidStateError):  # it was cancelled, or the session has failed
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
