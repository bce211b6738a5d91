"""`write_hdf5`: a complete file of all scenes, or the previous file."""

import os
import pickle
import resource
import subprocess
import sys
import time

import h5py
import ml_dtypes
import numpy as np
import pytest
from programs import ROOT, TESTS
from scenes_records import DTYPES, Everything, FailsAt, Small, assert_same, listing
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.writers.hdf5.sink import Sink

STORED = tuple(name for name in DTYPES if name != "bfloat16")


def write(sequence, path, **arguments):
    return kf.write_hdf5(sequence, path, **{"workers": 2, "worker_type": "thread", "progress": False, **arguments})


@pytest.mark.light(where=lambda scenes_per_chunk: scenes_per_chunk in (None, 7))
@pytest.mark.parametrize(
    ("scenes_per_chunk", "compression"),
    [(None, None), (1, None), (7, "gzip"), (None, "gzip"), (3, "lzf"), (1000, 1)],
)
def test_every_dtype_and_nesting_round_trips_bit_for_bit(tmp_path, scenes_per_chunk, compression):
    sequence = Everything(100, varying=False, names=STORED)
    path = write(sequence, tmp_path / "x.h5", scenes_per_chunk=scenes_per_chunk, compression=compression)
    scenes = kf.HDF5Scenes(path)
    assert len(scenes) == 100
    for index in range(100):
        assert_same(scenes[index], sequence[index])
    assert_same(scenes[-1], sequence[99])
    assert listing(tmp_path) == ["x.h5"]


def test_chunks_contain_whole_scenes_and_more_of_small_fields(tmp_path):
    scenes = [(np.full((40, 50), index, np.float32), index) for index in range(100)]
    path = write(scenes, tmp_path / "x.h5", scenes_per_chunk=3, compression="gzip")
    with h5py.File(path) as file:
        assert file["0"].chunks == (3, 40, 50)
        assert file["1"].chunks == (6,)
        assert file["0"].compression == "gzip"
        assert file["0"].shuffle
        assert (file["0"].shape, file["1"].shape) == ((100, 40, 50), (100,))
    assert kf.HDF5Scenes(path).block_size == 3
    with h5py.File(write(scenes, tmp_path / "y.h5")) as file:
        assert file["0"].chunks is None
    assert str(kf.HDF5File(path)["0"].reader).startswith("direct")


def test_a_small_field_next_to_large_ones_is_not_chunked(tmp_path):
    scenes = kf.Zip(np.arange(64 * 40 * 50, dtype=np.float32).reshape(64, 40, 50), np.arange(64))
    with h5py.File(write(scenes, tmp_path / "x.h5", compression="gzip")) as file:
        assert (file["0"].chunks, file["1"].chunks) == ((4, 40, 50), None)
        assert file["1"][...].tolist() == list(range(64))


@pytest.mark.heavy
def test_threads_processes_and_the_calling_thread_write_the_same(tmp_path):
    found = []
    for number, (workers, worker_type) in enumerate([(0, "thread"), (2, "thread"), (2, "process")]):
        path = write(Small(60), tmp_path / f"{number}.h5", workers=workers, worker_type=worker_type, seed=4)
        with h5py.File(path) as file:
            found.append((file["0"][...].tobytes(), file["1"][...].tolist()))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == list(range(60))
    with kf.Feed(Small(60), 60, workers=0, seed=4) as feed:
        assert next(feed.epoch(0))[0].tobytes() == found[0][0]


def _written(path, scenes, **arguments):
    kf.write_hdf5(scenes, path, progress=False, **arguments)
    with kf.HDF5Scenes(path).file as file:
        return [file[name][...] for name in ("x", "number", "text", "drawn")]


class Drawing(kf.SceneSequence):
    """Scenes of every kind of column, with a separate random number."""

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return {"x": np.full(2000, index), "number": index, "text": f"scene {index}", "drawn": self.rng.random()}


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_copy_in_random_order_equals_a_shuffled_epoch_of_the_seed(tmp_path, compression):
    found = _written(tmp_path / "0.h5", Drawing(), workers=0, shuffle=True, seed=3, compression=compression)
    order = found[1].tolist()
    assert order != sorted(order)
    with kf.Feed(Drawing(), batch_size=50, shuffle=True, seed=3, workers=0) as feed:
        (batch,) = feed
    assert order == batch["number"].tolist()
    assert found[0][:, 7].tolist() == order
    assert found[2].tolist() == [f"scene {index}".encode() for index in order]
    assert found[3].tolist() == batch["drawn"].tolist()
    for name, arguments in (("thread", {"workers": 3, "worker_type": "thread"}), ("chunks", {"scenes_per_chunk": 7})):
        arguments = {"workers": 0, "compression": compression, "shuffle": True, "seed": 3} | arguments
        again = _written(tmp_path / f"{name}.h5", Drawing(), **arguments)
        assert all(map(np.array_equal, found, again))
    assert _written(tmp_path / "4.h5", Drawing(), workers=0, shuffle=True, seed=4)[1].tolist() != order


