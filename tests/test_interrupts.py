"""Ctrl-C at any moment of a submission loses no slot, leaves nobody waiting, and spoils no later batch."""

import gc
import random
import signal
import time

import pytest
import scenes

from kerasfeed.loaders import Job
from kerasfeed.loaders.processes import ProcessLoader
from kerasfeed.loaders.threads import ThreadLoader
from kerasfeed.plan import Plan

INTERRUPTS = 300


class Hit(KeyboardInterrupt):
    pass


def _hit(signum, frame):
    raise Hit


@pytest.fixture
def interrupted():
    """Run something, and hit it after a random number of microseconds; returns whether it was hit."""
    before = signal.signal(signal.SIGALRM, _hit)
    chance = random.Random(4)

    def run(call):
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-6, 2e-4))
            call()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Hit:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False

    yield run
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("kind", [ThreadLoader, ProcessLoader])
def test_interrupts_lose_no_slot_and_leave_nobody_waiting(interrupted, kind):
    sequence = scenes.Slow(64, 0.0005)
    loader = kind(Job(sequence, Plan(64, 8), 2, 1 << 20, 4))
    loader.submit(0, 0).result(timeout=20)
    session = loader._ready() if kind is ThreadLoader else loader._ready()[0]
    hits = 0
    for number in range(INTERRUPTS):
        hits += interrupted(lambda step=number % 8: loader.submit(0, step))
        if number % 20 == 19:  # let a queue build up in between
            assert loader.submit(0, 3).result(timeout=20)[1].tolist() == list(range(24, 32))
    assert hits > INTERRUPTS / 20
    loader.refresh(lambda: None)  # waits for everything in flight
    pool = session.pool
    deadline = time.monotonic() + 10
    while pool._in_flight or len(pool._free) + len(pool._cold) < pool.total:
        gc.collect()
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    missing = pool.total - len(pool._free) - len(pool._cold)
    assert missing <= 2, f"{missing} of {pool.total} slots did not come back from {hits} interrupts"
    for step in range(8):
        assert loader.submit(1, step).result(timeout=20)[1].tolist() == list(range(8 * step, 8 * step + 8))
    loader.close()
