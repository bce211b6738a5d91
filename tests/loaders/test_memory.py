"""Memory: flat over many batches, bounded by max_memory in all processes together, not copied by reading."""

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import scenes
from loader_kinds import ProcessLoader, ThreadLoader

import kerasfeed as kf
from kerasfeed.loaders.base import Job
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps")
LOADERS = {"thread": ThreadLoader, "process": ProcessLoader}
# Both kinds together read this many small batches. In threads, a leak of 50 bytes per batch shows.
BATCHES = int(os.environ.get("KERASFEED_TEST_BATCHES", "60000"))
SHARE = {"thread": 0.7, "process": 0.3}


class Tiny(kf.SceneSequence):
    """Scenes of 8 bytes, a million of them."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return index


def _rollup(pid, *fields):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.split()[0].rstrip(":"): int(line.split()[1]) for line in lines}
    return sum(kilobytes[field] for field in fields) << 10


def _slot_bytes(pids):
    """Bytes of the shared slots that a tree of processes holds: each page is divided among its processes."""
    total = 0
    for pid in pids:
        counted = False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                counted = "memfd:kerasfeed-slots" in line
            elif counted and words[0] == "Pss:":
                total += int(words[1]) << 10
    return total


def _read(loader, first, count, ahead=4):
    """Read batches as a loop does: a few in flight, each checked and dropped."""
    flying = [loader.submit(0, step) for step in range(first, first + ahead)]
    for step in range(first + ahead, first + count + ahead):
        batch = flying.pop(0).result(timeout=30)
        assert batch[0] == 2 * (step - ahead)
        flying.append(loader.submit(0, step))
    for future in flying:
        future.result(timeout=30)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", LOADERS)
def test_memory_stays_flat_over_many_batches(kind):
    loader = LOADERS[kind](Job(Tiny(), Plan(1_000_000, 2), 2, 1 << 30, 4))
    count = int(BATCHES * SHARE[kind])
    _read(loader, 0, count // 10)
    gc.collect()
    processes = [psutil.Process(), *map(psutil.Process, loader.stats().pids)]
    before = [process.memory_info().rss for process in processes]
    _read(loader, 0, count)
    after = [process.memory_info().rss for process in processes]
    growth = [b - a for a, b in zip(before, after, strict=True)]
    assert max(growth) < 2 << 20, growth
    assert loader.stats().batches > count
    loader.close()


class Wide(scenes.Clouds):
    """Scenes of 64 KiB, filled with their index."""

    def __getitem__(self, index):
        return np.full(1 << 14, index, np.int32)


CEILING = 8 << 20
LENGTH = 400


def _wide(kind, workers=2):
    return LOADERS[kind](Job(Wide(LENGTH), Plan(LENGTH, 4, Shuffled(), 3), workers, CEILING, 8))


def _assert_right(plan, epoch, step, batch):
    assert (batch == plan.indices(epoch, step)[:, None]).all()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", LOADERS)
def test_max_memory_limits_batches_kept_by_many_threads(kind):
    loader, plan = _wide(kind), Plan(LENGTH, 4, Shuffled(), 3)
    hoards = [[] for _ in range(6)]
    measured = []

    def hoard(number):
        for step in range(number, plan.steps, len(hoards)):
            hoards[number].append((step, loader.submit(0, step).result(timeout=60)))
            if step % 10 == 0:
                stats = loader.stats()
                measured.append(stats.slots * stats.slot_bytes)

    threads = [threading.Thread(target=hoard, args=(number,)) for number in range(len(hoards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    stats = loader.stats()
    assert stats.copied >= plan.steps - CEILING // stats.slot_bytes
    assert max(measured) <= CEILING
    if kind == "process":
        assert 0 < _slot_bytes([os.getpid(), *stats.pids]) <= CEILING
        assert os.fstat(loader._sessions.present.pool.memory.fd).st_blocks * 512 <= CEILING
    kept = [pair for hoard in hoards for pair in hoard]
    assert len(kept) == plan.steps
    for step in range(plan.steps):  # more batches pass while all of these are kept
        _assert_right(plan, 1, step, loader.submit(1, step).result(timeout=60))
    for step, batch in kept:
        _assert_right(plan, 0, step, batch)
    loader.close()


@pytest.mark.light(where=lambda kind: kind == "process")
@pytest.mark.parametrize("kind", LOADERS)
def test_max_memory_limits_batches_kept_by_tf_data(kind):
    pytest.importorskip("tensorflow")
    with kf.Feed(
        Wide(LENGTH), 4, shuffle=True, seed=3, workers=2, worker_type=kind, max_memory=CEILING, max_queue_size=64
    ) as feed:
        with pytest.warns(kf.FeedWarning, match="the consumer keeps so many batches"):
            kept = list(feed.to_tf_dataset())
        for step, batch in enumerate(kept):
            _assert_right(feed.plan, 0, step, batch.numpy())
        stats = feed.stats()
        assert stats.slots * stats.slot_bytes <= CEILING
        assert stats.copied > 0
        if kind == "process":
            assert _slot_bytes([os.getpid(), *stats.pids]) <= CEILING
        del kept, batch
        from scenes_frameworks import let_tensorflow_free_memory

        let_tensorflow_free_memory()


class Names(kf.SceneSequence):
    """A list of strings; an epoch reads all."""

    def __init__(self, count):
        self.names = [f"scan-{number:012d}.npy" for number in range(count)]

    def __len__(self):
        return 512

    def __getitem__(self, index):
        share = len(self.names) // 512
        return sum(map(len, self.names[index * share : (index + 1) * share]))


@pytest.mark.heavy
def test_workers_read_a_list_of_strings_without_copying_its_memory():
    loader = ProcessLoader(Job(Names(300_000), Plan(512, 8), 2, 1 << 30, 4))
    pool = loader._ready_session().pool
    while not all(handle.started for handle in pool.workers):  # before that, its list may be incomplete
        time.sleep(0.01)
    for future in [loader.submit(0, step) for step in range(64)]:
        future.result(timeout=30)
    pids = loader.stats().pids
    before = [_rollup(pid, "Private_Dirty") for pid in pids]
    assert min(before) > 300_000 * 60  # the list is complete; a fork would gain as much while it reads
    for epoch in range(3):
        for step in range(64):
            loader.submit(epoch, step).result(timeout=30)
    after = [_rollup(pid, "Private_Dirty") for pid in pids]
    assert max(b - a for a, b in zip(before, after, strict=True)) < 4 << 20
    loader.close()
