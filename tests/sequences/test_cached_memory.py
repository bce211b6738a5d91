"""Cached in memory: one cache for all processes of a machine, even if they change it, die or start late."""

import copy
import enum
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scenes
from killer import Killer
from scenes_views import Squares
from waits import PROGRAM_SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.sequences import cache_store
from kerasfeed.sequences.cache_store import SceneMemory, frozen_leaves
from kerasfeed.spec.nesting import structure_text


class Level(enum.IntEnum):
    """Numbers of a user's class."""

    LOW = 1
    HIGH = 2


class Logged(kf.SceneSequence):
    """Scenes (float32[20, 3] or of other lengths, int), which log each read; or numbers from a file."""

    def __init__(self, length, log, varying=False, path=None):
        self.length, self.log, self.varying, self.path = length, log, varying, path

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with open(str(self.log()), "a") as file:  # noqa: PTH123
            file.write(f"{index}\n")
        factor = 1 if self.path is None else float(self.path.read_text())
        return np.full((20 + (index % 3 if self.varying else 0), 3), factor * index, np.float32), index


def _labels(feed, epoch=None):
    batches = list(feed if epoch is None else feed.epoch(epoch))
    for points, labels in batches:
        points = points.to_tensor() if hasattr(points, "to_tensor") else points
        assert np.array_equal(points[:, 0, 0], labels)
    return sorted(np.concatenate([labels for _, labels in batches]).tolist())


@pytest.mark.light(where=lambda varying: not varying)
@pytest.mark.parametrize("varying", [False, True])
def test_two_worker_processes_together_read_each_scene_once(log, varying):
    cached = kf.Cached(Logged(100, log, varying))
    collate = kf.Pad(fields="0") if varying else "stack"
    with kf.Feed(cached, 8, shuffle=True, seed=0, workers=2, worker_type="process", collate=collate) as feed:
        for _ in range(4):
            assert _labels(feed) == list(range(100))
    # Each process reads its first three scenes twice. It also reads its first one if another process has stored it.
    assert 100 <= len(log.lines()) <= 100 + 2 * 4
    assert cached.nbytes >= 100 * (20 * 3 * 4 + 8)
    with kf.Feed(cached[10:60], 8, workers=1, worker_type="process", collate=collate) as feed:
        assert _labels(feed) == list(range(10, 60))
    assert len(log.lines()) <= 100 + 2 * 4 + 2  # a process reads one scene to learn the nesting, twice


@pytest.mark.heavy
def test_max_memory_applies_to_all_worker_processes_together(log):
    cached = kf.Cached(Logged(60, log), max_memory=20 * 248)
    with kf.Feed(cached, 4, shuffle=True, seed=0, workers=2, worker_type="process") as feed:
        for _ in range(3):
            assert _labels(feed) == list(range(60))
    assert cached.nbytes == 20 * 248
    assert 60 + 2 * 40 <= len(log.lines()) <= 60 + 2 * 40 + 2 * 4


@pytest.mark.heavy
def test_two_feeds_over_one_cache_share_it(log):
    cached = kf.Cached(Logged(40, log))
    setup = {"workers": 1, "worker_type": "process"}
    with kf.Feed(cached, 4, **setup) as one, kf.Feed(kf.Map(cached, _same), 4, shuffle=True, seed=0, **setup) as two:
        for _ in range(2):
            for (_, labels), (points, others) in zip(one, two, strict=True):
                assert len(labels) == len(others)
                assert np.array_equal(points[:, 0, 0], others)
    assert 40 <= len(log.lines()) <= 40 + 2 * 3 + 8  # both may read these at the same time


class Doubled(kf.Cached):
    def __getitem__(self, index):
        points, label = super().__getitem__(index)
        return 2 * points, label


@pytest.mark.parametrize("part", [slice(None), slice(2, 30)])
def test_a_user_s_class_over_a_cache_is_not_bypassed(part, log):
    doubled = Doubled(Logged(40, log))
    with kf.Feed(doubled[part] if part.start else doubled, 8, workers=0) as feed:
        for _ in range(3):
            for points, labels in feed:
                assert np.array_equal(points[:, 0, 0], 2 * labels)


