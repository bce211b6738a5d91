"""Everything that is true of Keras's trainers on TensorFlow, on PyTorch."""

import keras_fits
import pytest


@pytest.mark.timeout(900)
def test_all_tests_of_keras_hold_on_pytorch():
    keras_fits.assert_all_holds_on("torch")
