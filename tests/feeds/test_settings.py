"""Attributes that a program sets after worker processes have received the sequence."""

import warnings

import numpy as np
import pytest

import kerasfeed as kf


class Noisy:
    epoch = 0

    def __init__(self):
        self.sigma, self.unknown, self._private = 1.0, float("nan"), 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.array([index, self.sigma, self.epoch], np.float32)


class Renewed(Noisy):
    def on_epoch_begin(self):
        pass


def sigmas(feed):
    return [scene[1] for batch in feed for scene in batch]


def test_a_feed_warns_once_of_an_attribute_that_its_processes_do_not_see():
    noisy = Noisy()
    with kf.Feed(noisy, 2, workers=1, worker_type="process") as feed:
        assert sigmas(feed) == [1.0] * 4
        noisy.sigma = 2.0
        with pytest.warns(kf.FeedWarning, match=r"Noisy\.sigma was set to 2\.0 .* they still have 1\.0\..*new feed"):
            assert sigmas(feed) == [1.0] * 4
        assert sigmas(feed) == [1.0] * 4


@pytest.mark.parametrize("view", [kf.Map, kf.Subset])
def test_a_feed_warns_of_an_attribute_of_the_class_and_of_a_sequence_in_a_view(view):
    noisy = Noisy()
    sequence = kf.Map(noisy, np.copy) if view is kf.Map else kf.Subset(noisy, range(3))
    with kf.Feed(sequence, 3, workers=1, worker_type="process") as feed:
        list(feed)
        noisy.epoch = 5
        with pytest.warns(kf.FeedWarning, match=r"Noisy\.epoch was set to 5 .* they still have 0\."):
            list(feed)


def test_if_the_class_has_an_epoch_hook_processes_see_the_attribute():
    noisy = Renewed()
    with kf.Feed(noisy, 2, workers=1, worker_type="process") as feed:
        for noisy.sigma in (1.0, 2.0, 3.0):
            assert sigmas(feed) == [noisy.sigma] * 4


@pytest.mark.parametrize(("workers", "worker_type"), [(0, "auto"), (2, "thread")])
def test_without_processes_the_attribute_is_seen_at_once(workers, worker_type):
    noisy = Noisy()
    with kf.Feed(noisy, 2, workers=workers, worker_type=worker_type) as feed:
        for noisy.sigma in (1.0, 2.0):
            assert sigmas(feed) == [noisy.sigma] * 4


class Augment:
    strength = 1

    def __call__(self, scene):
        return self.strength * scene


def test_a_feed_warns_of_an_attribute_of_a_function_of_a_view_or_collate():
    augment = Augment()
    with kf.Feed(kf.Map(Noisy(), augment), 2, workers=1, worker_type="process") as feed:
        list(feed)
        augment.strength = 2
        with pytest.warns(kf.FeedWarning, match=r"Augment\.strength was set to 2 .* they still have 1\."):
            list(feed)


class Simulation:
    noise = 0.0

    def generate(self):
        yield np.float32(self.noise)


@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_a_stream_warns_of_an_attribute_of_the_object_that_makes_its_generators(worker_type):
    simulation = Simulation()
    with kf.StreamFeed(simulation.generate, 1, workers=1, worker_type=worker_type) as feed:
        assert list(feed) == [0.0]
        simulation.noise = 1.0
        if worker_type == "thread":
            assert list(feed) == [1.0]
            return
        with pytest.warns(kf.FeedWarning, match=r"Simulation\.noise was set to 1\.0 .* Set it in make_generator"):
            assert list(feed) == [0.0]


def test_private_attributes_arrays_and_nan_do_not_warn():
    noisy = Noisy()
    with kf.Feed(noisy, 2, workers=1, worker_type="process") as feed, warnings.catch_warnings():
        warnings.simplefilter("error")
        for noisy._private in range(2):
            noisy.scale = np.float32(noisy._private)
            list(feed)


def test_a_feed_that_chooses_no_workers_sees_the_attribute_at_once():
    noisy = Noisy()
    with kf.Feed(noisy, 2) as feed:
        for noisy.sigma in (2.0, 3.0):
            assert sigmas(feed) == [noisy.sigma] * 4


def test_a_feed_with_processes_warns_of_an_attribute_set_before_its_first_batch():
    noisy = Noisy()
    with kf.Feed(noisy, 2, workers=1, worker_type="process") as feed:
        noisy.sigma = 2.0
        with pytest.warns(kf.FeedWarning, match=r"Noisy\.sigma was set to 2\.0"):
            assert sigmas(feed) == [1.0] * 4
