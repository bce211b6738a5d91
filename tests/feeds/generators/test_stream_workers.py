"""Generators in workers: joined as they are ready, compared, replaced, left and ended."""

import itertools
import threading
import time

import numpy as np
import pytest
from programs import finish, launch
from scenes_streams import (
    all_of,
    counting,
    hanging,
    killed_once,
    killed_once_and_then_short,
    killed_once_starting,
    killing,
    large,
    new_source,
    old_fashioned,
    unlike,
    until_error,
)
from waits import wait_until

from kerasfeed.errors import FeedClosedError, FeedWarning, SceneTimeoutError, SpecError, WorkerDiedError
from kerasfeed.loaders.failures.failure_log import FailurePolicy


@pytest.fixture
def source_of():
    """Make sources, which are closed after the test."""
    made = []

    def make(kind, *given, **arguments):
        made.append(new_source(kind, *given, **arguments))
        return made[-1]

    yield make
    for source in made:
        source.close()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_without_turns_every_scene_comes_and_each_generator_keeps_its_order(source_of, kind):
    feed = source_of(kind, counting, 4, deterministic=False)
    for repetition in range(2):
        items = all_of(feed, repetition, limit=100)
        assert sorted(items) == sorted(itertools.chain(*(counting(n, 4) for n in range(4))))
        for n in range(4):
            assert [k for m, k in items if m == n] == [k for _, k in counting(n, 4)]


def test_without_turns_a_slow_generator_does_not_delay_the_others(source_of):
    released = threading.Event()

    def make_generator(n, count):
        if n == 0:
            released.wait(60)
        yield from ((n, k) for k in range(700))

    feed = source_of("thread", make_generator, 3, deterministic=False)
    feed.begin(0)
    assert {n for n, _ in feed.take(1400)} == {1, 2}
    released.set()
    assert len(feed.take(1000)) == 700


@pytest.mark.parametrize("workers", [1, 3])
def test_without_turns_fast_generators_give_about_equal_shares(source_of, workers):
    made, given = [0] * 3, [0] * 3

    def counted(n, count):
        while True:
            made[n] += 1
            yield n

    feed = source_of("thread", counted, 3, workers=workers, deterministic=False)
    feed.begin(0)
    while sum(given) < 30_000:  # in blocks of up to 512
        wait_until(lambda: all(m > g + 1 for m, g in zip(made, given, strict=True)))
        for n in feed.take(32):
            given[n] += 1
    assert min(given) > 5_000


def test_the_first_scene_does_not_wait_for_the_second(source_of):
    released = threading.Event()

    def make_generator(n, count):
        yield n
        released.wait(60)
        yield n

    feed = source_of("thread", make_generator, 2)
    feed.begin(0)
    assert feed.take(2) == [0, 1]
    released.set()
    assert feed.take(100) == [0, 1]


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        ({"x": np.zeros(2, np.float32), "y": 3}, r"field 'x': expected float64\[2\], received float32\[2\]"),
        ({"x": np.zeros((2, 1)), "y": 3}, r"field 'x': expected float64\[2\], received float64\[2, 1\]"),
        ({"x": np.zeros(2), "y": "3"}, r"field 'y': expected int64\[\], received str\[\]"),
        ((np.zeros(2), 3), r"expected the structure \{'x': \*, 'y': \*\}, received \(\*, \*\)"),
    ],
    ids=["dtype", "axes", "text", "nesting"],
)
def test_a_scene_that_differs_from_the_others_is_reported_or_skipped(stream, scene, message):
    for workers in (0, 3):
        arguments = {"count": 3, "workers": workers, "worker_type": "thread"}
        with pytest.raises(SpecError, match=f"scene 3: {message}"):
            list(stream(unlike(scene), 2, **arguments))
        feed = stream(unlike(scene), 2, on_error="skip", max_failures=1, **arguments)
        assert sum(len(batch["y"]) for batch in feed) == 3
        assert [failed.index for failed in feed.failures] == [3]


def test_the_error_names_a_field_of_an_unsupported_type(source_of):
    items, error = until_error(source_of("thread", lambda n, count: [(1, n), (1, {2})], 2))
    assert items == [(1, 0), (1, 1)]
    assert isinstance(error, SpecError)
    assert str(error).startswith("field '1' is of type set")
    assert "generator 0 of 2, at its scene 1, repetition 0, in worker thread 0" in error.__notes__[0]


def test_generators_that_do_not_pickle_raise_an_error_or_run_in_one_thread():
    lock = threading.Lock()

    def make_generator(n, count):
        with lock:
            pass
        yield n

    with pytest.raises(TypeError, match=r"\(make_generator\) cannot be sent to worker processes: .*lock"):
        new_source("process", make_generator, 2)
    with pytest.warns(UserWarning, match="uses one worker thread: make_generator"):
        feed = new_source("process", make_generator, 2, worker_type="auto")
    assert all_of(feed) == [0, 1]
    assert feed.pool.pool.worker_type == "thread"
    feed.close()


@pytest.mark.heavy
def test_processes_seed_the_global_random_numbers_of_each_generator(source_of):
    found = []
    for workers in (1, 2):
        feed = source_of("process", old_fashioned, 3, workers=workers)
        found.append([all_of(feed, repetition, limit=100) for repetition in (0, 1, 0)])
    first, second, again = found[0]
    assert found[1] == found[0]
    assert again == first
    for which in (1, 2):
        assert len({scene[which] for scene in (*first, *second)}) == 2 * 3 * 600


