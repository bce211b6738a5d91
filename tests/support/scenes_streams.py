"""Generator functions of tests, also for worker processes, and functions that run them."""

import itertools
import os
import random
import signal
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np

import kerasfeed as kf
from kerasfeed.feeds.stream_merge import SourceRun
from kerasfeed.loaders.failures.failure_log import FailureLog, FailurePolicy
from kerasfeed.loaders.generator_pool import GeneratorPool
from kerasfeed.loaders.generators import Generators
from kerasfeed.pool.environment import Environment

KINDS = {"inline": (0, "thread"), "thread": (3, "thread"), "process": (2, "process")}


class Source:
    """Generators and their workers; one repetition runs at a time."""

    def __init__(self, generators, policy=None, *, workers=0, deterministic=True, **arguments):
        self._generators, self._in_turn = generators, deterministic
        self.failure_log = FailureLog(policy or FailurePolicy(), 0)
        self.pool = None
        if workers:
            arguments = {"environment": Environment.now(), **arguments}
            self.pool = GeneratorPool(generators, self.failure_log, workers=workers, **arguments)
        self._run = None

    def begin(self, repetition, items=0):
        self.leave()
        self._run = SourceRun(
            self._generators, self.pool, self.failure_log, repetition, items, in_turn=self._in_turn
        )  # fmt: skip
        self._items = self._run.items()

    def take(self, limit):
        """The next items; fewer than `limit` at the end, or if it is left."""
        items = []
        try:
            items.extend(itertools.islice(self._items, limit))
        except CancelledError:
            self._run.close()
        return items

    def each(self):
        """Iterate over the items."""
        return self._items

    def leave(self):
        if self._run is not None:
            self._run.close()

    def close(self):
        self.leave()
        if self.pool is not None:
            self.pool.close()
        self._run = self._items = self.pool = None  # they hold memory of scenes


def new_source(kind, make_generator, count=1, *, seed=7, policy=None, **arguments):
    """A source that runs `count` generators in one of the `KINDS`."""
    workers, worker_type = KINDS[kind]
    workers = arguments.pop("workers", workers)
    arguments = {"worker_type": worker_type, "max_memory": 1 << 28, **arguments} if workers else {}
    return Source(Generators(make_generator, count, seed), policy, workers=workers, **arguments)


def all_of(source, repetition=0, limit=7):
    """The items of one repetition."""
    source.begin(repetition)
    items = []
    while taken := source.take(limit):
        assert len(taken) <= limit
        items += taken
    return items


def until_error(source, repetition=0):
    """The items before an error, and the error."""
    source.begin(repetition)
    items = []
    try:
        items.extend(source.each())
    except Exception as error:
        return items, error
    raise AssertionError(f"no error, after {len(items)} items")


def in_turn(*generators):
    """The reference for generators joined in turn."""
    items, living = [], [iter(each) for each in generators]
    while living:
        for each in list(living):
            for item in itertools.islice(each, 1):
                items.append(item)
                break
            else:
                living.remove(each)
    return items


def counting(n, count):
    for k in range((7, 0, 3, 900)[n]):
        yield n, k


def endless(n, count):
    return ((n, k) for k in itertools.count())


def empty(n, count):
    return []


def drawing(n, count, rng):
    for _ in range(5):
        yield rng.random()


def failing(n, count):
    for k in range(6):
        if n == 1 and k == 4:
            raise LookupError(f"no scene {k}")
        yield n, k


def reusing():
    buffer = np.zeros(3)
    for k in range(400):
        buffer[:] = k
        yield buffer, np.array([f"name {k}"], object)


def leaving(folder):
    def make_generator(n, count):
        try:
            yield from itertools.count()
        finally:
            (Path(folder) / f"{n} {time.time_ns()}").touch()

    return make_generator


def varied():
    for k in range(300):
        yield {
            "points": np.full((k % 4, 2), k, np.float32),
            "name": f"scene {k}",
            "more": [(k, None, k / 2), np.int16(k), np.zeros((0, 3)), b"x" * (k % 3), np.arange(6).reshape(2, 3).T],
            "words": np.array(["a", "b" * k], object),
            "old": np.full(2, k, ">i4"),
            "row": np.zeros(2, [("a", "f4"), ("b", "i8", 2)]),
        }


class Drawing(kf.SceneSequence):
    """A class with a generator as well, whose `rng` is that of each scene."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return index

    def scenes(self, n, count):
        for _ in range(4):
            yield self.rng.random()


def old_fashioned(n, count):
    for _ in range(600):
        yield n, np.random.random(), random.random()


def killed_once(path):
    """A generator ends its worker when it reaches its scene 300 for the first time."""

    def make_generator(n, count):
        for k in range(400):
            if n == 1 and k == 300 and not Path(path).exists():
                Path(path).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield n, k

    return make_generator


def killed_once_and_then_short(path):
    """The same, but when it runs again it yields five scenes."""
    make = killed_once(path)

    def make_generator(n, count):
        short = n == 1 and Path(path).exists()
        return itertools.islice(make(n, count), 5 if short else None)

    return make_generator


def killed_once_starting(path):
    def make_generator(n, count, *, start):
        for k in range(start, 400):
            if n == 1 and k == 300 and not Path(path).exists():
                Path(path).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield n, k, start

    return make_generator


def killing(n, count):
    for k in range(30):
        if n == 1 and k == 10:
            os._exit(3)
        yield n, k


def hanging(n, count):
    for k in range(3):
        if n == 1 and k == 1:
            time.sleep(1000)
        yield n, k


def unlike(what):
    def make_generator(n, count):
        yield {"x": np.zeros(2), "y": 3}
        if n == 2:
            yield what

    return make_generator


def large(n, count):
    for k in range(4):
        yield np.full(50_000, k, np.uint8), np.full((k + 1, 40_000), n, np.uint8)
