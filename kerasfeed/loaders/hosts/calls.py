"""Calls of hosts: which of them is asked for what, and whom else where one is silent or lost.

Invariant: what is asked for is a function of the state that travels with each call and of the arguments, so any host
may be asked at any time, and again, and the first answer counts. One thread decides; another one starts and ends hosts,
for which it may have to wait. A cluster starts, carries and tells of ends, and decides nothing.
"""

import copy
import itertools
import platform
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

import kerasfeed
from kerasfeed import errors
from kerasfeed.errors import HostLostError, WorkerStartError
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, LOGGER, PoolOptions
from kerasfeed.pool.environment import search_path
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.processes.crash_policy import CrashPolicy
from kerasfeed.pool.processes.shared_objects import pickled
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.pool.task import Crash
from kerasfeed.util.error_notes import wrapped
from kerasfeed.util.error_text import message_of
from kerasfeed.util.read_cost import ReadCost

MOST_CALLS = 32  # of batches, that a host has at once
_TICK = 1.0
_MOST_SECONDS = 30.0  # from one try to start a host to the next
_GRACE = 6.0  # for hosts to end their workers
_RELEASE_SECONDS = 10.0  # where the head of a cluster is gone, Ray ends the program after 60 s

# cloudpickle has one registry: of two that use it at once, who ends first would take the other's modules out of it.
_registering = threading.RLock()
Packed = Sequence[NDArray[np.uint8]]  # an object as bytes: all but its large arrays, and these


def versions() -> str:
    """What must be the same on all hosts."""
    return f"kerasfeed {kerasfeed.__version__} on Python {'.'.join(platform.python_version_tuple()[:2])}"


def pack(value: Any, ship: Sequence[str] = (), **how: Any) -> Packed:
    """`value` as bytes, with what the modules `ship` define; `how`: see `pickled`.

    Raises:
        Exception: What pickling it raised.
    """
    with _by_value(ship):
        return [np.frombuffer(part, np.uint8) for part in pickled(value, **how)]


def unpack(packed: Packed, arrays: Packed | None = None) -> Any:
    """The object, whose large arrays are `arrays`, by default those that have arrived, which may be read-only."""
    return cloudpickle.loads(packed[0], buffers=packed[1:] if arrays is None else arrays)


@contextmanager
def _by_value(ship: Sequence[str]) -> Iterator[None]:
    """Have modules pickled by value meanwhile; those that the program itself has registered stay so."""
    with _registering:
        modules = [import_module(name) for name in ship if name not in cloudpickle.list_registry_pickle_by_value()]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


@dataclass(frozen=True)
class State:
    """What a host must know to answer; it travels with each call.

    Attributes:
        job: What `Cluster.share` has made of the job, in a list: Ray resolves a reference that stands alone, each time.
        generation: How often the job has changed; a host that has an older one takes this first.
        layout: Of a batch; None until a host has inferred it.
        used_random: See `Pool.used_random`.
    """

    job: list[Any]
    generation: int = 0
    layout: Layout | None = None
    used_random: int = 0


@dataclass(frozen=True)
class HostAnswer:
    """What a host says.

    Attributes:
        value: What it was asked for; empty where it could not be had.
        error: Why not.
        has_failed: Whether all its workers have failed, so that another host is to be asked.
        failures: Index, epoch, step and error of what has failed, for `FailureLog.note`.
        warnings: Kind, text and class of what the user is to be told.
        respawns: Worker processes that it has replaced.
        used_random: See `Pool.used_random`.
        waste: See `Loader.waste`.
    """

    value: Packed = ()
    error: Sent | None = None
    has_failed: bool = False
    failures: Sequence[tuple[int | None, int | None, int | None, Sent]] = ()
    warnings: Sequence[tuple[str, str, type[Warning]]] = ()
    respawns: int = 0
    used_random: int = 0
    waste: ReadCost | None = None


