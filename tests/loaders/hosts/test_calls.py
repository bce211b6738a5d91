"""Which host is asked for what, played with hosts that answer when the test says so, or never."""

import random
import threading
import time
from concurrent.futures import Future

import pytest
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.loaders.hosts.calls import MOST_CALLS, Cluster, HostAnswer, HostCalls, Hosts, pack, unpack
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.exception_pickle import Sent

pytestmark = pytest.mark.filterwarnings("ignore:host :kerasfeed.FeedWarning")
WORKERS = 2


class PlayedHost:
    """What a host was asked for, and the futures of its answers."""

    def __init__(self, place):
        self.place, self.calls, self.live, self.killed = place, [], Future(), False

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
    """So many hosts; those at places in `mute` never say that they have started."""

    ship, start_timeout = (), 60.0

    def __init__(self, count, silence=60.0, mute=()):
        self.count, self.silence, self.mute, self.hosts = count, silence, mute, []

    def join(self):
        return self

    def places(self):
        return [str(number) for number in range(self.count)]

    def share(self, packed):
        return packed

    def start(self, place):
        self.hosts.append(PlayedHost(place))
        return self.hosts[-1]

    def call(self, host, method, state, *arguments):
        future = Future()
        if method == "batch":
            host.calls.append((arguments[0], future))
            self.asked_for(host, arguments[0])
        elif method == "live":
            future = host.live
        elif host.place not in self.mute or method == "stop":
            future.set_result(HostAnswer(pack(("here", WORKERS))))
        return future

    def asked_for(self, host, number):
        pass

    def kill(self, host):
        host.killed = True

    def ending(self, error):
        return str(error)

    def missing(self):
        return ""

    def close(self):
        pass

    @property
    def alive(self):
        return [host for host in self.hosts if not host.live.done()]


def two(workers):
    return 2


@pytest.fixture
def calls_of():
    made = []

    def _make(cluster, depth=two, tries=3):
        options = PoolOptions(workers=1, who="the test", tries=tries)
        made.append(HostCalls(cluster, options, lambda: pack(None), depth))
        wanted = cluster.count - len(cluster.mute)
        wait_until(lambda: made[-1].stats().alive == wanted)
        return made[-1]

    yield _make
    for calls in made:
        calls.close()


def ask(calls, *numbers):
    return [calls.ask(f"batch {number}", lambda answer: unpack(answer.value), "batch", number) for number in numbers]


def settled(cluster, hold=0.05):
    """What each host was asked for, once nothing more is."""
    found, since = None, time.monotonic()
    while time.monotonic() < since + hold:
        now = [host.asked for host in cluster.hosts]
        if now != found:
            found, since = now, time.monotonic()
        time.sleep(0.005)
    return found


@pytest.mark.parametrize(("depth", "expected"), [(2, 2), (4, 4), (1000, MOST_CALLS)])
def test_a_host_has_as_many_calls_as_it_may_and_no_more(calls_of, depth, expected):
    cluster = PlayedCluster(1)
    calls = calls_of(cluster, lambda workers: depth if workers == WORKERS else 0)
    ask(calls, *range(50))
    assert settled(cluster) == [list(range(expected))]


def test_calls_go_to_the_host_that_has_fewest_and_none_to_one_that_has_not_answered(calls_of):
    cluster = PlayedCluster(3, mute=("1",))
    ask(calls_of(cluster), *range(6))
    assert settled(cluster) == [[0, 2], [], [1, 3]]


def test_what_a_silent_host_has_is_asked_of_another_and_the_first_answer_counts(calls_of):
    cluster = PlayedCluster(2, silence=0.2)
    calls = calls_of(cluster)
    (future,) = ask(calls, 7)
    first, second = cluster.hosts
    wait_until(lambda: second.asked)
    assert (first.asked, second.asked) == ([7], [7])
    second.answer(7)
    assert future.result(SECONDS) == 7
    first.answer(7)
    wait_until(lambda: calls.stats().late)
    assert (calls.stats().hedged, calls.stats().batches) == (1, {0: 0, 1: 1})