def test_scenes_larger_than_a_block_arrive_unchanged(source_of):
    for kind in ("thread", "process"):
        items = all_of(source_of(kind, large, 2, max_memory=200_000))
        for position, (array, other) in enumerate(items):
            k, n = divmod(position, 2)
            assert (array == k).all()
            assert array.shape == (50_000,)
            assert (other == n).all()
            assert other.shape == (k + 1, 40_000)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_kept_scenes_do_not_change_and_memory_stays_below_max_memory(source_of, kind):
    def make_generator(n, count):
        for k in range(900):
            yield np.full(200 + 30 * (k % 5 == n), 10 * k + n, np.int32)

    feed = source_of(kind, make_generator, 3, workers=2, max_memory=400_000)
    items = all_of(feed, limit=50)
    for position, array in enumerate(items):
        k, n = divmod(position, 3)
        assert (array == 10 * k + n).all()
    slots = feed.pool.slots
    assert slots.total * slots.layout.nbytes <= 400_000


@pytest.mark.parametrize("in_turn", [True, False])
def test_stopping_or_closing_wakes_a_waiting_consumer(source_of, in_turn):
    released = threading.Event()

    def make_generator(n, count):
        released.wait(60)
        yield n

    feed = source_of("thread", make_generator, 2, deterministic=in_turn)
    feed.begin(0)
    threading.Timer(0.1, feed.leave).start()
    assert feed.take(5) == []
    feed.begin(1)
    closing = threading.Thread(target=lambda: (time.sleep(0.1), feed.pool.close()))
    closing.start()
    with pytest.raises(FeedClosedError):
        feed.take(5)
    released.set()
    closing.join()


@pytest.mark.heavy
@pytest.mark.parametrize("make", [killed_once, killed_once_starting], ids=["replayed", "started"])
def test_no_scene_is_lost_or_repeated_when_a_worker_is_killed(source_of, make, tmp_path):
    feed = source_of("process", make(tmp_path / "died"), 3)
    items = all_of(feed, limit=50)
    assert [item[:2] for item in items] == [(n, k) for k in range(400) for n in range(3)]
    assert feed.pool.pool.respawns == 1
    if make is killed_once_starting:
        starts = {start for n, _, start in items if n == 1}
        assert len(starts) == 2
        assert max(starts) > 0
    with pytest.warns(FeedWarning, match=r"scene 300 of generator 1 \(repetition 0\)"):
        feed.failure_log.deferred_warnings.issue()


@pytest.mark.heavy
@pytest.mark.timeout(120)
def test_a_generator_may_end_earlier_when_it_runs_again(source_of, tmp_path):
    feed = source_of("process", killed_once_and_then_short(tmp_path / "died"), 2)
    items = all_of(feed, limit=50)
    assert [k for n, k in items if n == 0] == [*range(400)]
    given = [k for n, k in items if n == 1]
    assert 5 <= len(given) <= 300  # depends on how many had arrived when the worker died
    assert given == [*range(len(given))]
    feed.failure_log.deferred_warnings.mute("respawn")


@pytest.mark.heavy
def test_a_scene_that_kills_its_workers_is_reported_after_the_earlier_scenes(source_of):
    feed = source_of("process", killing, 2, policy=FailurePolicy(max_failures=1))
    items, error = until_error(feed)
    feed.failure_log.deferred_warnings.mute("respawn")
    assert items == [(n, k) for k in range(10) for n in range(2)] + [(0, 10)]
    assert isinstance(error, WorkerDiedError)
    assert "ended with exit code 3 while it loaded scene 10 of generator 1 (repetition 0)" in str(error)
    assert "kf.load" not in str(error)


@pytest.mark.heavy
def test_a_generator_that_exceeds_timeout_raises_an_error(source_of):
    items, error = until_error(source_of("process", hanging, 3, policy=FailurePolicy(timeout=1.5)))
    assert items == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert isinstance(error, SceneTimeoutError)
    assert str(error).startswith("scene 1 of generator 1 (repetition 0) took longer than")


@pytest.mark.heavy
def test_a_generator_that_exceeds_timeout_in_a_thread_raises_an_error(source_of):
    released = threading.Event()

    def make_generator(n, count):
        yield n
        released.wait(60)
        yield n

    feed = source_of("thread", make_generator, 2, policy=FailurePolicy(timeout=1.0))
    items, error = until_error(feed)
    released.set()
    assert items[:1] == [0]
    assert isinstance(error, SceneTimeoutError)
    assert "of generator" in str(error)


def test_a_script_without_a_main_guard_may_use_processes(tmp_path):
    program = launch(
        tmp_path,
        """
        import collections
        from scenes_streams import all_of, new_source
        Scan = collections.namedtuple("Scan", "points label")

        class Scans:
            def generate_data(self):
                for k in range(3):
                    yield Scan(k, "a")

        scans = Scans()
        source = new_source("process", lambda n, count: scans.generate_data(), 2)
        items = all_of(source)
        assert all(type(item) is Scan for item in items)
        print(len(items))
        source.close()
        """,
    )
    assert finish(program) == "6\n"
