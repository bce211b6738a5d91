"""Everything that is true of Keras's trainers on TensorFlow, on PyTorch."""

import keras_fits
import pytest


@pytest.mark.heavy
@pytest.mark.timeout(2 * keras_fits.BACKEND_SECONDS)
def test_all_tests_of_keras_hold_on_pytorch():
    keras_fits.assert_holds_on("torch", keras_fits.LIGHT_ON_ALL_BACKENDS + keras_fits.HEAVY_ON_ALL_BACKENDS, "")
