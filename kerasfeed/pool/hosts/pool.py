"""A pool of hosts, each of which runs a pool of processes of its own and answers whole batches.

Invariant: one thread decides, the supervisor; what an engine tells only waits for it. A batch is a pure function of its
tasks, so any host may be asked again at any time, and the first answer counts. What a host has loaded is copied once,
into the memory of this pool.
"""

import copy
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kerasfeed.errors import FeedClosedError, HostLostError, KerasfeedError, WorkerDiedError
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool, PoolOptions, Receipt, Runner
from kerasfeed.pool.hosts.dispatch import MOST_GROUPS, Dispatcher, Host, TaskGroup
from kerasfeed.pool.hosts.engine import HostStats, News, Parcel, pack
from kerasfeed.pool.hosts.fleet import Fleet
from kerasfeed.pool.hosts.messages import Answer, Outcome, Work
from kerasfeed.pool.hosts.verdicts import Verdicts
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.pool.task import Task
from kerasfeed.util.error_notes import wrapped
from kerasfeed.util.error_text import message_of
from kerasfeed.util.opened_files import WorkersDisagreeError

_TICK = 1.0
_GRACE, _GRACE_OF_OTHERS = 6.0, 1.0  # for hosts to end their workers, and for those that have told of none yet
_SPARE_CALLS = 4  # start, stop and what else is not work


