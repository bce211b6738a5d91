"""Files that each hold many scenes: the right scenes with every reader, without unnecessary reads."""

import pickle
import threading
import time

import numpy as np
import pytest
from files_written import COUNTS, Noting, expected, write_files

import kerasfeed as kf
from kerasfeed.readers.files.sequence import FileRow

FORMS = ["columns", "list"]
WORKERS = [(0, "thread"), (3, "thread"), (2, "process")]


@pytest.fixture
def paths(tmp_path):
    return write_files(tmp_path)


@pytest.fixture
def read(tmp_path):
    return Noting(tmp_path / "reads.log")


def labels(feed):
    return [int(y) for _, labels in feed for y in labels]


# ---- scenes


@pytest.mark.parametrize("form", FORMS)
def test_an_index_maps_to_a_file_and_a_row(paths, tmp_path, form):
    files = kf.FileSequence(paths, Noting(tmp_path / "log", form))
    assert len(files) == sum(COUNTS)
    assert [int(y) for _, y in files] == expected()
    assert files[8][0].tolist() == [201.0, 201.25, 201.5]
    assert int(files[-1][1]) == 508
    assert files.locate(8) == FileRow(paths[2], 1)
    assert files.counts.tolist() == list(COUNTS)
    assert repr(files) == "FileSequence(6 files: 34 scenes)"
    for index in (34, -35):
        with pytest.raises(IndexError, match="there are 34 scenes, 0 to 33"):
            files[index]


def test_read_file_can_return_a_dict_an_array_or_nested_columns(paths):
    def nested(path):
        with np.load(path) as file:
            names = [f"scene {y}" for y in file["y"]]
            return {"in": (file["x"], names), "out": file["y"]}

    assert kf.FileSequence(paths, np.load)[8]["y"] == 201
    assert kf.FileSequence(paths, lambda path: np.load(path)["x"])[8].tolist() == [201.0, 201.25, 201.5]

    class Tensor:
        def __init__(self, path):
            self.path = path

        def __array__(self, dtype=None, copy=None):
            return np.load(self.path)["x"]

    assert kf.FileSequence(paths, Tensor)[8].tolist() == [201.0, 201.25, 201.5]
    scene = kf.FileSequence(paths, nested)[8]
    assert (scene["in"][1], scene["out"]) == ("scene 201", 201)


def test_read_file_can_return_a_lazy_sequence(paths):
    asked = []

    class Lazy(kf.SceneSequence):
        def __init__(self, path):
            self.y = np.load(path)["y"]

        def __len__(self):
            return len(self.y)

        def __getitem__(self, row):
            asked.append(row)
            return self.y[row]

    files = kf.FileSequence(paths, Lazy)
    assert asked == []
    assert files[8] == 201
    assert asked == [1]


@pytest.mark.parametrize("form", FORMS)
def test_changing_a_scene_does_not_change_the_cache(paths, tmp_path, form):
    files = kf.FileSequence(paths, Noting(tmp_path / "log", form))
    with pytest.raises(ValueError, match="read-only"):
        files[0][0][:] = 7
    nested = kf.FileSequence(paths, lambda path: [{"x": x} for x in np.load(path)["x"]])
    nested[0]["x"] = None
    assert nested[0]["x"].tolist() == [0.0, 0.25, 0.5]


@pytest.mark.heavy
@pytest.mark.parametrize(("form", "shuffle"), [("columns", True), ("list", False)])
def test_all_kinds_of_workers_deliver_the_same_bits(paths, tmp_path, form, shuffle):
    batches = []
    for workers, worker_type in WORKERS:
        files = kf.FileSequence(paths, Noting(tmp_path / "log", form))
        with kf.Feed(files, 4, shuffle=shuffle, seed=5, workers=workers, worker_type=worker_type) as feed:
            batches.append([(x.tobytes(), y.tobytes(), x.dtype) for x, y in [*feed, *feed]])
    assert batches[0] == batches[1] == batches[2]
    assert len(batches[0]) == 18


def test_interactive_classes_and_lambdas_can_be_sent_to_a_process(paths):
    with kf.Feed(kf.FileSequence(paths, lambda path: np.load(path)["y"]), 5, workers=1, worker_type="process") as feed:
        assert [int(y) for batch in feed for y in batch] == expected()


def test_pickling_drops_the_cache_and_keeps_the_counts(paths, read):
    files = kf.FileSequence(paths, read)
    _ = files[0], files.block_of
    small = len(pickle.dumps(files))
    read.forget()
    copy = pickle.loads(pickle.dumps(files))
    assert read.reads() == []
    assert [int(y) for _, y in copy] == expected()
    assert small < 2500
    assert copy.block_of.tolist() == files.block_of.tolist()


# ---- how often files are read


def test_each_file_is_read_once_for_all_its_scenes(paths, read):
    files = kf.FileSequence(paths, read, count=COUNTS)
    assert read.reads() == []
    _ = list(files), list(files)
    assert len(read.reads()) == 5  # the empty one is never read
    stats = files.stats()
    assert (stats.reads, stats.again, stats.kept) == (5, 0, 5)
    files.close()
    files.close()
    assert files.stats().kept == 0
    assert int(files[0][1]) == 0


