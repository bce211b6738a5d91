"""Files that are replaced or rewritten during an epoch: no feed mixes the scenes of two states of a file."""

import os
import signal
import time
import warnings

import h5py
import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.readers import file_bytes as source

pytestmark = pytest.mark.timeout(120)

COUNT = 60
CHANGED = "changed since it was first opened"


def write(path, value):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.full((COUNT, 8), value, np.int64), chunks=(1, 8), compression="gzip")


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "kerasfeed.h5", 1)
    return tmp_path / "kerasfeed.h5"


def replace(path, value=2):
    other = path.with_name("other.h5")
    write(other, value)
    other.replace(path)


def rewrite(path, value=2):
    other = path.with_name("other.h5")
    write(other, value)
    os.utime(other, ns=(0, 0))
    path.write_bytes(other.read_bytes() + b"longer")  # the same inode


CHANGES = {"replaced": replace, "rewritten": rewrite}


class Rooms(kf.SceneSequence):
    """Scenes of a file that the parent opens to know how many there are."""

    def __init__(self, path):
        self.file = kf.HDF5File(path)

    def __len__(self):
        return len(self.file["x"])

    def __getitem__(self, index):
        return self.file["x"][index]


def values(batches):
    return {int(value) for batch in batches for value in np.unique(batch)}


# ---- a worker that replaces a dead one


@pytest.mark.light(where=lambda change: change == "replaced")
@pytest.mark.filterwarnings("ignore:.*SIGKILL:kerasfeed.FeedWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_a_replacement_worker_refuses_a_changed_file(path, change):
    found = []
    rooms = Rooms(path)
    with kf.Feed(rooms, 2, workers=1, worker_type="process", max_queue_size=1) as feed:
        batches = iter(feed)
        found.append(next(batches))
        (pid,) = feed.stats().pids
        os.kill(pid, signal.SIGSTOP)  # it must no longer check the file
        CHANGES[change](path)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OSError, match=f"kerasfeed.h5' {CHANGED}"):
            found.extend(batches)
        assert values(found) == {1}
        rooms.file.close()
        with kf.Feed(rooms, 2, workers=1, worker_type="process") as other:
            assert values(other) == {2}


@pytest.mark.heavy
def test_a_worker_detects_that_its_open_file_was_replaced(path):
    rooms = Rooms(path)
    rooms.file = kf.HDF5File(path, chunk_cache=0)  # it need not read a kept file
    with kf.Feed(rooms, 2, workers=1, worker_type="process") as feed:
        assert values(feed) == {1}
        replace(path)
        deadline = time.monotonic() + 30
        found = []
        with pytest.raises(OSError, match=rf"{CHANGED}: another file has replaced it"):
            found.extend(batch for _ in iter(lambda: time.monotonic() < deadline, False) for batch in feed)
        assert values(found) == {1}


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*SIGKILL:kerasfeed.FeedWarning")
def test_a_replacement_worker_refuses_a_replaced_swmr_file(path):
    class Growing(Rooms):
        def __init__(self, path):
            self.file = kf.HDF5File(path, swmr=True)

    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.ones((COUNT, 8), np.int64)
    with kf.Feed(Growing(path), 2, workers=1, worker_type="process", max_queue_size=1) as feed:
        batches = iter(feed)
        found = [next(batches)]
        (pid,) = feed.stats().pids
        os.kill(pid, signal.SIGSTOP)
        with h5py.File(path.with_name("other.h5"), "w", libver="latest") as file:
            file["x"] = np.full((COUNT, 8), 2)
        path.with_name("other.h5").replace(path)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(OSError, match=CHANGED):
            found.extend(batches)
    assert values(found) == {1}


# ---- a worker that never needed the file before


def _wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


_FIRST = 10  # more scenes than one worker reads before all others, to infer the spec


class TwoWorkers(Rooms):
    """Scenes of a file; the first worker replaces it after some scenes, and the second waits for that."""

    def __init__(self, path, first=_FIRST):
        super().__init__(path)
        self.path = path
        self.read, self.first = None, first

    def __getstate__(self):
        return {**self.__dict__, "read": None}

    def __getitem__(self, index):
        done, second = self.path.with_name("done"), self.path.with_name("second")
        if self.read is None:
            try:
                os.close(os.open(self.path.with_name("first"), os.O_CREAT | os.O_EXCL))
                self.read = 0
            except FileExistsError:
                self.read = COUNT
                second.touch()
                _wait_for(done)
        scene = self.file["x"][index]
        self.read += 1
        if self.read == self.first:
            replace(self.path)
            done.touch()
            _wait_for(second)
        return scene


