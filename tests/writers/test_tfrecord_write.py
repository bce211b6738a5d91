"""`write_tfrecords`: shards are complete or absent, whichever process is killed."""

import collections
import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from programs import ROOT, TESTS, assert_gone
from scenes_records import Everything, FailsAt, Slow, Small, assert_same, listing
from waits import PROGRAM_SECONDS, once_told, wait_until

import kerasfeed as kf
from kerasfeed.pool import watchdog
from kerasfeed.readers.tfrecord.spec_file import read_sidecar
from kerasfeed.writers.tfrecord import assigned

PATTERN = "train-{shard:05d}-of-{count:05d}.tfrecord"
SIDECAR = "train.tfrecord.spec.json"


def write(sequence, folder, num_shards=3, **arguments):
    arguments = {"workers": 2, "worker_type": "thread", "progress": False, **arguments}
    return kf.write_tfrecords(sequence, folder / PATTERN, num_shards=num_shards, **arguments)


def indices_in(paths):
    """The scenes of a set of shards, in order."""
    return [int(scene[1]) for scene in kf.TFRecordSequence.read(paths)]


def shown(folder):
    return [name for name in listing(folder) if not name.startswith(".")]


def test_a_pipe_at_the_path_of_a_shard_is_not_replaced(tmp_path):
    pipe = tmp_path / PATTERN.format(shard=1, count=3)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is a device, a pipe or a socket, which is not replaced"):
        write(Small(6), tmp_path, overwrite=True, workers=0)
    assert list(tmp_path.iterdir()) == [pipe]
    assert pipe.is_fifo()


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize(("workers", "worker_type"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_every_scene_is_written_once_by_any_workers(tmp_path, workers, worker_type, compression):
    sequence = Small(41)
    paths = write(sequence, tmp_path, workers=workers, worker_type=worker_type, compression=compression, seed=3)
    assert [Path(path).name for path in paths] == [PATTERN.format(shard=shard, count=3) for shard in range(3)]
    assert indices_in(paths) == [*range(0, 41, 3), *range(1, 41, 3), *range(2, 41, 3)]
    with kf.Feed(sequence, 41, seed=3, workers=0) as feed:
        drawn, _ = next(feed.epoch(0))
    for points, index in kf.TFRecordSequence.read(paths):
        assert points.tobytes() == drawn[index].tobytes()
    assert shown(tmp_path) == [*(Path(path).name for path in paths), SIDECAR]


@pytest.mark.heavy
def test_threads_and_processes_write_the_same_bytes(tmp_path):
    contents = []
    for number, (workers, worker_type) in enumerate([(0, "thread"), (3, "thread"), (2, "process")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = write(Everything(30), folder, workers=workers, worker_type=worker_type, compression="GZIP")
        contents.append([Path(path).read_bytes() for path in paths] + [(folder / SIDECAR).read_bytes()])
    assert contents[0] == contents[1] == contents[2]


def test_contiguous_shards_contain_runs_and_round_robin_shards_alternate():
    for length, count in [(10, 3), (7, 7), (100, 1), (41, 4)]:
        for assignment in ("round_robin", "contiguous"):
            shards = [assigned(length, count, shard, assignment) for shard in range(count)]
            assert sorted(index for shard in shards for index in shard) == list(range(length))
            assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert [list(assigned(7, 2, shard, "contiguous")) for shard in range(2)] == [[0, 1, 2], [3, 4, 5, 6]]


def test_contiguous_shards_are_read_back_in_order(tmp_path):
    assert indices_in(write(Small(41), tmp_path, assignment="contiguous")) == list(range(41))


def test_the_sidecar_describes_the_set(tmp_path):
    paths = write(Small(10), tmp_path, assignment="contiguous", compression="GZIP", seed=5)
    content = json.loads((tmp_path / SIDECAR).read_text())
    assert [file["scenes"] for file in content["files"]] == [3, 3, 4]
    assert [file["bytes"] for file in content["files"]] == [Path(path).stat().st_size for path in paths]
    assert (content["assignment"], content["compression"], content["seed"]) == ("contiguous", "GZIP", 5)
    sidecar = read_sidecar(tmp_path / SIDECAR)
    assert sidecar.scenes == {Path(path).name: count for path, count in zip(paths, [3, 3, 4], strict=True)}
    assert str(sidecar.spec.fields[0]) == "float32[8, 3]"


def test_lists_and_arrays_in_memory_can_be_written(tmp_path):
    scenes = [{"x": np.full(3, index, np.float32)} for index in range(5)]
    for place, found in enumerate(kf.TFRecordSequence(write(scenes, tmp_path, 5, worker_type="auto"))):
        assert_same(found, scenes[place])


def test_existing_files_are_replaced_only_with_overwrite(tmp_path):
    write(Small(10), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in listing(tmp_path)}
    with pytest.raises(FileExistsError, match=r"4 of the files to be written exist already: .*overwrite=True"):
        write(Small(20), tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in listing(tmp_path)} == before
    with pytest.raises(FileExistsError, match=r"1 of the files to be written exist already: .*spec\.json"):
        write(Small(20), tmp_path, 4)
    assert sorted(indices_in(write(Small(20), tmp_path, 2, overwrite=True))) == list(range(20))
    assert shown(tmp_path) == ["train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord", SIDECAR]


def test_a_sequence_that_fails_immediately_replaces_no_file(tmp_path):
    paths = write(Small(10), tmp_path)
    (tmp_path / "flag").touch()
    with pytest.raises(ValueError, match="no such scene"):
        write(FailsAt(10, 0, tmp_path / "flag"), tmp_path, overwrite=True)
    assert sorted(indices_in(paths)) == list(range(10))


@pytest.mark.heavy
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_error_of_a_scene_names_its_shard_and_complete_shards_are_kept(tmp_path, worker_type):
    flag = tmp_path / "flag"
    flag.touch()
    sequence = FailsAt(40, 37, flag)
    with pytest.raises(ValueError, match="no such scene") as caught:
        write(sequence, tmp_path, 4, assignment="contiguous", worker_type=worker_type)
    assert str(caught.value) == "no such scene"
    notes = "\n".join(caught.value.__notes__)
    assert "kerasfeed: scene 37 of shard 3 ('train-00003-of-00004.tfrecord')" in notes
    assert "Reproduce it here: sequence[37]" in notes
    assert "epoch" not in notes.split("Traceback")[0]
    assert SIDECAR not in listing(tmp_path)
    assert not [name for name in listing(tmp_path) if name.endswith((".part", ".progress"))]
    complete = {name: (tmp_path / name).stat().st_mtime_ns for name in shown(tmp_path) if name != "flag"}
    assert "train-00003-of-00004.tfrecord" not in complete
    flag.unlink()
    paths = write(sequence, tmp_path, 4, assignment="contiguous", worker_type=worker_type)
    assert indices_in(paths) == list(range(40))
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in complete} == complete
    assert not [name for name in listing(tmp_path) if "unfinished" in name]


def test_an_unfinished_set_is_not_continued_with_other_arguments(tmp_path):
    (tmp_path / "flag").touch()
    sequence = FailsAt(40, 37, tmp_path / "flag")
    with pytest.raises(ValueError, match="no such scene"):
        write(sequence, tmp_path, 4)
    with pytest.raises(
        FileExistsError, match=r"unfinished write with seed=0, but this call has seed=1\. Repeat the first call"
    ):
        write(sequence, tmp_path, 4, seed=1)
    (tmp_path / "flag").unlink()
    assert sorted(indices_in(write(sequence, tmp_path, 2, seed=1, overwrite=True))) == list(range(40))
    assert shown(tmp_path) == ["train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord", SIDECAR]


@pytest.mark.parametrize(
    "write_part",
    [
        lambda part, folder: kf.write_hdf5(part, folder / "x.h5", workers=0, progress=False),
        lambda part, folder: write(part, folder, 4, assignment="contiguous"),
    ],
)
def test_an_unfinished_part_of_a_sequence_is_not_continued_with_another_part(tmp_path, write_part):
    (tmp_path / "flag").touch()
    sequence = FailsAt(80, 77, tmp_path / "flag")
    with pytest.raises(ValueError, match="no such scene"):
        write_part(sequence[40:], tmp_path)
    with pytest.raises(
        FileExistsError,
        match=r'unfinished write with sequence="Subset 40:80 of FailsAt", but this call has sequence="Subset 0:40 of',
    ):
        write_part(sequence[:40], tmp_path)
    (tmp_path / "flag").unlink()
    write_part(sequence[40:], tmp_path)


def test_an_unfinished_set_is_not_continued_with_other_source_files(tmp_path):
    paths = [kf.write_hdf5(np.arange(first, first + 80), tmp_path / f"{first}.h5", progress=False) for first in (0, 1)]
    fails = True

    def checked(scene):
        if fails and scene == 77:
            raise ValueError("no such scene")
        return scene

    def write_copy(path):
        write(kf.Map(kf.HDF5Scenes(path), checked), tmp_path, 4, assignment="contiguous", workers=0)

    with pytest.raises(ValueError, match="no such scene"):
        write_copy(paths[0])
    with pytest.raises(FileExistsError, match="unfinished write with source_files="):
        write_copy(paths[1])
    fails = False
    write_copy(os.path.relpath(paths[0]))
    assert list(kf.TFRecordSequence(tmp_path / PATTERN)) == list(range(80))


def test_two_programs_cannot_write_one_set_at_the_same_time(tmp_path):
    class Nested(Small):
        def __getitem__(self, index):
            with contextlib.suppress(kf.KerasfeedError):
                write(Small(8), tmp_path, workers=0)
                raise AssertionError("two wrote at the same time")
            return super().__getitem__(index)

    assert sorted(indices_in(write(Nested(8), tmp_path, workers=0))) == list(range(8))


def test_a_truncated_shard_is_written_again(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(ValueError, match="no such scene"):
        write(FailsAt(40, 38, flag), tmp_path, 4, workers=0)
    os.truncate(tmp_path / "train-00000-of-00004.tfrecord", 100)
    flag.unlink()
    assert sorted(indices_in(write(FailsAt(40, 38, flag), tmp_path, 4, workers=0))) == list(range(40))


@pytest.mark.heavy
def test_the_shard_of_a_killed_worker_is_restarted(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.warns(kf.FeedWarning, match="1 worker process died .* no scene is missing or written twice"):
        paths = write(FailsAt(40, 17, flag, kills="once"), tmp_path, worker_type="process")
    assert sorted(indices_in(paths)) == list(range(40))
    assert not [name for name in listing(tmp_path) if name.endswith(".part")]


@pytest.mark.heavy
def test_the_error_for_a_scene_that_always_kills_its_worker_names_it(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(kf.errors.WorkerDiedError, match=r"wrote shard 2 .*at scene 17\..*sequence\[17\]"):
        write(FailsAt(40, 17, flag, kills="always"), tmp_path, worker_type="process")
    flag.unlink()
    assert sorted(indices_in(write(FailsAt(40, 17, flag), tmp_path, worker_type="process"))) == list(range(40))


PROGRAM = """
import sys
from scenes_records import Slow
import kerasfeed as kf
scenes = Slow(120, {log!r}, 0.01, {held!r})
kf.write_tfrecords(scenes, {pattern!r}, num_shards=6, workers=2, worker_type={worker_type!r}, compression="GZIP")
print("done")
"""


@pytest.mark.heavy
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_program_killed_repeatedly_writes_each_scene_once(tmp_path, worker_type):
    folder, log, held = tmp_path / "out", tmp_path / "log", tmp_path / "held"
    folder.mkdir()
    code = PROGRAM.format(log=str(log), pattern=str(folder / PATTERN), worker_type=worker_type, held=str(held))
    (tmp_path / "program.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, TESTS])}
    rng = np.random.default_rng(5)
    kills, ended = 0, False
    while not ended:
        before = log.stat().st_size if log.exists() else 0
        if kills < 3:  # some scenes remain when it is killed, even if that is late
            held.write_text(f"{30 + (len(log.read_text().split()) if before else 0)}")
        else:
            held.unlink()
        program = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py")], env=environment, stdout=subprocess.PIPE
        )
        if kills < 3:
            while program.poll() is None and (not log.exists() or log.stat().st_size == before):
                time.sleep(0.005)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(rng.uniform(0.02, 0.1))
        ended = kills >= 3 or program.poll() is not None
        if not ended:
            program.kill()
            kills += 1
        output, _ = program.communicate(timeout=PROGRAM_SECONDS)
        assert not ended or output == b"done\n"
    sequence = kf.TFRecordSequence.read(str(folder / PATTERN))
    assert collections.Counter(int(scene[1]) for scene in sequence) == collections.Counter(range(120))
    assert not [name for name in listing(folder) if name.endswith((".part", ".progress", ".unfinished"))]
    assert kills >= 2
    assert len(log.read_text().split()) < 120 * (kills + 1) + 5 * (kills + 1)


@pytest.mark.heavy
def test_an_interrupted_program_leaves_no_process_and_no_partial_file(tmp_path):
    log, held = tmp_path / "log", tmp_path / "held"
    held.write_text("30")  # scenes remain when it is interrupted, even if that is late
    code = PROGRAM.format(log=str(log), pattern=str(tmp_path / PATTERN), worker_type="process", held=str(held))
    (tmp_path / "program.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, TESTS])}
    program = subprocess.Popen([sys.executable, str(tmp_path / "program.py")], env=environment, stderr=subprocess.PIPE)
    while program.poll() is None and (not log.exists() or len(log.read_text().split()) < 12):
        time.sleep(0.01)
    import psutil

    workers = [child.pid for child in psutil.Process(program.pid).children(recursive=True)]
    program.send_signal(signal.SIGINT)
    held.unlink()
    _, errors = program.communicate(timeout=PROGRAM_SECONDS)
    assert b"KeyboardInterrupt" in errors
    assert_gone(workers)
    assert not [name for name in listing(tmp_path) if name.endswith((".part", ".progress"))]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_stop_after_another_shard_has_failed(tmp_path, worker_type):
    (tmp_path / "flag").touch()

    class Slow(FailsAt):
        def __getitem__(self, index):
            with (tmp_path / "log").open("a") as file:
                file.write(".")
            if index == self.bad:
                (tmp_path / "reached").touch()
            elif 10 < index < 100:  # of the other shard, whose worker may be the first to start
                wait_until((tmp_path / "reached").exists)
            time.sleep(0.05)
            return super().__getitem__(index)

    with pytest.raises(ValueError, match="no such scene"):
        write(Slow(2000, 1001, tmp_path / "flag"), tmp_path, 2, assignment="contiguous", worker_type=worker_type)
    assert (tmp_path / "log").stat().st_size < 200
    assert listing(tmp_path) == [f".{SIDECAR}.unfinished", "flag", "log", "reached"]


def test_a_temporary_file_removed_by_another_program_raises(tmp_path):
    class Removes(Small):
        def __getitem__(self, index):
            for part in tmp_path.glob(".*.part"):
                part.unlink()
            return super().__getitem__(index)

    with pytest.raises(
        FileNotFoundError,
        match=r"writing .* failed, and its incomplete file was deleted: its temporary file was removed",
    ):
        write(Removes(40), tmp_path, workers=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_raises_and_leaves_no_partial_file(tmp_path, workers):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(
            OSError, match=r"writing .*train-0000.* failed, and its incomplete file was deleted"
        ) as caught:
            write(Small(1000), tmp_path, workers=workers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno is not None
    assert not [name for name in shown(tmp_path) if not name.startswith(".")]
    assert listing(tmp_path) == [f".{SIDECAR}.unfinished"]
    assert sorted(indices_in(write(Small(1000), tmp_path))) == list(range(1000))


def test_axes_that_vary_beyond_the_first_five_scenes_need_a_spec(tmp_path):
    scenes = [(np.zeros((4 if index == 7 else 3, 2), np.float32), index) for index in range(20)]
    with pytest.raises(
        kf.errors.SpecError, match=r"scene 7: field '0': expected float32\[3, 2\], received float32\[4, 2\]"
    ):
        write(scenes, tmp_path)
    spec = (kf.ArraySpec((None, 2), np.float32), kf.ArraySpec((), np.int64))
    paths = write(scenes, tmp_path, spec=spec, overwrite=True)
    for found in kf.TFRecordSequence(paths):
        assert_same(found, scenes[found[1]])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"num_shards": 11},
            ValueError,
            "num_shards is 11, but the sequence has 10 scenes: use at most one shard per scene",
        ),
        ({"num_shards": 0}, ValueError, "num_shards must be at least 1"),
        ({"num_shards": 2.0}, TypeError, "num_shards must be an integer"),
        (
            {"assignment": "random"},
            ValueError,
            "assignment must be one of 'round_robin', 'contiguous', received 'random'",
        ),
        ({"compression": "ZLIB"}, ValueError, "compression must be None or 'GZIP', received 'ZLIB'"),
        ({"worker_type": "greenlet"}, ValueError, "worker_type must be one of auto, process, thread"),
        ({"workers": -1}, ValueError, "workers must be at least 0"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"spec": 3}, TypeError, "a spec is a nesting of"),
    ],
)
def test_a_wrong_argument_is_refused_without_leftover_files(tmp_path, arguments, kind, message):
    with pytest.raises(kind, match=message):
        write(Small(10), tmp_path, **arguments)
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("pattern", "kind", "message"),
    [
        (
            "x.tfrecord",
            ValueError,
            r"gives all 3 shards the same name: put \{shard\} into it, .*'x-\{shard:05d\}-of-\{count:05d\}",
        ),
        ("{shard}-{what}.tfrecord", ValueError, "may hold {shard} and {count}"),
        ("{shard:q}.tfrecord", ValueError, "may hold {shard} and {count}"),
        ("{shard}/x.tfrecord", ValueError, "belong in the file's name, not in its folder"),
        ("nowhere/{shard}.tfrecord", FileNotFoundError, "there is no folder '.*nowhere' to write '0.tfrecord' to"),
    ],
)
def test_a_pattern_without_a_shard_number_is_refused(tmp_path, pattern, kind, message):
    with pytest.raises(kind, match=message):
        kf.write_tfrecords(Small(10), tmp_path / pattern, num_shards=3)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (iter([1]), "writing needs a sequence that can be indexed"),
        (Small, "writing needs an instance"),
        ({"a": 1}, "writing needs a sequence of scenes"),
    ],
)
def test_an_object_that_is_not_a_sequence_is_refused(tmp_path, sequence, message):
    with pytest.raises(TypeError, match=message):
        write(sequence, tmp_path)


def test_a_feed_and_an_empty_sequence_are_refused(tmp_path):
    with kf.Feed(Small(4), 2, workers=0) as feed, pytest.raises(TypeError, match="a Feed already, which gives batches"):
        write(feed, tmp_path)
    with pytest.raises(ValueError, match="the sequence is empty"):
        write([], tmp_path)


def test_one_shard_needs_no_number_in_its_name(tmp_path):
    assert kf.write_tfrecords(Small(4), tmp_path / "all.tfrecord", num_shards=1, workers=0) == [
        str(tmp_path / "all.tfrecord")
    ]
    assert shown(tmp_path) == ["all.tfrecord", "all.tfrecord.spec.json"]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, _Terminal])
def test_progress_is_shown_on_a_terminal_only(tmp_path, monkeypatch, stream):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())
    write(Slow(40, tmp_path / "log"), tmp_path, progress=True)
    text = sys.stderr.getvalue()
    assert ("40/40" in text and "scenes/s" in text) == (stream is _Terminal)
    assert bool(text) == (stream is _Terminal)


@pytest.mark.heavy
def test_a_hanging_scene_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "STALL_SECONDS", 0.3)
    reported = threading.Event()

    class Hangs(Small):
        def __getitem__(self, index):
            if index == 17:
                assert reported.wait(60)
            return super().__getitem__(index)

    warned = pytest.warns(kf.FeedWarning, match=r"no progress for \d+ s: .* is still loading scene 17 of shard 0 ")
    with warned as caught, once_told(caught, reported.set, after=0.5):
        write(Hangs(40), tmp_path, 1, workers=1)
    assert len(caught) == 1
