"""Specs: inference, merging, and errors."""

import collections
import dataclasses
import datetime
import re
import types
from collections import namedtuple

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.errors import SpecError
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.spec.field_values import as_array, coerce
from kerasfeed.spec.inference import describe, merge, probe_indices
from kerasfeed.spec.nesting import flatten, with_dicts
from kerasfeed.spec.scene_spec import BYTES, TEXT, ArraySpec
from kerasfeed.util.array_bits import comparable

Pair = namedtuple("Pair", "points label")


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        (np.zeros((2, 3), np.float16), (2, 3), np.float16),
        (np.zeros(4, ">f8"), (4,), np.float64),
        (np.array([True]), (1,), bool),
        (np.complex64(1j), (), np.complex64),
        (3, (), np.int64),
        (True, (), bool),
        (2.5, (), np.float64),
        ("text", (), TEXT),
        (b"raw\0", (), BYTES),
        (np.array(["ab", "c"]), (2,), TEXT),
        (np.array([b"ab", b"c"]), (2,), BYTES),
        (np.array(["ab", "c"], object), (2,), TEXT),
        (np.array("ab"), (), TEXT),
        (np.array(b"ab"), (), BYTES),
        (np.array("ab", object), (), TEXT),
        (np.array(b"a\0", object), (), BYTES),
        (np.zeros(2, [("a", "f4"), ("b", "i8")]), (2,), np.dtype([("a", "f4"), ("b", "i8")])),
    ],
    ids=str,
)
def test_a_field_is_described_by_shape_and_native_dtype(value, shape, dtype):
    (field,) = describe(value).fields
    assert field == ArraySpec(shape, np.dtype(dtype))
    assert field.dtype.isnative


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no such dtype")
def test_numpy_variable_width_strings_are_text_unless_one_is_missing():
    dtype = np.dtypes.StringDType(na_object=None)
    assert describe(np.array("", dtype)).fields == (ArraySpec((), TEXT),)
    assert describe(np.array(["ab"], np.dtypes.StringDType())).fields == (ArraySpec((1,), TEXT),)
    with pytest.raises(SpecError, match="field 'scene' is an object array holding None"):
        describe(np.array(["a", None], dtype))


@pytest.mark.parametrize(("value", "text"), [("é", "é"), (b"a\0", b"a\0"), (np.array("é", object), "é")])
def test_a_0d_array_of_text_is_that_text(value, text):
    found = coerce(np.array(value, object), describe(np.array(value, object)).fields[0], "scene")
    assert found == text
    assert type(found) is type(text)


def test_paths_join_keys_and_positions_with_dots():
    spec = describe((np.zeros(1), {"b": [np.zeros(1), 2], "a": Pair(3, None)}))
    assert spec.paths == ("0", "1.a.0", "1.b.0", "1.b.1")
    assert describe(np.zeros(1)).paths == ("scene",)


