"""The tests of Keras's trainers on TensorFlow, run on JAX."""

import backends
import pytest


@backends.each_file
@pytest.mark.heavy
@pytest.mark.timeout(2 * backends.SECONDS)
def test_all_keras_tests_pass_on_jax(request, file):
    backends.assert_holds_on("jax", request)
