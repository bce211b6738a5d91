"""No slot is reused while anything refers to it: released slots are overwritten, and held batches must not change.

A release writes a canary over the slot's fields. If it were released too early, the holder of the batch would see
the canary, or the next batch's values. If it were given to two batches, one would have the other's values.
"""

import gc
import random
import threading
import time
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest
import scenes
from loader_kinds import InlineLoader, ProcessLoader, ThreadLoader
from scenes_frameworks import let_tensorflow_free_memory

from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.slots import SlotPool
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan

LOADERS = {"inline": InlineLoader, "thread": ThreadLoader, "process": ProcessLoader}
CANARY = 0xA5
LENGTH = 240
PLAN = Plan(LENGTH, 4, Shuffled(), 3)


class Filled(scenes.Clouds):
    """Scenes (int32[64], int64), each full of its index; every few take a while."""

    def __getitem__(self, index):
        if index % 7 == 0:
            time.sleep(0.001)
        return np.full(64, index, np.int32), index


@pytest.fixture(autouse=True)
def overwritten_slots(monkeypatch):
    """Overwrite every returned slot; count them, and fail if one is handed out or returned twice."""
    counts = {"returned": 0, "twice": 0}
    out, known = weakref.WeakSet(), weakref.WeakSet()  # known: acquired by this test, not leased by an earlier one
    guard = threading.RLock()  # reentrant: a finalizer may run inside
    released, acquired = SlotPool.release, SlotPool.acquire

    def release(self, slot):
        if not self._closed:
            for field in slot.view.fields:
                field.view(np.uint8)[...] = CANARY
        with guard:
            counts["returned"] += 1
            counts["twice"] += slot in known and slot not in out
            out.discard(slot)
        released(self, slot)

    def acquire(self, *timeout):
        slot = acquired(self, *timeout)
        with guard:
            counts["twice"] += slot in out
            out.add(slot)
            known.add(slot)
        return slot

    monkeypatch.setattr(SlotPool, "release", release)
    monkeypatch.setattr(SlotPool, "acquire", acquire)
    yield counts
    assert counts["twice"] == 0


def _torch(array):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch.from_numpy(array)[1:].view(-1).numpy()  # which holds the tensor


def _jax(array):
    import jax

    return jax.device_put(array)


def _tf(array):
    import tensorflow as tf

    handed_over = [array]  # TensorFlow never frees the function, so it must not hold the array
    return tf.numpy_function(handed_over.pop, [], tf.int32)


# From an array [B, 64] to something that refers to its memory, and how to read rows of it.
ALIASES = {
    "the array": lambda array: array,
    "a view of a view": lambda array: array[1:][:, ::3][:, 2:],
    "a row": lambda array: array[2],
    "another type": lambda array: array.view(np.uint8).reshape(4, 64, 4)[..., 0],
    "a memoryview": lambda array: memoryview(array[:3]),
    "a memoryview of bytes": lambda array: memoryview(array).cast("B")[64:],
    "an iterator": lambda array: np.nditer(array),
}


def _contents(alias):
    if isinstance(alias, np.nditer):
        alias.reset()
        return np.array([int(value) for value in alias])
    return np.array(alias)


class Consumer:
    """Takes batches, keeps some through an alias for some time, and checks them when it drops them."""

    def __init__(self, loader, seed, aliases=ALIASES):
        self.loader = loader
        self.random = random.Random(seed)
        self.aliases = aliases
        self.held = []
        self.checked = 0
        self.wrong = []

    def run(self, turns):
        flying = []
        for turn in range(turns):
            epoch, step = turn // PLAN.steps, self.random.randrange(PLAN.steps)
            flying.append((epoch, step, self.loader.submit(epoch, step)))
            while flying and (len(flying) > 6 or self.random.random() < 0.4):
                self._take(*flying.pop(self.random.randrange(len(flying))))
            if self.random.random() < 0.02:
                self._let_go(0)
            elif self.random.random() < 0.4:
                self._let_go(max(0, len(self.held) - self.random.randrange(4)))
        for entry in flying:
            self._take(*entry)
        self._let_go(0)

    def _take(self, epoch, step, future):
        if self.random.random() < 0.15 and future.cancel():
            return
        try:
            points, labels = future.result(timeout=30)
        except CancelledError:
            return
        expected = PLAN.indices(epoch, step)
        if not ((points == expected[:, None]).all() and (labels == expected).all()):
            self.wrong.append((epoch, step, points.copy(), labels.copy()))
        if self.random.random() < 0.6:
            name = self.random.choice(list(self.aliases))
            alias = self.aliases[name](points)
            self.held.append((name, alias, _contents(alias)))

    def _let_go(self, left):
        while len(self.held) > left:
            name, alias, contents = self.held.pop(self.random.randrange(len(self.held)))
            if not np.array_equal(_contents(alias), contents):
                self.wrong.append((name, contents))
            self.checked += 1


def _loader(kind, max_memory=1 << 30, workers=2):
    return LOADERS[kind](Job(Filled(LENGTH), PLAN, workers, max_memory, 4))


@pytest.mark.heavy
@pytest.mark.parametrize("max_memory", [1 << 30, 12 * 4096], ids=["plenty", "twelve slots"])
@pytest.mark.parametrize("kind", LOADERS)
def test_batches_held_by_a_consumer_never_change(kind, max_memory, overwritten_slots):
    loader = _loader(kind, max_memory)
    consumers = [Consumer(loader, seed) for seed in range(3 if kind != "inline" else 1)]
    threads = [threading.Thread(target=consumer.run, args=(400,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    for consumer in consumers:
        assert consumer.wrong == []
        assert consumer.checked > 50
    assert overwritten_slots["returned"] > 100
    loader.close()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["thread", "process"])
@pytest.mark.parametrize("alias", [_tf, _jax, _torch], ids=["tensorflow", "jax", "torch"])
def test_batches_held_by_a_framework_never_change(kind, alias):
    loader = _loader(kind, workers=1)
    consumer = Consumer(loader, 1, {"alias": alias, **ALIASES})
    consumer.run(40)
    assert consumer.wrong == []
    assert consumer.checked > 10
    loader.close()
    let_tensorflow_free_memory()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_batches_held_by_a_consumer_outlive_the_loader(kind):
    chance = random.Random(4)
    for turn in range(5 if kind == "thread" else 3):
        loader = _loader(kind)
        flying = [(step, loader.submit(0, step)) for step in range(20)]
        held = []
        closing = threading.Timer(chance.random() * 0.05, loader.close)
        closing.start()
        for step, future in flying:
            try:
                points, _ = future.result(timeout=30)
            except FeedClosedError:
                continue
            held.append((step, points[1:]))
        closing.join()
        loader.close()
        gc.collect()
        for step, points in held:
            assert (points == PLAN.indices(0, step)[1:, None]).all(), turn


def test_the_canary_detects_a_slot_released_too_early(monkeypatch):
    def lease_and_release(self, slot):
        exporter = self._exporter_type.from_buffer(slot.memory, slot.offset)
        self.release(slot)
        return exporter

    monkeypatch.setattr(SlotPool, "lease", lease_and_release)
    loader = _loader("inline")
    consumer = Consumer(loader, 0)
    consumer.run(30)
    assert consumer.wrong
    loader.close()
