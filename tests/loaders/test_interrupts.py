"""Ctrl-C at any moment of a submission blocks no consumer, leaks nothing, and damages no later batch."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import scenes
from programs import finish, launch
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.pool import threads
from kerasfeed.pool.resource_errors import start_thread

# In a separate program, because an interrupt may come in any callback of the tests' imports.
PROGRAM = """
    import gc, pathlib, random, signal, threading, time
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
    hits, futures = 0, []
    for number in range(300):
        if hits == 40:
            break
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-6, {longest}))
            futures.append(loader.submit(0, number % 8))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Hit:
            hits += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        loader.start()  # as before the first one; interrupts of a start have a test of their own below
        futures.clear()  # not while it may be hit: the end of a lease is not proof against that
        if number % 20 == 19:  # let a queue build up in between
            assert loader.submit(0, 3).result(timeout=60)[1].tolist() == expected[3]
    for step in range(8):
        assert loader.submit(1, step).result(timeout=60)[1].tolist() == expected[step]
    loader.close()
    gc.collect()
    deadline = time.monotonic() + 10  # a thread that was just started is not waited for
    while (left := [thread for thread in threading.enumerate() if thread.name.startswith("kerasfeed-")]):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    children = "".join(path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/children")).split()
    print(hits, len(left), len(children))
"""


@pytest.mark.heavy
@pytest.mark.parametrize(("worker_type", "longest"), [("thread", 2e-4), ("process", 2e-4), ("inline", 5e-3)])
def test_batches_are_correct_and_nothing_leaks_after_many_interrupts(tmp_path, worker_type, longest):
    program = PROGRAM.format(worker_type=worker_type, longest=longest)
    hits, threads, children = map(int, finish(launch(tmp_path, program)).split())
    assert hits > 15
    assert threads == 0
    assert children == 0


def test_the_sequence_starts_again_after_an_interrupt_within_a_scene(make):
    began = []

    class Interrupted(scenes.Clouds):
        interrupts = 1

        def on_worker_begin(self, worker):
            began.append(worker.worker_type)

        def __getitem__(self, index):
            if index == 20 and self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return super().__getitem__(index)

    loader = make("inline", Interrupted(64), 16)
    loader.submit(0, 0).result()
    with pytest.raises(KeyboardInterrupt):
        loader.submit(0, 1)
    batches = [loader.submit(1, step).result() for step in range(4)]
    assert sorted(np.concatenate([labels for _, labels in batches]).tolist()) == [*range(64)]
    assert began == ["inline", "inline"]


def test_the_next_call_starts_again_after_an_interrupt_of_the_first_scenes(make):
    class Slow(scenes.Clouds):
        slow = True

        def __getitem__(self, index):
            if self.slow:
                self.slow = False
                os.kill(os.getpid(), signal.SIGINT)  # Python raises it in the main thread, which waits for this scene
                time.sleep(0.2)
            return super().__getitem__(index)

    loader = make("thread", Slow(64), 16)
    with pytest.raises(KeyboardInterrupt):
        loader.look_ahead  # noqa: B018 - infers the spec
    assert loader._sessions.present is None
    batches = [loader.submit(0, step).result(SECONDS) for step in range(4)]
    assert sorted(np.concatenate([labels for _, labels in batches]).tolist()) == [*range(64)]


@pytest.mark.parametrize("when", ["as the last one starts", "as they are ended"])
def test_an_interrupt_leaks_no_worker_thread(when, monkeypatch):
    """`nothing_leaks` looks for them."""

    def start(thread, *arguments):
        start_thread(thread, *arguments)
        if thread.name == "kerasfeed-worker-1":
            raise KeyboardInterrupt

    def stop(watchdog):
        raise KeyboardInterrupt

    feed = kf.Feed(list(range(8)), 2, workers=2, worker_type="thread")
    if when == "as the last one starts":
        monkeypatch.setattr(threads, "start_thread", start)
    else:
        monkeypatch.setattr(threads.watchdog.Watchdog, "stop", stop)
    with pytest.raises(KeyboardInterrupt), feed:
        next(iter(feed))
    feed.close()


def test_a_task_taken_while_the_pool_closes_does_not_block_its_consumer(monkeypatch):
    gate, end = threading.Event(), threads.ThreadPool._end

    def after_all_were_taken(pool):
        gate.set()
        wait_until(lambda: pool.in_flight == 0)
        end(pool)

    def waiting(scene):
        gate.wait(SECONDS)
        return scene

    gate.set()
    with kf.Feed(kf.Map(np.arange(32.0), waiting), 4, workers=1, worker_type="thread") as feed:
        assert len(feed[0]) == 4
        gate.clear()
        futures = [feed.submit(0, step) for step in range(8)]
        monkeypatch.setattr(threads.ThreadPool, "_end", after_all_were_taken)
    assert isinstance(futures[-1].exception(timeout=SECONDS), kf.errors.FeedClosedError)
    assert all(future.done() for future in futures)


def test_an_interrupt_that_breaks_the_start_of_a_thread_stays_an_interrupt():
    class Interrupted(threading.Thread):
        def start(self):
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("release unlocked lock")  # as CPython's Condition may

    with pytest.raises(KeyboardInterrupt):
        start_thread(Interrupted(), "a test")
