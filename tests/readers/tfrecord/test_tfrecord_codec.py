"""The codec of records: the bytes that TensorFlow writes and reads, without TensorFlow."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from records_written import encoded, frame
from scenes_records import DTYPES, Everything, Pair, assert_same
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.readers.tfrecord import example
from kerasfeed.readers.tfrecord.example import BYTES, FLOAT, INT64, Example, Values
from kerasfeed.readers.tfrecord.fields import SceneCodec, kind_of
from kerasfeed.readers.tfrecord.record_file import framed
from kerasfeed.spec.inference import describe, merge
from kerasfeed.spec.spec_json import as_scene_spec, spec_from_json, spec_to_json

INT64S = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300) | st.sampled_from([2**k for k in range(63)])


def record_of(codec, scene):
    return b"".join(codec.pieces(scene))


def merged(scenes):
    return merge([(index, describe(scene)) for index, scene in enumerate(scenes)])


@settings(max_examples=200, deadline=None)
@given(st.lists(INT64S | st.integers(0, 127), max_size=40) | st.lists(st.integers(0, 127), max_size=40))
def test_integers_are_packed_as_in_protocol_buffers(values):
    theirs = tf.train.Feature(int64_list={"value": values}).SerializeToString()
    data = encoded({"x": Values(INT64, np.array(values, np.int64))})
    assert data.endswith(theirs)
    assert Example(data).get("x").values.tolist() == values
    assert Example(data).get("x").values.dtype == np.int64


FEATURES = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        st.lists(st.binary(max_size=20), max_size=4).map(lambda values: Values(BYTES, values)),
        st.lists(st.floats(width=32, allow_nan=False), max_size=20).map(
            lambda values: Values(FLOAT, np.array(values, np.float32))
        ),
        st.lists(INT64S, max_size=20).map(lambda values: Values(INT64, np.array(values, np.int64))),
    ),
    max_size=5,
)


@pytest.mark.heavy
@settings(max_examples=200, deadline=None)
@given(FEATURES)
def test_examples_are_interchangeable_with_tensorflow(features):
    data = encoded(features)
    theirs = tf.train.Example.FromString(data)
    assert len(data) == theirs.ByteSize()
    for source in (data, theirs.SerializeToString()):
        ours = Example(source)
        assert ours.names() == sorted(features)
        for name, (kind, values) in features.items():
            assert theirs.features.feature[name].WhichOneof("kind") == kind
            assert list(getattr(theirs.features.feature[name], kind).value) == list(values)
            found = ours.get(name)
            assert found.kind == kind
            assert list(found.values) == list(values)


def _nested(*parts):
    """A message: pairs of a tag's byte and its content."""
    return b"".join(bytes([tag, len(inner)]) + inner for tag, inner in parts)


def _example_of(name, kind, inner):
    entry = _nested((0x0A, name), (0x12, _nested(({"bytes": 0x0A, "float": 0x12, "int64": 0x1A}[kind], inner))))
    return _nested((0x0A, _nested((0x0A, entry))))


@pytest.mark.parametrize(
    ("kind", "inner", "values"),
    [
        ("int64", b"\x08\x05\x08\x96\x01", [5, 150]),
        ("float", b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(-2).tobytes(), [1.5, -2.0]),
        ("int64", b"\x0a\x01\x05\x0a\x02\x96\x01", [5, 150]),
        ("int64", b"\x0a\x01\x05\x08\x96\x01", [5, 150]),
        ("float", _nested((0x0A, np.float32(1.5).tobytes()), (0x0A, np.float32(-2).tobytes())), [1.5, -2.0]),
    ],
    ids=["unpacked integers", "unpacked floats", "integers in pieces", "half packed", "floats in pieces"],
)
def test_unpacked_and_split_lists_of_other_writers_are_read(kind, inner, values):
    data = _example_of(b"x", kind, inner)
    assert list(getattr(tf.train.Example.FromString(data).features.feature["x"], f"{kind}_list").value) == values
    assert Example(data).get("x").values.tolist() == values


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("end", [b"\x80", b"\x80" * 10 + b"\x00"], ids=["cut off", "too long"])
def test_a_truncated_or_too_long_number_raises(count, end):
    data = _example_of(b"x", "int64", _nested((0x0A, b"\x01" * count + end)))
    with pytest.raises(ValueError, match="feature 'x': a number of its list is damaged"):
        Example(data).get("x")


