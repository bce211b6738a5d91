"""Which host is asked for what, played with hosts that answer when the test says so, or never."""

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from interrupts import interrupted_at
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.errors import WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.failures.failure_log import FailureLog, FailurePolicy
from kerasfeed.loaders.hosts.calls import MOST_CALLS, Cluster, HostAnswer, Hosts, pack
from kerasfeed.loaders.hosts.session import HostsSession
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.exception_pickle import Sent

pytestmark = pytest.mark.filterwarnings("ignore:host :kerasfeed.FeedWarning")
WORKERS = 2


class PlayedHost:
    """What a host was asked for, and the futures of its answers."""

    def __init__(self, place):
        self.place, self.calls, self.live, self.killed = place, [], Future(), False
        self.brought = []  # whether each call for a batch brought the job

    @property
    def asked(self):
        return [number for number, _ in self.calls]

    def answer(self, number, answer=None):
        future = next(future for asked, future in self.calls if asked == number)
        future.set_result(answer or HostAnswer(pack(number)))

    def end(self):
        for future in [self.live, *(future for _, future in self.calls)]:
            if not future.done():
                future.set_exception(RuntimeError("was lost"))


class PlayedCluster(Cluster, Hosts):
    """So many hosts of so many workers; those at places in `mute` never say that they have started."""

    ship, start_timeout = (), 60.0

    def __init__(self, count, silence=60.0, mute=(), workers=WORKERS):
        self.count, self.silence, self.mute, self.workers, self.hosts = count, silence, mute, workers, []

    def join(self):
        return self

    def places(self):
        return [str(number) for number in range(self.count)]

    def start(self, place):
        self.hosts.append(PlayedHost(place))
        return self.hosts[-1]

    def call(self, host, method, job, state, *arguments):
        future = Future()
        if method == "batch":
            host.calls.append((arguments[1], future))
            host.brought.append(job is not None)
            self.asked_for(host, arguments[1])
        elif method == "live":
            assert job is None  # which Ray would keep as long as the host lives
            future = host.live
        elif method == "infer":
            future.set_result(HostAnswer(pack(SimpleNamespace(nbytes=1))))
        elif host.place not in self.mute or method == "stop":
            future.set_result(HostAnswer(pack(("here", self.workers))))
        return future

    def asked_for(self, host, number):
        pass

    def keep(self, hosts):
        for host in self.hosts:
            host.killed = host not in hosts

    def missing(self):
        return ""

    def close(self):
        pass

    @property
    def alive(self):
        return [host for host in self.hosts if not host.live.done()]


@pytest.fixture
def session_of():
    made = []

    def _make(cluster, tries=3, batch_size=WORKERS, expected=None, **job):
        plan = Plan(1000 * batch_size, batch_size)
        policy = FailurePolicy(max_failures=tries)
        job = Job([0], plan, WORKERS, max_memory=4, look_ahead=1, policy=policy, hosts=cluster, **job)
        made.append(HostsSession(job, FailureLog(policy, 1)))
        wanted = cluster.count - len(cluster.mute) if expected is None else expected
        wait_until(lambda: made[-1].host_stats().alive >= wanted)
        return made[-1]

    yield _make
    for session in made:
        session.close()


def ask(session, *steps):
    return [session.submit(0, step) for step in steps]


def settled(cluster, hold=0.2):
    """What each host was asked for, once nothing more is."""
    found, since = None, time.monotonic()
    while time.monotonic() < since + hold:
        now = [host.asked for host in cluster.hosts]
        if now != found:
            found, since = now, time.monotonic()
        time.sleep(0.005)
    return found


@pytest.mark.parametrize(("workers", "expected"), [(1, 2), (4, 4), (1000, MOST_CALLS)])
def test_a_host_has_as_many_calls_as_its_workers_need_and_no_more(session_of, workers, expected):
    cluster = PlayedCluster(1, workers=workers)
    ask(session_of(cluster), *range(50))
    assert settled(cluster) == [list(range(expected))]


