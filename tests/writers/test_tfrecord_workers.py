"""`write_tfrecords`: the workers that write, and the number of starts."""

import os
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from scenes_records import FailsAt, Small, assert_same, listing

import kerasfeed as kf
from kerasfeed.writers import tfrecord as writing

_OPENING = threading.Lock()
PATTERN = "train-{shard:05d}-of-{count:05d}.tfrecord"


class Logged(Small):
    """Logs a line for each worker that begins and for each read; opens a file at the first read."""

    def __init__(self, length, log):
        super().__init__(length)
        self.log = str(log)
        self.file = None

    def _note(self, *words):
        with Path(self.log).open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def on_worker_begin(self, worker):
        self._note("begin", os.getpid(), worker.worker_type)

    def __getitem__(self, index):
        with _OPENING:
            self.file = self.file or Path(self.log).open()  # noqa: SIM115 - typical code, and it does not pickle
        self._note("read", os.getpid(), index)
        return super().__getitem__(index)

    def __del__(self):
        if self.file is not None:
            self.file.close()


class Reuses(Small):
    """Every scene is in the same array."""

    def __init__(self, length):
        super().__init__(length)
        self.array = np.zeros((100, 100, 3), np.float32)

    def __getitem__(self, index):
        self.array[:] = index
        return self.array, index


def write(sequence, folder, num_shards=3, **arguments):
    arguments = {"workers": 2, "worker_type": "thread", "progress": False, **arguments}
    return kf.write_tfrecords(sequence, folder / PATTERN, num_shards=num_shards, **arguments)


def indices_in(paths):
    return [int(scene[1]) for scene in kf.TFRecordSequence(paths)]


def lines_of(log):
    return [line.split() for line in Path(log).read_text().splitlines()]


@pytest.mark.heavy
def test_explicit_workers_are_started_once_and_also_read_for_the_spec(tmp_path):
    paths = kf.write_tfrecords(
        Logged(30, tmp_path / "log"), tmp_path / PATTERN, num_shards=2, workers=2, worker_type="process"
    )
    lines = lines_of(tmp_path / "log")
    begun = [line[1] for line in lines if line[0] == "begin"]
    assert len(set(begun)) == len(begun) == 2
    assert str(os.getpid()) not in {line[1] for line in lines}
    assert len([line for line in lines if line[0] == "read"]) == 30 + 5
    assert sorted(indices_in(paths)) == list(range(30))


def test_worker_processes_write_and_read_for_the_spec_by_default(tmp_path):
    sequence = Logged(30, tmp_path / "log")
    paths = kf.write_tfrecords(sequence, tmp_path / PATTERN, num_shards=2)
    lines = lines_of(tmp_path / "log")
    assert {line[2] for line in lines if line[0] == "begin"} == {"process"}
    assert str(os.getpid()) not in {line[1] for line in lines}
    assert sequence.file is None
    assert sorted(indices_in(paths)) == list(range(30))


def test_with_a_given_spec_each_scene_is_read_once(tmp_path):
    spec = (kf.ArraySpec((8, 3), np.float32), kf.ArraySpec((), np.int64))
    kf.write_tfrecords(
        Logged(30, tmp_path / "log"), tmp_path / PATTERN, num_shards=2, workers=2, worker_type="thread", spec=spec
    )
    read = [int(line[2]) for line in lines_of(tmp_path / "log") if line[0] == "read"]
    assert sorted(read) == list(range(30))


def test_without_workers_the_error_of_a_scene_names_its_shard(tmp_path):
    (tmp_path / "flag").touch()
    with pytest.raises(ValueError, match="no such scene") as caught:
        kf.write_tfrecords(FailsAt(30, 1, tmp_path / "flag"), tmp_path / PATTERN, num_shards=2)
    assert "kerasfeed: scene 1 of shard 1" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("spec", [None, (kf.ArraySpec((8, 3), np.float32), kf.ArraySpec((), np.int64))])