def test_large_arrays_are_written_without_a_copy():
    image = np.arange(300 * 300 * 3, dtype=np.uint8).reshape(300, 300, 3)
    points = np.arange(9000, dtype=np.float32).reshape(-1, 9)
    scene = {"image": image, "label": 3, "mask": image[:, :, 0] > 7, "points": points}
    codec = SceneCodec(describe(scene))
    pieces = codec.pieces(scene)
    assert sum(np.shares_memory(piece, array) for piece in pieces[1:] for array in (image, points)
               if isinstance(piece, np.ndarray)) == 2  # fmt: skip
    assert frame(record_of(codec, scene)) == b"".join(framed(pieces))
    assert_same(codec.spec.unflatten(codec.decode(record_of(codec, scene))), scene)


def test_a_record_that_protocol_buffers_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setattr(example, "_MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"a record would have 1,0\d\d bytes, but protocol buffers have at most 1,000"):
        record_of(SceneCodec(describe({"x": np.zeros(1000, np.uint8)})), {"x": np.zeros(1000, np.uint8)})


def test_bytes_that_are_not_an_example_raise():
    with pytest.raises(ValueError, match=r"not a serialized tf\.train\.Example"):
        Example(b"junk\xff")
    with pytest.raises(ValueError, match="'x': a list of float32 takes 3 bytes, not a multiple of 4"):
        Example(_example_of(b"x", "float", b"\x0a\x03abc")).get("x")
    assert Example(b"").get("x") is None
    assert Example(tf.train.Example(features={"feature": {"x": {}}}).SerializeToString()).get("x") is None


def test_a_record_is_framed_as_in_tensorflow(tmp_path):
    records = [b"", b"a", bytes(70_000), b"\xff" * 5]
    with tf.io.TFRecordWriter(str(tmp_path / "x")) as writer:
        for record in records:
            writer.write(record)
    assert (tmp_path / "x").read_bytes() == b"".join(map(frame, records))


def test_every_dtype_and_nesting_round_trips_bit_for_bit():
    scenes = list(Everything())
    codec = SceneCodec(merged(scenes))
    for scene in scenes:
        found = codec.spec.unflatten(codec.decode(record_of(codec, scene)))
        assert_same(found, scene)
        assert isinstance(found[1], Pair)


@pytest.mark.heavy
def test_tensorflow_parses_every_dtype_to_the_written_values():
    scenes = list(Everything())
    spec = merged(scenes)
    codec = SceneCodec(spec)
    records = tf.data.Dataset.from_tensor_slices([record_of(codec, scene) for scene in scenes])
    parsed = records.map(lambda record: kf.parse_record(record, spec))
    for found, scene in zip(parsed, scenes, strict=True):
        for path, tensor, field, value in zip(
            spec.paths, tf.nest.flatten(found), spec.fields, tf.nest.flatten(scene), strict=True
        ):
            if field.is_text:
                want = [t.encode() if isinstance(t, str) else t for t in np.ravel(value).tolist()]
                assert np.ravel(tensor.numpy()).tolist() == want, path
                continue
            assert tensor.dtype == tf.as_dtype(field.dtype), path
            assert tensor.shape == np.shape(value), path
            assert tensor.numpy().tobytes() == np.asarray(value, field.dtype).tobytes(), path


def test_kinds_are_a_function_of_dtype_and_axes():
    kinds = {
        name: (kind_of(kf.ArraySpec((), np.dtype(name))), kind_of(kf.ArraySpec((2,), np.dtype(name))))
        for name in DTYPES[:12]
    }
    assert kinds["float32"] == (FLOAT, FLOAT)
    assert kinds["int32"] == kinds["int64"] == (INT64, INT64)
    assert {kinds[name] for name in ("int8", "int16", "uint8", "uint16", "uint32", "uint64", "bool")} == {
        (INT64, "raw")
    }
    assert kinds["float64"] == kinds["float16"] == ("raw", "raw")


def test_parse_single_example_accepts_feature_descriptions():
    spec = {
        "x": kf.ArraySpec((None, 3), np.float32), "y": kf.ArraySpec((), np.int64), "i": kf.ArraySpec((4, 4), "uint8"),
        "m": kf.ArraySpec((None, None), np.int64), "t": kf.ArraySpec((), str),
    }  # fmt: skip
    description = kf.feature_description(spec)
    assert description == {
        "x": tf.io.FixedLenSequenceFeature((3,), tf.float32, allow_missing=True),
        "x/shape": tf.io.FixedLenFeature([2], tf.int64),
        "y": tf.io.FixedLenFeature((), tf.int64),
        "i": tf.io.FixedLenFeature([], tf.string),
        "m": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True),
        "m/shape": tf.io.FixedLenFeature([2], tf.int64),
        "t": tf.io.FixedLenFeature((), tf.string),
    }
    scene = {
        "x": np.ones((5, 3), np.float32), "y": 7, "i": np.ones((4, 4), np.uint8), "m": np.ones((2, 2), np.int64),
        "t": "a",
    }  # fmt: skip
    parsed = tf.io.parse_single_example(record_of(SceneCodec(as_scene_spec(spec)), scene), description)
    assert parsed["x"].shape == (5, 3)
    assert tf.io.decode_raw(parsed["i"], tf.uint8).shape == 16


