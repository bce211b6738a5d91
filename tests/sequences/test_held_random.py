"""Classes that keep random generators: the same scenes in every run and with any number of worker processes."""

import random
import warnings

import numpy as np
import pytest
import scenes_held

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed


def _feed(sequence, **arguments):
    return BaseFeed(sequence, 4, **{"seed": 5, "workers": 1, "worker_type": "process", **arguments})


def _batches(sequence, epochs=2, **arguments):
    """The scenes of some epochs, in order, and the warnings."""
    with warnings.catch_warnings(record=True) as found, _feed(sequence, **arguments) as feed:
        warnings.simplefilter("always")
        scenes = np.concatenate([batch for _ in range(epochs) for batch in feed])
    return scenes, [str(each.message) for each in found]


def _are_random(scenes):
    """Whether no two scenes have a random number in common."""
    return all(len(set(column)) == len(scenes) for column in scenes[:, 1:].T)


def test_any_number_of_workers_gives_the_same_scenes_in_every_run():
    first, found = _batches(scenes_held.Keeping())
    again, _ = _batches(scenes_held.Keeping(), workers=2)
    assert np.array_equal(first, again)
    assert _are_random(first)
    (text,) = found
    names = ["Keeping.r", "Keeping.slots", "Keeping.legacy", "Augment.python", "Augment.several", "Augment.own"]
    assert [name for name in [*names, "Augment.of_class", "scenes_held.OF_MODULE"] if name not in text] == []
    assert "seeded for each scene from (seed, epoch, index)" in text
    assert "Draw from kf.current_rng()" in text


def _drawing(generator):
    def draw(scene):
        return np.array([scene, generator.random()])

    return draw


OTHERS = {
    "view": (lambda: kf.Subset(scenes_held.Keeping(), range(8)), {}),
    "function": (lambda: kf.Map(np.arange(8.0), _drawing(random.Random(3))), {}),
    "collate": (lambda: np.arange(8.0), {"collate": scenes_held.Mixing()}),
    "torch": (scenes_held.OfTorch, {}),
    "seldom": (scenes_held.Seldom, {"shuffle": True}),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", OTHERS)
def test_generators_are_found_in_any_attribute(case):
    if case == "torch":
        pytest.importorskip("torch")
    make, arguments = OTHERS[case]
    with warnings.catch_warnings(), _feed(make(), **arguments) as feed:
        warnings.simplefilter("ignore", kf.FeedWarning)
        first = [batch for epoch in range(2) for batch in feed.epoch(epoch)]
        assert np.array_equal(kf.load(feed, epoch=1, step=1), first[len(feed) + 1])
        assert feed.stats().seeds_random
    again, _ = _batches(make(), **arguments, workers=2)
    assert np.array_equal(np.concatenate(first), again)


def test_load_returns_the_scenes_of_the_workers_and_restores_the_generators():
    kept = scenes_held.Keeping()
    expected = scenes_held.Keeping().r.random(), scenes_held.Augment().legacy.rand()
    with warnings.catch_warnings(), _feed(kept, shuffle=True) as feed:
        warnings.simplefilter("ignore", kf.FeedWarning)
        before = kf.load(feed, epoch=0, step=1)
        batch = feed[1]
        assert np.array_equal(before, batch)
        assert np.array_equal(kf.load(feed, epoch=0, index=int(batch[2, 0])), batch[2])
    assert (kept.r.random(), kept.legacy.rand()) == expected


def test_a_generator_that_no_scene_uses_is_not_seeded():
    found, texts = _batches(scenes_held.OnlyAtFirst())
    assert found.tolist() == 2 * scenes_held.OnlyAtFirst().order.tolist()
    assert not texts


def test_a_draw_that_seldom_changes_a_scene_is_detected():
    assert "Probably.r" in _batches(scenes_held.Probably(), 1)[1][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_and_the_calling_thread_warn_that_they_do_not_seed(workers):
    _, texts = _batches(scenes_held.Keeping(), 1, workers=workers, worker_type="thread")
    (text,) = texts
    assert "Keeping.r" in text
    assert "scenes_held.OF_MODULE" in text
    assert "do not seed them" in text
    assert "worker_type='process'" in text


# ---- other state


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_counter_is_detected_for_any_duration_of_a_scene(seconds):
    with (
        _feed(scenes_held.Counting(seconds), workers=2) as feed,
        pytest.warns(kf.FeedWarning, match="differed in field .* when it was read again.* which worker reads"),
    ):
        feed[0]
