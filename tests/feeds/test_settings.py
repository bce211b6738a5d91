"""Attributes that a program sets after worker processes have received the sequence."""

import functools
import gc
import warnings
import weakref

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
        with pytest.warns(kf.FeedWarning, match=r"Noisy\.sigma is 2\.0 here and 1\.0 in the workers.*new feed"):
            assert sigmas(feed) == [1.0] * 4
        assert sigmas(feed) == [1.0] * 4


@pytest.mark.parametrize("view", [kf.Map, kf.Subset])
def test_a_feed_warns_of_an_attribute_of_the_class_and_of_a_sequence_in_a_view(view):
    noisy = Noisy()
    sequence = kf.Map(noisy, np.copy) if view is kf.Map else kf.Subset(noisy, range(3))
    with kf.Feed(sequence, 3, workers=1, worker_type="process") as feed:
        list(feed)
        noisy.epoch = 5
        with pytest.warns(kf.FeedWarning, match=r"Noisy\.epoch is 5 here and 0 in the workers"):
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
        return self.strength * np.asarray(scene)


@pytest.mark.parametrize("kind", ["view", "collate", "method", "partial"])
def test_a_feed_warns_of_an_attribute_of_a_function_that_it_sends(kind):
    augment = Augment()
    if kind == "collate":
        feed = kf.Feed(Noisy(), 2, collate=augment, workers=1, worker_type="process")
    else:
        functions = {"view": augment, "method": augment.__call__, "partial": functools.partial(augment)}
        feed = kf.Feed(kf.Map(Noisy(), functions[kind]), 2, workers=1, worker_type="process")
    with feed:
        list(feed)
        augment.strength = 2
        with pytest.warns(kf.FeedWarning, match=r"Augment\.strength is 2 here and 1 in the workers"):
            list(feed)


def test_a_stream_warns_of_an_attribute_of_the_function_of_map():
    augment = Augment()
    with kf.StreamFeed(lambda: iter([1.0, 2.0]), 2, workers=1, worker_type="process").map(augment) as feed:
        list(feed)
        augment.strength = 2
        with pytest.warns(kf.FeedWarning, match=r"Augment\.strength is 2 here and 1 in the workers"):
            list(feed)


class Scaled(kf.Subset):
    scale = 1


def test_a_feed_warns_of_an_attribute_of_a_users_view_and_names_text_without_its_value():
    view = Scaled(Noisy(), range(4))
    view.token = "old"
    with kf.Feed(view, 2, workers=1, worker_type="process") as feed:
        list(feed)
        view.token = "secret"
        with pytest.warns(kf.FeedWarning, match=r"Scaled\.token differs in the workers") as caught:
            list(feed)
    assert "secret" not in str(caught[0].message)


class Lazy:
    """A property that replaces itself by its value, and fails without an object."""

    def __init__(self, function):
        self.function = function

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, owner, kind):
        value = owner.__dict__[self.name] = self.function(owner)
        return value


class WithLazy(Noisy):
    limit = 10

    def __init__(self):
        super().__init__()
        self.limit = None

    @Lazy
    def scale(self):
        return float(len(self))


def test_the_comparison_runs_no_code_of_the_user_and_states_no_value_of_the_class_for_none():
    noisy = WithLazy()
    with kf.Feed(noisy, 2, workers=1, worker_type="process") as feed:
        for noisy.limit in (None, 5):
            assert noisy.scale == 4.0
            list(feed)


@pytest.mark.heavy
def test_fit_warns_of_an_attribute_that_a_callback_sets():
    keras = pytest.importorskip("keras")

    class Pairs(Noisy):
        def __getitem__(self, index):
            return np.full(3, self.sigma, np.float32), np.float32(0)

    pairs = Pairs()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: setattr(pairs, "sigma", 1.0 + epoch))
    feed = kf.Feed(pairs, 2, workers=1, worker_type="process")
    with feed, pytest.warns(kf.FeedWarning, match=r"Pairs\.sigma is 2\.0 here and 1\.0 in the workers"):
        model.fit(feed, epochs=2, verbose=0, callbacks=[callback])


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
        with pytest.warns(
            kf.FeedWarning, match=r"Simulation\.noise is 1\.0 here and 0\.0 in the workers.* make_generator"
        ):
            assert list(feed) == [0.0]


def test_a_feed_does_not_keep_a_value_that_an_attribute_had():
    class Large:
        pass

    noisy = Noisy()
    noisy.large = Large()
    large = weakref.ref(noisy.large)
    with kf.Feed(noisy, 2, workers=1, worker_type="process"):
        noisy.large = None
        gc.collect()
        assert large() is None


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
        with pytest.warns(kf.FeedWarning, match=r"Noisy\.sigma is 2\.0 here"):
            assert sigmas(feed) == [1.0] * 4