def test_an_interrupt_in_a_scene_stops_writing(tmp_path, spec):
    class Interrupted(Small):
        def __getitem__(self, index):
            if index:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        kf.write_tfrecords(Interrupted(30), tmp_path / PATTERN, num_shards=2, spec=spec, workers=0)
    unfinished = [] if spec is None else [".train.tfrecord.spec.json.unfinished"]  # which lets the same call continue
    assert listing(tmp_path) == unfinished


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_error_for_an_exit_in_a_scene_names_scene_and_shard(tmp_path, worker_type):
    class Exits(Small):
        def __getitem__(self, index):
            return super().__getitem__(index) if index != 3 else sys.exit(3)

    with pytest.raises(kf.errors.SceneError, match="the sequence raised SystemExit: 3") as caught:
        kf.write_tfrecords(Exits(30), tmp_path / PATTERN, num_shards=2, workers=1, worker_type=worker_type)
    assert caught.value.__notes__[0].startswith("kerasfeed: scene 3 of shard 1 ('train-00001-of-00002.tfrecord')\n")


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_an_error_while_reading_for_the_spec_says_so(tmp_path, worker_type):
    (tmp_path / "flag").touch()
    sequence = FailsAt(30, 0, tmp_path / "flag")
    with pytest.raises(ValueError, match="no such scene") as caught:
        kf.write_tfrecords(sequence, tmp_path / PATTERN, num_shards=2, workers=1, worker_type=worker_type)
    notes = "\n".join(caught.value.__notes__)
    assert "kerasfeed: scene 0 (read to infer the spec)\nReproduce it here: sequence[0]" in notes
    assert "epoch" not in notes.split("Traceback")[0]
    assert listing(tmp_path) == ["flag"]


@pytest.mark.heavy
def test_the_error_for_a_scene_that_kills_workers_during_spec_inference_names_it(tmp_path):
    (tmp_path / "flag").touch()
    sequence = FailsAt(30, 29, tmp_path / "flag", kills="always")
    with pytest.raises(
        kf.errors.WorkerDiedError, match=r"while they read scene 29\. .*load that scene .* sequence\[29\]"
    ):
        kf.write_tfrecords(sequence, tmp_path / PATTERN, num_shards=2, workers=1, worker_type="process")
    assert listing(tmp_path) == ["flag"]


def test_existing_files_are_refused_before_reading(tmp_path):
    (tmp_path / "x.h5").touch()
    with pytest.raises(FileExistsError, match="1 of the files to be written exist already"):
        kf.write_hdf5(Logged(30, tmp_path / "log"), tmp_path / "x.h5")
    assert listing(tmp_path) == ["x.h5"]


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_an_array_reused_by_every_scene_is_written_correctly(tmp_path, compression, monkeypatch):
    writev = os.writev
    monkeypatch.setattr(writing.os, "writev", lambda file, pieces: writev(file, [memoryview(pieces[0])[:50_000]]))
    paths = kf.write_tfrecords(
        Reuses(10), tmp_path / PATTERN, num_shards=2, workers=0, compression=compression, assignment="contiguous"
    )
    for index, scene in enumerate(kf.TFRecordSequence.read(paths)):
        assert_same(scene, Reuses(10)[index])


def test_an_unpicklable_sequence_is_written_by_one_thread_with_a_warning(tmp_path):
    sequence = Small(10)
    sequence.lock = threading.Lock()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kf.write_tfrecords(sequence, tmp_path / PATTERN, num_shards=2)
    assert ["worker_type='auto' uses one worker thread" in str(each.message) for each in caught] == [True]


def test_more_workers_than_shards_are_reported(tmp_path):
    with pytest.warns(
        UserWarning, match=r"5 workers have 3 shards to write, .*2 have nothing to do\. Use num_shards=5"
    ):
        write(Small(10), tmp_path, workers=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(Small(10), tmp_path, 1, workers="auto", overwrite=True)


def test_hooks_of_the_sequence_are_called_around_its_scenes(tmp_path):
    class Hooked(Small):
        offset = 0

        def on_worker_begin(self, worker):
            self.offset = 100

        def __getitem__(self, index):
            points, index = super().__getitem__(index)
            return points, index + self.offset

    assert sorted(indices_in(write(Hooked(10), tmp_path, worker_type="process"))) == list(range(100, 110))


def test_an_unpicklable_sequence_is_refused_for_processes_without_leftover_files(tmp_path):
    sequence = Small(10)
    sequence.lock = threading.Lock()
    spec = kf.TFRecordSequence(write(Small(10), tmp_path)).spec
    before = listing(tmp_path)
    with pytest.raises(TypeError, match="cannot be sent to worker processes"):
        kf.write_tfrecords(sequence, tmp_path / "y-{shard}", num_shards=2, workers=1, worker_type="process", spec=spec)
    assert listing(tmp_path) == before
