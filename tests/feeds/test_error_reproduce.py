"""`kf.load`: loads a batch or a scene again in the calling thread, whatever the feed's workers do."""

import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import optree
import pytest
import scenes
import scenes_faulty as faulty
from scenes_frameworks import environment_of
from waits import PROGRAM_SECONDS, SECONDS

import kerasfeed as kf
from kerasfeed.sequences.base import scene_rng

WORKERS = [(0, "thread"), (2, "thread"), (2, "process")]


def _assert_same(one, other):
    for a, b in zip(optree.tree_leaves(one), optree.tree_leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.tolist() == b.tolist()) if a.dtype == object else (a.tobytes() == b.tobytes())


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
@pytest.mark.parametrize(
    "sequence", [scenes.Augmented(), scenes.Nested()], ids=lambda sequence: type(sequence).__name__
)
def test_load_returns_the_batch_of_the_feed_bit_for_bit(sequence, workers, worker_type):
    arguments = {"shuffle": True, "seed": 3, "shard_index": 1, "shard_count": 2}
    with kf.Feed(sequence, 4, workers=workers, worker_type=worker_type, **arguments) as feed:
        for epoch in (0, 5):
            for step, batch in enumerate(feed.epoch(epoch)):
                again = kf.load(feed, epoch=epoch, step=step)
                assert optree.tree_structure(again) == optree.tree_structure(batch)
                _assert_same(again, batch)
        assert next(iter(feed)) is not None
        assert feed.clock.current == 0


@pytest.mark.parametrize("sequence", [faulty.Raising((7,)), faulty.Weighted((7,))], ids=lambda s: type(s).__name__)
def test_load_adds_the_weights_of_the_feed(sequence):
    with kf.Feed(sequence, 4, workers=0, on_error="mask", max_failures=9) as feed:
        loaded, batch = kf.load(feed, epoch=0, step=3), feed.submit(0, 3).result()
        assert len(loaded) == 3
        for one, other in zip(optree.tree_leaves(loaded), optree.tree_leaves(batch), strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
        with pytest.raises(ValueError, match="7"):
            kf.load(feed, epoch=0, step=1)


def test_load_uses_the_random_numbers_of_the_epoch():
    with kf.Feed(scenes.Augmented(), 8, seed=3, workers=1, worker_type="thread") as feed:
        points, _ = next(iter(feed.epoch(2)))
        assert np.array_equal(kf.load(feed, epoch=2, index=5)[0], points[5])
        expected = scenes.Clouds()[5][0] + scene_rng(3, 2, 5).normal(size=(4, 3)).astype(np.float32)
        assert np.array_equal(points[5], expected)
        assert not np.array_equal(kf.load(feed, epoch=1, index=5)[0], points[5])


def test_load_returns_an_item_that_is_a_batch_by_its_step():
    with kf.Feed(np.arange(12.0).reshape(3, 4), None, workers=1) as feed:
        assert kf.load(feed, epoch=0, step=2).tolist() == [8, 9, 10, 11]


def test_everything_is_loaded_in_the_calling_thread():
    class Telling(scenes.Clouds):
        def __getitem__(self, index):
            return threading.get_ident() + os.getpid()

    with kf.Feed(Telling(), 8, workers=2, worker_type="thread") as feed:
        here = threading.get_ident() + os.getpid()
        assert kf.load(feed, epoch=0, step=1).tolist() == [here] * 8
        assert kf.load(feed, epoch=0, index=1) == here


class _HangingElsewhere(scenes.Clouds):
    def __init__(self):
        super().__init__()
        self.home = os.getpid()

    def __getitem__(self, index):
        if os.getpid() != self.home:
            time.sleep(1000)
        return super().__getitem__(index)


@pytest.mark.heavy
def test_load_works_for_hung_and_closed_feeds():
    with kf.Feed(_HangingElsewhere(), 8, workers=1, worker_type="process") as feed:
        started = time.monotonic()
        assert kf.load(feed, epoch=0, step=1)[1].tolist() == list(range(8, 16))
        assert time.monotonic() - started < SECONDS
    assert kf.load(feed, epoch=0, step=0)[1].tolist() == list(range(8))


class _Opening(scenes.Clouds):
    """Needs the resource that `on_worker_begin` opens."""

    handle = None

    def on_worker_begin(self, worker):
        self.handle = [threading.Lock()]  # open, and not to be pickled

    def on_worker_end(self):
        self.handle.clear()

    def __getitem__(self, index):
        assert self.handle, "not open"
        return super().__getitem__(index)


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_load_does_not_share_resources_of_worker_hooks_with_the_feed(workers, worker_type):
    sequence = _Opening()
    with kf.Feed(sequence, 8, workers=workers, worker_type=worker_type) as feed:
        first = feed[0]
        opened = sequence.handle
        _assert_same(kf.load(feed, epoch=0, step=0), first)
        _assert_same(kf.load(feed, epoch=0, index=3), sequence.__class__.__base__.__getitem__(sequence, 3))
        assert sequence.handle is opened
        assert opened is None or len(opened) == 1
        if worker_type == "process":
            pickle.dumps(sequence)  # it can be sent to a new worker
        assert len(list(feed)) == 5


def test_the_hooks_are_called_around_a_scene_that_fails():
    calls = []

    class Noting(scenes.Failing):
        def on_worker_begin(self, worker):
            calls.append(worker)

        def on_worker_end(self):
            calls.append("end")

    with kf.Feed(Noting(7, ValueError("bad")), 8, workers=0) as feed:
        for what in ({"step": 0}, {"index": 7}):
            with pytest.raises(ValueError, match="bad"):
                kf.load(feed, epoch=0, **what)
            assert [getattr(call, "worker_type", call) for call in calls] == ["inline", "end"]
            calls.clear()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"epoch": 0},
            TypeError,
            r"needs either step \(a whole batch\) or index \(one scene\), received step=None, ind",
        ),
        ({"epoch": 0, "step": 1, "index": 2}, TypeError, "received step=1, index=2"),
        ({"epoch": 0, "step": 5}, IndexError, "step 5 is out of range: an epoch has 5 steps, 0 to 4"),
        ({"epoch": 0, "step": -1}, ValueError, "step must be at least 0, received -1"),
        ({"epoch": 0, "index": 37}, IndexError, "index 37 is out of range: the sequence has 37 scenes, 0 to 36"),
        ({"epoch": 0, "index": -1}, ValueError, "index must be at least 0"),
        ({"epoch": -1, "step": 0}, ValueError, "epoch must be at least 0"),
        ({"epoch": 0, "step": 1.5}, TypeError, "step must be an integer, received 1.5 of type float"),
        ({"step": 1}, TypeError, "epoch"),
    ],
)
def test_load_refuses_wrong_arguments(arguments, error, message):
    with kf.Feed(scenes.Clouds(), 8, workers=0) as feed, pytest.raises(error, match=message):
        kf.load(feed, **arguments)


