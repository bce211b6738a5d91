"""Training on batches that other hosts load, only on TensorFlow, because the loader does not depend on the backend."""

import keras
import numpy as np
import pytest
from scenes_hosts import Failing
from subprocess_hosts import SubprocessHosts

import kerasfeed as kf

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras's own, under NumPy 2.4
]


def results(**workers):
    """Losses of two epochs of a small model, its evaluation, and its predictions."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    scenes = Failing(0, 96)
    with (
        kf.Feed(scenes, 16, seed=3, shuffle=True, on_error="replace", **workers) as shuffled,
        kf.Feed(scenes, 16, seed=3, on_error="replace", **workers) as in_order,
    ):
        trained = model.fit(shuffled, epochs=2, validation_data=in_order, verbose=0).history
        return trained, model.evaluate(in_order, verbose=0), np.asarray(model.predict(in_order, verbose=0))


def test_fit_evaluate_and_predict_give_equal_results_with_hosts_and_without_workers():
    trained, evaluated, predicted = results(workers=1, hosts=SubprocessHosts())
    expected = results(workers=0)
    assert (trained, evaluated) == expected[:2]
    assert len(predicted) == 96
    np.testing.assert_array_equal(predicted, expected[2])
