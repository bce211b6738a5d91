"""Arguments that people know from other libraries, and arguments that are missing."""

import pickle

import numpy as np
import pytest

import kerasfeed as kf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda scenes: kf.split(scenes, 0.8), "needs seed, for example kf.split(sequence, (0.8, 0.2), seed=0)"),
        (lambda scenes: kf.split(scenes, test_size=0.2), "has no argument 'test_size'. Use fractions"),
        (lambda scenes: kf.split(scenes, (0.8, 0.2), random_state=1), "has no argument 'random_state'. Use seed"),
        (lambda scenes: kf.split(scenes, (0.8, 0.2), 0, shuffle=True), "has no argument 'shuffle'. It takes sequence"),
        (lambda scenes: kf.Windows(scenes, 4, num_workers=2), "has no argument 'num_workers'. It takes source"),
        (lambda scenes: kf.folds(scenes, 5), "needs seed, for example kf.folds(sequence, 5, seed=0)"),
        (lambda scenes: kf.folds(scenes, n_splits=5), "has no argument 'n_splits'. Use count"),
        (lambda scenes: kf.Patches(scenes, (4,), overlap=2), "has no argument 'overlap'. Use stride"),
        (lambda scenes: kf.Windows(scenes, 4, overlap=2), "has no argument 'overlap'. Use stride"),
        (lambda scenes: kf.Windows(scenes, 4, strides=2), "has no argument 'strides'. Did you mean 'stride'?"),
        (lambda scenes: kf.Feed(scenes, 2, suffle=True), "has no argument 'suffle'. Did you mean 'shuffle'?"),
        (lambda scenes: kf.Feed(scenes, 2, in_order=True), "and none is needed: batches always come in order"),
    ],
)
def test_the_error_for_a_wrong_or_missing_argument_names_the_right_one(call, message):
    with pytest.raises(TypeError) as raised:
        call(np.arange(20.0))
    assert message in str(raised.value)


def test_a_function_with_argument_hints_can_be_pickled():
    assert pickle.loads(pickle.dumps(kf.split)) is kf.split
