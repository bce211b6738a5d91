"""`output_signature`: the user's spec of scenes."""

import ml_dtypes
import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed


class Scenes:
    """Scenes (float32[3], int); scene 7 is longer. `read` logs the indices."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.read.append(index)
        return np.full(3 + (index == 7), index, np.float32), index


def signature(size=3, dtype=np.float32, label=np.int32):
    return kf.ArraySpec((size,), dtype), kf.ArraySpec((), label)


def test_no_scene_is_read_early_and_python_numbers_get_the_dtype_of_the_signature():
    scenes = Scenes()
    with BaseFeed(scenes, 4, workers=0, output_signature=signature()) as feed:
        assert feed.element_spec == (kf.ArraySpec((4, 3), np.dtype("f4")), kf.ArraySpec((4,), np.dtype("i4")))
        assert scenes.read == []
        points, labels = feed[0]
    assert scenes.read == [0, 1, 2, 3]
    assert (labels.dtype, labels.tolist()) == (np.int32, [0, 1, 2, 3])
    assert points[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (70_000, np.float16),
        (-70_000, np.float16),
        (70_000.0, np.float16),
        (1e39, np.float32),
        (1e39, ml_dtypes.bfloat16),
        (70_000, ml_dtypes.float8_e5m2),
        (500, ml_dtypes.float8_e4m3fn),
    ],
)
def test_a_number_that_a_small_float_cannot_hold_is_refused(number, dtype):
    with (
        kf.Feed(kf.Map(range(4), lambda _: number), 2, workers=0, output_signature=kf.ArraySpec((), dtype)) as feed,
        pytest.raises(kf.errors.SpecError, match=rf"expected {np.dtype(dtype)}\[\], received .*cannot hold"),
    ):
        next(iter(feed))


@pytest.mark.parametrize("workers", [{"workers": 0}, {"workers": 2, "worker_type": "process"}])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (signature(), r"field '0': expected float32\[3\], received float32\[4\].*None in output_signature"),
        (
            signature(None, np.float64),
            r"field '0': expected float64\[\?\], received float32.*dtype in output_signature",
        ),
        (
            signature(None, label=np.bool_),
            r"field '1': expected bool\[\], received \d.*cannot hold.*output_signature",
        ),
        (signature()[:1], r"expected the structure \(\*,\), received \(\*, \*\).*the one of output_signature"),
    ],
)
def test_the_error_for_a_scene_unlike_the_signature_names_scene_and_field(workers, given, text):
    with (
        BaseFeed(Scenes(), 4, output_signature=given, **workers) as feed,
        pytest.raises(kf.errors.SpecError, match=rf"scene \d: {text}"),
    ):
        list(feed)


def test_an_axis_of_none_is_padded_or_free_if_items_are_batches():
    with BaseFeed(Scenes(), 4, workers=0, collate="pad", output_signature=signature(None)) as feed:
        assert feed[1][0].tolist() == [[4, 4, 4, 0], [5, 5, 5, 0], [6, 6, 6, 0], [7, 7, 7, 7]]
    with BaseFeed(Scenes(), None, workers=0, output_signature=signature(None)) as feed:
        assert [len(points) for points, _ in feed] == [3] * 7 + [4]
        assert feed.element_spec[0].shape == (None,)
    with (
        BaseFeed(Scenes(), None, workers=0, output_signature=signature(3)) as feed,
        pytest.raises(kf.errors.SpecError, match=r"scene 7: field '0': expected float32\[3\]"),
    ):
        list(feed)


def test_an_invalid_signature_is_refused():
    for wrong, error in (("float32", TypeError), (np.float32, TypeError), ({}, kf.errors.SpecError)):
        with pytest.raises(error, match=r"kf\.ArraySpec"):
            BaseFeed(Scenes(), 4, workers=0, output_signature=wrong)


def test_a_spec_accepts_dtype_names_and_refuses_negative_sizes():
    assert [str(kf.ArraySpec((2, None), name)) for name in ("float32", "S")] == ["float32[2, ?]", "bytes[2, ?]"]
    with pytest.raises(ValueError, match=r"at least 0, or None for an axis that varies, received \(-1, 2\)"):
        kf.Feed(np.zeros((4, 3, 2)), 2, workers=0, output_signature=kf.ArraySpec((-1, 2), "float64"))
