"""The choice of a host for each batch, with fake hosts that answer or end when the test says so."""

import random
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.errors import WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.failures.failure_log import FailureLog, FailurePolicy
from kerasfeed.loaders.hosts.session import MOST_CALLS, HostAnswer, HostsSession, pack
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.exception_pickle import Sent

pytestmark = pytest.mark.filterwarnings("ignore:host :kerasfeed.FeedWarning")
WORKERS = 2


class PlayedHost:
    """The calls to a host, and the futures of its answers."""

    def __init__(self, number):
        self.number, self.calls, self.generations, self.open = number, [], [], []

    @property
    def asked(self):
        return [step for step, _ in self.calls]

    def answer(self, step, answer=None):
        future = next(future for asked, future in reversed(self.calls) if asked == step)
        future.set_result(answer or HostAnswer(pack(step)))

    def end(self):
        ended, self.open = self.open, []
        for future in ended:
            if not future.done():
                future.set_exception(RuntimeError("killed by SIGKILL"))


class PlayedCluster:
    """Hosts with workers; those in `mute` do not start until `say_started`."""

    asked, ship, start_timeout = "asked for played hosts", (), 60.0

    def __init__(self, count, mute=(), workers=WORKERS):
        self.hosts, self.mute, self.workers = [PlayedHost(number) for number in range(count)], mute, workers
        self.starts, self.shared, self.stopped, self.closed = {}, 0, 0, None

    def join(self):
        return self

    def check(self):
        pass

    def share(self, packed):
        self.shared += 1
        return f"job {self.shared}"

    def call(self, host, method, *arguments):
        future = Future()
        if method != "start":
            host.open.append(future)
        if method == "load":
            generation, job, _, _, _, step, _ = arguments
            if step is None:
                future.set_result(HostAnswer(pack(SimpleNamespace(nbytes=1))))
            else:
                host.generations.append((job, generation))
                host.calls.append((step, future))
                self.asked_for(host, step)
        elif method == "start":
            self.starts[host.number] = future
            if host.number not in self.mute:
                self.say_started(host.number)
        elif method == "stop":
            threading.Timer(0.3, self._stop, [future]).start()
        return future

    def say_started(self, number):
        self.starts[number].set_result(HostAnswer(pack((f"host {number} (here)", self.workers))))

    def asked_for(self, host, step):
        pass

    def _stop(self, future):
        self.stopped += 1
        future.set_result(HostAnswer())

    def close(self):
        self.closed = self.stopped


@pytest.fixture
def session_of():
    made = []

    def _make(cluster, tries=3, batch_size=WORKERS, **job):
        plan = Plan(1000 * batch_size, batch_size)
        policy = FailurePolicy(max_failures=tries)
        job = Job([0], plan, WORKERS, max_memory=4, look_ahead=1, policy=policy, hosts=cluster, **job)
        made.append(HostsSession(job, FailureLog(policy, 1)))
        wanted = len(cluster.hosts) - len(cluster.mute)
        wait_until(lambda: made[-1].host_stats().alive == wanted)
        return made[-1]

    yield _make
    for session in made:
        session.close()


def ask(session, *steps):
    return [session.submit(0, step) for step in steps]


def settled(cluster, hold=0.1):
    """The calls to each host, once there are no new ones."""
    asked, since = None, time.monotonic()
    while time.monotonic() < since + hold:
        now = [host.asked for host in cluster.hosts]
        if now != asked:
            asked, since = now, time.monotonic()
        time.sleep(0.005)
    return asked


@pytest.mark.parametrize(("workers", "expected"), [(1, 2), (4, 4), (1000, MOST_CALLS)])
def test_a_host_gets_as_many_calls_as_its_workers_need(session_of, workers, expected):
    cluster = PlayedCluster(1, workers=workers)
    ask(session_of(cluster), *range(50))
    assert settled(cluster) == [list(range(expected))]


def test_the_look_ahead_fills_all_hosts_also_those_that_start(session_of):
    cluster = PlayedCluster(3, mute=(2,), workers=1000)
    session = session_of(cluster)
    assert session.look_ahead == MOST_CALLS + MOST_CALLS + 2
    cluster.say_started(2)
    wait_until(lambda: session.host_stats().alive == 3)
    assert session.look_ahead == 3 * MOST_CALLS


def test_a_batch_goes_to_the_started_host_with_the_fewest(session_of):
    cluster = PlayedCluster(3, mute=(1,))
    ask(session_of(cluster), *range(6))
    assert settled(cluster) == [[0, 2], [], [1, 3]]


def test_stats_count_only_loaded_batches(session_of):
    cluster = PlayedCluster(1)
    session = session_of(cluster)
    session.infer(None, 0)
    failed, made = ask(session, 1, 2)
    settled(cluster)
    (host,) = cluster.hosts
    host.answer(1, HostAnswer(error=Sent.of(ValueError("no scene"))))
    host.answer(2)
    with pytest.raises(ValueError, match="no scene"):
        failed.result(SECONDS)
    assert made.result(SECONDS) == 2
    assert session.host_stats().batches == {0: 1}


