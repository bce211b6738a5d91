"""A pool of hosts, each of which runs a pool of processes of its own and answers whole batches.

Invariant: one thread decides, the supervisor (`kerasfeed.pool.hosts.dispatch`); what an engine tells only waits for it.
A batch is a pure function of its tasks, so any host may be asked again at any time, and the first answer counts. What a
host has loaded is copied once, into the memory of this pool.
"""

import copy
import itertools
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning, HostLostError, KerasfeedError, WorkerDiedError, WorkerStartError
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool, PoolOptions, Receipt, Runner
from kerasfeed.pool.environment import search_path
from kerasfeed.pool.hosts.agent import versions
from kerasfeed.pool.hosts.dispatch import MOST_GROUPS, Dispatcher, Host, TaskGroup
from kerasfeed.pool.hosts.engine import HostStats, News, Parcel, pack
from kerasfeed.pool.hosts.messages import Answer, Error, Outcome, Setup, Started, Work
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.processes.crash_policy import CrashPolicy, respawn_text
from kerasfeed.pool.task import Crash, Task
from kerasfeed.util.error_notes import wrapped
from kerasfeed.util.error_text import message_of

_TICK = 1.0
_MOST_SECONDS = 30.0  # from one try to start a host to the next
_GRACE = 6.0  # for hosts to end their workers
_SPARE_CALLS = 4  # start, stop and what else is not work


