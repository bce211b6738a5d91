"""Batches of a job that other hosts make: which of them is asked for what, and whom else where one is silent or lost.

Invariant: a batch is a pure function of (sequence, plan, epoch, step), so any host may be asked for it, and again; the
first answer counts, and is copied to memory of ours. What has failed is counted here, for all hosts together. One
thread starts and ends hosts, and may wait for ever where the cluster is gone; another one decides everything else, and
takes what there is to do from a queue of functions.
"""

import dataclasses
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning, HostLostError, KerasfeedError, WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import BatchRunner
from kerasfeed.loaders.batches.layout import Layout, aligned_copy
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.calls import MOST_CALLS, HostAnswer, HostStats, Packed, State, pack, unpack, versions
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, LOGGER, PoolOptions
from kerasfeed.pool.environment import Environment, search_path
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.readers.read_cost import ReadCost
from kerasfeed.util.error_text import class_name, message_of, wrapped
from kerasfeed.util.user_modules import module_values

_TICK = 0.5
_MOST_REST = 30.0  # from one try to start a host at a place to the next
_MOST_STARTS = 3  # that fail at a place, one after the other; what a host itself refuses, it will refuse again
_GRACE = 6.0  # for hosts to end their workers
_RELEASE_SECONDS = 4.0 + _GRACE  # where the head of a cluster is gone, Ray ends the program after 60 s


@dataclass(eq=False)
class _HostCall:
    """A call that waits for an answer.

    Attributes:
        text: What is asked for, as messages name it.
        method: Of `FeedHost`.
        arguments: Those behind the job and the `State`.
        future: Of the answer, for whoever waits.
        asked: The hosts that have it, and when each was asked, s.
        lost: Hosts that were lost while they had it.
    """

    text: str
    method: str
    arguments: tuple[Any, ...]
    future: Future[Any] = field(default_factory=Future)
    asked: dict["_Host", float] = field(default_factory=dict)
    lost: int = 0


@dataclass(eq=False)
class _Host:
    """A host, from its start until it is lost.

    Attributes:
        number: Among the hosts of the feed, from 0.
        place: One of `Cluster.places`.
        name: As messages name it.
        handle: What `Cluster.start` has returned.
        depth: Calls that it may have at once; 0 until it can take work.
        calls: Those that it has.
        respawns: Worker processes that it has replaced.
        generation: Of the job that it has; -1 until it has said so.
    """

    number: int
    place: str
    name: str
    handle: Any = None
    depth: int = 0
    calls: list[_HostCall] = field(default_factory=list)
    respawns: int = 0
    generation: int = -1

    @property
    def has_room(self) -> bool:
        # A call that has lost a host has the next to itself: where it ends hosts, the others need not pay for it.
        return len(self.calls) < self.depth and not any(call.lost for call in self.calls)


