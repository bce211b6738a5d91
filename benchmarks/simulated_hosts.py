"""Simulated hosts, to measure the cost of choosing a host for each batch; see `benchmarks.hosts`."""

import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.ray_hosts import RayHosts
from kerasfeed.loaders.hosts.session import HostAnswer, HostsSession, pack
from kerasfeed.orders.plan import Plan

_NOTHING = HostAnswer(pack(None))


class SimulatedHosts(RayHosts):
    """Hosts that answer after one second, without doing anything."""

    def join(self) -> Any:
        """See `RayHosts.join`."""
        return SimulatedCluster(self.count or 1, 1.0)


class SimulatedCluster:
    """See `RayCluster`; each host takes `seconds` for a batch."""

    asked = ""

    def __init__(self, count: int, seconds: float) -> None:
        self.hosts, self.seconds, self._over = range(count), seconds, False
        self._due: list[tuple[float, Future[Any]]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            time.sleep(0.005)
            now, due = time.monotonic(), self._due
            while due and due[0][0] <= now:
                due.pop(0)[1].set_result(_NOTHING)

    def check(self) -> None:
        """See `RayCluster.check`."""

    def share(self, packed: Any) -> Any:
        """See `RayCluster.share`."""
        return packed

    def call(self, host: Any, method: str, *arguments: Any) -> "Future[Any]":
        """See `RayCluster.call`."""
        future: Future[Any] = Future()
        if method == "load":
            self._due.append((time.monotonic() + self.seconds, future))
        elif method != "live":
            future.set_result(HostAnswer(pack((host, 1))))
        return future

    def close(self) -> None:
        """See `RayCluster.close`."""
        self._over = True
        self._thread.join()


def deciding_cost(count: int, seconds: float) -> tuple[float, float]:
    """CPU time per batch, s, of the thread that chooses among `count` hosts; and batches per second."""
    job = Job([0], Plan(1, 1), workers=1, max_memory=1, look_ahead=1, hosts=SimulatedHosts(count))
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
