"""`TFRecordSequence`: any record at any time, unchanged or with an error."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from records_written import COMPRESSIONS, by_tensorflow, encoded, frame, records_of
from scenes_records import Everything, Small, assert_same

import kerasfeed as kf
from kerasfeed.readers.tfrecord.example import BYTES, FLOAT, INT64, Values

# ---- files of TensorFlow and of kerasfeed


@pytest.mark.heavy
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_tensorflow_reads_written_records_with_only_the_sidecar(tmp_path, compression):
    sequence = Everything(20)
    paths = kf.write_tfrecords(
        sequence, tmp_path / "x-{shard}.tfrecord", num_shards=2, workers=0, compression=compression
    )
    sidecar = tmp_path / "x.tfrecord.spec.json"
    description = kf.feature_description(sidecar)
    if compression is None:  # otherwise TFRecordSequence finds the spec of `paths` and refuses them
        assert description == kf.feature_description(paths)
    dataset = tf.data.TFRecordDataset(paths, compression_type=compression or "")
    for place, record in enumerate(dataset):
        parsed = tf.io.parse_single_example(record, description)
        scene = sequence[place % 10 * 2 + place // 10]
        assert parsed["0.float32"].numpy().tobytes() == scene[0]["float32"].tobytes()
        assert parsed["1.0"] == scene[1].number
        assert parsed["0.float32_rows"].shape == scene[0]["float32_rows"].shape
    for found, record in zip(dataset.map(lambda record: kf.parse_record(record, sidecar)), dataset, strict=True):
        assert found[1].number == tf.io.parse_single_example(record, description)["1.0"]
    assert place == 19


@pytest.mark.parametrize("size", [50, 60_000])
def test_records_that_tensorflow_wrote_are_read_in_any_order(tmp_path, size):
    records = records_of(200, size)
    sequence = kf.TFRecordSequence(by_tensorflow(tmp_path / "x", records))
    assert len(sequence) == 200
    for index in [0, 199, 100, *np.random.default_rng(0).permutation(200).tolist()]:
        assert sequence.record(index) == records[index]
    assert sequence[-1]["i"] == 199
    assert sequence.spec == {"b": kf.ArraySpec((), np.dtype("S")), "i": kf.ArraySpec((), np.dtype(np.int64))}


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_the_error_for_a_compressed_file_says_how_to_read_it(tmp_path, compression):
    path = by_tensorflow(tmp_path / "x", records_of(20), compression)
    with pytest.raises(
        kf.errors.RecordError, match=r"x' is compressed, so .* in order. .*kf.TFRecordSequence.read\(paths"
    ):
        kf.TFRecordSequence(path)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("size", [50, 60_000])
def test_read_returns_records_in_order_with_any_compression(tmp_path, compression, size):
    paths = [by_tensorflow(tmp_path / f"x-{part}", records_of(30 + part, size), compression) for part in range(2)]
    scenes = list(kf.TFRecordSequence.read(paths))
    assert [int(scene["i"]) for scene in scenes] == [*range(30), *range(31)]
    assert scenes == [dict(kf.TFRecordSequence(by_tensorflow(tmp_path / "plain", records_of(30 + part, size)))[index])
                      for part in range(2) for index in range(30 + part)]  # fmt: skip


def test_read_supports_gzip_members_of_any_size(tmp_path):
    records = records_of(60, 3000)
    packed = b"".join(
        gzip.compress(b"".join(map(frame, records[start : start + 7]))) + gzip.compress(b"")
        for start in range(0, 60, 7)
    )
    (tmp_path / "x").write_bytes(packed)
    assert [int(scene["i"]) for scene in kf.TFRecordSequence.read(tmp_path / "x")] == list(range(60))


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_read_uses_the_spec_in_the_sidecar(tmp_path, compression):
    scenes = Everything(12)
    paths = kf.write_tfrecords(
        scenes, tmp_path / "x-{shard}", num_shards=2, workers=0, assignment="contiguous", compression=compression
    )
    with kf.StreamFeed(lambda: kf.TFRecordSequence.read(paths), None, workers=0) as feed:
        assert len(list(feed)) == 12
    for index, scene in enumerate(kf.TFRecordSequence.read(str(tmp_path / "x-*[0-9]"))):
        assert_same(scene, scenes[index])


def test_features_of_all_kinds_become_a_dict_of_arrays(tmp_path):
    def example(floats, ints, texts):
        return tf.train.Example(
            features=tf.train.Features(
                feature={
                    "f": tf.train.Feature(float_list=tf.train.FloatList(value=floats)),
                    "i": tf.train.Feature(int64_list=tf.train.Int64List(value=ints)),
                    "b": tf.train.Feature(bytes_list=tf.train.BytesList(value=texts)),
                }
            )
        ).SerializeToString()

    path = by_tensorflow(tmp_path / "x", [example([1.5, 2], [-7], [b"a", b"b"]), example([], [9], [b"", b"\0"])])
    sequence = kf.TFRecordSequence(path)
    assert_same(sequence[0], {"f": np.float32([1.5, 2]), "i": np.int64(-7), "b": np.array([b"a", b"b"], object)})
    assert_same(sequence[1], {"f": np.float32([]), "i": np.int64(9), "b": np.array([b"", b"\0"], object)})
    assert [str(field) for field in sequence.spec.values()] == ["bytes[2]", "float32[?]", "int64[]"]


def test_a_spec_determines_shapes_and_dtypes_of_features(tmp_path):
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    record = encoded({"image": Values(BYTES, [image.tobytes()]), "label": Values(INT64, np.array([3]))})
    path = by_tensorflow(tmp_path / "x", [record] * 3)
    spec = {"image": kf.ArraySpec((3, 4), np.uint8), "label": kf.ArraySpec((), np.int32)}
    assert_same(kf.TFRecordSequence(path, spec=spec)[2], {"image": image, "label": np.int32(3)})


def test_the_error_for_a_missing_feature_names_record_and_feature(tmp_path):
    records = [encoded({"x": Values(FLOAT, np.float32([index]))}) for index in range(20)]
    records[7] = encoded({"y": Values(FLOAT, np.float32([7]))})
    path = by_tensorflow(tmp_path / "x", records)
    sequence = kf.TFRecordSequence(path)
    message = (
        r"record 7 of '.*x' \(at byte \d+\): feature 'x' is missing; it has y\. The spec was inferred .* give spec="
    )
    with pytest.raises(kf.errors.SpecError, match=message):
        sequence[7]
    records[0] = records[7]
    with pytest.raises(kf.errors.SpecError, match=r"feature 'x' is in some records and not in others \(record 0 of"):
        kf.TFRecordSequence(by_tensorflow(path, records))
    records[0] = encoded({"x": Values(INT64, np.array([1]))})
    with pytest.raises(
        kf.errors.SpecError, match=r"feature 'x' is a int64_list in record 0 .* and a float_list in record"
    ):
        kf.TFRecordSequence(by_tensorflow(path, records))


def test_the_error_for_a_file_without_examples_names_the_record(tmp_path):
    with pytest.raises(kf.errors.RecordError, match=r"record 0.*: the data are not a serialized tf\.train\.Example"):
        kf.TFRecordSequence(by_tensorflow(tmp_path / "x", [b"junk\xff"]))
    with pytest.raises(kf.errors.RecordError, match="holds no record"):
        kf.TFRecordSequence(by_tensorflow(tmp_path / "x", []))
    with pytest.raises(kf.errors.RecordError, match=r"record 0.*: the data are not a serialized tf\.train\.Example"):
        list(kf.TFRecordSequence.read(by_tensorflow(tmp_path / "x", [b"junk\xff"])))
    for compression in COMPRESSIONS:
        assert list(kf.TFRecordSequence.read(by_tensorflow(tmp_path / "x", [], compression))) == []


# ---- paths


def test_paths_globs_and_patterns_find_files_in_natural_order(tmp_path, monkeypatch):
    for number in range(12):
        by_tensorflow(tmp_path / f"x-{number}-of-12", records_of(number + 1))
    monkeypatch.chdir(tmp_path)
    wanted = tuple(range(1, 13))
    for paths in (
        "x-*",
        str(tmp_path / "x-*-of-12"),
        "x-{shard}-of-{count}",
        Path("x-{shard:d}-of-12"),
        ["x-?-*", "x-1?-*"],
    ):
        assert kf.TFRecordSequence(paths).counts == wanted
    assert kf.TFRecordSequence(["x-3-of-12", Path("x-1-of-12")]).counts == (4, 2)
    (tmp_path / "x-4-of-12").unlink()
    with pytest.raises(kf.errors.RecordError, match=r"1 of 12 shards of .* are missing: 4"):
        kf.TFRecordSequence("x-{shard}-of-{count}")
    by_tensorflow(tmp_path / "x-0-of-1", records_of(1))
    with pytest.raises(kf.errors.RecordError, match="matches sets of 1 and 12 shards: replace \\{count\\} by a number"):
        kf.TFRecordSequence("x-{shard}-of-{count}")


def test_a_pattern_without_a_count_is_refused_if_its_last_shard_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kf.write_tfrecords(np.arange(8), "x-{shard}-of-4", num_shards=4, workers=0, progress=False)
    kf.write_tfrecords(np.arange(3), "x-{shard}-alone", num_shards=1, workers=0, progress=False)
    complete = kf.TFRecordSequence("x-{shard}-of-4")
    assert len(complete) == 8
    Path("x-3-of-4").unlink()
    message = r"1 of 4 shards of 'x-\{shard\}-of-4' are missing: x-3-of-4"
    with pytest.raises(kf.errors.RecordError, match=message):
        complete.refresh()
    assert len(complete) == 8
    for paths in ("x-{shard}-of-4", [Path("x-{shard}-of-4")], iter(["x-{shard}-of-4"])):
        with pytest.raises(kf.errors.RecordError, match=message):
            kf.TFRecordSequence(paths)
    for paths in ("x-{shard}-of-4", iter(["x-{shard}-of-4"])):
        with pytest.raises(kf.errors.RecordError, match=message):
            kf.TFRecordSequence.read(paths)
    assert len(kf.TFRecordSequence("x-*-of-4")) == len(list(kf.TFRecordSequence.read(["x-*-of-4"]))) == 6
    assert len(kf.TFRecordSequence("x-{shard}-alone")) == 3


@pytest.mark.parametrize(
    ("paths", "kind", "message"),
    [
        ("none", FileNotFoundError, "there is no file '.*none'"),
        ("none*", FileNotFoundError, r"no file matches '.*none\*'"),
        ("none-{shard}", FileNotFoundError, "no file matches the pattern"),
        ([], FileNotFoundError, "the list of paths is empty"),
        (3, TypeError, "paths must be a path, a glob, a pattern or a list of these, received 3"),
        ([3], TypeError, "paths must be paths, received 3 of type int among them"),
        (".", IsADirectoryError, "is a folder: name its files"),
        ("nope://x/y", ValueError, "cannot read 'nope://x/y': Protocol not known: nope"),
    ],
)
def test_invalid_paths_are_refused(tmp_path, monkeypatch, paths, kind, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        kf.TFRecordSequence(paths)


def test_a_record_with_content_besides_features_is_refused(tmp_path):
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[3]))
    message = tf.train.SequenceExample(
        context=tf.train.Features(feature={"a": feature}),
        feature_lists=tf.train.FeatureLists(feature_list={"b": tf.train.FeatureList(feature=[feature])}),
    )
    by_tensorflow(tmp_path / "x", [message.SerializeToString()] * 2)
    beside = "holds feature lists, as a tf.train.SequenceExample does"
    with pytest.raises(
        kf.errors.SpecError, match=rf"record 0 of .* {beside}, but only .* Give spec= with the features"
    ):
        kf.TFRecordSequence(tmp_path / "x")
    wanted = kf.TFRecordSequence(tmp_path / "x", {"a": kf.ArraySpec((), np.dtype(np.int64))})
    assert wanted[1] == {"a": 3}
    assert wanted.record(1) == message.SerializeToString()
    with pytest.raises(
        kf.errors.SpecError, match="feature 'b' is missing; it has a; the record also holds feature lists"
    ):
        kf.TFRecordSequence(tmp_path / "x", {"b": kf.ArraySpec((), np.dtype(np.int64))})[0]
    by_tensorflow(tmp_path / "y", [b"\x28\x01" + tf.train.Example().SerializeToString()])
    with pytest.raises(kf.errors.SpecError, match="holds the fields 5 of another message"):
        kf.TFRecordSequence(tmp_path / "y")


# ---- feeds


@pytest.mark.heavy
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_shuffled_feed_delivers_every_record_once(tmp_path, worker_type):
    paths = kf.write_tfrecords(Small(50), tmp_path / "x-{shard}", num_shards=3, workers=0, assignment="contiguous")
    sequence = kf.TFRecordSequence(paths)
    for order in (kf.Shuffled(), kf.BlockShuffled(sequence), kf.BlockShuffled(7)):
        with kf.Feed(sequence, 8, order=order, seed=1, workers=2, worker_type=worker_type) as feed:
            drawn = [int(index) for _, indices in feed for index in indices]
        assert sorted(drawn) == list(range(50))
        assert drawn != list(range(50))


def test_records_are_written_straight_into_the_batch(shards, monkeypatch):
    sequence = kf.TFRecordSequence(shards)
    with kf.Feed(sequence, 40, workers=0) as feed:
        list(feed)
        monkeypatch.setattr(kf.TFRecordSequence, "__getitem__", None)
        points, indices = next(iter(feed))
    assert indices.tolist() == list(range(40))
    assert points.shape == (40, 8, 3)


def test_a_pickled_sequence_keeps_its_index_and_drops_its_handles(shards):
    sequence = kf.TFRecordSequence(shards)
    scene = sequence[17]
    again = pickle.loads(pickle.dumps(sequence))
    assert_same(again[17], scene)
    assert (again.paths, again.counts) == (tuple(shards), (10,) * 4)
    again.close()
    again.close()
    assert_same(again[17], scene)
    assert repr(again) == "TFRecordSequence(40 records of 4 files: 0: float32[8, 3], 1: int64[])"


def test_the_caller_owns_returned_scenes(shards):
    sequence = kf.TFRecordSequence(shards)
    sequence[3][0][:] = 0
    assert sequence[3][0].any()


def test_a_forked_child_ignores_a_lock_held_in_the_parent(shards):
    sequence = kf.TFRecordSequence(shards)
    wanted = sequence[5][0].tobytes()
    sequence._open.here()._lock.acquire()  # another thread might hold it
    child = os.fork()
    if child == 0:
        os._exit(0 if sequence[5][0].tobytes() == wanted else 1)
    sequence._open.here()._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_files_are_read_with_few_descriptors(tmp_path, monkeypatch):
    from kerasfeed.readers.tfrecord import sequence as room

    monkeypatch.setattr(room, "_OPEN_FILES", 3)
    paths = kf.write_tfrecords(Small(20), tmp_path / "x-{shard}", num_shards=20, workers=0)
    sequence = kf.TFRecordSequence(paths)
    assert [int(scene[1]) for scene in sequence] == list(range(20))
    assert len(sequence._open.here()) == 3
