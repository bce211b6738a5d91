"""Damaged record files: an error, never other data."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from records_written import COMPRESSIONS, by_tensorflow, records_of
from scenes_records import Small, assert_same, listing

import kerasfeed as kf


@pytest.mark.parametrize("workers", [1, 3, "auto"])
def test_the_threads_that_index_many_files_end(shards, workers):
    assert len(kf.TFRecordSequence(shards, workers=workers)) == 40
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kerasfeed-index")]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kept", [0.99, 0.5])
def test_reading_a_truncated_file_in_order_raises_at_its_end(tmp_path, compression, kept):
    path = by_tensorflow(tmp_path / "x", records_of(100, 3000), compression)
    os.truncate(path, int(path.stat().st_size * kept))
    found = []
    with pytest.raises(
        kf.errors.RecordError, match=r"record \d+ of '.*x' is damaged: the (file ends within|compressed data are)"
    ):
        found.extend(int(scene["i"]) for scene in kf.TFRecordSequence.read(path))
    assert found == list(range(len(found)))
    assert 20 < len(found) < 100


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_reading_in_order_detects_any_flipped_bit(tmp_path, compression):
    scenes = [(np.arange(index * 50, dtype=np.float32) % 7, index) for index in range(40)]
    (path,) = kf.write_tfrecords(scenes, tmp_path / "x", num_shards=1, workers=0, compression=compression)
    data = Path(path).read_bytes()
    for place in np.random.default_rng(0).integers(20, len(data) - 10, 40).tolist():
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        Path(path).write_bytes(broken)
        found = []
        try:
            found.extend(kf.TFRecordSequence.read(path))
        except kf.errors.RecordError as error:
            assert f"record {len(found)} of {path!r} is damaged: " in str(error)  # noqa: PT017
        else:  # a bit without meaning in the compressed format
            assert compression
            assert len(found) == 40
        for scene, wanted in zip(found, scenes, strict=False):
            assert_same(scene, wanted)


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.02])
def test_a_truncated_file_returns_its_intact_records_and_raises_for_the_rest(tmp_path, kept):
    records = records_of(100, 3000)
    path = by_tensorflow(tmp_path / "x", records)
    os.truncate(path, int(path.stat().st_size * kept))
    with pytest.warns(
        kf.FeedWarning, match="Reading it raises kf.errors.RecordError; a feed with on_error= continues without it"
    ):
        sequence = kf.TFRecordSequence(path)
    whole = len(sequence) - 1
    assert 0 < whole < 100
    assert whole > 100 * kept**0.5 - 3
    assert [sequence.record(index) for index in range(whole)] == records[:whole]
    with pytest.raises(
        kf.errors.RecordError,
        match=rf"record {whole} of '.*x' \(at byte .*the file ends within.*Record {whole} represents the rest",
    ):
        sequence[whole]
    assert listing(tmp_path) == ["x"]


def test_the_checksum_of_a_length_is_checked_only_with_verify(tmp_path):
    records = records_of(5, 3000)
    path = by_tensorflow(tmp_path / "x", records)
    sequences = [kf.TFRecordSequence(path, verify=verify) for verify in (True, False)]
    data = bytearray(path.read_bytes())
    data[len(records[0]) + 16 + 9] ^= 1
    with path.open("r+b") as file:  # like a disk error, which leaves the file's properties unchanged
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        file.write(data)
    os.utime(path, ns=times)
    with pytest.raises(kf.errors.RecordError, match=r"record 1 of .* is damaged: its checksum does not match"):
        sequences[0].record(1)
    assert sequences[1].record(1) == records[1]


def test_the_error_for_a_flipped_bit_names_file_offset_and_record(tmp_path):
    records = records_of(30, 3000)
    path = by_tensorflow(tmp_path / "x", records)
    data = bytearray(path.read_bytes())
    start = sum(len(record) + 16 for record in records[:12])
    data[start + 30] ^= 1
    path.write_bytes(data)
    sequence = kf.TFRecordSequence(path)
    with pytest.raises(
        kf.errors.RecordError, match=rf"record 12 of '.*x' \(at byte {start:,}\) is damaged: its checksum does not"
    ):
        sequence[12]
    assert kf.TFRecordSequence(path, verify=False).record(12) != records[12]
    data[start + 30] ^= 1
    data[start + 2] ^= 1
    path.write_bytes(data)
    with pytest.warns(kf.FeedWarning, match=f"the checksum of the length at byte {start:,} does not match"):
        sequence = kf.TFRecordSequence(path)
    assert len(sequence) == 13


def test_on_error_applies_to_a_damaged_record(tmp_path):
    records = records_of(40, 300)
    path = by_tensorflow(tmp_path / "x", records)
    data = bytearray(path.read_bytes())
    data[sum(len(record) + 16 for record in records[:21]) + 20] ^= 1
    path.write_bytes(data)
    sequence = kf.TFRecordSequence(path)
    with kf.Feed(sequence, 8, workers=0, on_error="skip") as feed:
        indices = [int(index) for batch in feed for index in batch["i"]]
        assert indices == [index for index in range(40) if index != 21]
        assert [row.index for row in feed.failures] == [21]


def test_a_shard_with_too_few_records_is_refused(shards):
    path = Path(shards[1])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 10 * 9])
    with pytest.raises(kf.errors.RecordError, match="holds 9 records, but 10 were written to it: it was truncated"):
        kf.TFRecordSequence(shards)
    records = kf.TFRecordSequence.read(shards)
    assert len([next(records) for _ in range(19)]) == 19
    with pytest.raises(kf.errors.RecordError, match="holds 9 records, but 10 were written to it: it was truncated"):
        next(records)


@pytest.mark.parametrize("change", ["cut", "rewritten", "replaced", "gone"])
def test_a_file_that_changes_while_read_raises(shards, change):
    sequence = kf.TFRecordSequence(shards)
    path = Path(shards[0])
    if change != "gone":
        sequence[0]
    time.sleep(0.25)
    if change == "cut":
        os.truncate(path, 50)
    elif change == "rewritten":
        path.write_bytes(path.read_bytes()[::-1])
    elif change == "replaced":
        path.with_name("new").write_bytes(Path(shards[1]).read_bytes())
        path.with_name("new").replace(path)
        assert sequence[0][1] == 0  # an open file is unchanged
        sequence.close()
    else:
        path.unlink()
        with pytest.raises(FileNotFoundError, match=r"the file '.*' no longer exists"):
            sequence[0]
        return
    with pytest.raises(OSError, match="changed since it was first opened"):
        sequence[0]


def test_contradictory_sidecars_and_newer_versions_raise(tmp_path):
    for name, scenes in (("a", Small(4)), ("b", [{"x": 1}] * 4)):
        kf.write_tfrecords(scenes, tmp_path / f"{name}-{{shard}}", num_shards=2, workers=0)
    with pytest.raises(kf.errors.SpecError, match="have different specs: read them as two sequences, or give spec="):
        kf.TFRecordSequence(str(tmp_path / "[ab]-*"))
    with pytest.raises(kf.errors.SpecError, match="have different specs: read them as two sequences, or give spec="):
        kf.TFRecordSequence.read(str(tmp_path / "[ab]-*"))
    sidecar = tmp_path / "a.spec.json"
    sidecar.write_text(sidecar.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(
        kf.errors.RecordError, match=r"written by a later kerasfeed \(version 2 of the format, here 1\)"
    ):
        kf.TFRecordSequence(str(tmp_path / "a-*"))
    sidecar.write_text(sidecar.read_text().replace('"version": 2', '"version": 1').replace('"array"', '"carpet"'))
    with pytest.raises(kf.errors.RecordError, match="is damaged: ValueError: the JSON does not describe a spec"):
        kf.TFRecordSequence(str(tmp_path / "a-*"))
    sidecar.write_text("{}")
    assert kf.TFRecordSequence(str(tmp_path / "a-*"))[1]["1"] == 2


def test_a_spec_reads_the_fields_that_files_of_two_kinds_share(tmp_path):
    kf.write_tfrecords([{"x": 1, "y": 2}] * 2, tmp_path / "a", num_shards=1, workers=0)
    kf.write_tfrecords([{"x": 3}] * 2, tmp_path / "b", num_shards=1, workers=0)
    paths, spec = [tmp_path / "a", tmp_path / "b"], {"x": kf.ArraySpec((), "int64")}
    assert [int(scene["x"]) for scene in kf.TFRecordSequence(paths, spec)] == [1, 1, 3, 3]
    assert [int(scene["x"]) for scene in kf.TFRecordSequence.read(paths, spec)] == [1, 1, 3, 3]


def test_a_record_length_equal_to_the_gzip_magic_is_not_read_as_gzip(tmp_path):
    path = by_tensorflow(tmp_path / "x", [bytes(0x8B1F)])
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    with pytest.raises(kf.errors.RecordError, match=r"the data are not a serialized tf\.train\.Example"):
        kf.TFRecordSequence(path)
