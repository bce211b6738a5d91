"""The optional methods of a class, and whether threads may share an object."""

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.sequences.optional_methods import optional_method
from kerasfeed.sequences.view_base import is_thread_safe


class Quick(kf.SceneSequence):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.float32(index)

    def get_batch(self, indices):
        return indices.astype(np.float32)


class Into(kf.SceneSequence):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.full(2, index, np.float32)

    def read_into(self, index, out):
        out[...] = index


def doubled(kind):
    """A subclass that overrides only `__getitem__`."""

    class Doubled(kind):
        def __getitem__(self, index):
            return 2 * super().__getitem__(index)

    return Doubled


VIEWS = [
    lambda sequence: sequence,
    lambda sequence: sequence[::-1],
    lambda sequence: kf.Concat(sequence, sequence),
    lambda sequence: kf.Zip(sequence, sequence),
    lambda sequence: kf.Mixture([sequence, sequence], [1, 2]),
    lambda sequence: kf.Concat(kf.Zip(sequence[1:]), kf.Zip(sequence)),
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", [Quick, Into])
def test_feeds_and_views_read_a_subclass_by_its_overridden_getitem(kind, view):
    sequence = view(doubled(kind)())
    with BaseFeed(sequence, 4, workers=0) as feed:
        batches = list(feed)
    rows = [np.concatenate(column) for column in zip(*map(_columns, batches), strict=True)]
    scenes = [np.stack(column) for column in zip(*map(_columns, sequence), strict=True)]
    assert [column.tolist() for column in rows] == [column.tolist() for column in scenes]


def _columns(scene):
    return scene if isinstance(scene, tuple) else (scene,)


def test_a_subclass_of_a_view_is_read_by_its_overridden_getitem():
    class Negated(kf.Subset):
        def __getitem__(self, index):
            return -super().__getitem__(index)

    with BaseFeed(Negated(np.arange(6.0), [3, 1, 2]), 3, workers=0) as feed:
        assert feed[0].tolist() == [-3, -1, -2]


def test_optional_methods_must_be_defined_by_the_class_of_getitem_or_below():
    class Mixin:
        def __getitem__(self, index):
            return np.float32(index)

        def get_batch(self, indices):
            return indices.astype(np.float32)

    class Faster:
        def get_batch(self, indices):
            return indices.astype(np.float32)

    class Mixed(Mixin, kf.SceneSequence):
        def __len__(self):
            return 3

    class Again(doubled(Quick)):
        def get_batch(self, indices):
            return 2 * super().get_batch(indices)

    for sequence in (Mixed(), Again(), type("Fast", (Faster, doubled(Quick)), {})(), type("Same", (Quick,), {})()):
        assert optional_method(sequence, "get_batch") is not None
    for sequence in (doubled(Mixed)(), type("Slow", (doubled(Quick), Faster), {})(), doubled(Quick)()):
        assert optional_method(sequence, "get_batch") is None
    assert kf.Subset(Again(), [2]).get_batch(np.array([0])).tolist() == [4]


def test_hooks_of_a_base_class_are_called_although_a_subclass_defines_getitem():
    class Hooked(Quick):
        def on_epoch_begin(self):
            self.begun = True

    sequence = doubled(Hooked)()
    with BaseFeed(kf.Map(sequence, float), 6, workers=0) as feed:
        assert next(iter(feed))[3] == 6
    assert sequence.begun


# ---- thread_safe


class DeclaresThreadSafe(Quick):
    def __init__(self, value):
        self.thread_safe = value


def test_thread_safe_can_be_set_in_init():
    assert DeclaresThreadSafe(True).thread_safe
    assert not DeclaresThreadSafe(False).thread_safe
    assert is_thread_safe(DeclaresThreadSafe(True))
    assert is_thread_safe(kf.Concat(DeclaresThreadSafe(True), np.arange(3)))
    assert not is_thread_safe(kf.Concat(DeclaresThreadSafe(True), DeclaresThreadSafe(False)))
    assert not is_thread_safe(Quick())

    class Safe(Quick):
        thread_safe = True

    assert is_thread_safe(Safe())


def test_thread_safe_can_be_set_in_a_subclass_of_a_view():
    class Named(kf.Map):
        def __init__(self, sequence, safe):
            super().__init__(sequence, float)
            self.thread_safe = safe

    assert is_thread_safe(Named([1, 2], True))
    assert not is_thread_safe(Named([1, 2], False))
    float_map = kf.Map([1, 2], float)
    assert not float_map.thread_safe