class Cluster(ABC):
    """Where hosts are started. `places`, `start`, `kill` and `close` may take for ever where the cluster is gone.

    Attributes:
        well_for: Seconds for which it is believed to be well after it has told its places.
    """

    well_for: float = float("inf")

    @abstractmethod
    def places(self) -> Sequence[str]:
        """Where there should be hosts now.

        Raises:
            HostLostError: There can be none any more.
        """

    @abstractmethod
    def share(self, packed: Packed) -> Any:
        """What stands for `packed` in calls, as long as it is kept."""

    @abstractmethod
    def start(self, place: str) -> Any:
        """Start a `FeedHost`."""

    @abstractmethod
    def call(self, host: Any, method: str, *arguments: Any) -> "Future[Any]":
        """Call a method of a host, once; the future fails where the host has ended."""

    @abstractmethod
    def kill(self, host: Any) -> None:
        """End a host at once."""

    @abstractmethod
    def ending(self, error: BaseException) -> str:
        """How a host has ended, in words, a call of which has failed with `error`."""

    @abstractmethod
    def missing(self) -> str:
        """What was asked for and what there is, in words, for whoever has waited for a host in vain."""

    @abstractmethod
    def close(self) -> None:
        """End what is left of the hosts, and free everything."""


class Hosts(ABC):
    """What a user asks for: hosts of one kind. Pickles.

    Attributes:
        ship: Names of the modules that are sent by value.
        start_timeout: Seconds to wait for a host, as long as there is none.
        silence: Seconds after which a batch is asked of a second host.
    """

    ship: tuple[str, ...]
    start_timeout: float
    silence: float

    @abstractmethod
    def join(self) -> Cluster:
        """The cluster.

        Raises:
            ImportError: What it needs is not installed.
            WorkerStartError: It cannot be reached.
        """


@dataclass(frozen=True)
class HostStats:
    """What became of batches on hosts, at one moment.

    Attributes:
        wanted: Hosts that there should be now.
        alive: Of these, hosts that take batches.
        lost: Hosts that were lost.
        batches: Batches that each host has made, by the number of the host.
        hedged: Batches that were asked of a second host because the first was silent.
        resent: Batches that were asked of another host because theirs was lost.
        late: Answers that came after another host had answered, and were dropped.
    """

    wanted: int = 0
    alive: int = 0
    lost: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    hedged: int = 0
    resent: int = 0
    late: int = 0


@dataclass(eq=False)
class _HostCall:
    """What is asked for, of which hosts since when, s, and how many were lost with it."""

    text: str
    convert: Callable[[HostAnswer], Any]
    method: str
    arguments: tuple[Any, ...]
    future: Future[Any] = field(default_factory=Future)
    asked: dict["_Host", float] = field(default_factory=dict)
    lost: int = 0


@dataclass(eq=False)
class _Host:
    """A host: what `Cluster.start` has returned, and the calls that it has."""

    number: int
    place: str
    name: str = ""
    handle: Any = None
    depth: int = 0  # calls that it may have; none until it can take work
    news: float = 0.0  # when it was heard last, s
    calls: list[_HostCall] = field(default_factory=list)
    respawns: int = 0

    def __post_init__(self) -> None:
        self.name = f"host {self.number}"

    def has_room(self, now: float, silence: float) -> bool:
        # A call that has lost a host has the next to itself: where it ends hosts, the others need not pay for it.
        is_alone = any(call.lost for call in self.calls)
        is_silent = bool(self.calls) and now - self.news > silence
        return len(self.calls) < self.depth and not is_alone and not is_silent


