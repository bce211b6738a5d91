"""All workers of a feed, including replacements, have equal hashes, current directory and environment."""

import dataclasses
import os
import pickle
import platform
import resource
import signal
import sys
import time
from contextlib import closing

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.errors import WorkerStartError
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.pool.environment import Environment, hash_seed

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc"),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]
NAMES = {"chair", "table", "sofa", "bookcase", "board", "door", "window", "beam", "column", "floor", "wall", "ceiling"}
_PROCESSES = {"workers": 2, "worker_type": "process", "seed": 5}


def surroundings_of_worker(n=0):
    """The environment of a worker, and its number."""
    time.sleep(0.01)  # so that all workers load some
    place = open("place.txt").read() if os.path.exists("place.txt") else "nowhere"  # noqa: SIM115, PTH123, PTH110
    return {
        "order": np.array([len(name) for name in NAMES]),  # a set from another process keeps its hashes
        "hash": hash("chair"),
        "place": place,
        "variable": os.environ.get("KERASFEED_TEST_PLACE", "none"),
        "pid": os.getpid(),
    }


def _generator(n, count):
    while True:
        yield surroundings_of_worker()


def _numbers(n, count):
    yield from range(10**9)


class Found(kf.SceneSequence):
    """Scenes that return the environment of their worker."""

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return surroundings_of_worker()


FEEDS = {
    "feed": lambda: kf.Feed(Found(), 4, max_queue_size=2, **_PROCESSES),
    "generators": lambda: kf.StreamFeed(_generator, 4, count=2, max_queue_size=2, **_PROCESSES),
    "map": lambda: kf.StreamFeed(_numbers, 4, max_queue_size=2, **_PROCESSES).map(surroundings_of_worker),
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders, each with its name in a file."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "place.txt").write_text(name)
    monkeypatch.chdir(tmp_path / "first")
    monkeypatch.setenv("KERASFEED_TEST_PLACE", "first")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    return tmp_path


def _batches_of_replaced_workers(feed, before=lambda: None):
    """Batches of the first workers and of their replacements; `before` is called before the first of them."""
    found, dead = [], set()
    before()
    deadline = time.monotonic() + 60
    with feed:
        for batch in feed:
            found.append(batch)
            pids = {int(pid) for each in found for pid in each["pid"]}
            if not dead and len(pids) == 2:
                dead = pids
                for pid in dead:
                    os.kill(pid, signal.SIGKILL)
            if len(pids - dead) == 2 and dead:
                return found
            assert time.monotonic() < deadline, "no worker was replaced"
    pytest.fail("the feed ended")


def _all(batches, name):
    return {str(value) for batch in batches for value in batch[name]}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", FEEDS)
def test_workers_keep_hashes_directory_and_environment_of_the_feed(kind, folders, monkeypatch):
    feed = FEEDS[kind]()

    def move():
        monkeypatch.chdir(folders / "second")
        monkeypatch.setenv("KERASFEED_TEST_PLACE", "second")
        monkeypatch.setenv("PYTHONHASHSEED", "7")

    batches = _batches_of_replaced_workers(feed, move)
    assert len(_all(batches, "hash")) == 1
    assert len({tuple(row) for batch in batches for row in batch["order"]}) == 1
    assert _all(batches, "place") == {"first"}
    assert _all(batches, "variable") == {"first"}


def _hashes(**arguments):
    with kf.Feed(Found(), 1, **{**_PROCESSES, "workers": 1, **arguments}) as feed:
        return _all([next(iter(feed))], "hash")


@pytest.mark.heavy
def test_hashes_of_workers_are_a_function_of_the_seed(folders):
    of_five = _hashes()
    assert _hashes() == of_five
    assert _hashes(seed=6) != of_five


@pytest.mark.parametrize("given", ["0", "7", "4294967295"])
def test_a_hash_seed_in_the_environment_takes_precedence(folders, monkeypatch, given):
    monkeypatch.setenv("PYTHONHASHSEED", given)
    assert Environment.now().variables(5, 1)["PYTHONHASHSEED"] == given


@pytest.mark.parametrize("given", ["", "random"])
def test_a_request_for_random_hashes_does_not_override_the_seed(folders, monkeypatch, given):
    monkeypatch.setenv("PYTHONHASHSEED", given)
    assert Environment.now().variables(5, 1)["PYTHONHASHSEED"] == str(hash_seed(5))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "4096"),
        ("MALLOC_MMAP_THRESHOLD_", "4096"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=4096"),
    ],
)
def test_malloc_settings_in_the_environment_take_precedence(monkeypatch, name, given):
    environment = {each: value for each, value in os.environ.items() if "MALLOC" not in each}
    found = dataclasses.replace(Environment.now(), environment={**environment, name: given}).variables(5, 1)
    assert found[name] == given
    assert sum("MALLOC_" in each for each in found) == name.startswith("MALLOC_")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have settings of their own")