def _same(scene):
    return scene


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*SIGKILL:kerasfeed.FeedWarning")
@pytest.mark.parametrize("varying", [False, True])
def test_workers_killed_while_the_cache_fills_do_not_corrupt_it(log, varying):
    cached = kf.Cached(Logged(1000, log, varying))
    collate = kf.Pad(fields="0") if varying else "stack"
    with (
        kf.Feed(cached, 8, workers=2, worker_type="process", collate=collate, shuffle=True, seed=0) as feed,
        Killer(feed, 0.3) as killer,
    ):
        while killer.kills < 6:
            assert _labels(feed) == list(range(1000))
            cached.clear()
        assert _labels(feed) == list(range(1000))


# ---- the memory itself


def _kept_in(memory, index, scene):
    leaves, treespec = frozen_leaves(scene)
    memory.write(index, leaves, structure_text(treespec))


def test_every_kind_of_field_is_returned_unchanged_as_a_copy():
    memory = SceneMemory(20, 100_000)
    cases = [
        Squares()[3], np.float32(2), np.arange(4, dtype=">i2"), np.array(5.0), True, -3, 2.5, 1 + 2j, 1 << 64,
        "é\0", b"\0a\0", [1, 2.5], ([[1, 2], [3, 4]], 1),
        np.zeros((0, 3)), np.zeros(2, "U3"), np.datetime64("2020-01-02", "D"),
        np.zeros(2, [("a", "i4"), ("b", "f8")]), (), {"a": np.longdouble(1) / 3},
    ]  # fmt: skip
    for first in (0, 1, 2):  # the first row defines the kind of rows
        for index, scene in enumerate(cases[first:] + cases[:first]):
            _kept_in(memory, index, scene)
        for index, scene in enumerate(cases[first:] + cases[:first]):
            leaves, treespec = frozen_leaves(scene)
            for _ in range(2):
                found, structure = memory.read(index)
                assert structure == structure_text(treespec)
                for leaf, other in zip(found, leaves, strict=True):
                    assert type(leaf) is type(other)
                    assert np.array_equal(leaf, other)
                    if isinstance(leaf, np.ndarray):
                        assert (leaf.dtype, leaf.shape) == (other.dtype, other.shape)
                        leaf.reshape(-1)[:1] = leaf.reshape(-1)[-1:]
        memory.clear()


def test_rows_are_copied_only_if_all_are_cached_and_fit_the_batch():
    memory = SceneMemory(5, 10_000)
    for index in (0, 1, 3):
        _kept_in(memory, index, (np.full(3, index, np.float32), index))
    _kept_in(memory, 4, (np.full(2, 4, np.float32), 4))
    out = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    places = np.array([3, 1])
    structure = "(*, *)"
    assert memory.copy_rows(places, structure, out)
    assert [each.tolist() for each in out] == [[[3, 3, 3], [1, 1, 1]], [3, 1]]
    for other in ([1, 2], [4, 1]):  # one is missing, one is not a row
        assert not memory.copy_rows(np.array(other), structure, out)
    assert not memory.copy_rows(places, "[*, *]", out)
    assert not memory.copy_rows(places, structure, (out[0], out[1].astype(np.float64)))
    assert not memory.copy_rows(places, structure, (out[0][:, :2], out[1]))


def test_scenes_written_by_many_threads_are_kept_once():
    memory = SceneMemory(300, 300 * 800)
    together = threading.Barrier(4)

    def write():
        together.wait()
        for index in range(300):
            _kept_in(memory, index, np.full(100, float(index)))

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(write) for _ in range(4)]:
            done.result()
    assert memory.nbytes == 300 * 800
    assert all((memory.read(index)[0][0] == index).all() for index in range(300))


def test_the_table_of_a_million_scenes_uses_memory_only_for_cached_ones():
    memory = SceneMemory(10**6, 1 << 30)
    _kept_in(memory, 999_999, np.float32(1))
    assert 512 * os.fstat(memory._fd).st_blocks < 100_000


