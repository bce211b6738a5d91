"""Simulated hosts, for what the supervisor of hosts costs by itself; see `benchmarks.hosts`."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kerasfeed.pool.base import PoolOptions, Runner
from kerasfeed.pool.hosts.agent import versions
from kerasfeed.pool.hosts.engine import Engine, Hosts, News, Parcel, pack
from kerasfeed.pool.hosts.messages import Answer, Outcome, Started
from kerasfeed.pool.hosts.pool import HostPool
from kerasfeed.pool.task import FutureTask


class Idle(Runner):
    """Holds nothing."""

    target = None

    def run(self, record: Any, note: Any, context: Any) -> Any:
        """Never called: the hosts are simulated."""


class Simulated(Hosts):
    """Hosts that answer after `seconds`, without doing anything.

    Args:
        count: How many.
        seconds: What a batch takes.
        nbytes: What an answer carries.
    """

    ship, start_timeout, silence = (), 60.0, 30.0

    def __init__(self, count: int, seconds: float, nbytes: int) -> None:
        self.count, self.seconds, self.nbytes = count, seconds, nbytes

    def start_engine(self, tell: Callable[..., object], calls: int) -> Engine:
        """See `Hosts.start_engine`."""
        return SimulatedEngine(self, tell)


class SimulatedEngine(Engine):
    """See `Simulated`."""

    def __init__(self, hosts: Simulated, tell: Callable[..., object]) -> None:
        self._hosts, self._tell, self._over = hosts, tell, False
        self._due: list[tuple[float, int, int]] = []
        answer = pack(Answer((Outcome("done", (None, 0.1, "worker process 0")),)))
        self._answer = Parcel(answer.data, (np.ones(hosts.nbytes, np.uint8),) if hosts.nbytes else ())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        tell(News.PLACES, [str(number) for number in range(hosts.count)])

    def _run(self) -> None:
        while not self._over:
            time.sleep(0.005)
            now, due = time.monotonic(), self._due
            while due and due[0][0] <= now:
                _, key, number = due.pop(0)
                self._tell(News.ANSWER, key, number, self._answer)

    def share(self, parcel: Parcel) -> Any:
        """See `Engine.share`."""
        return parcel

    def start(self, key: int, place: str, version: str, setup: Parcel, runner: Any) -> None:
        """See `Engine.start`."""
        self._tell(News.STARTED, key, pack(Started(place, 1, version=versions())))

    def send(self, key: int, number: int, work: Parcel, shared: dict[str, Any]) -> None:
        """See `Engine.send`."""
        self._due.append((time.monotonic() + self._hosts.seconds, key, number))

    def stop(self, key: int) -> None:
        """See `Engine.stop`."""
        self._tell(News.STOPPED, key, pack(Answer()))

    def kill(self, key: int) -> None:
        """See `Engine.kill`."""

    def close(self) -> None:
        """See `Engine.close`."""
        self._over = True
        self._thread.join()

    def missing(self) -> str:
        """See `Engine.missing`."""
        return ""


def supervisor_cost(count: int, seconds: float) -> tuple[float, float]:
    """CPU time of the supervisor, s a batch, with `count` hosts, and the batches a second that came."""
    pool = HostPool(Idle(), PoolOptions(1, "the simulation", hosts=Simulated(count, 1.0, 0)))
    thread = next(each for each in threading.enumerate() if each.name == "kerasfeed-hosts")
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    window = threading.Semaphore(2 * count)
    stop = time.monotonic() + seconds
    done = itertools.count()
    before, started = time.clock_gettime(clock), time.monotonic()
    while time.monotonic() < stop:
        if window.acquire(timeout=0.1):
            future = pool.run(FutureTask(1, 1))
            future.add_done_callback(lambda _: (window.release(), next(done)))
    pool.wait_until_idle()
    batches = next(done)
    cost = (time.clock_gettime(clock) - before) / batches, batches / (time.monotonic() - started)
    pool.close()
    return cost