def test_feature_description_accepts_a_sequence_and_a_feed():
    scenes = [(np.zeros((3, 2), np.float32), 1)] * 4
    wanted = {"0": tf.io.FixedLenFeature((3, 2), tf.float32), "1": tf.io.FixedLenFeature((), tf.int64)}
    assert kf.feature_description(scenes) == wanted
    with kf.Feed(scenes, 2, workers=0) as feed:
        assert kf.feature_description(feed) == wanted


def test_a_dtype_that_tensorflow_lacks_is_refused_by_parse_record():
    spec = {"x": kf.ArraySpec((2,), np.dtype([("a", "<f4"), ("b", "<i2")]))}
    with pytest.raises(TypeError, match=r"field 'x' is .*, a dtype TensorFlow lacks"):
        kf.parse_record(b"", spec)


@pytest.mark.parametrize(
    ("spec", "features", "message"),
    [
        ({"x": ((3,), "float32")}, {"x": [1.0, 2.0]}, r"expected float32\[3\], received a float_list of 2 values"),
        ({"x": ((), "float32")}, {"y": [1.0]}, r"feature 'x' is missing; it has y"),
        ({"x": ((), "int8")}, {"x": [300]}, r"feature 'x' holds numbers out of the range of int8"),
        ({"x": ((), "int64")}, {"x": [1.0]}, r"expected int64\[\], received a float_list of 1 value"),
        ({"x": ((), "float32")}, {"x": [1]}, r"expected float32\[\], received a int64_list of 1 value"),
        (
            {"x": ((2, 2), "uint8")},
            {"x": [b"abc"]},
            r"expected uint8\[2, 2\], received a bytes_list of one value of 3 bytes",
        ),
        ({"x": ((None, None), "float32")}, {"x": [1.0]}, r"the record has no feature 'x/shape'"),
        ({"x": ((None, 2), "float32")}, {"x": [1.0]}, r"expected float32\[\?, 2\], received .* and sizes \(0, 2\)"),
        ({"x": ((), str)}, {"x": [b"\xff"]}, r"is not UTF-8 text .*: use bytes"),
        ({"x": ((), str)}, {"x": [1]}, r"expected str\[\], received a int64_list"),
    ],
)
def test_the_error_for_a_record_unlike_its_spec_names_the_feature(spec, features, message):
    def values(items):
        kind = {bytes: BYTES, float: FLOAT, int: INT64}[type(items[0])]
        return Values(kind, items if kind == BYTES else np.array(items, np.float32 if kind == FLOAT else np.int64))

    codec = SceneCodec(as_scene_spec({name: kf.ArraySpec(*each) for name, each in spec.items()}))
    with pytest.raises(kf.errors.SpecError, match=message):
        codec.decode(encoded({name: values(items) for name, items in features.items()}))


