"""Everything that is true of Keras's trainers on TensorFlow, on JAX."""

import keras_fits
import pytest


@pytest.mark.timeout(2 * keras_fits.BACKEND_SECONDS)
def test_the_loops_of_keras_take_feeds_on_jax():
    keras_fits.assert_holds_on("jax", keras_fits.LIGHT_ON_ALL_BACKENDS, "not heavy")


@pytest.mark.heavy
@pytest.mark.timeout(2 * keras_fits.BACKEND_SECONDS)
def test_all_tests_of_keras_hold_on_jax():
    keras_fits.assert_holds_on("jax", keras_fits.LIGHT_ON_ALL_BACKENDS, "heavy")
    keras_fits.assert_holds_on("jax", keras_fits.HEAVY_ON_ALL_BACKENDS, "")
