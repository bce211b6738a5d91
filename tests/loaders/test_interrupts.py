"""Ctrl-C at any moment of a submission loses no slot, leaves nobody waiting, and spoils no later batch."""

import pytest
from programs import finish, launch

# In a program of its own: an interrupt may strike in any callback of whatever the tests have imported.
PROGRAM = """
    import gc, random, signal, time
    import numpy as np
    import kerasfeed as kf
    from kerasfeed.loaders.base import Job
    from kerasfeed.loaders.loader import Loader
    from kerasfeed.orders.plan import Plan

    class Slow(kf.SceneSequence):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            time.sleep(0.0005)
            return np.full(12, index, np.float32), index

    class Hit(KeyboardInterrupt):
        pass

    def hit(signum, frame):
        raise Hit

    gc.disable()
    signal.signal(signal.SIGALRM, hit)
    chance = random.Random(4)
    loader = Loader(Job(Slow(), Plan(64, 8), 2, 1 << 20, 4), {worker_type!r})
    expected = [list(range(8 * step, 8 * step + 8)) for step in range(8)]
    slots = loader._ready().slots
    hits, futures = 0, []
    for number in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-6, 2e-4))
            futures.append(loader.submit(0, number % 8))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Hit:
            hits += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        futures.clear()  # not while it may be hit: the end of a lease is not proof against that
        if number % 20 == 19:  # let a queue build up in between
            assert loader.submit(0, 3).result(timeout=60)[1].tolist() == expected[3]
    loader.refresh(lambda: None)  # waits for everything in flight
    deadline = time.monotonic() + 60
    while len(slots._free) + len(slots._cold) < slots.total and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    for step in range(8):
        assert loader.submit(1, step).result(timeout=60)[1].tolist() == expected[step]
    gc.collect()
    print(hits, slots.total - len(slots._free) - len(slots._cold))
    loader.close()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_interrupts_lose_no_slot_and_leave_nobody_waiting(tmp_path, worker_type):
    hits, missing = map(int, finish(launch(tmp_path, PROGRAM.format(worker_type=worker_type))).split())
    assert hits > 15
    assert missing <= 2