class HostPool(Pool):
    """Hosts as workers: each answers whole batches."""

    worker_type = "process"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        """Start the hosts, without waiting for them.

        Raises:
            TypeError: The runner cannot be pickled, or needs what other machines do not have.
            ImportError, WorkerStartError: See `Hosts.start_engine`.
        """
        super().__init__(runner, options)
        hosts = options.hosts
        assert hosts is not None
        self.who = f"{options.who} (on other hosts)"
        if options.addressed or options.inherit:
            raise TypeError(
                "hosts load any batch anywhere, and this work is bound to workers of this machine, which share memory "
                "and open files with it: leave hosts out"
            )
        self.memory = PoolMemory(shared=False, who=self.who)
        self._ship, self._tick = hosts.ship, min(_TICK, hosts.silence / 4)
        self._carrier = runner.carrier()
        self._news: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._dispatcher = Dispatcher(hosts.silence)
        self._verdicts = Verdicts(options)
        self._batches: dict[int, int] = {}
        self._bytes = self._used_random = 0
        self._posted: Any = None
        parcel = self._packed_runner()
        calls = _SPARE_CALLS + (MOST_GROUPS if options.every_core else min(MOST_GROUPS, max(2, 2 * options.workers)))
        self._engine = hosts.start_engine(lambda *news: self._news.put(news), calls)
        try:
            self._fleet = Fleet(hosts, options, self._engine, self._dispatcher, self.lock, self._verdicts.deaths)
            self._fleet.share("runner", parcel)
            self._thread = threading.Thread(target=self._run, name="kerasfeed-hosts", daemon=True)
            start_thread(self._thread, self.who)
        except BaseException:
            self._engine.close()
            self.memory.close()
            raise

    def _packed_runner(self) -> Parcel:
        try:
            return pack(self.runner, self._ship)
        except Exception as error:
            raise self.runner.unpicklable(error) from error

    # ---- what whoever has tasks calls

    def submit(self, tasks: Sequence[Task], receipt: Receipt | None = None) -> None:
        """See `Pool.submit`; these tasks go to one host."""
        with self.lock:
            self.refuse_if_ended()
            try:
                if receipt is not None:
                    receipt.sent = True  # and not a call earlier: Ctrl-C comes after calls
            finally:
                if tasks:
                    self._dispatcher.add(tasks)
        self._news.put(())

    def post(self, value: Any) -> None:
        """See `Pool.post`."""
        self.refuse_if_ended()
        self._posted = value
        self._fleet.share("posted", pack(value, self._ship))

    def renew(self) -> None:
        """See `Pool.renew`."""
        if self.ending() is None:
            self._fleet.share("runner", self._packed_runner())

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`."""
        with self.lock:
            return sum(len(group.tasks) for group in self._dispatcher.groups.values())

    @property
    def used_random(self) -> int:
        """See `Pool.used_random`."""
        return self._used_random

    @property
    def respawns(self) -> int:
        """See `Pool.respawns`; hosts, and worker processes of hosts."""
        with self.lock:
            present = sum(host.respawns for host in self._dispatcher.hosts.values())
            return self._fleet.lost + self._fleet.respawns + present

    def pids(self) -> tuple[int, ...]:
        """See `Engine.pids`."""
        return self._engine.pids()

    def host_stats(self) -> HostStats:
        """See `Pool.host_stats`."""
        found, fleet = self._dispatcher, self._fleet
        with self.lock:
            alive = sum(host.ready for host in found.hosts.values())
            batches = dict(sorted(self._batches.items()))
            return HostStats(
                len(fleet.places), alive, fleet.lost, batches, self._bytes, found.hedged, found.resent, found.late
            )

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            if self.failure is None:
                self.failure = error
            tasks = self._dispatcher.clear()
            self._idle.notify_all()
        for task in tasks:
            task.give_up(error)
        if self.on_failure is not None:
            self.on_failure()

    def _end(self) -> None:
        self._fail(FeedClosedError(CLOSED_BEFORE_DONE))
        self._news.put(())
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._stop_hosts()
        self._engine.close()
        self.memory.close()
        self.failure = copy.copy(self.failure)  # whoever was told of it has a traceback that refers to this pool

    def _stop_hosts(self) -> None:
        stopping = {key: host.ready for key, host in self._dispatcher.hosts.items()}
        for key in stopping:
            self._engine.stop(key)
        begun = time.monotonic()
        with suppress(queue.Empty):  # some are frozen, in the middle of a scene, or wait for a place
            while stopping:
                grace = _GRACE if any(stopping.values()) else _GRACE_OF_OTHERS
                kind, *told = self._news.get(timeout=max(0.0, begun + grace - time.monotonic())) or (None,)
                if kind in (News.STOPPED, News.GONE):
                    stopping.pop(told[0], None)
                if kind is News.STOPPED:
                    self._defer_warnings(told[1].unpack())

    # ---- the supervisor

    def _run(self) -> None:
        next_look = 0.0
        try:
            while self.ending() is None:
                try:
                    news = self._news.get(timeout=self._tick)
                    while True:
                        if news and self.ending() is None:
                            self._handle(*news)
                        news = self._news.get_nowait()
                except queue.Empty:
                    pass
                now = time.monotonic()
                if now >= next_look:
                    next_look = now + self._tick
                    self._fleet.look(now, answered=bool(self._batches))
                    with self.lock:
                        self._dispatcher.hedge(now)
                self._hand_out(now)
        except WorkerDiedError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001 - whoever waits must not wait for a thread that is gone
            self._fail(wrapped(error, "the supervisor of the hosts failed: ", KerasfeedError))

    def _handle(self, kind: News, *told: Any) -> None:
        if kind is News.PLACES:
            self._fleet.set_places(*told)
        elif kind is News.STARTED:
            self._fleet.started(*told)
        elif kind is News.ANSWER:
            self._handle_answer(*told)
        elif kind is News.GONE:
            self._handle_loss(*told)
        elif kind is News.FAILED:
            raise HostLostError(f"{self.options.who} has no hosts any more: {told[0]}")

    def _hand_out(self, now: float) -> None:
        with self.lock:
            sendings = list(self._dispatcher.sendings(now))
        for group, host in sendings:
            self._send(group, host)

    def _send(self, group: TaskGroup, host: Host) -> None:
        versions, shared = self._fleet.news_for(host)
        records = tuple(task.record() for task in group.tasks)
        memory = b"" if self._carrier is None else self._carrier.outgoing(self.memory, self._posted, records[0])
        work = Work(
            records, tuple(task.items for task in group.tasks), memory, versions["runner"], versions["posted"],
            self._used_random,
        )  # fmt: skip
        self._engine.send(host.key, group.number, pack(work), shared)

    def _handle_loss(self, key: int, how: str) -> None:
        groups, reason = self._fleet.lose(key, how)
        for group in groups:
            if self._verdicts.is_lost(group.tasks, group.lost, reason):
                self._settle(group)

    # ---- answers

    def _handle_answer(self, key: int, number: int, parcel: Parcel) -> None:
        answer = parcel.unpack()
        assert isinstance(answer, Answer)
        with self.lock:
            host, group = self._dispatcher.answered(key, number, time.monotonic())
            self._bytes += parcel.nbytes
            if host is not None:
                host.respawns = max(host.respawns, answer.respawns)
                self._batches[host.number] = self._batches.get(host.number, 0) + (group is not None)
            self._used_random |= answer.used_random
        error = None if answer.failure is None else answer.failure.arrived()
        if isinstance(error, WorkersDisagreeError):  # workers that are started anew would take the file as it is now
            self._fail(error)
            return
        failure = "" if error is None else message_of(error)
        if group is not None:
            if answer.places and self._carrier is not None:
                written = parcel.buffers[-len(answer.places) :]
                self._carrier.incoming(self.memory, group.tasks[0].record(), answer.places, written)
            outcomes = answer.outcomes or (Outcome("give_up"),) * len(group.tasks)
            again: list[Task] = []
            followers: list[Task] = []
            where = str(host or "a host that was lost")
            for task, outcome in zip(group.tasks, outcomes, strict=True):
                if outcome.method == "give_up":
                    again.append(task)
                else:
                    followers += self._verdicts.tell(task, outcome, where)
            if again and self._verdicts.is_lost(again, group.lost + 1, f"{where} could not go on: {failure}"):
                again = []
            self._settle(group, followers, again)
        self._defer_warnings(answer)
        if failure:
            self._handle_loss(key, f"could not go on: {failure}")

    def _settle(self, group: TaskGroup, followers: Sequence[Task] = (), again: Sequence[Task] = ()) -> None:
        """Forget a group, have what comes of it done, and wake who waits for the last one."""
        with self.lock:
            self._dispatcher.settle(group)
            ending = self.ending()
            if ending is None:
                if followers:
                    self._dispatcher.add(followers, first=True)
                if again:
                    self._dispatcher.add(again, first=True, lost=group.lost + 1)
            if not self._dispatcher.groups:
                self._idle.notify_all()
        if ending is not None:
            for task in (*followers, *again):
                task.give_up(ending)

    def _defer_warnings(self, answer: Answer) -> None:
        for kind, text, category in answer.warnings:
            self.options.deferred_warnings.defer(kind, text, category)
