"""Simulated hosts, for what it costs by itself to decide which host is asked for what; see `benchmarks.hosts`."""

import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.calls import Cluster, HostAnswer, Hosts, pack
from kerasfeed.loaders.hosts.session import HostsSession
from kerasfeed.orders.plan import Plan

_NOTHING = HostAnswer(pack(None))


class Simulated(Cluster, Hosts):
    """Hosts that answer after `seconds`, without doing anything.

    Args:
        count: How many.
        seconds: What a batch takes.
    """

    ship, start_timeout, silence = (), 60.0, 30.0

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds, self._over = count, seconds, False
        self._due: list[tuple[float, Future[Any]]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            time.sleep(0.005)
            now, due = time.monotonic(), self._due
            while due and due[0][0] <= now:
                due.pop(0)[1].set_result(_NOTHING)

    def join(self) -> Cluster:
        """See `Hosts.join`."""
        return self

    def places(self) -> list[str]:
        """See `Cluster.places`."""
        return [str(number) for number in range(self.count)]

    def start(self, place: str) -> Any:
        """See `Cluster.start`."""
        return place

    def call(self, host: Any, method: str, *arguments: Any) -> "Future[Any]":
        """See `Cluster.call`."""
        future: Future[Any] = Future()
        if method == "batch":
            self._due.append((time.monotonic() + self.seconds, future))
        elif method != "live":
            future.set_result(HostAnswer(pack((host, 1))))
        return future

    def keep(self, hosts: Any) -> None:
        """See `Cluster.keep`."""

    def missing(self) -> str:
        """See `Cluster.missing`."""
        return ""

    def close(self) -> None:
        """See `Cluster.close`."""
        self._over = True
        self._thread.join()


def deciding_cost(count: int, seconds: float) -> tuple[float, float]:
    """CPU time of the thread that decides, s a batch, with `count` hosts, and the batches a second that came."""
    job = Job([0], Plan(1, 1), workers=1, max_memory=1, look_ahead=1, hosts=Simulated(count, 1.0))
    session = HostsSession(job, FailureLog(job.policy, 1))
    thread = next(each for each in threading.enumerate() if each.name == "kerasfeed-hosts")
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    while session.host_stats().alive < count:
        time.sleep(0.01)
    window = threading.Semaphore(2 * count)
    stop = time.monotonic() + seconds
    futures: list[Future[Any]] = []
    before, started = time.clock_gettime(clock), time.monotonic()
    while time.monotonic() < stop:
        if window.acquire(timeout=0.1):
            future = session.submit(0, 0)
            future.add_done_callback(lambda _: window.release())
            futures.append(future)
    wait(futures)
    cost = (time.clock_gettime(clock) - before) / len(futures), len(futures) / (time.monotonic() - started)
    session.close()
    return cost
