"""Results of `Feed.to_tf_dataset` if a scene fails, a worker is killed, or the feed is closed.

`test_error_tf_data` has every kind of exception, in loops, in `fit` and in graphs.
"""

import re

import numpy as np
import pytest
import scenes
import tensorflow as tf
from scenes_frameworks import Deadly, Numbered
from tf_batches import WORKERS, indices_of

import kerasfeed as kf
from kerasfeed.errors import FeedClosedError


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_the_message_of_an_error_has_type_location_and_traceback(workers, worker_type):
    with kf.Feed(scenes.Failing(13, ValueError("bad scan")), 8, workers=workers, worker_type=worker_type) as feed:
        iterator = iter(feed.to_tf_dataset().prefetch(1))
        next(iterator)
        with pytest.raises(tf.errors.UnknownError) as caught:
            next(iterator)
        message = str(caught.value)
        # `caught` is part of a cycle; the collector might end the iterator within a call that it waits for.
        del iterator, caught
        assert "ValueError: bad scan" in message
        assert "kerasfeed: scene 13, epoch 0, step 1, in " in message
        assert "scenes.py" in message
        assert "in __getitem__" in message
        assert "raise self.error" in message


ERRORS = [
    StopIteration("early"), IndexError("beyond"), KeyError("points"), MemoryError("much"), NotImplementedError("later"),
    TypeError("kind"), AssertionError("no"), GeneratorExit(), OSError(5, "input/output"), EOFError("short"),
]  # fmt: skip


@pytest.mark.light(where=lambda error: type(error) in (StopIteration, IndexError, OSError))
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_a_scene_never_ends_the_dataset_silently(error):
    with kf.Feed(scenes.Failing(13, error), 8, workers=2, worker_type="thread") as feed:
        iterator = iter(feed.to_tf_dataset().prefetch(1))
        next(iterator)
        with pytest.raises(tf.errors.UnknownError, match=re.escape(f"{type(error).__name__}: {error}")):
            next(iterator)
        del iterator  # as above
        for deterministic in (True, False):
            with pytest.raises(tf.errors.UnknownError, match="scene 13"):
                list(feed.to_tf_dataset(deterministic=deterministic))


def test_a_scene_unlike_the_spec_is_named_in_the_message():
    class Odd(Numbered):
        def __getitem__(self, index):
            return np.zeros(3 if index == 7 else 2)

    refused = pytest.raises(
        tf.errors.UnknownError, match=r"SpecError: scene 7: field 'scene': expected float64\[2\], received"
    )
    with kf.Feed(Odd(), 6, workers=2, worker_type="thread") as feed, refused:
        list(feed.to_tf_dataset())


def test_the_other_batches_survive_when_errors_are_ignored():
    with kf.Feed(scenes.Failing(13, ValueError("bad scan")), 8, workers=2, worker_type="thread") as feed:
        assert indices_of(feed.to_tf_dataset().ignore_errors()) == [*range(8), *range(16, 37)]


def test_an_error_while_the_spec_is_inferred_is_the_users_own():
    with kf.Feed(scenes.Failing(0, ValueError("bad scan")), 8, workers=2, worker_type="thread") as feed:
        with pytest.raises(ValueError, match="bad scan") as caught:
            feed.to_tf_dataset()
        assert "scene 0, while inferring the spec" in caught.value.__notes__[0]


def test_a_dataset_loses_no_batch_if_a_worker_is_killed(tmp_path):
    (tmp_path / "flag").touch()
    with pytest.warns(kf.FeedWarning, match=r"worker process . .* killed by SIGKILL"):
        found = _two_epochs(Deadly(tmp_path / "flag"))
    assert found == [list(range(24))] * 2


def _two_epochs(sequence):
    with kf.Feed(sequence, 4, workers=2, worker_type="process") as feed:
        dataset = feed.to_tf_dataset()
        return [[index for batch in dataset for index in batch.numpy().tolist()] for _ in range(2)]


def test_closing_the_feed_during_an_epoch_raises_an_error_and_never_hangs():
    with kf.Feed(scenes.Slow(200, 0.002), 2, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        iterator = iter(dataset)
        next(iterator)
    for batches in (iterator, dataset):
        with pytest.raises(tf.errors.UnknownError, match=r"FeedClosedError: the feed (is|was) closed"):
            list(batches)
    with pytest.raises(FeedClosedError, match="the feed is closed"):
        feed.to_tf_dataset()