def test_a_worker_reuses_the_memory_of_its_scenes():
    class Images:
        def __len__(self):
            return 200

        def __getitem__(self, index):
            image = np.ones((224, 224, 3), "float32")
            (image - 0.5) / 0.2
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    with BaseFeed(Images(), 100, workers=1, worker_type="process") as feed:
        faults = [batch.tolist() for batch in feed]
    assert faults[1][-1] - faults[1][0] < 20 * 100  # 300 per scene if its arrays are returned to the system


def test_hash_seeds_are_valid_for_python():
    found = [hash_seed(seed) for seed in (*range(300), 2**32 - 1, 2**32, 2**200)]
    assert len(set(found)) == len(found)
    assert 1 <= min(found) <= max(found) < 2**32


@pytest.mark.heavy
def test_an_unpickled_feed_uses_the_current_directory(folders, monkeypatch):
    with kf.Feed(Found(), 1, **{**_PROCESSES, "workers": 1}) as feed:
        pickled = pickle.dumps(feed)
    monkeypatch.chdir(folders / "second")
    with pickle.loads(pickled) as copy:
        assert _all([next(iter(copy))], "place") == {"second"}


class Deadly(Found):
    """Its scene 5 ends the worker."""

    def __getitem__(self, index):
        if index == 5:
            os._exit(3)
        return super().__getitem__(index)


@pytest.mark.heavy
def test_the_error_for_a_deleted_directory_at_a_worker_replacement_names_it(folders, monkeypatch):
    with kf.Feed(Deadly(), 4, **_PROCESSES) as feed:
        feed.scene_spec  # noqa: B018 - the workers have started
        monkeypatch.chdir(folders)
        (folders / "first" / "place.txt").unlink()
        (folders / "first").rmdir()
        with pytest.raises(WorkerStartError, match=r"No such file or directory: '.*first'"):
            list(feed)


@pytest.mark.parametrize("worker_type", ["process", "auto"])
@pytest.mark.parametrize("kind", ["generators", "map"])
def test_the_error_for_a_deleted_directory_at_worker_start_names_it(kind, worker_type, folders, monkeypatch):
    monkeypatch.setitem(_PROCESSES, "worker_type", worker_type)
    feed = FEEDS[kind]()
    monkeypatch.chdir(folders)
    (folders / "first" / "place.txt").unlink()
    (folders / "first").rmdir()
    with closing(feed), pytest.raises(FileNotFoundError, match=r"'.*first'"):
        next(iter(feed))


def test_a_feed_created_in_a_deleted_directory_works(folders):
    (folders / "first" / "place.txt").unlink()
    (folders / "first").rmdir()
    with kf.Feed(Found(), 1, **{**_PROCESSES, "workers": 1}) as feed:
        assert _all([next(iter(feed))], "place") == {"nowhere"}


def test_workers_resolve_relative_entries_of_sys_path_like_this_process(folders, monkeypatch):
    (folders / "first" / "code").mkdir()
    (folders / "first" / "code" / "rooms_of_relative_path.py").write_text(
        "class Rooms:\n    def __len__(self): return 3\n    def __getitem__(self, index): return index\n"
    )
    monkeypatch.setattr(sys, "path", ["code", *sys.path])
    import rooms_of_relative_path

    monkeypatch.chdir(folders / "second")
    try:
        with kf.Feed(rooms_of_relative_path.Rooms(), 3, **{**_PROCESSES, "workers": 1}) as feed:
            assert feed[0].tolist() == [0, 1, 2]
    finally:
        del sys.modules["rooms_of_relative_path"]


def test_the_repr_of_the_environment_contains_no_variables(monkeypatch):
    monkeypatch.setenv("KERASFEED_TEST_PLACE", "password")
    assert "password" not in repr(Environment.now())
