"""Text that ends in NUL characters is kept, on every path a scene can take."""

import pytest
from scenes_lists import NulText, nul_text, nul_texts
from streams import WAYS

import kerasfeed as kf


def check_text(batches):
    found = [row for batch in batches for row in range(len(batch["str"])) if check_row(batch, row) is None]
    assert len(found) == 22


def check_row(batch, row):
    number = int(batch["str"][row].split()[1].strip("\0"))
    assert (batch["bytes"][row], batch["str"][row]) == (b"abc\0\0\0\0\0", f"text {number}\0\0")
    assert batch["held"][row].tolist() == [b"obj\0\0", b"plain\0"]
    assert batch["words"][row].tolist() == [f"word {number}\0\0"]
    assert batch["list"][row].tolist() == [b"in a list\0", b"\0"]
    assert {type(batch["bytes"][row]), *map(type, batch["held"][row])} == {bytes}
    assert type(batch["str"][row]) is str


@pytest.mark.parametrize("collate", ["stack", "pad"])
@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_every_loader_keeps_nul_characters_at_the_end_of_text(workers, worker_type, collate):
    with kf.Feed(NulText(), 6, workers=workers, worker_type=worker_type, collate=collate) as feed:
        check_text(feed)


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_every_stream_keeps_nul_characters_at_the_end_of_text(workers, worker_type):
    with kf.StreamFeed(nul_texts, 6, count=2, workers=workers, worker_type=worker_type) as feed:
        check_text(feed)
    with kf.StreamFeed(nul_texts, 6, workers=min(1, workers), worker_type=worker_type).map(dict) as feed:
        check_text(feed)


def test_a_sequence_in_memory_keeps_its_text_in_worker_processes():
    with kf.Feed([nul_text(k) for k in range(22)], 6, workers=1, worker_type="process") as feed:
        check_text(feed)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_cache_keeps_nul_characters_at_the_end_of_text(tmp_path, where):
    cached = kf.Cached(NulText(), **({"path": tmp_path, "key": "v1"} if where == "disk" else {}))
    for _ in range(2):
        with kf.Feed(cached, 6, workers=0) as feed:
            check_text(feed)


@pytest.mark.heavy
def test_records_keep_nul_characters_at_the_end_of_text(tmp_path):
    kf.write_tfrecords(NulText(), tmp_path / "a-{shard}.tfrecord", num_shards=1, workers=1, progress=False)
    with kf.Feed(kf.TFRecordSequence(tmp_path / "a-{shard}.tfrecord"), 6, workers=0) as feed:
        check_text(feed)
    kf.write_hdf5(kf.Map(NulText(), lambda scene: scene["bytes"]), tmp_path / "a.h5", workers=1, progress=False)
    assert kf.HDF5Scenes(tmp_path / "a.h5")[3] == b"abc\0\0\0\0\0"