def test_values_that_fit_without_loss_are_converted_to_the_spec():
    data = encoded(
        {"f": Values(FLOAT, np.float32([1.5])), "i": Values(INT64, np.int64([1, 0])), "b": Values(BYTES, [b"ab"])}
    )
    spec = {"f": kf.ArraySpec((), np.float64), "i": kf.ArraySpec((2,), bool), "b": kf.ArraySpec((None,), "u1")}
    b, f, i = SceneCodec(as_scene_spec(spec)).decode(data)
    assert (f, f.dtype, i.tolist(), b.tolist()) == (1.5, np.float64, [True, False], [97, 98])


def test_specs_survive_json_and_namedtuples_survive_pickle():
    for varying in (True, False):
        spec = merged(Everything(varying=varying))
        again = spec_from_json(json.loads(json.dumps(spec_to_json(spec))))
        assert again.fields == spec.fields
        assert again.paths == spec.paths
    pair = again.unflatten(again.fields)[1]
    assert type(pair).__name__ == "Pair"
    assert pair._fields == ("number", "half")
    assert type(pickle.loads(pickle.dumps(pair))) is type(pair)


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ({"x": np.zeros(3)}, TypeError, "a spec is a nesting of kf.ArraySpec"),
        ({}, kf.errors.SpecError, "the spec holds no field"),
        (
            {"a.b": kf.ArraySpec((), "f4"), "a": {"b": kf.ArraySpec((), "f4")}},
            kf.errors.SpecError,
            "two fields have the name 'a.b'",
        ),
    ],
)
def test_an_invalid_spec_is_refused(spec, kind, message):
    with pytest.raises(kind, match=message):
        as_scene_spec(spec)


def test_conflicting_names_and_unsupported_keys_are_refused():
    with pytest.raises(kf.errors.SpecError, match="two features would have the name 'x/shape'"):
        SceneCodec(as_scene_spec({"x": kf.ArraySpec((None,), "f4"), "x/shape": kf.ArraySpec((), "i8")}))
    with pytest.raises(kf.errors.SpecError, match=r"dict key \(1, 2\): in a file, keys are str or int"):
        spec_to_json(as_scene_spec({(1, 2): kf.ArraySpec((), "f4")}))
    for broken in ({"array": {}}, {"thing": []}, [], {"tuple": []}):
        with pytest.raises(ValueError, match=r"the JSON (does not describe|describes)"):
            spec_from_json(broken)


def test_the_error_for_text_that_utf_8_cannot_encode_names_its_field():
    with pytest.raises(kf.errors.SpecError, match="field '1' holds text that UTF-8 cannot encode"):
        record_of(SceneCodec(describe((1, "a"))), (1, "\ud800"))


def test_reading_and_writing_import_no_framework():
    code = (
        "import sys, kerasfeed.readers.tfrecord.sequence, kerasfeed.writers.tfrecord; "
        "assert not {'tensorflow', 'keras', 'jax', 'torch', 'h5py'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PROGRAM_SECONDS, env=environment)
