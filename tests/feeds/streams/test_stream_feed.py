"""A stream in plain loops: order, repetitions, `map`, errors, arguments, and its end."""

import gc
import os
import pickle
import threading
import time
import weakref

import cloudpickle
import h5py
import numpy as np
import pytest
from interrupts import interrupted_at
from streams import WAYS, Rooms, endless, labels_in, names, numbered, scene_of
from waits import wait_until

import kerasfeed as kf
from kerasfeed.feeds import stream_cursor
from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.feeds.stream_cursor import StreamCursor
from kerasfeed.util.polling import NotYet

LABELS = [list(range(start, min(start + 4, 22))) for start in range(0, 22, 4)]


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_each_loop_runs_all_generators_once_and_takes_their_scenes_in_turn(stream, workers, worker_type):
    feed = stream(workers=workers, worker_type=worker_type)
    assert [labels_in(feed) for _ in range(2)] == [LABELS] * 2
    assert {array.dtype for batch in feed for array in batch} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_map_keeps_the_order_of_items_and_passes_text_through(stream, workers, worker_type):
    feed = stream(names, function=scene_of, workers=workers, worker_type=worker_type)
    batches = list(feed)
    assert labels_in(batches) == LABELS
    assert [name for batch in batches for name in batch[2]] == [f"scene-{number}" for number in range(22)]


def test_several_maps_apply_their_functions_in_turn(stream):
    feed = stream(names).map(scene_of).map(lambda scene: (scene[0] + 1, scene[1] * 2))
    with feed:
        assert labels_in(feed)[0] == [0, 2, 4, 6]


def test_map_returns_a_second_feed_and_the_first_stays_usable(stream):
    plain = stream(numbered)
    doubled = plain.map(lambda scene: (scene[0], 2 * scene[1]))
    with doubled:
        both = list(zip(plain, doubled, strict=True))
    assert labels_in(one for one, _ in both) == LABELS
    assert labels_in(other for _, other in both) == [[2 * label for label in batch] for batch in LABELS]


def test_as_many_functions_run_at_once_as_there_are_workers(stream):
    barrier = threading.Barrier(3, timeout=60)

    def waiting(name):
        if name != "scene-0" or not met:
            barrier.wait()
            met.append(name)
        return scene_of(name)

    met = []
    feed = stream(lambda n, count: (f"scene-{number}" for number in range(n, 9, count)), 3, waiting, workers=3,
                  output_signature=(kf.ArraySpec((1,), np.dtype("float32")), kf.ArraySpec((), np.dtype("float32")),
                        kf.ArraySpec((), np.dtype("U"))))  # fmt: skip
    assert len(list(feed)) == 3


def test_a_class_with_an_endless_generator_runs_unchanged(stream, tmp_path):
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["points"] = np.full((5, 7, 3), number, np.float32)
            file["labels"] = np.arange(5) + 5 * number
    rooms = Rooms([tmp_path / "0.h5", tmp_path / "1.h5"])
    batches = iter(stream(rooms.generate_data, count=1, worker_type="process"))
    assert [next(batches)[1].tolist() for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]
    batches.close()


def test_generators_may_yield_whole_batches(stream):
    def batches():
        for size in (3, 2):
            yield np.zeros((size, 2), np.float32), np.arange(size)

    assert [batch[0].shape for batch in stream(batches, None, count=1)] == [(3, 2), (2, 2)]


def test_a_short_last_batch_can_be_dropped_or_padded_with_weight_0(stream):
    assert labels_in(stream(drop_remainder=True)) == LABELS[:-1]
    last = list(stream(pad_remainder=True))[-1]
    assert last[1].tolist() == [20, 21, 20, 21]
    assert last[2].tolist() == [1, 1, 0, 0]


def test_scenes_of_different_shapes_can_be_padded_or_ragged(stream):
    def clouds():
        for size in (2, 5, 1, 4):
            yield np.ones((size, 3), np.float32), size

    assert [batch[0].shape for batch in stream(clouds, 2, count=1, collate="pad")] == [(2, 5, 3), (2, 4, 3)]
    ragged = list(stream(clouds, 2, count=1, collate="ragged"))
    assert [batch[0].row_splits.tolist() for batch in ragged] == [[0, 2, 7], [0, 1, 5]]


