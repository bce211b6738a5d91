"""Scenes that draw from `random` and `numpy.random`: a warning, and equal scenes in each run of worker processes."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import kerasfeed as kf

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(sys.platform == "win32", reason="worker processes need a POSIX system"),
]
_LENGTH = 24
_PROCESSES = {"workers": 1, "worker_type": "process", "seed": 5, "shuffle": True}
_WARNS = "global generators of"


class Old(kf.SceneSequence):
    """Augmentation as it was before `self.rng`."""

    def __len__(self):
        return _LENGTH

    def __getitem__(self, index):
        time.sleep(0.001)
        return np.array([index, random.random(), np.random.normal()]), np.int64(os.getpid())


class OnlyPython(Old):
    """It uses only Python's generator, with a separate seed for each worker."""

    def on_worker_begin(self, worker):
        random.seed(worker.index)

    def __getitem__(self, index):
        return np.array([index, random.gauss(0, 1), random.randint(0, 9)])


class ManyAtOnce(Old):
    """It is read many scenes at a time."""

    def __getitem__(self, index):
        return np.concatenate([[index], np.random.normal(size=3)])

    def get_batch(self, indices):
        time.sleep(0.001 * len(indices))
        drawn = np.random.normal(size=(len(indices), 3))
        return np.concatenate([indices[:, None], drawn], axis=1)


class IntoPlace(Old):
    """It writes its scenes into the batch."""

    def __getitem__(self, index):
        return np.concatenate([[index], np.random.normal(size=3)])

    def read_into(self, index, out):
        out[0], out[1:] = index, np.random.normal(size=3)


class Failing(Old):
    """Some scenes fail, and others replace them."""

    def __getitem__(self, index):
        if index in (3, 11):
            raise ValueError("it cannot be read")
        return np.array([index, random.random()])


def mixed(scenes):
    """A batch that is made with random numbers."""
    stacked = np.stack(scenes)
    return stacked * np.random.random() + np.array([scene[0] * random.random() for scene in scenes])[:, None]


def drawing(scene):
    """A function that draws."""
    return scene[0] + np.random.random()


class Plain(Old):
    """No random numbers."""

    def __getitem__(self, index):
        time.sleep(0.001)
        return np.array([index, 1.0])


def _feed(*arguments, **options):
    from kerasfeed.feeds.base import BaseFeed  # kf.Feed imports Keras, and workers import this module

    return BaseFeed(*arguments, **options)


def _batches(sequence, epochs=2, **arguments):
    with _feed(sequence, 4, **{**_PROCESSES, **arguments}) as feed:
        return [leaf for _ in range(epochs) for batch in feed for leaf in (batch[0] if type(batch) is tuple else batch)]