@dataclasses.dataclass
class Room:
    points: np.ndarray


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Room(np.zeros(2)), r"field 'scene' is of type Room .*NumPy arrays"),
        ({"t": np.datetime64("2020-01-01")}, r"field 't' has dtype datetime64\[D\].*astype\('int64'\), or as text"),
        (np.array([1, 2], "m8[s]"), r"field 'scene' has dtype timedelta64\[s\]"),
        ({"t": datetime.datetime(2020, 1, 1)}, r"field 't' is a datetime.*timestamp"),
        ((1, {3, 4}), r"field '1' is of type set .*NumPy arrays"),
        ((1, np.array([1, None], object)), r"field '1' is an object array holding 1"),
        (np.array(None), r"field 'scene' is an object array holding None"),
        (None, r"holds no field: __getitem__ returned None.*`return` missing.*on_error=\"skip\""),
        ((), r"holds no field"),
        (
            {"a": None},
            r"holds no field: __getitem__ returned \{'a': None\}, with None at 'a'. Return an array.*arrays$",
        ),
        ({"a": None, "b": (None, {})}, r"with None at 'a', 'b.0'. Return an array"),
        ((1, lambda: 0), r"field '1' is of type function"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_error_for_an_unsupported_value_names_field_and_remedy(value, message):
    with pytest.raises(SpecError, match=message):
        describe(value)


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        (np.datetime64("1971"), 1, "1971"),
        (np.datetime64("1970-01-02T00:00:01.500"), 86401500, "1970-01-02T00:00:01.500"),
        (np.array(["1970-01-01T00:01"], "M8[m]"), [1], ["1970-01-01T00:01"]),
        (np.timedelta64(3, "m"), 3, "3 minutes"),
        (np.timedelta64(3, "Y"), 3, "3 years"),
        (np.array([7, 8], "m8[ns]"), [7, 8], ["7 nanoseconds", "8 nanoseconds"]),
    ],
    ids=str,
)
def test_the_suggested_remedies_for_dates_and_time_spans_work(value, number, text):
    with pytest.raises(SpecError) as caught:
        describe(value)
    codes = re.findall(r"np\.asarray\(value\)\S+\('?[\w\[\]]+'?\)", str(caught.value))
    numbers, texts = (eval(code, {"np": np, "value": value}) for code in codes)
    assert (numbers.tolist(), numbers.dtype, texts.tolist()) == (number, np.int64, text)
    assert describe(numbers), describe(texts)


def test_axes_that_differ_between_scenes_become_unknown():
    merged = merge([(0, describe(np.zeros((3, 2)))), (9, describe(np.zeros((5, 2))))])
    assert merged.fields[0].shape == (None, 2)


def test_python_numbers_are_promoted_and_arrays_are_not():
    assert merge([(0, describe(1)), (1, describe(0.5))]).fields[0].dtype == np.float64
    with pytest.raises(SpecError, match=r"field 'scene' is float32\[2\] in scene 0 and float64\[2\] in scene 7"):
        merge([(0, describe(np.zeros(2, np.float32))), (7, describe(np.zeros(2)))])


def test_the_error_for_scenes_of_different_structure_names_both_indices():
    with pytest.raises(SpecError, match=r"scenes 0 and 4 have different structures: \(\*, \*\) and \*"):
        merge([(0, describe((1, 2))), (4, describe(1))])
    with pytest.raises(SpecError, match=r"2 axes in scene 0 and 1 in scene 4"):
        merge([(0, describe(np.zeros((1, 2)))), (4, describe(np.zeros(2)))])


@pytest.mark.parametrize(
    ("one", "other", "remedy"),
    [
        (np.zeros(2, np.int64), np.zeros(2, np.float32), "astype(np.float32)"),
        (np.zeros(2, np.float64), np.zeros(2, np.float32), "astype(np.float64)"),
        (np.zeros(2, bool), np.zeros(2, np.uint8), "astype(np.uint8)"),
        (np.zeros(2), np.array(["a", "b"]), "astype(str)"),
    ],
)
def test_the_dtype_suggested_in_a_message_truncates_no_value(one, other, remedy):
    with pytest.raises(SpecError, match=re.escape(remedy)):
        merge([(0, describe(one)), (1, describe(other))])


def test_coerce_makes_byte_order_native_and_refuses_every_other_dtype():
    field = ArraySpec((2,), np.dtype(np.int32))
    assert coerce(np.array([1, 2], ">i4"), field, "x").dtype.isnative
    with pytest.raises(SpecError, match=r"field 'x': expected int32\[2\], received int64\[2\].*astype"):
        coerce(np.array([1, 2]), field, "x")
    with pytest.raises(SpecError, match=r"expected int32\[2\], received int32\[3\].*one shape for every index"):
        coerce(np.zeros(3, np.int32), field, "x")


def test_a_python_int_fits_a_float_field_but_a_float_does_not_fit_an_int_field():
    assert coerce(1, ArraySpec((), np.dtype(np.float64)), "x") == 1.0
    with pytest.raises(SpecError):
        coerce(1.5, ArraySpec((), np.dtype(np.int64)), "x")


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 100, 10**12])
def test_probes_are_spread_from_the_first_scene_to_the_last(length):
    indices = probe_indices(length)
    assert indices[0] == 0
    assert indices[-1] == length - 1
    assert len(indices) == min(length, 5)


