"""Everything that is true of Keras's trainers on TensorFlow, on JAX."""

import backends
import pytest


@backends.each_file(("not heavy", backends.LIGHT))
@pytest.mark.timeout(2 * backends.SECONDS)
def test_the_loops_of_keras_take_feeds_on_jax(request, file, marked):
    backends.assert_holds_on("jax", request)


@backends.each_file(("heavy", backends.LIGHT), ("", backends.HEAVY))
@pytest.mark.heavy
@pytest.mark.timeout(2 * backends.SECONDS)
def test_all_tests_of_keras_hold_on_jax(request, file, marked):
    backends.assert_holds_on("jax", request)