class HostCalls:
    """Hosts of one cluster, and what is asked of them. All methods may be called from any thread.

    Attributes:
        options: Who asks, and how often a call may lose its host.
        failure: Why nothing can be asked any more; None as long as something can.
        waste: What one of the hosts reads wastefully.
    """

    def __init__(
        self, hosts: Hosts, options: PoolOptions, pack_job: Callable[[], Packed], depth: Callable[[int], int]
    ) -> None:
        """Start hosts, without waiting for them.

        Args:
            hosts: Those that are asked for.
            options: See the attributes.
            pack_job: Packs what they are to load.
            depth: How many batches a host is to have at once that has so many workers.

        Raises:
            ImportError, WorkerStartError: See `Hosts.join`.
        """
        self.options, self._wish, self._pack_job, self._depth = options, hosts, pack_job, depth
        self.failure: BaseException | None = None
        self.waste: ReadCost | None = None
        self._tick = min(_TICK, hosts.silence / 4)
        self._idle = threading.Condition()  # its lock, which is reentrant, guards all that follows
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the thread that decides
        self._deaths = CrashPolicy()
        self._open: set[_HostCall] = set()
        self._waiting: deque[_HostCall] = deque()  # to be handed out
        self._places: Sequence[str] = ()
        self._hosts: dict[str, _Host] = {}  # by their place
        self._retries: dict[str, tuple[int, float]] = {}  # by place: starts that failed in a row, and when to try again
        self._dropped: list[Any] = []  # hosts that are to be killed
        self._batches = Counter[int]()  # by the number of each host that has answered anything
        self._lost = self._respawns = self._hedged = self._resent = self._late = 0
        self._looked = self._heard = self._had_host = time.monotonic()
        self._attention, self._over = threading.Event(), False
        packed = pack_job()
        self._cluster = hosts.join()
        try:
            self._state = State([self._cluster.share(packed)])
            self._deciding = threading.Thread(target=self._run, name="kerasfeed-hosts", daemon=True)
            self._looking = threading.Thread(target=self._look, name="kerasfeed-hosts-look", daemon=True)
            start_thread(self._deciding, options.who, 2)
            start_thread(self._looking, options.who, 2)
        except BaseException:
            self._cluster.close()
            raise

    # ---- what whoever asks calls

    def ask(self, text: str, convert: Callable[[HostAnswer], Any], method: str, *arguments: Any) -> Future[Any]:
        """Have a host answer `method(state, *arguments)`; the future of what `convert` makes of the answer.

        Messages call it `text`.
        """
        call = _HostCall(text, convert, method, arguments)
        with self._idle:
            if self.failure is not None:
                call.future.set_exception(self.failure)
                return call.future
            self._open.add(call)
            self._waiting.append(call)
        self._news.put(_nothing)
        return call.future

    def tell(self, **known: Any) -> None:
        """Have hosts know this of their `State` from the next call on."""
        with self._idle:
            self._state = replace(self._state, **known)

    def renew(self) -> None:
        """Have hosts load what the job is now, from the next call on."""
        self.tell(generation=self._state.generation + 1, job=[self._cluster.share(self._pack_job())])

    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change`, which alters the job, while nothing is asked for; hosts then see the result."""
        with self._idle:
            self._idle.wait_for(lambda: not self._open)
        change()
        self.renew()

    @property
    def respawns(self) -> int:
        """Hosts, and worker processes of hosts, that were replaced."""
        with self._idle:
            return self._lost + self._respawns + sum(host.respawns for host in self._hosts.values())

    def stats(self) -> HostStats:
        """What became of calls."""
        with self._idle:
            wanted, alive = len(self._places), sum(host.depth > 0 for host in self._hosts.values())
            batches = dict(sorted(self._batches.items()))
            return HostStats(wanted, alive, self._lost, batches, self._hedged, self._resent, self._late)

    def close(self) -> None:
        """End the hosts; what is open fails with `FeedClosedError`. Idempotent."""
        with self._idle:
            over, self._over = self._over, True
        if over:
            return
        self._fail(errors.FeedClosedError(CLOSED_BEFORE_DONE))
        if self._deciding is not threading.current_thread():  # as where the collector drops a feed there
            self._deciding.join()
        stops = []
        with suppress(Exception), self._idle:  # where the cluster is gone, calls fail
            for host in self._hosts.values():
                if host.depth:
                    stops.append(self._cluster.call(host.handle, "stop", self._state))
        for stop in wait(stops, _GRACE).done:  # others are frozen, or in the middle of a scene
            if stop.exception() is None:
                self._note(stop.result())
        self._attention.set()
        if self._looking is not threading.current_thread():
            self._looking.join(_RELEASE_SECONDS)
        self.failure = copy.copy(self.failure)  # whoever was told of it has a traceback that refers to this

    # ---- hosts

    def _look(self) -> None:
        """Body of the thread that starts and ends hosts; it hangs where the cluster is gone."""
        while not self._over:
            self._attention.clear()
            try:
                self._fill(tuple(self._cluster.places()))
                while self._dropped:
                    self._cluster.kill(self._dropped.pop())
            except HostLostError as error:
                self._news.put(partial(self._fail, error))
            except Exception:  # noqa: BLE001 - where this goes on, the cluster is not believed to be well
                LOGGER.debug("%s: the cluster does not answer", self.options.who, exc_info=True)
            self._attention.wait(0 if self._over else self._tick)
        self._cluster.close()

    def _fill(self, places: Sequence[str]) -> None:
        """There should be hosts at these places."""
        now = time.monotonic()
        with self._idle:
            self._looked, self._places = now, places
            for host in list(self._hosts.values()):
                if host.place not in places and not host.depth:  # it will never be; others tell when they end
                    self._forget(host)
            taken = {*self._hosts, *(place for place, (_, moment) in self._retries.items() if now < moment)}
            numbers = {host.number for host in self._hosts.values()}
            free = (number for number in itertools.count() if number not in numbers)
            started = [_Host(next(free), place) for place in places if place not in taken]
            self._hosts.update((host.place, host) for host in started)
        for host in started:
            try:
                host.handle = self._cluster.start(host.place)
                self._call(host, self._started, "start", host.number, len(places), versions(), search_path())
            except Exception as error:  # noqa: BLE001 - whatever it is, there is no host
                self._news.put(partial(self._lose, host, self._cluster.ending(error)))

    def _call(self, host: _Host, do: Callable[[_Host, Any], None], method: str, *arguments: Any) -> None:
        """Call a host, and have the thread that decides `do` something with the answer, or note that it is lost."""

        def tell(future: Future[Any]) -> None:  # on a thread of the cluster's
            error = future.exception()
            if error is None:
                self._news.put(partial(do, host, future.result()))
            else:
                self._news.put(partial(self._lose, host, self._cluster.ending(error)))

        self._cluster.call(host.handle, method, self._state, *arguments).add_done_callback(tell)

    def _started(self, host: _Host, answer: HostAnswer) -> None:
        """A host has answered for the first time.

        Raises:
            WorkerStartError: It can take no work, and no other one does.
        """
        if answer.error is not None:
            error = answer.error.arrived()
            if not self._has_host:
                raise error
            self._lose(host, f"can take no work: {message_of(error)}")
            return
        name, workers = unpack(answer.value)
        with self._idle:
            host.name = f"host {host.number} ({name})"
            host.depth, host.news = min(MOST_CALLS, self._depth(workers)), time.monotonic()
            self._retries.pop(host.place, None)
        LOGGER.info("%s: %s started", self.options.who, host.name)
        self._deaths.started()
        self._call(host, lambda *_: None, "live")  # which fails where the host ends

    @property
    def _has_host(self) -> bool:
        return self.stats().alive > 0

    def _forget(self, host: _Host) -> None:
        del self._hosts[host.place]
        if host.handle is not None:
            self._dropped.append(host.handle)
        self._attention.set()

    def _lose(self, host: _Host, how: str) -> None:
        """A host is lost: others are asked for what it had.

        Raises:
            WorkerStartError: Hosts end before they can take work, one after the other.
        """
        crash = Crash(host.name, how, started=host.depth > 0)
        with self._idle:
            if self._hosts.get(host.place) is not host:
                return
            self._lost += 1
            self._respawns += host.respawns
            if not host.depth:
                times = self._retries.get(host.place, (0, 0.0))[0] + 1
                self._retries[host.place] = times, time.monotonic() + min(2.0**times, _MOST_SECONDS)
            self._forget(host)
        if not host.depth and self._deaths.at_start(crash) and not self._has_host:
            raise WorkerStartError(f"{host.name} {how} before it could take work, as did others before it")
        LOGGER.warning("%s: lost a host: %s", self.options.who, crash)
        self.options.deferred_warnings.defer(
            "host", f"{host.name} {how}. Its batches are asked of other hosts, or of the one in its place: no batch is "
            "lost, none changes. feed.stats().hosts counts the hosts lost; this is said once", errors.FeedWarning,
        )  # fmt: skip
        for call in reversed(host.calls):
            self._ask_again(call, host, str(crash))

    def _ask_again(self, call: _HostCall, host: _Host, how: str) -> None:
        call.asked.pop(host, None)
        call.lost += 1
        if call.lost >= self.options.tries:
            error = HostLostError(
                f"{call.text} lost the host that was to load them {call.lost} times, and are not tried again "
                f"(max_failures): the last, {how}"
            )
            self._settle(call, partial(call.future.set_exception, error))
        elif call in self._open and not call.asked and call not in self._waiting:
            with self._idle:
                self._waiting.appendleft(call)
                self._resent += 1

    # ---- the thread that decides

    def _run(self) -> None:
        looked = 0.0
        try:
            while self.failure is None:
                with suppress(queue.Empty):
                    self._news.get(timeout=self._tick)()
                    while self.failure is None:
                        self._news.get_nowait()()
                now = time.monotonic()
                if now - looked >= self._tick:
                    looked = now
                    self._check(now)
                    self._hedge(now)
                for call, host in list(self._sendings(now)):
                    self._call(host, partial(self._answered, call), call.method, *call.arguments)
        except errors.WorkerDiedError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001 - whoever waits must not wait for a thread that is gone
            self._fail(wrapped(error, "the thread that asks hosts failed: ", errors.KerasfeedError))

    def _check(self, now: float) -> None:
        """See that there are hosts.

        Raises:
            WorkerStartError: None has started in time.
            HostLostError: There are none any more.
        """
        who, timeout, well_for = self.options.who, self._wish.start_timeout, self._cluster.well_for
        if self._has_host:
            self._had_host = now
        if now - self._had_host > timeout:
            kind = HostLostError if self._batches else WorkerStartError
            raise kind(f"{who} has had no host for start_timeout={timeout:g} s: {self._cluster.missing()}")
        if self._open and now - max(self._looked, self._heard) > well_for:
            raise HostLostError(f"{who} has no hosts any more: the cluster has not answered for {well_for:g} s")

    def _hedge(self, now: float) -> None:
        """Have calls that are out for long asked of one more host, where that has nothing else to do."""
        with self._idle:
            late = [call for call in self._open if call.asked and now - max(call.asked.values()) > self._wish.silence]
            self._waiting.extend(call for call in late if call not in self._waiting)

    def _sendings(self, now: float) -> Iterator[tuple[_HostCall, _Host]]:
        """What is to be asked of whom: always of the host that has the fewest calls."""
        with self._idle:
            silence = self._wish.silence
            free = [host for host in self._hosts.values() if self._waiting and host.has_room(now, silence)]
            kept = []
            while self._waiting and free:
                call = self._waiting.popleft()
                if call not in self._open or call.future.cancelled():
                    self._settle(call)
                    continue
                others = (host for host in free if host not in call.asked)
                host = min(others, key=lambda host: len(host.calls) / host.depth, default=None)
                if host is None or (call.lost and host.calls):  # all have it; or one is to finish first
                    kept.append(call)
                    if host is not None:
                        free.remove(host)
                    continue
                self._hedged += bool(call.asked)
                call.asked[host] = now
                host.news = host.news if host.calls else now  # it had nothing to tell
                host.calls.append(call)
                if not host.has_room(now, silence):
                    free.remove(host)
                yield call, host
            self._waiting.extendleft(reversed(kept))

    def _answered(self, call: _HostCall, host: _Host, answer: HostAnswer) -> None:
        with self._idle:
            host.news = self._heard = time.monotonic()
            host.respawns = max(host.respawns, answer.respawns)
            if call in host.calls:
                host.calls.remove(call)
            is_first = call in self._open
            self._late += not is_first
            self._batches[host.number] += is_first and call.method == "batch" and answer.error is None
        self._note(answer)
        if answer.error is not None and answer.has_failed:
            how = f"could not go on: {answer.error.text}"
            self._ask_again(call, host, f"{host.name} {how}")
            self._lose(host, how)
        elif is_first:
            try:
                tell = partial(call.future.set_result, call.convert(answer))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                BaseException.with_traceback(error, None)  # it ends in this frame: only the collector would free it
                tell = partial(call.future.set_exception, error)
            self._settle(call, tell)

    def _note(self, answer: HostAnswer) -> None:
        """Keep what a host has told beside what it was asked for."""
        for warning in answer.warnings:
            self.options.deferred_warnings.defer(*warning)
        self.waste = answer.waste or self.waste
        self.tell(used_random=self._state.used_random | answer.used_random)

    def _settle(self, call: _HostCall, tell: Callable[[], None] = lambda: None) -> None:
        """A call is over; `tell` whoever waits, unless that is nobody any more."""
        with suppress(InvalidStateError):
            tell()
        with self._idle:
            self._open.discard(call)
            if not self._open:
                self._idle.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Nothing can be asked any more."""
        with self._idle:
            if self.failure is None:
                self.failure = error
            calls = list(self._open)
            self._waiting.clear()
        self._news.put(_nothing)
        for call in calls:
            self._settle(call, partial(call.future.set_exception, error))


def _nothing() -> None:
    """Wakes the thread that decides."""