class HostPool(Pool):
    """See the module's invariant."""

    worker_type = "process"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        """Start the hosts, without waiting for them.

        Raises:
            TypeError: The runner cannot be pickled, or needs what other machines do not have.
            ImportError, WorkerStartError: See `Hosts.connect`.
        """
        super().__init__(runner, options)
        assert options.hosts is not None
        self._hosts = options.hosts
        self.who = f"{options.who} (on other hosts)"
        if options.addressed or options.inherit:
            raise TypeError(
                "hosts load any batch anywhere, and this work is bound to workers of this machine, which share memory "
                "and open files with it: leave hosts out"
            )
        self.memory = PoolMemory(shared=False, who=self.who)
        self._carrier = runner.carrier()
        self._news: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._dispatcher = Dispatcher(self._hosts.silence)
        self._deaths = CrashPolicy()
        self._keys = itertools.count(1)
        self._places: tuple[str, ...] = ()
        self._failed_starts: dict[str, tuple[int, float]] = {}  # by place: how many in a row, and when to try again
        self._batches: dict[int, int] = {}
        self._bytes = self._lost = self._respawns = self._used_random = 0
        self._posted: Any = None
        self._shared: dict[str, Any] = {}
        self._versions = {"runner": 0, "posted": 0}
        self._well = self._had_host = time.monotonic()
        parcel = self._packed_runner()
        calls = _SPARE_CALLS + (min(MOST_GROUPS, 2 * options.workers) if not options.every_core else MOST_GROUPS)
        self._engine = self._hosts.connect(lambda *news: self._news.put(news), calls)
        self._share("runner", parcel)
        self._thread = threading.Thread(target=self._run, name="kerasfeed-hosts", daemon=True)
        self._thread.start()

    def _packed_runner(self) -> Parcel:
        try:
            return pack(self.runner, self._hosts.ship)
        except Exception as error:
            raise self.runner.unpicklable(error) from error

    def _share(self, what: str, parcel: Parcel) -> None:
        shared = self._engine.share(parcel)
        with self.lock:
            self._shared[what] = shared
            self._versions[what] += 1

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
        self._share("posted", pack(value, self._hosts.ship))

    def renew(self) -> None:
        """See `Pool.renew`."""
        if self.ending() is None:
            self._share("runner", self._packed_runner())

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
            return self._lost + self._respawns + sum(host.respawns for host in self._dispatcher.hosts.values())

    def pids(self) -> tuple[int, ...]:
        """See `Engine.pids`."""
        return self._engine.pids()

    def host_stats(self) -> HostStats:
        """See `Pool.host_stats`."""
        found = self._dispatcher
        with self.lock:
            alive = sum(host.ready for host in found.hosts.values())
            return HostStats(
                len(self._places), alive, self._lost, dict(sorted(self._batches.items())), self._bytes, found.hedged, found.resent, found.late
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
        stopping = {key for key, host in self._dispatcher.hosts.items() if host.ready}
        for key in stopping:
            self._engine.stop(key)
        deadline = time.monotonic() + _GRACE
        try:
            while stopping:
                kind, *told = self._news.get(timeout=max(0.0, deadline - time.monotonic())) or (None, None)
                if kind in (News.STOPPED, News.GONE):
                    stopping.discard(told[0])
                if kind is News.STOPPED:
                    self._defer_warnings(told[1].unpack())
        except queue.Empty:
            pass  # frozen, or in the middle of a scene
        self._engine.close()
        self.memory.close()
        self.failure = copy.copy(self.failure)  # whoever was told of it has a traceback that refers to this pool

    # ---- the supervisor

    def _run(self) -> None:
        tick = min(_TICK, self._hosts.silence / 4)
        next_look = 0.0
        try:
            while self.ending() is None:
                try:
                    news = self._news.get(timeout=tick)
                    while True:
                        if news and self.ending() is None:
                            self._handle(*news)
                        news = self._news.get_nowait()
                except queue.Empty:
                    pass
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + tick
                    self._look()
                self._hand_out()
        except BaseException as error:  # noqa: BLE001 - whoever waits must not wait for a thread that is gone
            self._fail(wrapped(error, "the supervisor of the hosts failed: ", KerasfeedError))

    def _handle(self, kind: News, *told: Any) -> None:
        if kind is News.PLACES:
            self._handle_places(*told)
        elif kind is News.STARTED:
            self._handle_start(*told)
        elif kind is News.ANSWER:
            self._handle_answer(*told)
        elif kind is News.GONE:
            self._handle_loss(*told)
        elif kind is News.FAILED:
            self._fail(WorkerDiedError(f"{self.options.who} has no hosts any more: {told[0]}"))

    def _hand_out(self) -> None:
        with self.lock:
            sendings = list(self._dispatcher.sendings(time.monotonic()))
        for group, host in sendings:
            self._send(group, host)

    def _send(self, group: TaskGroup, host: Host) -> None:
        with self.lock:
            versions, shared = dict(self._versions), dict(self._shared)
        if host.runner_version >= versions["runner"]:
            shared.pop("runner", None)
        if host.posted_version >= versions["posted"]:
            shared.pop("posted", None)
        host.runner_version, host.posted_version = versions["runner"], versions["posted"]
        records = tuple(task.record() for task in group.tasks)
        memory = b"" if self._carrier is None else self._carrier.outgoing(self.memory, self._posted, records[0])
        work = Work(
            records, tuple(task.items for task in group.tasks), memory, versions["runner"], versions["posted"],
            self._used_random,
        )  # fmt: skip
        self._engine.send(host.key, group.number, pack(work), shared)

    def _look(self) -> None:
        now = time.monotonic()
        with self.lock:
            self._dispatcher.hedge(now)
            if any(host.ready for host in self._dispatcher.hosts.values()):
                self._had_host = now
        self._fill_places()
        timeout = self._hosts.start_timeout
        if now - self._had_host > timeout:
            kind = WorkerStartError if not self._batches else HostLostError
            self._fail(kind(f"{self.options.who} has had no host for start_timeout={timeout:g} s: {self._engine.missing()}"))
        elif self._engine.well_for is not None and now - self._well > self._engine.well_for:
            self._fail(
                HostLostError(f"{self.options.who}: the cluster has not answered for {self._engine.well_for:g} s")
            )

    # ---- hosts

    def _handle_places(self, places: Sequence[str]) -> None:
        self._well = time.monotonic()
        if self._places == (found := tuple(places)):
            return
        self._places = found
        for host in list(self._dispatcher.hosts.values()):
            if host.place not in found and not host.ready:  # it will never be; one that is ready tells when it ends
                self._engine.kill(host.key)
                with self.lock:
                    self._dispatcher.lose(host)
        self._fill_places()

    def _fill_places(self) -> None:
        """Start hosts where there are none; where they do not come up, ever more seldom."""
        now, taken = time.monotonic(), {host.place for host in self._dispatcher.hosts.values()}
        for place in self._places:
            if place not in taken and now >= self._failed_starts.get(place, (0, 0.0))[1]:
                self._start(place)

    def _start(self, place: str) -> None:
        key, options = next(self._keys), self.options
        numbers = {host.number for host in self._dispatcher.hosts.values()}
        number = next(number for number in itertools.count() if number not in numbers)
        with self.lock:
            version, runner = self._versions["runner"], self._shared["runner"]
        setup = Setup(
            options.who, None if options.every_core else options.workers, number, len(self._places), options.seed,
            options.timeout, search_path(), options.environment.directory,
            options.environment.environment.get("PYTHONHASHSEED", ""), version,
        )  # fmt: skip
        host = Host(key, number, place, f"host {number}", runner_version=version)
        with self.lock:
            self._dispatcher.hosts[key] = host
        self._engine.start(key, place, versions(), pack(setup), runner)

    def _handle_start(self, key: int, parcel: Parcel) -> None:
        host, started = self._dispatcher.hosts.get(key), parcel.unpack()
        if host is None:
            return
        assert isinstance(started, Started)
        host.name = f"host {host.number} ({started.name})"
        if started.version != versions():
            self._fail(
                WorkerStartError(
                    f"{host} has {started.version}, and this process {versions()}: batches might differ. Install the "
                    "same on all hosts (runtime_env can do so for kerasfeed)"
                )
            )
        elif started.module:
            self._fail(WorkerStartError(_missing_module(host, started.module)))
        elif started.error is not None:
            error = started.error.arrived()
            self._fail(wrapped(error, f"on {host}: ", WorkerStartError))
        else:
            host.workers, host.ready, host.news = started.workers, True, time.monotonic()
            self._deaths.started()
            self._failed_starts.pop(host.place, None)

    def _handle_loss(self, key: int, how: str) -> None:
        host = self._dispatcher.hosts.get(key)
        if host is None:
            return
        self._engine.kill(key)
        crash = Crash(str(host), how, started=host.ready)
        with self.lock:
            groups = self._dispatcher.lose(host)
            self._lost += 1
            self._respawns += host.respawns
        if not host.ready:
            times = self._failed_starts.get(host.place, (0, 0.0))[0] + 1
            self._failed_starts[host.place] = times, time.monotonic() + min(2.0**times, _MOST_SECONDS)
            if self._deaths.at_start(crash) and not any(each.ready for each in self._dispatcher.hosts.values()):
                self._fail(WorkerStartError(f"{host} {how} before it could take work, as did others before it"))
                return
        self.options.deferred_warnings.defer(
            "host", f"{host} {how}. Its batches are asked of other hosts, or of the one in its place: no batch is lost, "
            "none changes. feed.stats().hosts counts the hosts lost; this is said once", FeedWarning,
        )  # fmt: skip
        for group in groups:
            if group.lost >= self.options.tries:
                self._give_up(group.tasks, group.lost, str(crash))
                self._settle(group)
        self._fill_places()

    def _give_up(self, tasks: Sequence[Task], times: int, last: str) -> None:
        what = tasks[0].text(-1) or "a task"
        error = HostLostError(
            f"{what} lost the host that was to load them {times} times, and are not tried again (max_failures): the "
            f"last, {last}"
        )
        for task in tasks:
            task.broken(error)

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
        failure = "" if answer.failure is None else message_of(answer.failure.arrived())
        if group is not None:
            if answer.places and self._carrier is not None:
                written = parcel.buffers[-len(answer.places) :]
                self._carrier.incoming(self.memory, group.tasks[0].record(), answer.places, written)
            outcomes = answer.outcomes or (Outcome("give_up"),) * len(group.tasks)
            again, followers = [], []
            for task, outcome in zip(group.tasks, outcomes, strict=True):
                if outcome.method == "give_up":
                    again.append(task)
                else:
                    followers += self._tell(task, outcome, host)
            if again and group.lost + 1 >= self.options.tries:
                self._give_up(again, group.lost + 1, f"{host} could not go on: {failure}")
                again = []
            self._settle(group, followers, again)
        self._defer_warnings(answer)
        if failure and host is not None:
            self._handle_loss(key, f"could not go on: {failure}")

    def _tell(self, task: Task, outcome: Outcome, host: Host | None) -> Sequence[Task]:
        """Tell a task what became of it; returns what is to be done in its place."""
        where = f" on {host}" if host else ""
        found = [argument.arrived() if isinstance(argument, Error) else argument for argument in outcome.arguments]
        if outcome.method == "done":
            payload, seconds, worker = found
            self._deaths.progress(task)
            return task.done(payload, seconds, worker + where)
        if outcome.method == "failed":
            place, error, worker, traceback = found
            return task.failed(place, error, worker + where, traceback)
        if outcome.method == "crashed":
            note, crash, _ = found
            return self._judge(task, note, replace(crash, worker=crash.worker + where, place=task.text(note)))
        getattr(task, outcome.method)(*found)
        return ()

    def _judge(self, task: Task, note: int, crash: Crash) -> Sequence[Task]:
        """What is to be done about the task that a worker process died of."""
        self.options.deferred_warnings.defer("respawn", respawn_text(crash), FeedWarning)
        culprit = task.culprit(note)
        if culprit is None:
            return task.parts(note) or [task]
        count = self._deaths.at_place(culprit, crash)
        tries = self.options.tries_in_time if crash.hung else self.options.tries
        if count < self._deaths.enough(crash, tries):
            return [task]
        self._deaths.judged(culprit)
        return task.crashed(note, crash, count)

    def _settle(
        self, group: TaskGroup, followers: Sequence[Task] = (), again: Sequence[Task] = ()
    ) -> None:
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


def _missing_module(host: Host, module: str) -> str:
    package = module.split(".")[0]
    return (
        f"{host} has no module {module!r}, which the sequence needs. A module of yours can be sent along: "
        f"kf.RayHosts(ship=({package},)); others are installed on the hosts, or with "
        f"kf.RayHosts(runtime_env={{'pip': [{package!r}]}})"
    )