_ALIGNED = np.dtype([("a", "u1"), ("b", [("c", "f8"), ("d", "i2")], (2,))], align=True)
_X87 = pytest.mark.skipif(np.finfo(np.longdouble).nmant != 63, reason="long doubles are others here")


@pytest.mark.parametrize(
    ("dtype", "padding"),
    [
        (_ALIGNED, [*range(1, 8), *range(18, 24), *range(34, 40)]),
        pytest.param(np.dtype(np.longdouble), range(10, 16), marks=_X87),
        pytest.param(np.dtype(np.clongdouble), [*range(10, 16), *range(26, 32)], marks=_X87),
        pytest.param(np.dtype([("a", "i1"), ("b", "g")]), range(11, 17), marks=_X87),  # not aligned
        pytest.param(np.dtype([("a", "i1"), ("b", "G")]), [*range(11, 17), *range(27, 33)], marks=_X87),
    ],
)
def test_comparable_sets_padding_bytes_equal_in_equal_values(dtype, padding):
    values = np.arange(6 * dtype.itemsize, dtype=np.uint8).view(dtype).reshape(3, 2)
    other = values.copy()
    other.reshape(-1).view(np.uint8).reshape(6, -1)[:, padding] ^= 0xFF
    assert values.tobytes() != other.tobytes()
    assert comparable(values).tobytes() == comparable(other).tobytes()
    assert comparable(values[0, 0, ...]).tobytes() == comparable(other[0, 0, ...]).tobytes()
    other.reshape(-1).view(np.uint8)[0] ^= 1
    assert comparable(values).tobytes() != comparable(other).tobytes()


def test_comparable_returns_arrays_without_padding_and_text_unchanged():
    for value in (np.zeros(3, [("a", "f4"), ("b", "i4")]), np.zeros(3), np.array(["a"], object), "a"):
        assert comparable(value) is value


def test_errors_for_array_like_values_suggest_a_conversion():
    import pandas

    class Sparse:
        def toarray(self):
            return np.zeros((1, 3))

    with pytest.raises(SpecError, match=r"field 'scene' is sparse \(Sparse\).*toarray\(\)"):
        describe(Sparse())
    with pytest.raises(SpecError, match=r"a Series of pandas.*row\.to_dict\(\)"):
        describe(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}).iloc[0])


def test_a_bfloat16_tensor_of_pytorch_keeps_its_bits():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import ml_dtypes

    for tensor in (torch.tensor([1.5, -2.0], dtype=torch.bfloat16), torch.tensor(0.1, dtype=torch.bfloat16)):
        array = as_array(tensor, "scene")
        assert array.dtype == ml_dtypes.bfloat16
        assert array.astype(np.float32).tolist() == tensor.float().tolist()


class Sub(dict):
    pass


@pytest.mark.parametrize("kind", [Sub, collections.UserDict, types.MappingProxyType, collections.ChainMap])
@pytest.mark.parametrize("workers", [0, 1])
def test_scenes_that_are_mappings_are_dicts_in_batches(kind, workers):
    inner = kind({"y": np.float32(1), "x": np.zeros(2)})
    for scene in (inner, {"a": inner, "b": (1, inner)}, (inner, [1, 2], inner)):
        plain = with_dicts(scene)
        scenes = [scene, plain, scene, plain]  # all are of one structure
        with BaseFeed(
            kf.Zip(scenes, kf.Map(scenes, lambda scene: scene)), 2, workers=workers, worker_type="thread"
        ) as feed:
            for batch in feed:
                assert [flatten(part)[1] for part in batch] == [flatten(plain)[1]] * 2
                assert len(flatten(batch)[0][0]) == 2
        assert describe(scene) == describe(plain)
    with pytest.raises((SpecError, kf.errors.SceneError), match="scene"):
        list(BaseFeed([{"x": 1.0}] * 3 + [kind({"x": "text"})], 4, workers=0))
    assert type(with_dicts(inner)) is dict
