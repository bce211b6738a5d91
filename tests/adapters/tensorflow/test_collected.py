"""Datasets that their own sequence refers to."""

import gc
import weakref

import pytest
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