class HostsSession:
    """Batches of one job, asked of the hosts of one cluster; `Session` says what each method is for.

    All methods may be called from any thread.

    Attributes:
        job: What is loaded.
        runner: What workers would hold on this machine.
        options: Who asks, and how often a batch may lose its host.
        failure: Why nothing can be asked any more; None as long as something can.
        layout: Of a batch; None until it is known.
        batches: Delivered so far.
        respawns: Hosts, and worker processes of hosts, that were replaced.
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
        self.job, self.failure_log, self.runner, self._wanted = job, failure_log, BatchRunner(job), job.hosts
        self.options = PoolOptions(
            workers=job.workers, who=f"the feed of {class_name(job.sequence)}", tries=job.policy.tries,
            deferred_warnings=failure_log.deferred_warnings,
        )  # fmt: skip
        self.layout: Layout | None = None
        self.failure: BaseException | None = None
        self.batches = self.respawns = 0
        self._waste: ReadCost | None = None
        # Without a lock, which Ctrl-C could leave taken: `_ask` adds a call and then looks at `failure`, `_fail` sets
        # that and then looks at the calls, so at least one of them tells whoever waits.
        self._open: list[_HostCall] = []
        self._shared: tuple[int, Any]  # how often the job has changed, and what stands for it in calls
        # One thread adds hosts, and the one that decides takes them out.
        self._hosts: dict[str, _Host] = {}  # by their place
        self._places: Sequence[str] = ()
        self._failed_starts = Counter[str]()  # at each place, one after the other
        self._rests: dict[str, float] = {}  # by their place: until when, s, no host is started there
        self._made = Counter[int]()  # batches, by the number of each host that has answered anything
        self._counts = Counter[str]()  # what `HostStats` counts
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # what the thread that decides is to do
        self._over = threading.Event()
        self._tick = min(_TICK, job.hosts.silence / 4)
        packed = self._packed_job()
        self._cluster = job.hosts.join()  # may take long
        self._had_host = time.monotonic()  # when there was a host last
        self._quiet = 0.0  # seconds that this process has run since the cluster has answered
        try:
            self._shared = 0, self._cluster.share(packed)
            self._deciding = threading.Thread(target=self._decide, name="kerasfeed-hosts", daemon=True)
            self._looking = threading.Thread(target=self._look, name="kerasfeed-hosts-look", daemon=True)
            start_thread(self._deciding, self.options.who, 2)
            start_thread(self._looking, self.options.who, 2)
        except BaseException as error:
            self._fail(error)  # ends the thread that decides
            self._cluster.close()
            raise

    def _packed_job(self) -> Packed:
        """What hosts are to load."""
        job = self.job
        seed = {name: value for name, value in job.environment.environment.items() if name == "PYTHONHASHSEED"}
        environment = Environment(job.environment.directory, seed, module_values())  # the rest may hold passwords
        policy = dataclasses.replace(job.policy, error_log=None)  # which is of this machine
        sent = dataclasses.replace(job, hosts=None, free=frozenset(), policy=policy, environment=environment)
        try:
            return pack(sent, self._wanted.ship)
        except Exception as error:
            raise self.runner.unpicklable(error) from error

    # ---- what a loader calls

    @property
    def pool(self) -> "HostsSession":
        """What a loader refreshes and renews."""
        return self

    def infer(self, layout: Layout | None, epoch: int, least: int = 1) -> None:
        """See `Session.infer`; one host infers the layout, and the others are told."""
        if layout is None:
            layout = self._ask("the scenes that are read to infer the spec", "infer", epoch, least).result()
        self.layout = layout

    def submit(self, epoch: int, step: int, timeout: float | None = None) -> Future[Any]:
        """See `Session.submit`; waits for nothing."""
        self.job.plan.indices(epoch, step)  # refuses a step that is out of range
        return self._ask(f"several scenes at once (epoch {epoch}, step {step})", "batch", epoch, step)

    def _ask(self, text: str, method: str, *arguments: Any) -> Future[Any]:
        """Have a host answer `method`, which messages call `text`; the future of what it gives."""
        call = _HostCall(text, method, arguments)
        self._open.append(call)
        if self.failure is not None:
            self._settle(call, error=self.failure)
        self._news.put(lambda: None)  # wakes the thread that decides
        return call.future

    def renew(self) -> None:
        """Have hosts load what the job is now, from the next call on."""
        packed = self._packed_job()
        try:
            self._shared = self._shared[0] + 1, self._cluster.share(packed)
        except HostLostError as error:  # whoever asks next begins with another cluster, and with what the job is now
            self._fail(error)

    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change`, which alters the job, while nothing is asked for; hosts then see the result."""
        while self._open:
            time.sleep(0.005)
        change()
        self.renew()

    def _depth(self, workers: int) -> int:
        """Batches that a host has at once: one to work on and one on its way, and two scenes a worker."""
        return min(MOST_CALLS, max(2, self.job.ahead_for(workers)))

    def _depths(self) -> list[int]:
        """Those of the hosts that can take work."""
        return [host.depth for host in list(self._hosts.values()) if host.depth]

    @property
    def look_ahead(self) -> int:
        """See `Session.look_ahead`; hosts that have not started are taken to have as many workers as this machine."""
        depths = self._depths()
        others = max(0, len(self._places) - len(depths))
        wanted = max(self.job.look_ahead, sum(depths) + others * self._depth(self.job.workers))
        return wanted if self.layout is None else max(1, min(wanted, self.job.max_memory // self.layout.nbytes - 1))

    def wasted(self) -> ReadCost | None:
        """See `Session.wasted`."""
        return self._waste

    def host_stats(self) -> HostStats:
        """What became of batches on hosts."""
        made = dict(sorted(dict(self._made).items()))  # another thread may be adding to it
        return HostStats(len(self._places), len(self._depths()), batches=made, **self._counts)

    def close(self) -> None:
        """End the hosts and free everything; what is open fails with `FeedClosedError`. Idempotent."""
        self._fail(FeedClosedError(CLOSED_BEFORE_DONE))
        for thread in (self._deciding, self._looking):
            if thread is not threading.current_thread():  # as where the collector drops a feed there
                thread.join(_RELEASE_SECONDS)

    # ---- the thread that starts and ends hosts

    def _look(self) -> None:
        """Start hosts wherever one is missing, until nothing can be asked any more; then end them."""
        while not self._over.is_set():
            try:
                self._fill(tuple(self._cluster.places()))
                self._check()
            except (HostLostError, WorkerStartError) as error:
                self._fail(error)
            except Exception:  # noqa: BLE001 - where this goes on, the cluster is not believed to be well
                LOGGER.debug("%s: the cluster does not answer", self.options.who, exc_info=True)
            self._over.wait(self._tick)
        with suppress(Exception):  # where the cluster is gone, calls fail
            stops = [self._call(host, "stop") for host in list(self._hosts.values()) if host.depth]
            for stop in wait(stops, _GRACE).done:  # others are frozen, or in the middle of a scene
                if stop.exception() is None:
                    self._note(stop.result())
        self._cluster.close()

    def _fill(self, places: Sequence[str]) -> None:
        """Start a host at each of these places that has none, and end those that were lost."""
        self._places = places
        for place in places:
            self._quiet = 0.0
            if place in self._hosts or self._rests.get(place, 0.0) > time.monotonic():
                continue
            numbers = {host.number for host in list(self._hosts.values())}
            number = next(number for number in itertools.count() if number not in numbers)
            host = self._hosts[place] = _Host(number, place, f"host {number}")
            try:
                host.handle = self._cluster.start(place)
                self._tell(host, self._started, "start", number, len(places), versions(), search_path())
                self._tell(host, self._warned, "live")
            except Exception as error:  # noqa: BLE001 - whatever it is, there is no host
                self._news.put(partial(self._lose, host, _ending(error)))
        self._cluster.keep([host.handle for host in list(self._hosts.values())])
        self._quiet = 0.0

    def _check(self) -> None:
        """See that there are hosts.

        Raises:
            WorkerStartError: None has started in time.
            HostLostError: There is none any more.
        """
        timeout, now = self._wanted.start_timeout, time.monotonic()
        if self._depths():
            self._had_host = now
        if now - self._had_host > timeout:
            kind, missing = HostLostError if self._made else WorkerStartError, self._cluster.missing()
            raise kind(f"{self.options.who} has had no host for start_timeout={timeout:g} s: {missing}")

    # ---- calls

    def _call(self, host: _Host, method: str, *arguments: Any) -> Future[Any]:
        generation, job = self._shared
        state = State(generation, self.layout, self.failure_log.used_random)
        # Ray fetches it anew for each call, 1 ms for 60 MB, and keeps it as long as the call lasts.
        brings_job = host.generation != generation and method != "live"
        return self._cluster.call(host.handle, method, job if brings_job else None, state, *arguments)

    def _tell(self, host: _Host, do: Callable[[_Host, Any], None], method: str, *arguments: Any) -> None:
        """Call a host. The thread that decides then calls `do(host, answer)`, or `_lose` where the call fails."""

        def tell(future: Future[Any]) -> None:  # on a thread of the cluster's
            error = future.exception()
            if error is None:
                self._news.put(partial(do, host, future.result()))
            else:
                self._news.put(partial(self._lose, host, _ending(error)))

        self._call(host, method, *arguments).add_done_callback(tell)

    # ---- the thread that decides

    def _decide(self) -> None:
        """Do what stands in the queue, and ask hosts, until nothing can be asked any more."""
        try:
            while self.failure is None:
                began = time.monotonic()
                with suppress(queue.Empty):
                    self._news.get(timeout=self._tick)()
                    while True:
                        self._news.get_nowait()()
                self._hand_out(time.monotonic())
                well_for = self._cluster.well_for
                self._quiet += min(time.monotonic() - began, _TICK)  # Ctrl-Z may have stopped this process for longer
                if self._open and self._quiet > well_for:
                    raise HostLostError(
                        f"{self.options.who} has no hosts any more: the cluster has not answered for {well_for:g} s"
                    )
        except BaseException as error:  # noqa: BLE001 - whoever waits must not wait for a thread that is gone
            known = isinstance(error, KerasfeedError)
            self._fail(error if known else wrapped(error, "the thread that asks hosts failed: ", KerasfeedError))

    def _hand_out(self, now: float) -> None:
        """Ask for what has lost its host, then for what is new, then for what is late; each of the least busy host."""
        free = [host for host in list(self._hosts.values()) if host.has_room]
        late = now - self._wanted.silence
        due = [call for call in list(self._open) if not call.asked or max(call.asked.values()) < late]
        for call in sorted(due, key=lambda call: (bool(call.asked), -call.lost)):
            if not free:
                return
            others = (host for host in free if host not in call.asked)
            host = min(others, key=lambda host: len(host.calls) / host.depth, default=None)
            if call.future.cancelled():
                self._settle(call)
            elif host is not None and call.lost and host.calls:  # it is to have a host to itself: this one, once idle
                free.remove(host)
            elif host is not None:
                self._counts["hedged"] += bool(call.asked)
                call.asked[host] = now
                host.calls.append(call)
                if not host.has_room:
                    free.remove(host)
                self._tell(host, partial(self._answered, call), call.method, *call.arguments)

    def _started(self, host: _Host, answer: HostAnswer) -> None:
        """A host has answered for the first time.

        Raises:
            WorkerStartError: See `_lose`.
        """
        if answer.error is not None:
            error = answer.error.arrived()
            self._lose(host, f"can take no work: {message_of(error)}", error)
            return
        name, workers = unpack(answer.value)
        host.name, host.depth = f"{host.name} ({name})", self._depth(workers)
        host.generation = answer.generation
        del self._failed_starts[host.place]
        LOGGER.info("%s: %s started", self.options.who, host.name)

    def _warned(self, host: _Host, answer: HostAnswer) -> None:
        """A host has a warning for a user who may be waiting for it. The next call waits for more, or for its end."""
        for warning in answer.warnings:
            self.options.deferred_warnings.issue_now(*warning)
        self._tell(host, self._warned, "live")

    def _lose(self, host: _Host, how: str, why: BaseException | None = None) -> None:
        """A host is lost, or says `why` it can take no work: others are asked for what it had.

        Raises:
            WorkerStartError: No host takes work, and none can be started at any place.
        """
        if self._hosts.get(host.place) is not host:
            return
        del self._hosts[host.place]
        self._counts["lost"] += 1
        self.respawns += 1
        LOGGER.warning("%s: lost a host: %s %s", self.options.who, host.name, how)
        if not host.depth:
            starts = self._failed_starts
            starts[host.place] += 1 if why is None else _MOST_STARTS
            self._rests[host.place] = time.monotonic() + min(2 ** starts[host.place], _MOST_REST)
            if not self._depths() and all(starts[place] >= _MOST_STARTS for place in (host.place, *self._places)):
                text = f"{host.name} {how} before it could take work, as did others before it"
                raise WorkerStartError(text) if why is None else why
        self.options.deferred_warnings.defer(
            "host", f"{host.name} {how}. Its batches are asked of other hosts, or of the one in its place: no batch is "
            "lost, none changes. feed.stats().hosts counts the hosts lost; this is said once", FeedWarning,
        )  # fmt: skip
        for call in host.calls:
            call.lost += 1
            del call.asked[host]
            if call.lost >= self.options.tries:
                error = HostLostError(
                    f"{call.text} lost the host that was to load them {call.lost} times, and are not tried again "
                    f"(max_failures): the last, {host.name} {how}"
                )
                self._settle(call, error=error)
            self._counts["resent"] += call in self._open and not call.asked

    def _answered(self, call: _HostCall, host: _Host, answer: HostAnswer) -> None:
        """A host has answered a call; the first answer counts."""
        self._quiet = 0.0
        self.respawns += max(0, answer.respawns - host.respawns)
        host.respawns = max(host.respawns, answer.respawns)
        host.generation = max(host.generation, answer.generation)
        is_first = call in self._open
        self._counts["late"] += not is_first
        self._made[host.number] += is_first and call.method == "batch" and answer.error is None
        self._note(answer)
        if answer.error is not None and answer.has_failed:  # it has no workers any more: others may have some
            self._lose(host, f"could not go on: {answer.error.text}")
            return
        host.calls.remove(call)
        if not is_first:
            return
        try:
            value = self._value(answer)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            BaseException.with_traceback(error, None)  # it ends in this frame: only the collector would free it
            self._settle(call, error=error)
            return
        self.batches += call.method == "batch"
        self._settle(call, value)

    def _note(self, answer: HostAnswer) -> None:
        """Keep what a host has told beside what it was asked for."""
        for warning in answer.warnings:
            self.options.deferred_warnings.defer(*warning)
        self._waste = answer.waste or self._waste
        self.failure_log.used_random |= answer.used_random

    def _value(self, answer: HostAnswer) -> Any:
        """What a host was asked for.

        Raises:
            Exception: What the host says, that too many scenes have failed, or that the answer cannot be unpacked.
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
        return unpack([packed[0], *map(aligned_copy, packed[1:])])  # what has arrived may be read-only

    def _settle(self, call: _HostCall, value: Any = None, error: BaseException | None = None) -> None:
        """A call is over: tell whoever waits, unless that is nobody any more."""
        with suppress(InvalidStateError):
            if error is None:
                call.future.set_result(value)
            else:
                call.future.set_exception(error)
        with suppress(ValueError):  # another thread was faster
            self._open.remove(call)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be asked any more."""
        if self.failure is None:
            self.failure = error
        self._over.set()
        self._news.put(lambda: None)  # wakes the thread that decides
        for call in list(self._open):
            self._settle(call, error=error)


def _ending(error: BaseException) -> str:
    """How a host has ended, in words, a call of which has failed with `error`."""
    text = message_of(error)
    if "No module named 'kerasfeed'" in text:
        return "has no kerasfeed: install it there, or with kf.RayHosts(runtime_env={'pip': ['kerasfeed']}), and"
    return f"was lost ({class_name(error)}: {' '.join(text.split())[:300]})"