def test_the_look_ahead_fills_hosts_as_they_are_and_others_as_if_they_were_like_this_machine(session_of):
    cluster = PlayedCluster(3, mute=("2",), workers=5)
    session = session_of(cluster)
    assert session.look_ahead == 5 + 5 + 2
    cluster.workers, cluster.mute, cluster.count = 1000, (), 4
    wait_until(lambda: session.host_stats().alive == 3)
    assert session.look_ahead == 5 + 5 + MOST_CALLS + 2


def test_calls_go_to_the_host_that_has_fewest_and_none_to_one_that_has_not_answered(session_of):
    cluster = PlayedCluster(3, mute=("1",))
    ask(session_of(cluster), *range(6))
    assert settled(cluster) == [[0, 2], [], [1, 3]]


def test_what_a_silent_host_has_is_asked_of_another_and_the_first_answer_counts(session_of):
    cluster = PlayedCluster(2, silence=0.2)
    session = session_of(cluster)
    (future,) = ask(session, 7)
    first, second = cluster.hosts
    wait_until(lambda: second.asked)
    assert (first.asked, second.asked) == ([7], [7])
    second.answer(7)
    assert future.result(SECONDS) == 7
    first.answer(7)
    wait_until(lambda: session.host_stats().late)
    assert (session.host_stats().hedged, session.host_stats().batches) == (1, {0: 0, 1: 1})


def test_only_batches_are_counted_as_made(session_of):
    cluster = PlayedCluster(1)
    session = session_of(cluster)
    session.infer(None, 0)
    failed, made = ask(session, 1, 2)
    settled(cluster)
    (host,) = cluster.hosts
    host.answer(1, HostAnswer(error=Sent.of(ValueError("no scene"))))
    host.answer(2)
    assert failed.exception(SECONDS)
    assert made.result(SECONDS) == 2
    assert session.host_stats().batches == {0: 1}


def test_a_host_is_sent_the_job_until_it_says_that_it_has_it_and_again_once_that_has_changed(session_of):
    cluster = PlayedCluster(1)
    session = session_of(cluster)

    def answered(number, **told):
        (future,) = ask(session, number)
        wait_until(lambda: number in cluster.hosts[0].asked)
        cluster.hosts[0].answer(number, HostAnswer(pack(number), **told))
        assert future.result(SECONDS) == number

    answered(0)
    answered(1, generation=0)
    answered(2, generation=0)
    session.renew()
    answered(3, generation=0)  # of an answer that was on its way
    answered(4, generation=1)
    answered(5)
    assert cluster.hosts[0].brought == [True, True, False, True, True, False]


def test_what_lost_its_host_comes_before_the_rest_and_alone(session_of):
    cluster = PlayedCluster(1)
    session = session_of(cluster)
    futures = ask(session, *range(5))
    wait_until(lambda: cluster.hosts[0].asked == [0, 1])
    cluster.hosts[0].end()
    wait_until(lambda: len(cluster.hosts) == 2)
    assert cluster.hosts[0].killed
    for expected in ([0], [0, 1], [0, 1, 2, 3]):  # those that have lost a host, each alone
        assert settled(cluster)[1] == expected
        cluster.hosts[1].answer(expected[-1])
    assert [future.result(SECONDS) for future in futures[:2]] == [0, 1]
    assert (session.host_stats().resent, session.host_stats().lost) == (2, 1)


def test_what_lost_its_host_waits_until_another_has_nothing_else(session_of):
    cluster = PlayedCluster(2)
    session = session_of(cluster)
    ask(session, *range(4))
    lost, other = cluster.hosts
    wait_until(lambda: len(other.asked) == 2)
    cluster.count = 1  # nothing takes its place
    (lost if lost.place == "1" else other).end()
    lost, other = (lost, other) if lost.live.done() else (other, lost)
    assert len(settled(cluster)[cluster.hosts.index(other)]) == 2
    for number in list(other.asked):
        other.answer(number)
    assert settled(cluster)[cluster.hosts.index(other)][2] == lost.asked[0]


