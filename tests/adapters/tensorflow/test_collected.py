"""Datasets that their own feed or sequence refers to, and iterations that cannot begin."""

import gc
import weakref

import pytest
import tensorflow as tf
from scenes_frameworks import Numbered

import kerasfeed as kf


class Holder:
    """Holds a dataset that calls a method of this object."""

    def __init__(self):
        self.dataset = kf.from_indexable(kf.Map(Numbered(8), self.changed))

    def changed(self, scene):
        return scene


@pytest.mark.parametrize("is_read", [False, True])
def test_a_dataset_that_its_own_sequence_refers_to_is_collected(is_read):
    holder = Holder()
    if is_read:
        assert len(list(holder.dataset)) == 8
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_an_iteration_whose_hook_fails_ends_and_calls_the_hook_once():
    class Hooked(Numbered):
        def on_epoch_begin(self):
            begun.append(None)
            if len(begun) == 2:
                raise ValueError("no network")

    begun = []
    with kf.Feed(Hooked(8), 4, workers=0) as feed:
        dataset = feed.to_tf_dataset()
        assert len(list(dataset)) == 2
        iterator = iter(dataset)
        with pytest.raises(tf.errors.OpError, match="ValueError: no network"):
            next(iterator)
        assert not list(iterator)
        assert len(begun) == 2
        assert len(list(dataset)) == 2