@pytest.mark.heavy
def test_a_worker_that_opens_a_file_late_refuses_a_changed_one(path):
    found = []
    wrong = pytest.raises(OSError, match=f"kerasfeed.h5' {CHANGED}")
    with kf.Feed(TwoWorkers(path), 2, workers=2, worker_type="process") as feed, wrong:
        found.extend(feed)
    assert path.with_name("done").exists()
    assert values(found) <= {1}


@pytest.mark.heavy
@pytest.mark.parametrize("write_files", [kf.write_hdf5, kf.write_tfrecords])
def test_writers_never_mix_the_scenes_of_two_files(path, tmp_path, write_files):
    (tmp_path / "out").mkdir()
    out = {"write_hdf5": "out/x.h5", "write_tfrecords": "out/{shard}-{count}"}[write_files.__name__]
    more = {"num_shards": 6} if write_files is kf.write_tfrecords else {}
    with pytest.raises(OSError, match=f"kerasfeed.h5' {CHANGED}"):
        write_files(TwoWorkers(path, 1), tmp_path / out, workers=2, worker_type="process", **more)
    assert not (tmp_path / "out/x.h5").exists()


# ---- a new file on purpose


class Renewed(Rooms):
    """A sequence that opens the present file in every epoch."""

    def on_epoch_begin(self):
        self.file.close()


@pytest.mark.heavy
@pytest.mark.parametrize("change", CHANGES)
def test_a_sequence_that_reopens_its_file_between_epochs_works_in_all_workers(path, change):
    with kf.Feed(Renewed(path), 2, workers=2, worker_type="process") as feed:
        assert values(feed) == {1}
        CHANGES[change](path)
        assert values(feed) == {2}
        os.kill(feed.stats().pids[0], signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning of its death comes in one of these epochs
            while not feed.stats().respawns:
                assert values(feed) == {2}
            assert values(feed) == {2}


# ---- one process


def test_a_new_object_refuses_a_changed_file_that_another_holds_open(path):
    before = Rooms(path)
    assert before[0].max() == 1
    rewrite(path)
    with pytest.raises(OSError, match=CHANGED):
        Rooms(path)[0]
    before.file.close()
    assert Rooms(path)[0].max() == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_read_the_first_opened_file_or_raise(path, monkeypatch, workers):
    monkeypatch.setattr(source, "_CHECK_SECONDS", 0)
    rooms = Rooms(path)
    with kf.Feed(rooms, 2, workers=workers, worker_type="thread") as feed:
        batches = iter(feed)
        assert values([next(batches)]) == {1}
        replace(path)
        assert values(batches) == {1}
    rooms.file.close()
    with kf.Feed(rooms, 2, workers=workers, worker_type="thread") as feed:
        batches = iter(feed)
        assert values([next(batches)]) == {2}
        rewrite(path, 3)
        found = []
        with pytest.raises(OSError, match=CHANGED):
            found.extend(batches)
        assert values(found) <= {2}
    rooms.file.close()


# ---- files that hold many scenes


def _load(path):
    return np.load(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_a_file_again_gives_the_same_data_or_an_error(tmp_path, workers):
    paths = [str(tmp_path / f"{n}.npy") for n in range(3)]
    for path in paths:
        np.save(path, np.ones((4, 8)))
    files = kf.FileSequence(paths, _load, 4, cache_files=1)
    with kf.Feed(files, 4, workers=workers, worker_type="thread") as feed:
        assert values(feed) == {1}
        _ = files[11]  # whichever thread was last, the last file is kept now
        np.save(paths[0], np.full((4, 8), 2.0))
        os.utime(paths[0], ns=(5, 5))
        with pytest.raises(OSError, match=f"0.npy' {CHANGED}"):
            list(feed)
        files.close()  # the next read opens the present files
        assert values(feed) == {1, 2}
