"""Everything that is true of Keras's trainers on TensorFlow, on JAX."""

import keras_fits
import pytest


@pytest.mark.timeout(900)
def test_all_tests_of_keras_hold_on_jax():
    keras_fits.assert_all_holds_on("jax")