CASES = {
    "both": (Old, {}),
    "python": (OnlyPython, {}),
    "get_batch": (ManyAtOnce, {}),
    "read_into": (IntoPlace, {}),
    "replaced": (Failing, {"on_error": "replace"}),
    "collate": (Plain, {"collate": mixed}),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_workers_draw_the_same_numbers_in_every_run(case):
    sequence, arguments = CASES[case]
    first = _batches(sequence(), **arguments)  # warnings are errors: with a seed, nothing is wrong
    again = _batches(sequence(), **arguments, workers=2)
    assert np.array_equal(first, again)
    assert len({tuple(row) for row in first}) > 1.5 * _LENGTH  # of two epochs


REMEDIES = {
    "scene": (Old, {}, r"self\.rng"),
    "get_batch": (ManyAtOnce, {}, r"self\.rng_for\(index\)"),
    "function": (lambda: kf.Map(Plain(), drawing), {}, r"kf\.current_rng\(\)"),
    "collate": (Plain, {"collate": mixed}, r"kf\.current_rng\(\)"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", REMEDIES)
def test_without_a_seed_a_warning_names_the_generator_to_use(case):
    sequence, arguments, remedy = REMEDIES[case]
    with pytest.warns(kf.FeedWarning, match=f"{_WARNS} .* with seed=.* Draw from {remedy} instead") as caught:
        _batches(sequence(), 1, **arguments, seed=None)
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.heavy
class Seldom(Old):
    """One scene of 20 draws."""

    def __getitem__(self, index):
        time.sleep(0.001)
        return np.array([index, random.random() + np.random.normal() if index % 20 == 19 else 0.0])


def test_scenes_that_seldom_draw_use_the_same_numbers_in_every_run():
    by_one, by_two = (_batches(Seldom(), workers=workers, shuffle=False) for workers in (1, 2))
    assert [row[0] for row in by_one if row[1]] == [19, 19]  # of two epochs
    assert np.array_equal(by_one, by_two)


def test_another_seed_gives_different_numbers():
    one, other = (sorted(map(tuple, _batches(OnlyPython(), 1, seed=seed))) for seed in (5, 6))
    assert all(a[0] == b[0] and a[1:] != b[1:] for a, b in zip(one, other, strict=True))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning")
def test_a_replacement_worker_draws_the_same_numbers():
    expected = _batches(Old())
    found = _batches_of_killed_workers()
    assert np.array_equal(found, expected)


def _batches_of_killed_workers():
    found, dead = [], set()
    with _feed(Old(), 4, **_PROCESSES) as feed:
        for _ in range(2):
            for rows, pids in feed:
                found.extend(rows)
                if not dead:
                    dead = set(pids.tolist())
                    for pid in dead:
                        os.kill(pid, signal.SIGKILL)
        assert feed.stats().respawns
    return found


@pytest.mark.heavy
def test_load_draws_the_numbers_of_the_workers_and_restores_the_generators():
    with _feed(Old(), 4, **_PROCESSES) as feed:
        random.seed(1)
        np.random.seed(1)
        expected = random.random(), np.random.random()
        random.seed(1)
        np.random.seed(1)
        before, _ = kf.load(feed, epoch=1, step=2)
        batches = [batch[0] for epoch in range(2) for batch in feed.epoch(epoch)]
        after, _ = kf.load(feed, epoch=1, step=2)
        scene, _ = kf.load(feed, epoch=1, index=int(after[1, 0]))
        assert (random.random(), np.random.random()) == expected
        assert feed.stats().seeds_random
    assert np.array_equal(before, batches[8])
    assert np.array_equal(after, batches[8])
    assert np.array_equal(scene, after[1])


def _drawn(item):
    time.sleep(0.001)
    return np.array([item, random.random(), np.random.random()])


def _numbers(n, count):
    yield from map(float, range(_LENGTH))


def _streamed(spec, **arguments):
    arguments = {"workers": 1, "worker_type": "process", "seed": 5, "output_signature": spec, **arguments}
    with kf.StreamFeed(_numbers, 4, **arguments).map(_drawn) as feed:
        return [batch for _ in range(2) for batch in feed]


@pytest.mark.heavy
@pytest.mark.parametrize("spec", [None, kf.ArraySpec((3,), "float64")], ids=["inferred", "given"])
def test_functions_of_a_stream_draw_the_same_numbers_in_every_run(spec):
    first, again = _streamed(spec), _streamed(spec, workers=2)
    assert np.array_equal(first, again)
    assert len({tuple(row) for batch in first for row in batch}) == 2 * _LENGTH


@pytest.mark.heavy
@pytest.mark.parametrize("spec", [None, kf.ArraySpec((3,), "float64")], ids=["learnt", "given"])
def test_records_are_written_with_the_same_numbers_in_every_run(tmp_path, spec):
    class AsItCame(OnlyPython):
        def on_worker_begin(self, worker):
            random.seed()

    def written(name, workers):
        pattern = str(tmp_path / (name + "-{shard}-of-{count}.tfrecord"))
        paths = kf.write_tfrecords(AsItCame(), pattern, num_shards=3, workers=workers, worker_type="process", spec=spec)
        return [Path(path).read_bytes() for path in paths]

    assert written("a", 1) == written("b", 2)


class UsesTorch(Old):
    """It draws from PyTorch's generator, which its module has imported."""

    def on_worker_begin(self, worker):
        import torch  # noqa: F401

    def __getitem__(self, index):
        import torch

        return np.array([index, float(torch.rand(()))])


class ImportsTorch(Old):
    """It draws from PyTorch's generator, and imports it."""

    def __getitem__(self, index):
        import torch

        return np.array([index, float(torch.rand(()))])


class UsesTensorFlow(Old):
    """It draws from TensorFlow's generator, and imports it."""

    def __getitem__(self, index):
        import tensorflow as tf

        return np.array([index, float(tf.random.uniform(()))])


def _by_scene(rows):
    """Rows of two epochs, each epoch in the order of its scenes: the order of reads must not matter."""
    return [sorted(map(tuple, rows[epoch * _LENGTH :][:_LENGTH])) for epoch in range(2)]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:no progress:kerasfeed.FeedWarning")  # a busy machine imports for half a minute
@pytest.mark.parametrize(
    ("sequence", "name"), [(UsesTorch, "torch"), (ImportsTorch, "torch"), (UsesTensorFlow, "tf.random")]
)
def test_framework_generators_give_the_same_numbers_in_every_run(sequence, name):
    pytest.importorskip("torch")
    with pytest.warns(kf.FeedWarning, match=f"{_WARNS} {name}, .* with seed=... every run") as caught:
        _batches(sequence(), 1, seed=None)
    assert sum("no progress" not in str(each.message) for each in caught) == 1
    first, again = _batches(sequence()), _batches(sequence(), shuffle=False)
    assert _by_scene(first) == _by_scene(again)
    assert len({tuple(row) for row in first}) == 2 * _LENGTH


@pytest.mark.heavy
def test_load_draws_the_torch_numbers_of_the_workers_and_restores_the_generator():
    torch = pytest.importorskip("torch")
    with _feed(UsesTorch(), 4, **_PROCESSES) as feed:
        batches = list(feed)
        torch.manual_seed(1)
        expected = torch.rand(())
        torch.manual_seed(1)
        assert np.array_equal(kf.load(feed, epoch=0, step=2), batches[2])
        assert torch.rand(()) == expected


_LOADS = """
import warnings
import numpy as np
import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed  # kf.Feed imports Keras, and with it the backend

class ImportsTorch(kf.SceneSequence):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        import torch
        return np.array([index, float(torch.rand(()))])

warnings.simplefilter("ignore")
with BaseFeed(ImportsTorch(), 4, workers=1, worker_type="process", seed=5) as feed:
    expected = feed[1]
    assert np.array_equal({first}, {then})
    assert np.array_equal(kf.load(feed, epoch=0, step=1), expected)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("first", "then"),
    [("kf.load(feed, epoch=0, index=6)", "expected[2]"), ("kf.load(feed, epoch=0, step=1)", "expected")],
    ids=["scene", "batch"],
)
def test_load_draws_the_numbers_of_the_workers_even_if_it_imports_torch(first, then):
    pytest.importorskip("torch")
    code = _LOADS.format(first=first, then=then)
    environment = {**os.environ, "PYTHONPATH": str(Path(kf.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, env=environment)


# ---- in this process


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_and_the_calling_thread_warn_that_they_do_not_seed(workers):
    with pytest.warns(kf.FeedWarning, match="share these with the rest of the program") as caught:
        _batches(Old(), workers=workers, worker_type="thread")
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize("workers", [0, 2])
def test_functions_of_a_stream_in_threads_are_reported(workers):
    with pytest.warns(kf.FeedWarning, match="share these with the rest of the program"):
        _streamed(None, workers=workers, worker_type="thread")


# ---- scenes that do not use them


class OwnGenerators(Old):
    """It has its own generators, and the scene does its imports."""

    def __getitem__(self, index):
        import random as imported

        own = imported.Random(index).random()
        return np.array([index, own, np.random.default_rng(index).random(), self.rng.random()])


_KINDS = {"process": (1, "process"), "thread": (2, "thread"), "inline": (0, "thread")}


@pytest.mark.parametrize("kind", _KINDS)
def test_generators_created_by_a_scene_are_not_reported(kind):
    workers, worker_type = _KINDS[kind]
    first = _batches(OwnGenerators(), 1, workers=workers, worker_type=worker_type)  # warnings are errors here
    assert np.array_equal(first, _batches(OwnGenerators(), 1, workers=0))


_FRESH = """
import numpy as np
from kerasfeed.sequences.global_random import NUMPY, PYTHON, RandomWatch

def used(statement):
    watch = RandomWatch()
    exec(statement)
    return watch.used()

assert used("pass") == 0
assert used("import random; random.Random(3).random(); np.random.default_rng().random()") == 0
assert used("import random; random.random()") == PYTHON
assert used("np.random.normal()") == NUMPY
assert used("import random; random.shuffle([1, 2, 3]); np.random.shuffle([1, 2, 3])") == PYTHON + NUMPY
assert used("np.random.RandomState(3).normal()") == 0
"""


@pytest.mark.parametrize("first", ["", "np.random.normal()", "import random; random.random()"])
def test_the_use_of_a_generator_is_detected_even_if_it_is_imported_by_the_use(first):
    code = _FRESH if not first else _FRESH.split("assert")[0] + f"assert used({first!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(kf.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


@pytest.mark.parametrize("kind", _KINDS)
def test_draws_in_other_threads_are_not_attributed_to_scenes(kind):
    workers, worker_type = _KINDS[kind]
    stop = threading.Event()

    def draw():
        while not stop.wait(0.0005):
            random.random()
            np.random.random()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        _batches(Plain(), 1, workers=workers, worker_type=worker_type)
    finally:
        stop.set()
        thread.join()


def test_a_class_of_any_kind_can_follow_the_advice_of_the_warning():
    class Drawn:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return np.random.normal(size=2)

    with (
        _feed(Drawn(), 4, workers=0) as feed,
        pytest.warns(kf.FeedWarning, match=r"Draw from kf\.current_rng\(\) instead"),
    ):
        feed[0]

    class Mended(Drawn):
        def __getitem__(self, index):
            return kf.current_rng().normal(size=2)

    batches = []
    for _ in range(2):
        with _feed(Mended(), 4, workers=0, seed=3) as feed:
            batches.append(feed[0].tolist())
    assert batches[0] == batches[1]
