"""The common promises of `to_jax` and `to_torch`."""

import sys

import numpy as np
import pytest

import kerasfeed as kf

NAMES = {"jax": "JAX", "torch": "PyTorch"}


@pytest.fixture(params=NAMES)
def framework(request):
    return request.param


@pytest.fixture
def loop_of(framework):
    """Make the loop of a feed with arguments."""
    pytest.importorskip(framework, reason=f"{NAMES[framework]} is not installed")
    return lambda feed, **arguments: getattr(feed, f"to_{framework}")(**arguments)


def test_the_error_for_text_names_its_fields(framework, loop_of):
    message = rf"^{NAMES[framework]} has no dtype for text: "
    scenes = [{"name": "a", "tags": ["u", "v"], "x": 1.0}] * 4
    for given, fields in ((scenes, r"fields 'name', 'tags'\. Convert text to numbers"), (["a", "b"], "field 'scene'")):
        with kf.Feed(given, 2, workers=0) as feed, pytest.raises(TypeError, match=message + fields):
            list(loop_of(feed))


def test_the_error_for_an_unsupported_dtype_names_its_field(loop_of):
    with kf.Feed([{"x": np.zeros(2, [("a", "f4")])}] * 4, 2, workers=0) as feed, pytest.raises(TypeError) as caught:
        list(loop_of(feed))
    assert any("field 'x' of the batch" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefetch": -1}, ValueError, "prefetch must be at least 0, received -1"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, received 0"),
        ({"epochs": 1.5}, TypeError, "epochs must be an integer"),
    ],
)
def test_wrong_numbers_are_refused(loop_of, arguments, error, message):
    with kf.Feed([1.0], 1, workers=0) as feed, pytest.raises(error, match=message):
        loop_of(feed, **arguments)


def test_without_the_framework_the_error_names_the_package(framework, monkeypatch):
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"kerasfeed.adapters.{framework}.conversion", raising=False)
    message = rf"{NAMES[framework]}, .*pip install {framework} .*kerasfeed\[{framework}\]"
    with kf.Feed([1.0], 1, workers=0) as feed, pytest.raises(ImportError, match=message):
        getattr(feed, f"to_{framework}")()