@pytest.mark.parametrize("feed", [scenes.Clouds(), [1, 2], None])
def test_load_refuses_objects_that_are_not_feeds(feed):
    with pytest.raises(TypeError, match=r"loads a batch of a kerasfeed\.Feed, received a (Clouds|list|NoneType)"):
        kf.load(feed, epoch=0, step=0)


@pytest.mark.heavy
@pytest.mark.parametrize("first", ["kf.load", "kf.Feed", "kerasfeed.loaders.loader", "kerasfeed.feeds.load_one"])
def test_load_is_the_function_after_any_order_of_imports(first):
    code = (
        "import light_keras, importlib, kerasfeed as kf\n"
        f"name = {first!r}\n"
        "getattr(kf, name[3:]) if name.startswith('kf.') else importlib.import_module(name)\n"
        "import kerasfeed.loaders.batches.row_loader as fill, kerasfeed.loaders.base\n"
        "from kerasfeed.loaders.loader import Loader\n"
        "feed = kf.Feed([1, 2, 3], 2, workers=0)\n"
        "print(kf.load(feed, epoch=0, step=0).tolist(), kerasfeed.loaders.batches.row_loader is fill)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment_of(), capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert done.stdout.strip() == "[1, 2] True", done.stderr[-2000:]


@pytest.mark.parametrize("brought_up", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_load_does_not_depend_on_failures_of_other_scenes(brought_up, workers):
    with kf.Feed(
        faulty.Raising((0, 9)), 4, workers=workers, worker_type="thread", on_error="replace", max_failures=5
    ) as feed:
        if brought_up:
            next(iter(feed))
        assert kf.load(feed, epoch=0, step=1)[1].tolist() == [4, 5, 6, 7]
        with pytest.raises(ValueError, match="scene 9 is broken") as caught:
            kf.load(feed, epoch=3, step=2)
    assert "scene 9, epoch 3, step 2, in the calling thread" in caught.value.__notes__[0]