def test_what_lost_its_host_has_its_turn_however_much_else_there_is_to_do(session_of):
    cluster = PlayedCluster(2)
    session = session_of(cluster)
    ask(session, *range(40))
    lost, other = cluster.hosts
    wait_until(lambda: len(other.asked) == 2)
    cluster.count = 1
    (lost if lost.place == "1" else other).end()
    lost, other = (lost, other) if lost.live.done() else (other, lost)
    for _ in range(3):
        oldest = next(number for number, future in other.calls if not future.done())
        other.answer(oldest)
        settled(cluster)
    assert lost.asked[0] in other.asked


def test_what_loses_its_host_too_often_is_an_error_that_names_it(session_of):
    cluster = PlayedCluster(1)
    (future,) = ask(session_of(cluster, tries=2), 4)
    for count in (1, 2):
        wait_until(lambda: len(cluster.hosts) == count and cluster.hosts[-1].asked)  # noqa: B023
        cluster.hosts[-1].end()
    with pytest.raises(kf.HostLostError, match=r"several scenes .*step 4.* lost the host .* 2 times.*was lost"):
        future.result(SECONDS)


def test_a_host_whose_workers_have_failed_is_lost_and_another_is_asked(session_of):
    cluster = PlayedCluster(2)
    session = session_of(cluster)
    (future,) = ask(session, 3)
    wait_until(lambda: cluster.hosts[0].asked)
    failed, other = cluster.hosts
    failed.answer(3, HostAnswer(error=Sent.of(kf.WorkerDiedError("no workers any more")), has_failed=True))
    wait_until(lambda: other.asked)
    other.answer(3)
    assert future.result(SECONDS) == 3
    assert (session.host_stats().lost, session.host_stats().resent, session.host_stats().late) == (1, 1, 0)
    wait_until(lambda: failed.killed)


class Refusing(PlayedCluster):
    """Its first host can take no work; others say later whether they can."""

    def call(self, host, method, *arguments):
        future = super().call(host, method, *arguments)
        if method == "start" and host.place == "0":
            future = Future()
            future.set_result(HostAnswer(error=Sent.of(WorkerStartError("it has another version"))))
        return future


def test_a_host_that_can_take_no_work_is_no_error_while_another_one_is_starting(session_of):
    cluster = Refusing(2, mute=("1",))
    session = session_of(cluster, expected=0)
    wait_until(lambda: session.host_stats().lost)
    (future,) = ask(session, 3)
    cluster.mute, cluster.count = (), 3  # one that starts
    wait_until(lambda: session.host_stats().alive)
    wait_until(lambda: cluster.hosts[-1].asked or cluster.hosts[-2].asked)
    next(host for host in cluster.hosts if host.asked).answer(3)
    assert future.result(SECONDS) == 3


@pytest.mark.parametrize("is_refused", [True, False])
def test_however_many_hosts_cannot_start_there_is_no_error_while_another_one_may(session_of, is_refused):
    class Failing(PlayedCluster):
        """Of four hosts all but the last fail to start; that one has not answered yet."""

        def call(self, host, method, *arguments):
            future = super().call(host, method, *arguments)
            if method == "start" and host.place != "3":
                future = Future()
                if is_refused:
                    future.set_result(HostAnswer(error=Sent.of(WorkerStartError("it has another version"))))
                else:
                    future.set_exception(RuntimeError("No module named 'kerasfeed'"))
            elif method == "start":
                self.last_start = future = Future()
            return future

    cluster = Failing(4)
    session = session_of(cluster, expected=0)
    (future,) = ask(session, 3)
    wait_until(lambda: session.host_stats().lost >= 3)
    assert session.failure is None
    cluster.last_start.set_result(HostAnswer(pack(("here", WORKERS))))
    last = next(host for host in cluster.hosts if host.place == "3")
    wait_until(lambda: last.asked)
    last.answer(3)
    assert future.result(SECONDS) == 3