def test_clear_returns_memory_to_the_system():
    cached = kf.Cached(np.ones((10, 100_000)))
    assert sum(scene.sum() for scene in cached) == 1_000_000
    held = 512 * os.fstat(cached._memory._fd).st_blocks
    cached.clear()
    assert cached.nbytes == 0
    assert 512 * os.fstat(cached._memory._fd).st_blocks < held - 7_000_000
    assert sum(scene.sum() for scene in cached) == 1_000_000


def test_a_scene_cleared_by_another_process_during_a_copy_is_dropped(monkeypatch):
    memory = SceneMemory(2, 10_000)
    _kept_in(memory, 0, np.arange(3.0))
    _kept_in(memory, 1, "text")

    def cleared_meanwhile(*arguments):
        memory.clear()
        return real(*arguments)

    real = cache_store._value
    monkeypatch.setattr(cache_store, "_value", cleared_meanwhile)
    assert memory.read(0) is None


# ---- other processes


def _run(cached, code):
    """Run code in a new process with the pickle of `cached`; return its output."""
    program = f"import os, pickle, signal, sys\ncached = pickle.load(sys.stdin.buffer)\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(cached), capture_output=True, timeout=PROGRAM_SECONDS
    )


def test_a_pickle_shares_the_memory_only_while_the_cache_exists():
    cached = kf.Cached(np.arange(12.0).reshape(4, 3))
    done = _run(cached, "print(cached[2].tolist(), cached.nbytes)")
    assert done.stdout.decode().split("\n")[0] == "[6.0, 7.0, 8.0] 24", done.stderr.decode()
    assert cached.nbytes == 24
    pickled = pickle.dumps(cached)
    assert pickle.loads(pickled)._memory is cached._memory
    del cached
    late = pickle.loads(pickled)
    assert (late.nbytes, late[1].tolist(), late.nbytes) == (0, [3, 4, 5], 24)


def test_a_deep_copy_reads_its_own_sequence():
    cached = kf.Cached(kf.Map([0, 1, 2], np.float32))
    assert list(cached) == [0, 1, 2]
    copied = copy.deepcopy(cached)
    copied.sequence.sequence[:] = [5, 6, 7]
    assert list(copied) == [5, 6, 7]
    copied.clear()
    assert cached.nbytes == 12
    assert list(cached) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks of a process with threads
