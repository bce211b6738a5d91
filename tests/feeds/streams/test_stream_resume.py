"""Streams that resume exactly: at every position, with any shuffle buffer, shards and workers."""

import gc
import json
import tracemalloc
import warnings

import numpy as np
import pytest
from streams import WAYS, numbered

import kerasfeed as kf

LENGTHS = (7, 0, 12, 5)


def starting(n, count, *, start):
    for k in range(start, LENGTHS[n]):
        yield np.float32(100 * n + k), np.float32(kf.current_rng().random())


def replayed(n, count):
    yield from starting(n, count, start=0)


def drawn_on(scene):
    if int(scene[0]) % 7 == 3:
        raise LookupError("skipped")
    return scene[0], scene[1] + np.float32(kf.current_rng().random())


def batches_and_states(feed, most=1 << 30):
    """Batches of two repetitions and more, up to a number, each with the state after it."""
    found = []
    for _ in range(2):
        for batch in feed:
            found.append(([field.tolist() for field in batch], json.loads(json.dumps(feed.get_state()))))
            if len(found) >= most:
                return found
    return found


@pytest.mark.filterwarnings("ignore::kerasfeed.FeedWarning")
@pytest.mark.parametrize("make", [starting, replayed])
@pytest.mark.parametrize("buffer", [None, 5, 100])
@pytest.mark.parametrize("shard", [(0, 1), (1, 2), (4, 5)])
@pytest.mark.parametrize("function", [None, drawn_on])
def test_a_loop_resumed_at_any_state_gives_the_remaining_batches(stream, make, buffer, shard, function):
    def new():
        return stream(
            make, 3, function, count=4, seed=3, shuffle_buffer=buffer, shard=shard, workers=0,
            on_error="raise" if function is None else "skip", max_failures=100,
        )  # fmt: skip

    whole = batches_and_states(new())
    for number, (_, state) in enumerate(whole[:-1]):
        feed = new()
        feed.set_state(state)
        assert feed.get_state() == state
        left = whole[number + 1 :]
        assert batches_and_states(feed, len(left))[: len(left)] == left


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_a_state_can_be_resumed_with_other_workers(stream, workers, worker_type):
    arguments = {"count": 4, "shuffle_buffer": 6}
    whole = batches_and_states(stream(starting, 3, workers=0, **arguments))
    feed = stream(starting, 3, workers=workers, worker_type=worker_type, **arguments)
    feed.set_state(whole[3][1])
    assert batches_and_states(feed, 3) == whole[4:7]


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_no_scene_is_lost_by_a_state_after_the_short_batch_before_an_error(stream, tmp_path, workers, worker_type):
    damage = tmp_path / "damaged"
    damage.touch()

    def damaged(n, count, *, start):
        for k in range(start, 6):
            if damage.exists() and (n, k) == (0, 3):
                raise OSError("the disk")
            yield np.float32(10 * n + k)

    def new():
        return stream(damaged, 4, count=2, workers=workers, worker_type=worker_type)

    feed = new()
    batches, states = iter(feed), []
    for expected in ([0, 10, 1, 11], [2, 12]):
        assert next(batches).tolist() == expected
        states.append(feed.get_state())
    with pytest.raises(OSError, match="the disk"):
        next(batches)
    damage.unlink()
    for state in states:
        feed = new()
        feed.set_state(state)
        assert [batch.tolist() for batch in feed] == [[2, 12, 3, 13], [4, 14, 5, 15]]


def test_the_shuffled_order_depends_on_the_repetition_and_not_on_the_workers(stream):
    runs = []
    for workers, worker_type in WAYS:
        feed = stream(shuffle_buffer=8, workers=workers, worker_type=worker_type)
        runs.append([[int(label) for batch in feed for label in batch[1]] for _ in range(2)])
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][0] != runs[0][1]
    assert sorted(runs[0][0]) == sorted(runs[0][1]) == list(range(22))


def test_resuming_makes_no_scene_again_with_start_and_warns_without_it(stream):
    made = []

    def make(n, count, *, start):
        for k in range(start, 10):
            made.append(k)
            yield np.float32(k)

    feed = stream(make, 2, count=1, workers=0)
    batches = iter(feed)
    state = (next(batches), next(batches), feed.get_state())[-1]
    made.clear()
    feed = stream(make, 2, count=1, workers=0)
    feed.set_state(state)
    assert [batch.tolist() for batch in feed] == [[4, 5], [6, 7], [8, 9]]
    assert made == list(range(4, 10))
    feed = stream(numbered, 4, workers=0)
    next(iter(feed))
    state = feed.get_state()
    with pytest.warns(kf.FeedWarning, match=r"at step 1 of repetition 0, .* the first 4 scenes are dropped"):
        stream(numbered, 4, workers=0).set_state(state)


def test_get_state_raises_an_error_if_the_stream_is_not_deterministic(stream):
    with pytest.raises(RuntimeError, match=r"deterministic=False cannot be resumed.*deterministic=True"):
        stream(deterministic=False).get_state()