def test_a_failed_copy_in_random_order_names_the_scene_and_refuses_another_order(tmp_path):
    class Failing(Drawing):
        def __getitem__(self, index):
            return super().__getitem__(index) if index != 17 or good else 1 / 0

    good, path = False, tmp_path / "rooms.h5"
    with pytest.raises(ZeroDivisionError) as caught:
        kf.write_hdf5(Failing(), path, workers=0, shuffle=True, progress=False)
    assert "sequence[17]" in "".join(caught.value.__notes__)
    with pytest.raises(FileExistsError, match="with shuffle=true, but this call has shuffle=false"):
        kf.write_hdf5(Failing(), path, workers=0, progress=False)
    good = True
    assert sorted(_written(path, Failing(), workers=0, shuffle=True)[1]) == list(range(50))


def test_a_feed_reads_the_written_file(tmp_path):
    path = write(Small(30), tmp_path / "x.h5", scenes_per_chunk=4)
    scenes = pickle.loads(pickle.dumps(kf.HDF5Scenes(path)))
    with kf.Feed(scenes, 8, order=kf.BlockShuffled(scenes), seed=0, workers=2, worker_type="thread") as feed:
        assert sorted(int(index) for _, indices in feed for index in indices) == list(range(30))
    assert [str(field) for field in scenes.spec] == ["float32[8, 3]", "int64[]"]


@pytest.mark.parametrize(
    ("scenes", "message"),
    [
        (
            [np.zeros(index + 1) for index in range(5)],
            r"field 'scene' is float64\[\?\], .*Pad, crop .*kf.write_tfrecords",
        ),
        ([np.zeros(2, ml_dtypes.bfloat16)] * 3, "is bfloat16.*, a dtype that HDF5 lacks: return it as another"),
        ([{"a/b": 1, "a": 2}] * 3, "two fields need the datasets 'a' and 'a/b'"),
        ([{"a/b": 1, "a": {"b": 2}}] * 3, "two fields need the datasets 'a/b' and 'a/b'"),
        (
            [{"name": "a"}] * 2 + [{"name": "\udc80"}],
            "scene 2: field 'name' holds text that UTF-8 cannot encode: .* Return bytes: text.encode",
        ),
        (["a\0b"] * 3, "scene 0: field 'scene' holds text with a NUL, which ends a string in HDF5: return bytes"),
    ],
)
def test_scenes_that_hdf5_cannot_store_are_refused(tmp_path, scenes, message):
    with pytest.raises(kf.errors.SpecError, match=message):
        write(scenes, tmp_path / "x.h5", workers=0)
    assert "x.h5" not in listing(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"scenes_per_chunk": 0}, ValueError, "scenes_per_chunk must be at least 1"),
        ({"scenes_per_chunk": 1.5}, TypeError, "scenes_per_chunk must be an integer"),
        ({"compression": "zip"}, ValueError, "compression must be one of None, 'gzip'"),
        ({"worker_type": "fork"}, ValueError, "worker_type must be one of"),
    ],
)
def test_a_wrong_argument_is_refused_without_leftover_files(tmp_path, arguments, kind, message):
    with pytest.raises(kind, match=message):
        write(Small(10), tmp_path / "x.h5", **arguments)
    assert listing(tmp_path) == []


def test_paths_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        write(Small(10), tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write(Small(10), tmp_path / "nowhere" / "x.h5")
    (tmp_path / "x.h5").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"exist already: .*x\.h5"):
        write(Small(10), tmp_path / "x.h5")
    assert (tmp_path / "x.h5").read_bytes() == b"mine"
    assert listing(tmp_path) == ["x.h5"]
    assert len(kf.HDF5Scenes(write(Small(10), tmp_path / "x.h5", overwrite=True))) == 10