def test_the_cache_stays_within_its_limits_of_files_and_bytes(paths, read):
    few = kf.FileSequence(paths, read, cache_files=2)
    small = kf.FileSequence(paths, read, cache_bytes=12 * 20)  # the largest file, or two small ones
    nothing = kf.FileSequence(paths, read, cache_bytes=0)
    for files, kept in ((few, 2), (small, 2), (nothing, 1)):
        for index in range(len(files)):
            _ = files[index]
            assert files.stats().kept <= kept
        assert files.stats().reads == 5
    _ = few[0], few[33], few[8], few[0]
    assert few.stats().again == 3  # the first two files were evicted, and then file 0 again


def test_threads_wait_for_another_thread_that_reads_the_same_file(tmp_path):
    reads = []

    def slowly(path):
        reads.append(path)
        time.sleep(0.1)
        return np.arange(50)

    files = kf.FileSequence([1, 2], slowly, count=50)
    barrier, found = threading.Barrier(8), []

    def ask(index):
        barrier.wait()
        found.append((index, int(files[index])))

    threads = [threading.Thread(target=ask, args=(index,)) for index in (0, 1, 2, 3, 60, 61, 62, 63)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [(0, 0), (1, 1), (2, 2), (3, 3), (60, 10), (61, 11), (62, 12), (63, 13)]
    assert sorted(reads) == [1, 2]


def test_other_threads_retry_after_a_failed_read(tmp_path):
    tries = []

    def at_the_third(path):
        tries.append(path)
        time.sleep(0.02)
        if len(tries) < 3:
            raise OSError("not yet")
        return np.arange(4)

    files = kf.FileSequence(["a"], at_the_third, count=4)
    found = []

    def ask(index):
        try:
            found.append(int(files[index]))
        except OSError:
            found.append(-1)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.count(-1) == 2
    assert len(tries) == 3


@pytest.mark.filterwarnings("ignore:.*worker_type='thread':kerasfeed.ReadCostWarning")  # true for processes
@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_an_order_of_whole_files_reads_each_file_once_per_epoch_and_process(tmp_path, workers, worker_type):
    counts = [80] * 20
    paths = write_files(tmp_path, counts)
    read = Noting(tmp_path / "reads.log")
    files = kf.FileSequence(paths, read, counts, cache_files=8)
    with kf.Feed(
        files, 20, order=kf.BlockShuffled(files, window=2), seed=1, workers=workers, worker_type=worker_type
    ) as feed:
        first = labels(feed)
        read.forget()
        second = labels(feed)
    assert sorted(first) == sorted(second) == expected(counts)
    assert first != second
    by_process = {}
    for process, path in read.reads():
        by_process.setdefault(process, []).append(path)
    assert 1 <= len(by_process) <= (workers if worker_type == "process" else 1)
    for reads in by_process.values():
        assert len(reads) <= 20 + 2  # a slow worker may need a file that was evicted
    assert len({path for _, path in read.reads()}) >= 20 - 8 * len(by_process)  # the others were cached


def test_a_full_shuffle_of_files_larger_than_the_cache_warns_with_a_remedy(tmp_path, read):
    counts = [40] * 6
    files = kf.FileSequence(write_files(tmp_path, counts), read, counts, cache_files=1)
    with (
        kf.Feed(files, 8, shuffle=True, seed=0, workers=0) as feed,
        pytest.warns(kf.ReadCostWarning, match=r"the 6 files from .* times again .*BlockShuffled\(files"),
    ):
        labels(feed)
    with kf.Feed(files, 8, order=kf.BlockShuffled(files, window=1), seed=0, workers=0) as feed:
        labels(feed)
    with (
        kf.Feed(files, 8, order=kf.BlockShuffled(files, window=3), seed=0, workers=0) as feed,
        pytest.warns(kf.ReadCostWarning, match=r"order=kf.BlockShuffled\(files, window=1\); or larger cache_files"),
    ):
        labels(feed)


@pytest.mark.heavy
def test_the_warning_for_processes_that_each_read_every_file_suggests_threads(tmp_path):
    counts = [40] * 6
    files = kf.FileSequence(write_files(tmp_path, counts), Noting(tmp_path / "log"), counts, cache_files=1)
    with (
        kf.Feed(files, 8, shuffle=True, seed=0, workers=2, worker_type="process") as feed,
        pytest.warns(kf.ReadCostWarning, match=r"BlockShuffled.*or worker_type='thread'"),
    ):
        labels([*feed, *feed])


def test_other_orders_and_notebooks_treat_files_as_an_ordinary_sequence(paths):
    files = kf.FileSequence(paths, np.load)
    assert isinstance(files, kf.SceneSequence)
    by_class = kf.Balanced(kf.labels_of(files, "y", workers=0) // 100)
    with kf.Feed(files, 5, order=by_class, seed=2, workers=2, worker_type="thread") as feed:
        drawn = np.concatenate([batch["y"] // 100 for batch in feed])
    assert len(set(np.bincount(drawn[:30])[[0, 2, 3, 4, 5]])) == 1
    with kf.Feed(files, 4, order=kf.BlockShuffled(5), seed=2, workers=0) as feed:
        assert sorted(int(y) for batch in feed for y in batch["y"]) == expected()
