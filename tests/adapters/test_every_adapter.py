"""The promises of every adapter from a feed to a framework; see `adapter_kinds.ADAPTERS`."""

import gc

import numpy as np
import optree
import pytest
from adapter_kinds import ADAPTERS

import kerasfeed as kf


class Scenes(kf.SceneSequence):
    """Numbered scenes; some may fail."""

    def __init__(self, bad=()):
        self.bad = bad

    def __len__(self):
        return 22

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"bad scan {index}")
        return {"x": np.full((2, 3), index, np.float32), "n": np.int32(index)}, self.rng.random(4, np.float32)


@pytest.fixture(params=ADAPTERS)
def batches_of(request):
    if "torch" in request.param:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    return ADAPTERS[request.param]


WORKERS = [
    pytest.param((0, "thread"), id="inline"),
    pytest.param((2, "thread"), id="thread"),
    pytest.param((1, "process"), id="process", marks=pytest.mark.heavy),  # one: adapters see only batches
]
in_this_process = pytest.mark.parametrize("make", WORKERS[:2], indirect=True)


@pytest.fixture(params=WORKERS)
def make(request):
    workers, kind = request.param

    def feed(sequence=None, **arguments):
        return kf.Feed(
            Scenes() if sequence is None else sequence, 4, seed=5, workers=workers, worker_type=kind, **arguments
        )

    return feed


def bits(batch):
    return [np.asarray(leaf).tobytes() for leaf in optree.tree_leaves(batch)]


def numbers(batches):
    return [number for batch in batches for number in np.asarray(batch[0]["n"]).tolist()]


def test_an_epoch_equals_a_loop_bit_for_bit_and_in_order(batches_of, make):
    with make(shuffle=True) as feed:
        expected = [bits(batch) for batch in feed.epoch(0)]
        assert [bits(batch) for batch in batches_of(feed)] == expected


@in_this_process
def test_fields_keep_their_nesting_dtypes_and_shapes(batches_of, make):
    with make(drop_remainder=True) as feed:
        points, noise = next(iter(batches_of(feed)))
        found = [np.asarray(field) for field in (points["x"], points["n"], noise)]
    assert [(field.dtype, field.shape) for field in found] == [
        (np.float32, (4, 2, 3)), (np.int32, (4,)), (np.float32, (4, 4)),
    ]  # fmt: skip


def test_kept_batches_do_not_change(batches_of, make):
    with make() as feed:
        kept = list(batches_of(feed))
        assert numbers(kept) == list(range(22))


def test_leaving_a_loop_early_stops_its_loading(batches_of, make):
    with make() as feed:
        found = iter(batches_of(feed))
        assert numbers([next(found)]) == [0, 1, 2, 3]
        del found
        gc.collect()
        assert numbers(feed.epoch(3)) == list(range(22))


def test_an_error_of_a_scene_follows_the_earlier_batches_and_names_its_index(batches_of, make):
    with make(Scenes(bad=(13,))) as feed:
        seen = []
        with pytest.raises(Exception, match="bad scan 13") as caught:  # noqa: PT012 - the batches before it count
            for batch in batches_of(feed):
                seen += numbers([batch])
        assert seen == list(range(12))
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert "scene 13" in text


@in_this_process
def test_a_closed_feed_is_refused(batches_of, make):
    feed = make()
    feed.close()
    with pytest.raises(Exception, match="closed"):
        list(batches_of(feed))