def test_only_batches_are_counted_as_made(calls_of):
    cluster = PlayedCluster(1)
    calls = calls_of(cluster)
    calls.ask("the layout", lambda answer: answer.value, "infer", 0).result(SECONDS)
    failed, made = ask(calls, 1, 2)
    settled(cluster)
    (host,) = cluster.hosts
    host.answer(1, HostAnswer(error=Sent.of(ValueError("no scene"))))
    host.answer(2)
    assert failed.exception(SECONDS)
    assert made.result(SECONDS) == 2
    assert calls.stats().batches == {0: 1}


def test_what_lost_its_host_comes_before_the_rest_and_alone(calls_of):
    cluster = PlayedCluster(1)
    calls = calls_of(cluster)
    futures = ask(calls, *range(5))
    wait_until(lambda: cluster.hosts[0].asked == [0, 1])
    cluster.hosts[0].end()
    wait_until(lambda: len(cluster.hosts) == 2)
    assert cluster.hosts[0].killed
    for expected in ([0], [0, 1], [0, 1, 2, 3]):  # those that have lost a host, each alone
        assert settled(cluster)[1] == expected
        cluster.hosts[1].answer(expected[-1])
    assert [future.result(SECONDS) for future in futures[:2]] == [0, 1]
    assert (calls.stats().resent, calls.stats().lost) == (2, 1)


def test_what_lost_its_host_waits_until_another_has_nothing_else(calls_of):
    cluster = PlayedCluster(2)
    calls = calls_of(cluster)
    ask(calls, *range(4))
    lost, other = cluster.hosts
    wait_until(lambda: len(other.asked) == 2)
    cluster.count = 1  # nothing takes its place
    (lost if lost.place == "1" else other).end()
    lost, other = (lost, other) if lost.live.done() else (other, lost)
    assert len(settled(cluster)[cluster.hosts.index(other)]) == 2
    for number in list(other.asked):
        other.answer(number)
    assert settled(cluster)[cluster.hosts.index(other)][2] == lost.asked[0]


def test_what_lost_its_host_has_its_turn_however_much_else_there_is_to_do(calls_of):
    cluster = PlayedCluster(2)
    calls = calls_of(cluster)
    ask(calls, *range(40))
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


def test_what_loses_its_host_too_often_is_an_error_that_names_it(calls_of):
    cluster = PlayedCluster(1)
    (future,) = ask(calls_of(cluster, tries=2), 4)
    for count in (1, 2):
        wait_until(lambda: len(cluster.hosts) == count and cluster.hosts[-1].asked)  # noqa: B023
        cluster.hosts[-1].end()
    with pytest.raises(kf.HostLostError, match=r"batch 4 lost the host .* 2 times.*was lost"):
        future.result(SECONDS)


def test_slow_calls_are_not_asked_for_twice_where_others_wait(calls_of):
    cluster = PlayedCluster(2, silence=0.2)
    ask(calls_of(cluster), *range(8))
    wait_until(lambda: sum(len(host.asked) for host in cluster.hosts) == 4)
    time.sleep(0.5)
    assert sorted(number for host in cluster.hosts for number in host.asked) == [0, 1, 2, 3]


def test_nobody_is_asked_for_what_was_cancelled(calls_of):
    cluster = PlayedCluster(1)
    futures = ask(calls_of(cluster), *range(4))
    wait_until(lambda: cluster.hosts[0].asked == [0, 1])
    assert futures[2].cancel()
    cluster.hosts[0].answer(0)
    wait_until(lambda: cluster.hosts[0].asked == [0, 1, 3])


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


def test_every_call_is_answered_once_whatever_hosts_do(calls_of):
    cluster = Restless(20, 5)
    calls = calls_of(cluster, tries=50)
    told = []
    futures = ask(calls, *range(400))
    for number, future in enumerate(futures):
        future.add_done_callback(lambda future, number=number: told.append((number, future.result())))
    wait_until(lambda: len(told) == 400)
    assert sorted(told) == [(number, number) for number in range(400)]
    stats = calls.stats()
    assert stats.hedged
    assert stats.resent
    assert stats.lost