def test_hosts_that_all_end_again_and_again_before_they_can_take_work_are_an_error(session_of, monkeypatch):
    monkeypatch.setattr("kerasfeed.loaders.hosts.session._MOST_REST", 0.0)

    class Ending(PlayedCluster):
        def call(self, host, method, *arguments):
            future = Future()
            future.set_exception(RuntimeError("it has no memory"))
            return future

    cluster = Ending(2, silence=0.1)
    session = session_of(cluster, expected=0)
    with pytest.raises(WorkerStartError, match=r"it has no memory.* before it could take work, as did others"):
        ask(session, 3)[0].result(SECONDS)
    assert {sum(host.place == place for host in cluster.hosts) >= 3 for place in "01"} == {True}


def test_a_place_that_has_gone_before_its_host_could_start_is_no_error(session_of, monkeypatch):
    monkeypatch.setattr("kerasfeed.loaders.hosts.session._MOST_REST", 0.0)

    class Leaving(PlayedCluster):
        first_start, looks = Future(), 0

        def places(self):
            self.looks += self.count == 0
            return super().places()

        def call(self, host, method, *arguments):
            future = super().call(host, method, *arguments)
            return self.first_start if method == "start" and host is self.hosts[0] else future

    cluster = Leaving(1, silence=0.1)
    session = session_of(cluster, expected=0)
    wait_until(lambda: cluster.hosts)
    cluster.count = 0
    wait_until(lambda: cluster.looks > 1)
    cluster.first_start.set_exception(RuntimeError("the node has gone"))
    wait_until(lambda: session.host_stats().lost or session.failure is not None)
    assert session.failure is None
    cluster.count = 1
    (future,) = ask(session, 3)
    wait_until(lambda: cluster.hosts[-1].asked)
    cluster.hosts[-1].answer(3)
    assert future.result(SECONDS) == 3


@pytest.mark.heavy
def test_a_place_at_which_no_host_ever_starts_does_not_end_the_feed_of_others(session_of, monkeypatch):
    monkeypatch.setattr("kerasfeed.loaders.hosts.session._MOST_REST", 0.0)
    cluster = Refusing(2, silence=0.001)  # looked at 4,000 times a second, not twice
    session = session_of(cluster, expected=1)
    wait_until(lambda: session.host_stats().lost > 1100 or session.failure is not None)
    (future,) = ask(session, 3)
    working = next(host for host in cluster.hosts if host.place == "1")
    wait_until(lambda: working.asked or session.failure is not None)
    assert session.failure is None
    working.answer(3)
    assert future.result(SECONDS) == 3


def test_hosts_of_which_none_can_take_work_are_an_error(session_of):
    session = session_of(Refusing(1), expected=0)
    wait_until(lambda: session.failure is not None)
    with pytest.raises(WorkerStartError, match="it has another version"):
        ask(session, 3)[0].result(SECONDS)


def test_hosts_are_ended_as_soon_as_nothing_can_be_asked_of_them_any_more(session_of):
    closed = threading.Event()

    class Closing(PlayedCluster):
        def places(self):
            if self.count:
                return super().places()
            raise kf.HostLostError("the cluster has gone")

        def close(self):
            closed.set()

    cluster = Closing(1)
    session = session_of(cluster)
    cluster.count = 0
    wait_until(closed.is_set)
    assert str(session.failure) == "the cluster has gone"


def test_slow_calls_are_not_asked_for_twice_where_others_wait(session_of):
    cluster = PlayedCluster(2, silence=0.2)
    ask(session_of(cluster), *range(8))
    wait_until(lambda: sum(len(host.asked) for host in cluster.hosts) == 4)
    time.sleep(0.5)
    assert sorted(number for host in cluster.hosts for number in host.asked) == [0, 1, 2, 3]


def test_nobody_is_asked_for_what_was_cancelled(session_of):
    cluster = PlayedCluster(1)
    futures = ask(session_of(cluster), *range(4))
    wait_until(lambda: cluster.hosts[0].asked == [0, 1])
    assert futures[2].cancel()
    cluster.hosts[0].answer(0)
    wait_until(lambda: cluster.hosts[0].asked == [0, 1, 3])


class Slow(PlayedCluster):
    """Hosts that take longer to end their workers than the cluster is looked at."""

    ended, closed = 0, None

    def call(self, host, method, *arguments):
        if method != "stop":
            return super().call(host, method, *arguments)
        future = Future()
        threading.Timer(0.3, self._end, [future]).start()
        return future

    def _end(self, future):
        self.ended += 1
        future.set_result(HostAnswer())

    def close(self):
        self.closed = self.ended