def test_hdf5scenes_refuses_a_file_not_written_by_write_hdf5(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(
        kf.errors.RecordError, match=r"was not written by kf\.write_hdf5: read its datasets with kf\.HDF5File"
    ):
        kf.HDF5Scenes(tmp_path / "x.h5")


def test_an_interrupted_overwrite_is_refused_without_overwrite_before_it_reads_scenes(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    write([0.0], tmp_path / "x.h5")
    with pytest.raises(ValueError, match="no such scene"):
        write(FailsAt(160, 77, flag), tmp_path / "x.h5", workers=0, overwrite=True)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / ".x.h5.segments").iterdir()}
    with pytest.raises(FileExistsError, match=r"of the files to be written exist already: .*x\.h5"):
        write(FailsAt(160, 77, flag), tmp_path / "x.h5", workers=0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / ".x.h5.segments").iterdir()} == kept
    assert list(kf.HDF5Scenes(tmp_path / "x.h5")) == [0.0]


def test_after_a_failed_scene_the_same_call_continues(tmp_path):
    flag, out = tmp_path / "flag", tmp_path / "out"
    flag.touch()
    out.mkdir()
    sequence = FailsAt(160, 77, flag)
    with pytest.raises(ValueError, match="no such scene") as caught:
        write(sequence, out / "x.h5", workers=1)
    assert "kerasfeed: scene 77 of shard" in caught.value.__notes__[0]
    assert listing(out) == [".x.h5.segments", ".x.h5.unfinished"]
    complete = {path: path.stat().st_mtime_ns for path in (out / ".x.h5.segments").iterdir()}
    assert len(complete) == 7
    with pytest.raises(FileExistsError, match=r"with compression=null, but this call has compression=\"gzip\""):
        write(sequence, out / "x.h5", compression="gzip")
    flag.unlink()
    os.truncate(min(complete), 100)
    scenes = kf.HDF5Scenes(write(sequence, out / "x.h5", workers=1))
    assert [int(scene[1]) for scene in scenes] == list(range(160))
    assert listing(out) == ["x.h5"]


PROGRAM = """
from scenes_records import Slow
import kerasfeed as kf
scenes = Slow(160, {log!r}, held={held!r})
kf.write_hdf5(scenes, {path!r}, workers=2, worker_type="process", compression="gzip")
"""


@pytest.mark.heavy
def test_a_program_killed_repeatedly_writes_each_scene_once(tmp_path):
    log, path, held = tmp_path / "log", tmp_path / "x.h5", tmp_path / "held"
    (tmp_path / "program.py").write_text(PROGRAM.format(log=str(log), path=str(path), held=str(held)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, TESTS])}
    for kill_after in (0.1, 0.25, None):
        before = log.stat().st_size if log.exists() else 0
        if kill_after:  # some scenes remain when it is killed, even if that is late
            held.write_text(f"{70 + (len(log.read_text().split()) if before else 0)}")
        else:
            held.unlink()
        program = subprocess.Popen([sys.executable, str(tmp_path / "program.py")], env=environment)
        while kill_after and program.poll() is None and (not log.exists() or log.stat().st_size == before):
            time.sleep(0.005)
        if kill_after:
            time.sleep(kill_after)
            assert not path.exists()
            program.kill()
        program.wait(PROGRAM_SECONDS)
    assert program.returncode == 0
    assert [int(scene[1]) for scene in kf.HDF5Scenes(path)] == list(range(160))
    assert listing(tmp_path) == ["log", "program.py", "x.h5"]


@pytest.mark.parametrize(("limit", "where"), [(5_000, "000000.h5"), (60_000, "x.h5")])
def test_a_full_disk_raises_and_leaves_no_partial_file(tmp_path, limit, where):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(OSError, match=f"writing .*{where}' failed, and its incomplete file was deleted"):
            write(Small(1000), tmp_path / "x.h5", workers=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert listing(tmp_path) == [".x.h5.segments", ".x.h5.unfinished"]
    assert not [name for name in listing(tmp_path / ".x.h5.segments") if not name.endswith(".h5")]
    assert len(kf.HDF5Scenes(write(Small(1000), tmp_path / "x.h5"))) == 1000


def test_a_sink_returns_data_that_the_disk_refused(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        sink = Sink(fd)
        sink.write(b"0123456789")
        os.close(fd)
        os.open(tmp_path / "file", os.O_RDONLY)  # gets the same number, so writing fails from now on
        sink.seek(4)
        assert sink.write(b"abcd") == 4
        sink.seek(8)
        assert sink.write(b"efgh") == 4
        with pytest.raises(OSError, match="Bad file descriptor"):
            sink.check()
        found = bytearray(14)
        sink.seek(0)
        assert sink.readinto(found) == 14
        assert bytes(found) == b"0123abcdefgh\0\0"
        assert sink.seek(0, os.SEEK_END) == 12
    finally:
        os.close(fd)
