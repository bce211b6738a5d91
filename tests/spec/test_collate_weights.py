"""Padded and ragged batches with rows of weight 0: padding rows, and scenes that failed."""

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.errors import SpecError

LENGTH = 11


class Weighed(kf.SceneSequence):
    """Scene k has k + 1 points, a label and k + 1 weights of 1; `bad` fails."""

    def __init__(self, parts=3, bad=None):
        self.parts = parts
        self.bad = bad

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("unreadable")
        points = np.full(index + 1, index + 1, np.float32)
        return (points, np.int64(index), np.ones(index + 1, np.float32))[: self.parts]


@pytest.mark.heavy
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("collate", ["pad", "ragged"])
def test_padding_rows_of_padded_and_ragged_batches_have_weight_zero(collate, worker_type):
    with kf.Feed(
        Weighed(2), 4, collate=collate, pad_remainder=True, workers=2, worker_type=worker_type, seed=0
    ) as feed:
        batches = list(feed)
    assert [batch[2].tolist() for batch in batches] == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]
    assert [len(batch[1]) for batch in batches] == [4, 4, 4]


def test_padded_weights_of_padding_rows_and_of_failed_scenes_are_zero():
    with kf.Feed(
        Weighed(bad=1), 4, collate="pad", pad_remainder=True, on_error="mask", workers=0, seed=0, max_failures=5
    ) as feed:
        first, _, last = list(feed)
    assert (first[2][1] == 0).all()
    assert first[2][0].tolist() == [1, 0, 0, 0]
    assert (last[2][3] == 0).all()
    assert last[2][2].tolist() == [1] * 11


@pytest.mark.parametrize("arguments", [{"pad_remainder": True}, {"on_error": "mask"}], ids=str)
def test_ragged_weights_are_refused_because_rows_cannot_be_zeroed(arguments):
    with (
        kf.Feed(Weighed(), 4, collate="ragged", workers=0, seed=0, **arguments) as feed,
        pytest.raises(
            SpecError,
            match=r"field '2' is part of sample_weight, .* stacked, or padded with 0 and without a mask",
        ),
    ):
        next(iter(feed))