def test_forked_processes_share_the_memory(log):
    cached = kf.Cached(Logged(6, log))
    for first in (0, 2, 4):
        child = os.fork()
        if not child:
            os._exit(0 if [cached[index][1] for index in (first, first + 1)] == [first, first + 1] else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert cached.nbytes == 6 * 248
    assert len(log.lines()) == 3 * 2 * 2  # all among the first three of a process
    assert [label for _, label in cached] == list(range(6))
    assert len(log.lines()) == 3 * 2 * 2 + 2  # the one that shows the nesting


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as above
def test_a_fork_does_not_wait_for_threads_of_its_parent():
    cached = kf.Cached(Squares())
    with (  # like threads that are writing and reading
        cached._memory._threads.here(),
        cached._lock.here(),
    ):
        child = os.fork()
        if not child:
            os._exit(0 if cached[3]["x"][0][0, 0] == 3 else 1)
        status = []

        def ended():
            status[:] = os.waitpid(child, os.WNOHANG)
            return status[0] == child

        try:
            wait_until(ended)
        finally:
            if not status[0]:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    assert status[1] == 0


def test_a_number_of_a_user_s_class_is_kept_as_a_number(where):
    class Odd(int):
        pass

    cached = kf.Cached(kf.Map([1, 2, 3], lambda value: (Odd(value) if value == 2 else value, "text")), **where)
    for _ in range(2):
        assert list(cached) == [(1, "text"), (2, "text"), (3, "text")]
        assert [type(number) for number, _ in cached] == [int, int, int]


def test_scenes_with_an_unpicklable_field_are_read_each_time():
    class Odd(int):
        def __reduce__(self):
            raise RuntimeError

    cached = kf.Cached(kf.Map([1, 2, 3], lambda value: ([Odd(value) if value == 2 else value], "text")))
    for _ in range(2):
        assert list(cached) == [([1], "text"), ([2], "text"), ([3], "text")]
        assert 0 < cached.nbytes < 600


_OVERLAPPING = {"names": ["a", "b"], "formats": ["u4", "f4"], "offsets": [0, 0]}
_MEMBERS = [("a", "i1"), ("b", "f8")]


@pytest.mark.parametrize(
    "value",
    [
        np.ones(2, _MEMBERS)[["b", "a"]],
        np.ones(2, _OVERLAPPING),
        np.ones(2, np.dtype(_MEMBERS, align=True)),
        np.rec.array([(1, 2.0)], _MEMBERS),
        [Level.LOW, Level.HIGH],
    ],
    ids=["members out of order", "overlapping members", "aligned members", "records", "numbers of a class"],
)
def test_cached_values_keep_their_types(value):
    cached = kf.Cached([(value, "text")] * 2)
    for _ in range(3):
        found = cached[1][0]
        assert np.array_equal(found, value)
        assert repr(found[0]) == repr(value[0])
        assert repr(getattr(found, "dtype", None)) == repr(getattr(value, "dtype", None))


_ENDS = """
import numpy as np
class Deadly:
    def __array__(self, *_, **__):
        os.kill(os.getpid(), signal.SIGKILL)
class DeadlyMemory:
    def __setitem__(self, places, data):
        real[places.start : places.start + len(data) // 2] = data[: len(data) // 2]
        os.kill(os.getpid(), signal.SIGKILL)
memory = cached._memory
held, real = memory._content(), memory._memory
with memory._locked():
    if {row}:
        memory._put_row(held, [np.full(3, 9.0), Deadly()])
    memory._memory = DeadlyMemory()
    memory._put_other([np.full(3, 9.0), "text"], "(*, *)")
"""


@pytest.mark.parametrize("row", [True, False])
def test_a_process_killed_while_writing_blocks_no_reader_and_leaves_no_scene(row):
    arrays = np.arange(12.0).reshape(4, 3)
    cached = kf.Cached(kf.Zip(arrays, -arrays))
    assert cached[0][0].tolist() == [0, 1, 2]
    done = _run(cached, _ENDS.format(row=row))
    assert done.returncode == -9, done.stderr.decode()
    memory = cached._memory
    assert memory.read(1) is None
    for index in (2, 1, 3):
        for _ in range(2):
            assert [leaf.tolist() for leaf in cached[index]] == [arrays[index].tolist(), (-arrays[index]).tolist()]
    assert memory.read(1)[0][0].tolist() == [3, 4, 5]
    assert cached.nbytes == 4 * 48


def test_without_memfd_each_process_has_its_own_cache(monkeypatch, log):
    monkeypatch.delattr(os, "memfd_create")
    cached = kf.Cached(Logged(5, log), max_memory=1000)
    for _ in range(2):
        assert [label for _, label in cached] == list(range(5))
    assert len(log.lines()) == 2 * 3 + 1 + 2
    cached.clear()
    assert [label for _, label in cached] == list(range(5))
    done = _run(kf.Cached(np.arange(3.0)), "print(cached[2], cached.nbytes)")
    assert done.stdout.decode().startswith("2.0 8"), done.stderr.decode()


def test_a_system_without_memory_disables_the_cache_and_loses_no_scene(monkeypatch):
    def refused(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cache_store, "_new_file", refused)
    cached = kf.Cached(scenes.Clouds(4))
    with pytest.warns(
        kf.FeedWarning, match=r"cannot write to memory .*Cannot allocate.*Lower max_memory, or pass a path"
    ):
        assert cached[1][1] == 1
    assert cached[1][1] == 1  # warned once
    assert pickle.loads(pickle.dumps(cached))._memory is None
