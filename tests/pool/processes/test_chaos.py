"""Everything at once: kills, slow and raising and deadly scenes, greedy consumers, early ends.

A few rounds with new seeds each time, or as many as fit into `KERASFEED_CHAOS_SECONDS`.
"""

import os
import random
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest
import scenes_faulty as faulty
from killer import Killer

import kerasfeed as kf
from kerasfeed.errors import FeedClosedError

SECONDS = float(os.environ.get("KERASFEED_CHAOS_SECONDS", "8"))


class Chaotic(faulty.Faulty):
    """Clouds that take a random time; some raise, some end their worker once, some hang once."""

    def __init__(self, folder, length, raising, deadly, hanging):
        super().__init__(None, (), folder=folder, times=1, length=length)
        self.raising, self.deadly, self.hanging = raising, deadly, hanging

    def __getitem__(self, index):
        if index in self.raising:
            raise ValueError(index)
        if self.folder is not None:
            time.sleep(0.003 * random.random() ** 4)
            if index in self.deadly and self._is_to_fail(index):
                random.choice(list(faulty.DEADLY.values()))()
            if index in self.hanging and self._is_to_fail(index):
                faulty.hang()
        return super().__getitem__(index)


def _bits(batch):
    return [np.asarray(field).tobytes() for field in batch]


class Round:
    """One feed with random arguments, one random consumer, and the batches of the reference loader."""

    def __init__(self, rng, folder):
        self.rng = rng
        length = rng.randint(1, 120)
        drawn = lambda most: set(rng.sample(range(length), min(length // 3, rng.randint(0, most))))  # noqa: E731
        process = rng.random() < 0.7
        raising = drawn(4)
        deadly, hanging = (drawn(3), drawn(1)) if process else (set(), set())
        self.arguments = {
            "batch_size": rng.randint(1, 12),
            "shuffle": rng.random() < 0.7,
            "seed": rng.randint(0, 99),
            "drop_remainder": False,
            "on_error": rng.choice(["replace", "mask", "skip"]),
            "max_failures": 50,
        }
        self.sequence = Chaotic(folder, length, raising, deadly, hanging)
        self.quiet = Chaotic(None, length, raising, set(), set())
        self.feed = kf.Feed(
            self.sequence,
            **self.arguments,
            workers=rng.randint(2, 4),
            worker_type="process" if process else "thread",
            max_queue_size=rng.randint(1, 12),
            max_memory=rng.choice([1 << 16, 1 << 24]),
            timeout=2.0 if process else None,
        )
        self.kills = process and rng.random() < 0.7

    def reference(self, epoch):
        with kf.Feed(self.quiet, workers=0, **self.arguments) as feed:
            return [_bits(batch) for batch in feed.epoch(epoch)]

    def run(self):
        way = self.rng.choice([self.whole, self.whole, self.hoard, self.abandon, self.close_early, self.random_access])
        if self.kills:
            with Killer(self.feed, 0.5, self.rng.random()):
                way()
        else:
            way()
        self.feed.close()
        return way.__name__

    def whole(self):
        for epoch in range(2):
            assert [_bits(batch) for batch in self.feed.epoch(epoch)] == self.reference(epoch)

    def hoard(self):
        kept = [batch for epoch in range(3) for batch in self.feed.epoch(epoch)]
        assert [_bits(batch) for batch in kept] == [bits for epoch in range(3) for bits in self.reference(epoch)]

    def abandon(self):
        for epoch in range(3):
            for found, expected in zip(self.feed.epoch(epoch), self.reference(epoch), strict=False):
                assert _bits(found) == expected
                if self.rng.random() < 0.2:
                    break

    def close_early(self):
        closer = threading.Timer(self.rng.random() * 0.5, self.feed.close)
        closer.start()
        try:
            self.whole()
        except FeedClosedError:
            pass
        closer.join()

    def random_access(self):
        if self.arguments["on_error"] == "skip":  # a step may be empty
            return self.whole()
        expected = self.reference(0)
        for _ in range(30):
            step = self.rng.randrange(len(self.feed))
            assert _bits(self.feed[step]) == expected[step]
        return None


@pytest.mark.heavy
@pytest.mark.timeout(600 + 4 * SECONDS)
@pytest.mark.parametrize("seconds", [2.0, pytest.param(SECONDS - 2.0, marks=pytest.mark.heavy)], ids=["some", "more"])
def test_random_faults_neither_lose_nor_change_batches(seconds):
    seed = int(os.environ.get("KERASFEED_CHAOS_SEED", time.time_ns() % 1_000_000))
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    done = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kf.FeedWarning)
        while time.monotonic() < deadline or len(done) < 3:
            with tempfile.TemporaryDirectory() as folder:
                each = Round(rng, folder)
                try:
                    done.append(each.run())
                except BaseException as error:
                    error.add_note(f"seed {seed}, round {len(done)}: {each.arguments}, {each.feed!r}")
                    raise
                finally:
                    each.feed.close()
    assert len(done) >= 3