def test_each_call_contains_the_current_job(session_of):
    cluster = PlayedCluster(1)
    session = session_of(cluster)
    for number in range(2):
        ask(session, number)
        wait_until(lambda: number in cluster.hosts[0].asked)  # noqa: B023
        cluster.hosts[0].answer(number)
        session.refresh(lambda: None)
    ask(session, 2)
    wait_until(lambda: 2 in cluster.hosts[0].asked)
    assert cluster.hosts[0].generations == [("job 1", 1), ("job 2", 2), ("job 3", 3)]


def test_other_hosts_load_the_batches_of_a_lost_host_first(session_of):
    cluster = PlayedCluster(2)
    session = session_of(cluster)
    futures = ask(session, *range(6))
    assert settled(cluster) == [[0, 2], [1, 3]]
    cluster.mute = (0,)
    cluster.hosts[0].end()
    wait_until(lambda: session.host_stats().alive == 1)
    for step in (1, 3, 0, 2, 4, 5):
        wait_until(lambda: step in cluster.hosts[1].asked)  # noqa: B023
        cluster.hosts[1].answer(step)
    assert cluster.hosts[1].asked == [1, 3, 0, 2, 4, 5]
    assert [future.result(SECONDS) for future in futures] == list(range(6))
    assert session.respawns == 1


def test_a_restarted_host_gets_batches(session_of):
    cluster = PlayedCluster(1, workers=4)
    session = session_of(cluster)
    futures = ask(session, 0, 1)
    wait_until(lambda: cluster.hosts[0].asked == [0, 1])
    cluster.hosts[0].end()
    wait_until(lambda: cluster.hosts[0].asked == [0, 1, 0, 1])
    for step in (0, 1):
        cluster.hosts[0].answer(step)
    assert [future.result(SECONDS) for future in futures] == [0, 1]
    assert (session.respawns, session.host_stats().alive) == (1, 1)


def test_the_error_for_a_batch_that_loses_its_host_too_often_names_it(session_of):
    cluster = PlayedCluster(1)
    (future,) = ask(session_of(cluster, tries=2), 4)
    for count in (1, 2):
        wait_until(lambda: len(cluster.hosts[0].asked) == count)  # noqa: B023
        cluster.hosts[0].end()
    with pytest.raises(kf.errors.HostLostError, match=r"epoch 0, step 4 lost its host 2 times.*host 0 .*SIGKILL"):
        future.result(SECONDS)


def test_a_host_that_cannot_start_ends_the_feed_with_its_error(session_of):
    cluster = PlayedCluster(2, mute=(1,))
    (future,) = ask(session_of(cluster), 3)
    cluster.starts[1].set_result(HostAnswer(error=Sent.of(WorkerStartError("it has another version"))))
    with pytest.raises(WorkerStartError, match="it has another version"):
        future.result(SECONDS)


def test_a_host_that_the_cluster_does_not_restart_ends_the_feed(session_of):
    cluster = PlayedCluster(1, mute=(0,))
    session = session_of(cluster)
    (future,) = ask(session, 3)
    cluster.starts[0].set_exception(RuntimeError("No module named 'kerasfeed'"))
    with pytest.raises(
        kf.errors.HostLostError, match=r"host 0 was lost .*No module named 'kerasfeed'.* is not started again"
    ):
        future.result(SECONDS)
    wait_until(lambda: cluster.closed is not None)
    with pytest.raises(kf.errors.HostLostError):
        session.submit(0, 4).result(SECONDS)


def test_a_feed_that_lost_its_hosts_raises_after_start_timeout(session_of):
    cluster = PlayedCluster(1)
    cluster.start_timeout = 0.5
    session = session_of(cluster)
    (future,) = ask(session, 3)
    cluster.mute = (0,)
    cluster.hosts[0].end()
    with pytest.raises(
        kf.errors.HostLostError, match=r"has had no host for start_timeout=0.5 s: asked for played hosts"
    ):
        future.result(SECONDS)


def test_no_host_loads_a_cancelled_batch(session_of):
    cluster = PlayedCluster(1)
    futures = ask(session_of(cluster), *range(4))
    wait_until(lambda: cluster.hosts[0].asked == [0, 1])
    assert futures[2].cancel()
    cluster.hosts[0].answer(0)
    wait_until(lambda: cluster.hosts[0].asked == [0, 1, 3])


def test_hosts_end_their_workers_before_the_cluster_closes(session_of):
    cluster = PlayedCluster(2)
    session_of(cluster).close()
    assert cluster.closed == 2


class Restless(PlayedCluster):
    """Hosts that answer soon, late, or end without an answer."""

    def __init__(self, count, seed):
        super().__init__(count)
        self.rng, self.lock = random.Random(seed), threading.Lock()

    def asked_for(self, host, step):
        with self.lock:
            seconds, ends = self.rng.choice([0.001, 0.01, 0.1]), self.rng.random() < 0.05
        future = host.calls[-1][1]
        do = host.end if ends else lambda: future.done() or future.set_result(HostAnswer(pack(step)))
        threading.Timer(seconds, do).start()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # host.end and an answer at once
def test_every_call_gets_one_answer_when_hosts_are_slow_or_end(session_of):
    cluster = Restless(20, 5)
    session = session_of(cluster, tries=50)
    results = []
    for number, future in enumerate(ask(session, *range(400))):
        future.add_done_callback(lambda future, number=number: results.append((number, future.result())))
    wait_until(lambda: len(results) == 400)
    assert sorted(results) == [(number, number) for number in range(400)]
    assert session.respawns