def test_random_numbers_in_map_depend_only_on_seed_repetition_and_item(stream):
    def drawn(name):
        return kf.current_rng().random(2), scene_of(name)[1]

    found = []
    for workers, worker_type in WAYS:
        feed = stream(names, function=drawn, workers=workers, worker_type=worker_type)
        found.append([[batch[0].tolist() for batch in feed] for _ in range(2)])
    assert found[0] == found[1] == found[2]
    assert found[0][0] != found[0][1]


def test_random_numbers_in_collate_depend_only_on_seed_repetition_and_step(stream):
    def shaken(scenes):
        return kf.current_rng().random(2), np.array([label for _, label in scenes])

    found = []
    for workers, worker_type in WAYS:
        feed = stream(collate=shaken, workers=workers, worker_type=worker_type)
        found.append([[tuple(batch[0].tolist()) for batch in feed] for _ in range(2)])
    assert found[0] == found[1] == found[2]
    assert len({*found[0][0], *found[0][1]}) == 2 * len(LABELS)


def test_after_a_break_the_next_loop_starts_at_the_beginning(stream):
    feed = stream(endless)
    for _ in range(3):
        for batch in feed:
            assert batch[1].tolist() == [0, 1, 2, 3]
            break


def test_a_second_loop_ends_the_first_one_with_an_error(stream):
    feed = stream(endless)
    first = iter(feed)
    next(first)
    assert next(iter(feed))[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(kf.errors.FeedClosedError, match="another loop has begun the next one"):
        list(first)


def test_only_batches_used_to_build_a_model_are_delivered_again(stream):
    feed = stream()
    building = StreamCursor(weakref.ref(feed), None, building=True)
    assert [building.take(None)[1][1][0] for _ in range(2)] == [0, 4]
    building.close()
    cursor = StreamCursor(weakref.ref(feed), None, known_positions=8)
    assert cursor.take(None)[1][1][0] == 0
    cursor.close()
    assert feed.begin_repetition().start.repetition == 1
    assert labels_in(feed) == LABELS


@pytest.mark.parametrize("fails", [False, True])
def test_error_and_end_are_reported_only_to_a_consumer_that_waits(stream, fails):
    def made():
        yield from (0.0, 1.0)
        if fails:
            raise OSError("no more")

    feed = stream(made, 2, count=1)
    cursor = StreamCursor(weakref.ref(feed), None, known_positions=8) if fails else feed.begin_loop()
    position, _ = cursor.take(None)
    for _ in range(50):  # the next ones come soon
        with pytest.raises(NotYet):
            cursor.take(0)
        time.sleep(0.005)
    assert cursor.position_after(1) == position
    with pytest.raises(OSError if fails else EndOfData):
        cursor.take(None)


def test_the_next_loop_has_every_scene_after_ctrl_c_at_any_point(stream):
    feed = stream(count=2)

    def take_one():
        batches = iter(feed)
        next(batches)
        batches.close()

    number = 1
    while interrupted_at(number, take_one, module=stream_cursor):
        number += 1
    assert number > 10
    assert labels_in(feed) == LABELS


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("arguments", [
    {}, {"count": 2}, {"shuffle_buffer": 3}, {"count": 2, "shard_index": 0, "shard_count": 3},
], ids=str)  # fmt: skip
def test_the_next_loop_has_every_scene_after_ctrl_c_in_a_generator(stream, arguments, number):
    def made(n, count):
        for scene in range(n, 12, count):
            if scene in interrupted:
                interrupted.clear()
                raise KeyboardInterrupt
            yield np.float32(scene)

    interrupted = set()
    arguments = {"count": 1, "workers": 0, **arguments}
    feed = stream(made, 3, **arguments)
    wanted = [[batch.tolist() for batch in feed] for _ in range(2)]

    interrupted.add(number)
    feed = stream(made, 3, **arguments)
    with pytest.raises(KeyboardInterrupt):
        list(feed)
    assert [batch.tolist() for batch in feed] == wanted[1]


def test_max_queue_size_limits_the_batches_made_ahead(stream):
    taken = []

    def recorded():
        for number in range(1000):
            taken.append(number)
            yield np.float32(number)

    batches = iter(stream(recorded, 1, count=1, max_queue_size=3, function=lambda item: item))
    next(batches)
    time.sleep(0.2)
    assert len(taken) <= 6
    batches.close()


def test_reading_the_spec_loses_no_scene(stream):
    feed = stream()
    assert feed.element_spec[0] == kf.ArraySpec((None, 1), np.dtype("float32"))
    assert stream(drop_remainder=True).element_spec[0].shape == (4, 1)
    assert labels_in(feed) == LABELS
    batches = iter(feed)
    next(batches)
    assert feed.scene_spec.fields[1].shape == ()
    assert next(batches)[1].tolist() == LABELS[1]


def test_output_signature_gives_the_spec_without_reading_a_scene(stream):
    read = []

    def recorded():
        read.append(True)
        yield np.zeros(1, np.float32)

    feed = stream(recorded, count=1, output_signature=kf.ArraySpec((None,), np.dtype("float32")))
    assert feed.element_spec == kf.ArraySpec((None, None), np.dtype("float32"))
    assert not read


# ---- errors


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_an_error_in_map_comes_in_order_and_names_the_item(stream, workers, worker_type):
    def breaking(name):
        if name == "scene-9":
            raise RuntimeError("no such scan")
        return scene_of(name)

    feed = stream(names, function=breaking, workers=workers, worker_type=worker_type)
    found = []
    with pytest.raises(RuntimeError, match="no such scan") as caught:
        found.extend(feed)
    assert labels_in(found) == LABELS[:2]
    notes = "\n".join(caught.value.__notes__)
    assert "the item was 'scene-9'" in notes
    assert "scene 9, epoch 0, step 2" in notes


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_scenes_before_an_error_of_a_generator_are_delivered_first(stream, workers, worker_type):
    def breaking(n, count):
        yield from numbered(n, count, 6)
        raise KeyError("the end of the disk")

    feed = stream(breaking, workers=workers, worker_type=worker_type)
    for _ in range(2):
        found = []
        with pytest.raises(KeyError, match="the end of the disk"):
            found.extend(feed)
        assert labels_in(found) == [[0, 1, 2, 3], [4, 5]]


def test_items_whose_function_fails_are_skipped_or_masked_and_listed(stream):
    def breaking(name):
        if name in ("scene-1", "scene-9"):
            raise RuntimeError(f"{name} is broken")
        return scene_of(name)[:2]

    skipping = stream(names, function=breaking, on_error="skip")
    assert labels_in(skipping)[:3] == [[0, 2, 3], [4, 5, 6, 7], [8, 10, 11]]
    assert [failed.index for failed in skipping.failures] == [1, 9]
    masking = list(stream(names, function=breaking, on_error="mask"))
    assert masking[2][2].tolist() == [1, 0, 1, 1]


def test_too_many_failures_raise_an_error(stream):
    def breaking(name):
        raise RuntimeError(name)

    feed = stream(names, function=breaking, on_error="skip", max_failures=2)
    with pytest.raises(kf.errors.TooManyFailuresError, match="max_failures: 2"):
        list(feed)


def test_the_error_names_an_item_that_does_not_pickle(stream):
    def locks():
        yield threading.Lock()

    feed = stream(locks, count=1, worker_type="process", function=str)
    with pytest.raises(TypeError, match=r"item 0 of the stream, of type lock, cannot be sent .* worker_type='thread'"):
        list(feed)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"make_generator": numbered(0, 1)}, TypeError, "only once: pass the function .* without calling it"),
        ({"make_generator": [1, 2]}, TypeError, "use kf.Feed"),
        ({"count": 0}, ValueError, "count must be at least 1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"on_error": "replace"}, ValueError, "draws another scene by its index.*'skip'"),
        ({"num_workers": 3}, TypeError, r"StreamFeed\(\) has no argument 'num_workers'. Use workers"),
        ({"shuffle": True}, TypeError, r"StreamFeed\(\) has no argument 'shuffle'. Use shuffle_buffer"),
        ({"order": kf.Shuffled()}, TypeError, r"StreamFeed\(\) has no argument 'order'. Use kf.Feed:.*shuffle_buffer"),
        ({"hosts": kf.RayHosts()}, TypeError, r"StreamFeed\(\) has no argument 'hosts'. Use kf.Feed"),
        ({"pad_remainder": True, "drop_remainder": True}, ValueError, "cannot be combined with drop_remainder"),
        ({"workers": -1}, ValueError, "workers must be at least 0"),
        ({"worker_type": "fork"}, ValueError, "worker_type must be one of"),
    ],
)
def test_bad_arguments_raise_an_error_with_a_remedy(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.StreamFeed(**{"make_generator": numbered, "batch_size": 4, "count": 2, **arguments})


def test_map_takes_a_function_and_must_come_before_the_first_batch(stream):
    feed = stream()
    with pytest.raises(TypeError, match="map needs a function"):
        feed.map("scene_of")
    next(iter(feed))
    with pytest.raises(RuntimeError, match=r"call map\(\) before the first batch"):
        feed.map(scene_of)


def test_len_and_indexing_raise_an_error_that_says_why(stream):
    feed = stream()
    assert feed
    with pytest.raises(TypeError, match="StreamFeed has no length"):
        len(feed)
    with pytest.raises(TypeError, match=r"has no random access.*kerasfeed\.Feed"):
        feed[0]
    with pytest.raises(TypeError, match="StreamFeed"):
        kf.Feed(feed, 2)


# ---- life


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_a_closed_stream_raises_an_error_and_its_batches_stay_valid(stream, workers, worker_type):
    feed = stream(endless, workers=workers, worker_type=worker_type)
    batches = iter(feed)
    batch = next(batches)
    feed.close()
    feed.close()
    assert batch[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(kf.errors.FeedClosedError):
        next(batches)
    with pytest.raises(kf.errors.FeedClosedError, match="make a new one"):
        next(iter(feed))


def test_deleting_a_stream_within_a_loop_ends_its_threads_and_generators():
    ended = threading.Event()

    def recorded():
        try:
            yield from endless()
        finally:
            ended.set()

    feed = kf.StreamFeed(recorded, 4, workers=1, worker_type="thread")
    batches = iter(feed)
    next(batches)
    gone = weakref.ref(feed)
    del feed, batches
    gc.collect()
    wait_until(lambda: gone() is None)  # a worker may still hold it for the moment of a hand-over
    assert ended.wait(60)


@pytest.mark.heavy
def test_memory_and_threads_do_not_grow_with_the_number_of_batches(stream):
    feed = stream(endless, count=1, worker_type="process", function=lambda scene: scene)
    batches = iter(feed)
    held = []
    for number, _ in enumerate(batches):
        if number in (100, 3000):
            store = os.fstat(feed._stream_loader._store.fds[0]).st_size
            threads = sorted(each.name for each in threading.enumerate() if each.name.startswith("kerasfeed"))
            assert feed.stats().slots <= 16
            assert store < 1 << 20
            held.append(threads)
        if number == 3000:
            break
    batches.close()
    assert held[0] == held[1]


def test_a_stream_can_be_pickled_with_its_functions(stream):
    feed = stream(names, function=scene_of)
    with pickle.loads(cloudpickle.dumps(feed)) as other:
        assert labels_in(other) == LABELS
        assert other.seed == feed.seed


def test_a_loop_over_an_exhausted_iterator_warns_that_the_stream_is_empty():
    numbers = iter([1.0, 2.0])
    with kf.StreamFeed(lambda: numbers, 2, workers=0) as feed:
        assert [batch.tolist() for batch in feed] == [[1.0, 2.0]]
        with pytest.warns(kf.FeedWarning, match="the stream is empty: it ended before its first batch"):
            assert list(feed) == []


def test_iterations_of_a_dataset_of_an_exhausted_iterator_warn_at_once():
    pytest.importorskip("tensorflow")
    numbers = iter(np.float32([1, 2]))
    with kf.StreamFeed(lambda: numbers, 2, workers=0, output_signature=kf.ArraySpec((), np.dtype("float32"))) as feed:
        dataset = feed.to_tf_dataset()
        assert len(list(dataset)) == 1
        with pytest.warns(kf.FeedWarning, match="the stream is empty"):
            assert list(dataset) == []


def test_an_empty_share_of_a_stream_is_explained_once():
    feed = kf.StreamFeed(lambda: iter([1.0, 2.0]), 1, workers=0, shard=(0, 3), seed=0)
    with feed, pytest.warns(kf.FeedWarning, match="cannot be dealt to 3 shards") as caught:
        assert list(feed) == []
    assert len(caught) == 1