def test_the_error_for_a_state_of_another_stream_names_the_differences(stream):
    state = stream(starting, 3, count=4).get_state()
    for arguments, text in (
        ({"seed": 6}, "seed was 5, is 6"),
        ({"shuffle_buffer": 4}, "shuffle_buffer was absent, is 4"),
        ({"count": 3}, "count was 4, is 3"),
        ({"drop_remainder": True}, "drop_remainder was False, is True"),
    ):
        with pytest.raises(ValueError, match=text):
            stream(starting, 3, **{"count": 4, **arguments}).set_state(state)
    with pytest.raises(ValueError, match=r"a kf\.StreamFeed has a state of kind 'stream', received 'feed'"):
        stream(starting, 3, count=4).set_state({"version": 1})
    with pytest.raises(ValueError, match="ended of the state must be pairs"):
        stream(starting, 3, count=4).set_state({**state, "ended": [3]})
    for ended in ([[4, 1]], [[0, -1]], [[0, 1], [0, 1]], [[0, 1.0]]):
        with pytest.raises(ValueError, match="one for each of the 4 generators at most"):
            stream(starting, 3, count=4).set_state({**state, "ended": ended})
    changed = {**state, "ended": [[0, 1]], "fingerprint": {**state["fingerprint"], "count": 10**6}}
    feed = stream(starting, 3, count=4)
    tracemalloc.start()
    with pytest.raises(ValueError, match="count was 1,000,000, is 4"):
        feed.set_state(changed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7  # a count of another feed must not allocate memory
    with (
        kf.Feed(np.arange(4.0), 2) as feed,
        pytest.raises(ValueError, match=r"a kf\.Feed has a state of kind 'feed', received 'stream'"),
    ):
        feed.set_state(state)
    with pytest.raises(ValueError, match="step 5 of repetition 0 is unknown"):
        stream(starting, 3, count=4).get_state(epoch=0, step=5)


def test_shards_that_share_generators_have_equal_steps_and_report_dropped_scenes(stream):
    for length in (22, 24, 25):

        def make(length=length):
            yield from (np.float32(k) for k in range(length))

        shards = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for k in range(3):
                shards.append([batch.tolist() for batch in stream(make, 4, count=1, workers=0, shard=(k, 3))])
        assert len({len(shard) for shard in shards}) == 1
        scenes = sorted(scene for shard in shards for batch in shard for scene in batch)
        assert scenes == list(range(length - length % 3))
        assert any("cannot be dealt to 3 shards evenly" in str(each.message) for each in caught) == bool(length % 3)


def test_shards_with_their_own_generators_report_their_number_of_steps(stream):
    labels = []
    for k in range(2):
        feed = stream(count=3, batch_size=4, workers=2, shard=(k, 2))
        with pytest.warns(kf.FeedWarning, match=rf"had \d steps? on shard {k} of 2"):
            labels.append([int(label) for batch in feed for label in batch[1]])
    assert sorted(labels[0]) == [k for k in range(22) if k % 3 != 1]
    assert labels[1] == list(range(1, 22, 3))


def test_shards_that_would_repeat_scenes_raise_an_error(stream):
    with pytest.raises(ValueError, match=r"1 generator for 2 shards: .* needs a seed"):
        kf.StreamFeed(lambda: iter([1.0]), 2, shard=(0, 2))
    with pytest.raises(ValueError, match="needs deterministic=True"):
        stream(lambda: iter([1.0]), count=1, shard=(0, 2), deterministic=False)


@pytest.mark.heavy
def test_the_state_in_a_torch_loop_follows_the_last_received_batch(stream):
    pytest.importorskip("torch")
    whole = batches_and_states(stream(starting, 3, count=4, shuffle_buffer=4, workers=2))
    feed = stream(starting, 3, count=4, shuffle_buffer=4, workers=2)
    states = []
    for _ in feed.to_torch():
        states.append(json.loads(json.dumps(feed.get_state())))
    assert states == [state for _, state in whole if state["epoch"] == 0]
    assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (1, 0)


@pytest.mark.filterwarnings("ignore:make_generator")
@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_a_generator_that_yields_fewer_scenes_in_a_second_run_causes_a_warning(stream, tmp_path, workers, worker_type):
    path = str(tmp_path / "length")

    def make():
        import pathlib

        yield from map(float, range(int(pathlib.Path(path).read_text())))

    arguments = {"count": 1, "workers": workers, "worker_type": worker_type}
    (tmp_path / "length").write_text("20")
    feed = stream(make, 4, **arguments)
    batches = iter(feed)
    state = [(next(batches), feed.get_state()) for _ in range(3)][-1][1]
    (tmp_path / "length").write_text("6")
    feed = stream(make, 4, **arguments)
    feed.set_state(state)
    with pytest.warns(kf.FeedWarning, match="to continue after its scene 11, and ended after 6 scenes"):
        list(feed)


def test_the_shuffle_buffer_uses_memory_only_for_its_scenes_and_is_freed_after_a_break(stream):
    def make():
        for _ in range(60):
            yield np.zeros(1 << 17)  # 1 MiB

    feed = stream(make, 2, count=1, workers=0, shuffle_buffer=50)
    tracemalloc.start()
    try:
        next(iter(feed))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 20 << 20
        assert tracemalloc.get_traced_memory()[1] > 50 << 20
        tracemalloc.reset_peak()
        assert len(list(stream(lambda: iter([1.0, 2.0]), 2, count=1, workers=0, shuffle_buffer=10**7))) == 1
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
