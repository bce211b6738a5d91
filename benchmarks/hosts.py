"""Scenes from other hosts, here simulated nodes of a Ray cluster on this machine: `python -m benchmarks.hosts`.

Hosts and local processes share the cores of one machine, so the figures show the cost of hosts, not their gain. Each
rate is the median of interleaved repeats; CPU time includes all processes, Ray's too. Needs the extra `ray`.
"""

import argparse
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from ray.cluster_utils import Cluster

import kerasfeed as kf
from benchmarks.simulated_hosts import deciding_cost
from kerasfeed.feeds.base import BaseFeed

BATCH = 32
STORE = 400_000_000
"""Bytes of the object store of each node."""


class Scenes(kf.SceneSequence):
    """Scenes of `nbytes` bytes that compute or wait for a given time."""

    def __init__(self, *, busy: float = 0.0, wait: float = 0.0, nbytes: int = 4096, length: int = 640) -> None:
        self.busy, self.wait, self.length = busy, wait, length
        self.array = np.ones(max(1, nbytes // 4), np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.wait:
            time.sleep(self.wait)
        end = time.thread_time() + self.busy
        while self.busy and time.thread_time() < end:
            pass
        return self.array, index


def cpu_seconds() -> float:
    """CPU time of this process and its descendants."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            found = process.cpu_times()
            total += found.user + found.system
    return total


@dataclass(frozen=True)
class Rate:
    """The cost of one epoch.

    Attributes:
        seconds: Time per batch, s.
        cpu: CPU time per batch, s.
    """

    seconds: float
    cpu: float


def epoch_rate(feed: Any) -> Rate:
    """Measure an epoch of a feed that has warmed up."""
    started, cpu = time.perf_counter(), cpu_seconds()
    for _ in feed:
        pass
    return Rate((time.perf_counter() - started) / len(feed), (cpu_seconds() - cpu) / len(feed))


def median(rates: Sequence[Rate]) -> Rate:
    """The medians of both fields."""
    return Rate(statistics.median(rate.seconds for rate in rates), statistics.median(rate.cpu for rate in rates))


def on_hosts(scenes: Scenes, count: int, workers: int) -> Any:
    """A feed on `count` hosts of `workers` workers."""
    return BaseFeed(scenes, BATCH, workers=workers, hosts=kf.RayHosts(count))


def compared(scenes: Scenes, count: int, workers: int, repeats: int) -> tuple[Rate, Rate]:
    """Measure the pool of this machine, and hosts with as many workers."""
    with (
        BaseFeed(scenes, BATCH, workers=count * workers, worker_type="process") as local,
        on_hosts(scenes, count, workers) as hosts,
    ):
        for feed in (local, hosts):
            list(feed)
        found = [(epoch_rate(local), epoch_rate(hosts)) for _ in range(repeats)]
    return median([pair[0] for pair in found]), median([pair[1] for pair in found])


@contextmanager
def cluster_of(count: int) -> Iterator[Any]:
    """A head without CPUs, and several nodes."""
    import ray

    # Ray lowers the priority of its processes (nice 15), and so of their worker processes. The local processes keep the
    # usual one.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's name
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    for _ in range(count):
        cluster.add_node(num_cpus=2, object_store_memory=STORE)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def rates(count: int, repeats: int, seconds: float) -> None:
    """Print rates of scenes that compute and that wait."""
    for title, scenes, workers in (
        ("4 ms of GIL", Scenes(busy=0.004, length=int(seconds / 0.002) // BATCH * BATCH), max(1, 2 // count)),
        ("10 ms waits", Scenes(wait=0.010, length=int(seconds * 1600) // BATCH * BATCH), 16 // count),
    ):
        local, hosts = compared(scenes, count, workers, repeats)
        print(
            f"| {title}, {count} hosts x {workers} | {BATCH / local.seconds:,.0f} | {BATCH / hosts.seconds:,.0f} | "
            f"{local.seconds / hosts.seconds:.2f} | {1000 * local.cpu:.0f} | {1000 * hosts.cpu:.0f} |",
            flush=True,
        )


def moving(count: int, repeats: int) -> list[tuple[float, Rate]]:
    """Print the cost of moving batches; return megabytes and cost of each."""
    found = []
    for megabytes in (1, 10, 25):
        scenes = Scenes(nbytes=megabytes * 1_000_000 // BATCH, length=BATCH * max(20, 400 // megabytes))
        local, hosts = compared(scenes, count, 1, repeats)
        extra = Rate(hosts.seconds - local.seconds, hosts.cpu - local.cpu)
        found.append((float(megabytes), extra))
        print(
            f"| {megabytes} MB | {1000 * local.seconds:.1f} | {1000 * hosts.seconds:.1f} | {1000 * local.cpu:.1f} | "
            f"{1000 * hosts.cpu:.1f} | {megabytes / hosts.seconds:,.0f} |",
            flush=True,
        )
    return found


# ---- recovery


def agents(node: Any, name: str = "ray::FeedHost") -> list[int]:
    """Process ids of a node's processes with that name."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [child.pid for child in raylet.children(recursive=True) if name in " ".join(child.cmdline())]


def used_node(cluster: Any) -> Any:
    """A node that has a host."""
    return next(node for node in cluster.worker_nodes if agents(node))


def kill_worker(cluster: Any) -> None:
    """SIGKILL for a worker process."""
    os.kill(agents(used_node(cluster), "kerasfeed.pool.processes.worker")[0], signal.SIGKILL)


def kill_actor(cluster: Any) -> None:
    """SIGKILL for the process of a host."""
    os.kill(agents(used_node(cluster))[0], signal.SIGKILL)


def freeze(cluster: Any) -> None:
    """SIGSTOP for all of a node."""
    raylet = psutil.Process(used_node(cluster).all_processes["raylet"][0].process.pid)
    frozen = [raylet, *raylet.children(recursive=True)]
    for process in frozen:
        process.suspend()
    threading.Timer(100.0, lambda: [process.resume() for process in frozen]).start()  # else Ray's shutdown hangs


def kill_raylet(cluster: Any) -> None:
    """SIGKILL for Ray's own process of a node."""
    used_node(cluster).kill_raylet()


def kill_node(cluster: Any) -> None:
    """SIGKILL for all of a node."""
    cluster.remove_node(used_node(cluster), allow_graceful=False)


def recovery() -> None:
    """Print the longest time without a batch after each kind of kill."""
    kinds = (kill_worker, kill_actor, freeze, kill_raylet, kill_node)
    for kill in kinds:
        with cluster_of(3) as cluster:
            scenes = Scenes(wait=0.010, length=320)
            expected = [batch[1].tolist() for batch in BaseFeed(Scenes(length=320), BATCH, workers=0)]
            started = time.perf_counter()
            with on_hosts(scenes, 2, 2) as feed:
                batches = iter(feed)
                found = [next(batches)]
                first = time.perf_counter() - started
                found += batches
                for epoch in range(4):
                    last, longest = time.perf_counter(), 0.0
                    for number, batch in enumerate(feed):
                        if (epoch, number) == (1, 3):
                            kill(cluster)
                            last = time.perf_counter()
                        longest = max(longest, time.perf_counter() - last)
                        last = time.perf_counter()
                        found.append(batch)
                    if epoch == 0:
                        usual = longest
                    elif epoch == 1:
                        after = longest
                    else:
                        after = max(after, longest)
                exact = [batch[1].tolist() for batch in found] == 5 * expected
                respawns = feed.stats().respawns
        print(
            f"| {kill.__doc__} | {first:.1f} | {usual:.2f} | {after:.2f} | {'yes' if exact else 'NO'} | {respawns} |",
            flush=True,
        )


def arithmetic(costs: list[tuple[float, Rate]], deciding: float) -> None:
    """Print how many hosts one driver can feed, by these measurements, if a host needs one second per batch."""
    limits_of = "network of 10 Gbit/s | copies and Ray, one core | choosing a host"
    print(f"\n| a batch | {limits_of} | useful hosts, if each makes one batch per second |")
    print("|---|---|---|---|---|")
    for megabytes, cost in costs:
        # The sending side spends about half of the CPU time.
        limits = [1250 / megabytes, 1 / max(1e-4, cost.cpu / 2), 1 / deciding]
        cells = " | ".join(f"{limit:,.0f}/s" for limit in limits)
        print(f"| {megabytes:.0f} MB | {cells} | {min(limits):,.0f} |")


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="number of measured epochs of each kind")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of an epoch, s")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start\n")
    print("| hosts | choosing a host, us per batch | batches/s, if each host makes one per second |\n|---|---|---|")
    cost = 0.0
    for count in (10, 100, 1000):
        cost, rate = deciding_cost(count, arguments.seconds)
        print(f"| {count:,} | {1e6 * cost:,.0f} | {rate:,.0f} |", flush=True)
    print(
        "\n| scenes/s | local | hosts | ratio | CPU ms a batch, local | hosts |\n|---|---|---|---|---|---|", flush=True
    )
    for count in (2, 3):
        with cluster_of(count):
            rates(count, arguments.repeats, arguments.seconds)
    print("\n| a batch | ms, local | hosts | CPU ms, local | hosts | MB/s |\n|---|---|---|---|---|---|", flush=True)
    with cluster_of(2):
        costs = moving(2, arguments.repeats)
    print(
        "\n| kill | first batch, s | longest wait before, s | after, s | exact | restarts |\n|---|---|---|---|---|---|",
        flush=True,
    )
    recovery()
    arithmetic(costs, cost)


if __name__ == "__main__":
    main()