def test_hosts_are_let_end_their_workers_before_they_are_ended(session_of):
    cluster = Slow(2, silence=0.2)
    session_of(cluster).close()
    assert cluster.closed == 2


class Restless(PlayedCluster):
    """Hosts that answer soon, late, or end without an answer."""

    def __init__(self, count, seed):
        super().__init__(count, silence=0.1)
        self.rng, self.lock = random.Random(seed), threading.Lock()

    def asked_for(self, host, number):
        with self.lock:
            seconds, is_lost = self.rng.choice([0.001, 0.01, 0.3]), self.rng.random() < 0.05
        if is_lost:
            threading.Timer(seconds, host.end).start()
        else:
            threading.Timer(seconds, self._answer, (host, number)).start()

    def _answer(self, host, number):
        if not host.live.done():
            host.answer(number)


def test_every_call_is_answered_once_whatever_hosts_do(session_of):
    cluster = Restless(20, 5)
    session = session_of(cluster, tries=50)
    told = []
    futures = ask(session, *range(400))
    for number, future in enumerate(futures):
        future.add_done_callback(lambda future, number=number: told.append((number, future.result())))
    wait_until(lambda: len(told) == 400)
    assert sorted(told) == [(number, number) for number in range(400)]
    stats = session.host_stats()
    assert stats.hedged
    assert stats.resent
    assert stats.lost


def test_a_cluster_that_is_slow_to_be_joined_is_not_taken_for_one_that_is_gone(session_of, monkeypatch):
    class SlowToJoin(PlayedCluster):
        well_for = 15.0
        joined = 0.0

        def join(self):
            self.joined = 100.0  # s
            return self

        def places(self):
            time.sleep(0.2)  # the thread that decides looks at the clock before this has answered for the first time
            return super().places()

    cluster = SlowToJoin(1)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + cluster.joined)
    monkeypatch.setattr("kerasfeed.loaders.hosts.session.time", clock)
    session = session_of(cluster, expected=0)
    (future,) = ask(session, 3)
    wait_until(lambda: cluster.hosts and cluster.hosts[0].asked)
    cluster.hosts[0].answer(3)
    assert future.result(SECONDS) == 3


def test_a_process_that_was_stopped_for_longer_than_a_cluster_may_be_silent_goes_on(session_of, monkeypatch):
    class Silent(PlayedCluster):
        well_for, may_answer = 15.0, threading.Event()

        def places(self):
            self.may_answer.wait(SECONDS)  # whoever decides looks at the clock before the cluster has answered again
            return super().places()

    stopped = 0.0  # s
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stopped)
    monkeypatch.setattr("kerasfeed.loaders.hosts.session.time", clock)
    cluster = Silent(1)
    cluster.may_answer.set()
    session = session_of(cluster)
    (future,) = ask(session, 3)
    wait_until(lambda: cluster.hosts[0].asked)
    cluster.may_answer.clear()
    stopped = 100.0
    ask(session, 4)  # has it decide
    wait_until(lambda: 4 in cluster.hosts[0].asked)
    time.sleep(0.2)
    assert session.failure is None
    cluster.may_answer.set()
    cluster.hosts[0].answer(3)
    assert future.result(SECONDS) == 3


def test_ctrl_c_wherever_a_batch_is_asked_for_keeps_nobody_from_asking_for_others(session_of):
    cluster = PlayedCluster(1, workers=1000)
    session = session_of(cluster)
    number = 1
    with ThreadPoolExecutor(1) as executor:
        while interrupted_at(number, session.submit, 0, number):
            executor.submit(session.submit, 0, 100 + number).result(SECONDS)
            wait_until(lambda: 100 + number in cluster.hosts[0].asked)  # noqa: B023
            for asked in [step for step, future in cluster.hosts[0].calls if not future.done()]:
                cluster.hosts[0].answer(asked)
            number += 1
    assert number > 5
