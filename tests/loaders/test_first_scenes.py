"""The first scenes: their order, their reader, and the conclusions from them."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest
import scenes_first

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed

PROCESSES = {"workers": 2, "worker_type": "process"}
THREADS = {"workers": 2, "worker_type": "thread"}
EACH = pytest.mark.parametrize(
    "workers", [{"workers": 0}, THREADS, PROCESSES, {}], ids=["0", "thread", "process", "auto"]
)


@pytest.fixture
def seeking(tmp_path):
    """Makes scenes of an open file."""
    made = []

    def make(length, kind=scenes_first.Seeking):
        made.append(kind(tmp_path / "numbers", length))
        return made[-1]

    yield make
    for scenes in made:
        scenes.file.close()


def _loaded(sequence, **workers):
    with BaseFeed(sequence, 8, **workers) as feed:
        return np.concatenate(list(feed)), feed.stats()


# ---- several threads only if the user allows them


def test_an_unpicklable_class_is_read_by_one_thread_and_the_warning_names_the_attribute(seeking):
    scenes = seeking(1200)
    with pytest.warns(
        UserWarning, match=r"one worker thread: .*attribute 'file' \(BufferedReader\).*__getstate__.*type='thread'"
    ):
        feed = BaseFeed(scenes, 16, workers=4)
    with feed:
        assert np.concatenate(list(feed)).tolist() == list(range(1200))
        assert (feed.stats().worker_type, feed.stats().workers) == ("thread", 1)


def test_two_feeds_of_one_unpicklable_sequence_alternate(seeking):
    scenes = seeking(800)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        parts = kf.split(scenes, [0.5, 0.5], seed=0)
        feeds = [BaseFeed(part, 8) for part in parts] + [BaseFeed(scenes, 8, workers=0)]
    found = [[], [], []]
    for batches in zip(*map(iter, feeds[:2]), strict=True):
        for number, batch in enumerate([*batches, feeds[2][len(found[0]) // 8]]):
            found[number] += batch.tolist()
    for feed in feeds:
        feed.close()
    assert sorted(found[0] + found[1]) == list(range(800))
    assert found[2] == list(range(400))


def test_an_unpicklable_thread_safe_class_gets_several_threads(seeking):
    class Safe(scenes_first.Seeking):
        thread_safe = True

    with pytest.warns(UserWarning, match="uses worker threads: the sequence"):
        feed = BaseFeed(seeking(8, Safe), 4, workers=3)
    with feed:
        assert feed.stats().workers == 3


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ([1, 2], True),
        (np.zeros(3), True),
        (kf.Zip(np.zeros(3), [1, 2, 3]), True),
        (kf.Map([1, 2], str), False),
        (kf.Subset(scenes_first.Reusing(), [0]), False),
        (type("Listed", (list,), {"__getitem__": lambda self, index: 0})([1]), False),
        (type("Own", (kf.HDF5Scenes,), {"__init__": lambda self: None})(), False),
    ],
    ids=["list", "array", "view", "function", "subset", "subclass of list", "subclass of ours"],
)
def test_views_of_user_code_are_thread_safe_only_if_declared(sequence, expected):
    from kerasfeed.sequences.view_base import is_thread_safe

    assert is_thread_safe(sequence) is expected


def test_thread_safe_is_inherited_and_passed_on_by_views():
    from kerasfeed.sequences.view_base import is_thread_safe

    class Safe(scenes_first.Reusing):
        thread_safe = True

    class Derived(Safe):
        pass

    def function(scene):
        return scene

    assert is_thread_safe(Derived())
    assert is_thread_safe(kf.Subset(Derived(), [0]))
    assert not is_thread_safe(kf.Map(Derived(), function))
    function.thread_safe = True
    assert is_thread_safe(kf.Map(Derived(), function))
    assert not is_thread_safe(kf.Concat(Derived(), scenes_first.Reusing()))


# ---- reused arrays, and scenes that change


def test_a_reused_array_is_reported_and_read_by_one_worker():
    with pytest.warns(kf.FeedWarning, match=r"same array.*array\.copy\(\).*one worker"):
        found, stats = _loaded(scenes_first.Reusing())
    assert found[:, 0].tolist() == list(range(40))
    assert stats.workers == 1


def test_explicit_threads_are_kept_with_a_warning():
    with pytest.warns(kf.FeedWarning, match="same array.*several threads"):
        _, stats = _loaded(scenes_first.Reusing(), **THREADS)
    assert stats.workers == 2


def test_a_reused_array_is_allowed_if_scenes_are_copied_one_by_one():
    for workers in ({"workers": 0}, PROCESSES):
        assert _loaded(scenes_first.Reusing(), **workers)[0][:, 0].tolist() == list(range(40))


def test_a_reused_array_in_a_list_of_scenes_for_a_collate_function_is_reported():
    with pytest.warns(kf.FeedWarning, match="same array"):
        _loaded(scenes_first.Reusing(), workers=0, collate=np.stack)


@pytest.mark.heavy
def test_scenes_that_differ_when_read_again_are_reported_and_read_by_one_worker():
    with pytest.warns(kf.FeedWarning, match=r"differed in field .* when it was read again: .*self\.rng.*one worker"):
        _, stats = _loaded(scenes_first.NextScene())
    assert stats.workers == 1
    with pytest.warns(kf.FeedWarning, match="which worker reads"):
        _loaded(scenes_first.NextScene(), **PROCESSES)


class Changing(kf.SceneSequence):
    """Scenes that ignore the index, without an array that NumPy owns."""

    def __init__(self, kind):
        self.kind, self.count, self.kept = kind, 0, [0.0, 0.0]

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.count += 1
        match self.kind:
            case "list":  # reused
                self.kept[:] = [float(index)] * 2
                return self.kept
            case "number":
                return 1.5 * self.count
            case "text":
                return str(self.count), 0
        return bytes([self.count % 250]), 0


@pytest.mark.parametrize("kind", ["list", "number", "text", "bytes"])
def test_reused_lists_and_changing_numbers_and_texts_are_reported(kind):
    expected = "same array" if kind == "list" else "differed in field '(0|scene)' when it was read again"
    with pytest.warns(kf.FeedWarning, match=expected), BaseFeed(Changing(kind), 8) as feed:
        list(feed)


def test_scenes_that_draw_from_rng_are_not_reported():
    class Drawn(kf.SceneSequence):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return self.rng.normal(size=3)

    for workers in (THREADS, PROCESSES):
        with BaseFeed(Drawn(), 8, seed=0, **workers) as feed:
            feed[0]


# ---- items that are batches


@pytest.mark.light(where=lambda workers: workers != {})
@EACH
def test_the_first_batch_is_read_first_and_only_once(workers, tmp_path):
    scenes = scenes_first.SlowBatches(tmp_path / "read")
    with BaseFeed(scenes, None, **workers) as feed:
        assert [batch[0, 0] for batch in feed] == [0, 1, 2, 3]
    read = scenes.read.read_text().split()
    assert read[0] == "0"
    # Each worker process begins with the same batch, so that all are in the same state.
    assert sorted(set(read)) == ["0", "1", "2", "3"]
    can_start_processes = workers in (PROCESSES, {})
    assert len(read) == 4 or (can_start_processes and all(read.count(index) == 1 for index in "123"))


def test_the_number_of_rows_is_open_if_only_one_batch_was_read(tmp_path):
    with BaseFeed(scenes_first.SlowBatches(tmp_path / "read"), None, workers=0) as feed:
        feed[0]
        assert feed.scene_spec.fields[0].shape == (None, 2)


def test_all_axes_are_known_if_batches_are_read_quickly(tmp_path):
    with BaseFeed(scenes_first.SlowBatches(tmp_path / "read", 0.0), None, workers=0) as feed:
        assert feed.scene_spec.fields[0].shape == (3, 2)


@pytest.mark.parametrize("kind", [scenes_first.LazyOrder, scenes_first.LazyOrderEachEpoch])
def test_an_order_drawn_at_the_first_read_is_equal_in_all_processes(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kf.FeedWarning)  # the global generators
        with BaseFeed(kind(), None, seed=1, workers=3, worker_type="process") as feed:
            epochs = [np.concatenate(list(feed)).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert (epochs[0] == epochs[1]) == (kind is scenes_first.LazyOrder)


def test_a_replacement_worker_reads_the_same_first_item():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kf.FeedWarning)
        with BaseFeed(scenes_first.LazyOrder(400), None, seed=1, workers=2, worker_type="process") as feed:
            found = []
            for batch in feed:
                found += batch.tolist()
                if len(found) == 100:
                    os.kill(feed.stats().pids[0], signal.SIGKILL)
    assert sorted(found) == list(range(400))


def test_a_late_replacement_worker_starts_in_the_same_state_as_the_others():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kf.FeedWarning)
        with BaseFeed(scenes_first.LazyOrder(), None, seed=1, workers=1, worker_type="process") as feed:
            first = np.concatenate(list(feed)).tolist()
            os.kill(feed.stats().pids[0], signal.SIGKILL)
            assert np.concatenate(list(feed)).tolist() == first


# ---- hooks come first


@EACH
def test_the_spec_is_inferred_after_on_epoch_begin(workers):
    with BaseFeed(scenes_first.Hooked(), 5, **workers) as feed:
        assert feed.scene_spec.fields[0].shape == (3,)
        assert [[float(epoch[0]) for _, epoch in feed] for _ in range(2)] == [[1.0] * 4, [2.0] * 4]


# ---- scenes that may fail


@pytest.mark.parametrize("bad", range(20))
@pytest.mark.parametrize(
    "other",
    [np.full(2, 1), np.full(3, 1, np.float32), np.full((3, 1), 1), (np.full(3, 1),), None],
    ids=["size", "dtype", "axes", "nesting", "None"],
)
def test_on_error_skips_a_scene_of_another_shape_at_any_index(bad, other):
    with BaseFeed(scenes_first.Odd(bad, other), 5, workers=0, on_error="skip") as feed:
        found = np.concatenate(list(feed))
    assert found[:, 0].tolist() == [index for index in range(20) if index != bad]


def test_on_error_applies_to_the_first_scenes_in_processes():
    with BaseFeed(scenes_first.Odd(0, np.full(2, 1)), 5, on_error="replace", **PROCESSES) as feed:
        assert len(np.concatenate(list(feed))) == 20
        assert [row.index for row in feed.failures] == [0]


def test_scenes_of_many_sizes_do_not_count_as_failures():
    sizes = [2, 3, 4, 2, 3, 4] * 4
    with BaseFeed([np.full(size, size) for size in sizes], 1, workers=0, on_error="skip") as feed:
        assert [len(batch[0]) for batch in feed] == sizes


def test_a_scene_of_another_structure_raises_with_on_error_raise():
    with (
        BaseFeed(scenes_first.Odd(19, np.full((3, 1), 1)), 5, workers=0) as feed,
        pytest.raises(kf.errors.SpecError, match="scene 0 and 2 in scene 19"),
    ):
        feed[0]


# ---- turns


@pytest.fixture
def locked():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield scenes_first.Locked()


def test_a_scene_can_read_another_feed_of_the_same_object(locked):
    with BaseFeed(locked, 4) as other:

        def mixed(scene):
            return scene + other[0][0]

        def collated(scenes):
            return np.stack(scenes) + other[0][: len(scenes)]

        with BaseFeed(kf.Map(locked, mixed), 4) as feed:
            assert len(list(feed)) == 10
        with BaseFeed(locked, 4, collate=collated) as feed:
            assert len(list(feed)) == 10
    assert locked.most <= 2  # a scene within a scene


def test_methods_of_an_unpicklable_object_run_in_one_thread_at_a_time(locked):
    parts = kf.split(locked, [0.5, 0.5], seed=0)
    with BaseFeed(parts[0], 4) as one, BaseFeed(parts[1], 4) as other:
        for _ in range(2):
            for _ in zip(one, other, strict=True):
                pass
    assert locked.most == 1


def test_a_hanging_scene_does_not_block_another_feed_of_the_object(seeking):
    held, hangs = threading.Event(), [True]

    class Hanging(scenes_first.Seeking):
        def __getitem__(self, index):
            if index == 30 and hangs[0]:
                held.wait(60)
            return super().__getitem__(index)

    scenes = seeking(80, Hanging)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with BaseFeed(scenes, 4, timeout=1.0) as one, BaseFeed(scenes, 4) as other:
            with pytest.raises(kf.errors.SceneTimeoutError, match="scene 30"):
                list(one)
            hangs[0] = False
            assert other[0].tolist() == [0, 1, 2, 3]
        held.set()


def test_a_function_wrapped_by_numpy_counts_as_user_code():
    from kerasfeed.sequences.view_base import is_safe_function

    assert is_safe_function(np.load)
    assert is_safe_function(np.sqrt)
    assert not is_safe_function(np.vectorize(str))
    assert not is_safe_function(len)


# ---- batches that are kept, and that differ


@EACH
def test_slow_batches_can_differ_on_any_axis(workers):
    with BaseFeed(scenes_first.Widening(), None, **workers) as feed:
        assert [batch.shape for batch in feed] == [(4, 5), (4, 6), (4, 7), (4, 8)]


def test_batches_that_ignore_their_index_are_reported_and_read_by_one_worker():
    with BaseFeed(scenes_first.NextInLine(), None) as feed:
        with pytest.warns(kf.FeedWarning, match=r"differed in field .*, not a counter.*current_rng.*one worker"):
            numbers = [batch[0] for batch in feed]
        assert feed.stats().workers == 1
    assert len(set(numbers)) == 20


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [THREADS, PROCESSES], ids=["thread", "process"])
def test_explicit_workers_read_batches_that_ignore_their_index_with_a_warning(workers):
    with (
        BaseFeed(scenes_first.NextInLine(), None, **workers) as feed,
        pytest.warns(kf.FeedWarning, match="differed in field .* when it was read again.*which worker reads"),
    ):
        feed[0]


@EACH
def test_a_batch_can_have_another_number_of_rows_than_the_first_ones(workers):
    with BaseFeed(scenes_first.Uneven(), None, **workers) as feed:
        assert feed.scene_spec.fields[0].shape == (4, 2)  # the scenes that were read agree
        for _ in range(2):
            batches = list(feed)
            assert [len(x) for x, _ in batches] == [4, 4, 3, 4, 4, 4, 4, 7, *[4] * 12]
            assert all((x == step).all() and len(y) == len(x) for step, (x, y) in enumerate(batches))
            assert all(x.ctypes.data % 64 == 0 for x, _ in batches)


@EACH
def test_a_batch_can_differ_from_the_first_ones_on_any_axis(workers):
    batches = [np.full((4, 3 if step == 2 else 2), step) for step in range(20)]
    with BaseFeed(batches, None, **workers) as feed:
        assert feed.element_spec.shape == (None, 2)  # the first ones agree
        assert [batch.tolist() for batch in feed] == [batch.tolist() for batch in batches]


def test_a_batch_of_another_rank_or_dtype_than_the_first_ones_is_refused():
    for other, text in ((np.zeros((4, 2, 1)), r"float64\[4, 2, 1\]. Return arrays with the same number of axes"),
                        (np.zeros((4, 2), np.float32), r"float32\[4, 2\]. Return one dtype")):  # fmt: skip
        batches = [other if step == 2 else np.zeros((4, 2)) for step in range(20)]
        with (
            BaseFeed(batches, None, workers=0) as feed,
            pytest.raises(
                kf.errors.SpecError, match=rf"scene 2: field 'scene': expected float64\[\?, \?\], received {text}"
            ),
        ):
            list(feed)


def test_a_batch_read_only_for_the_spec_is_read_again():
    class Scaled:
        scale = 1

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.full(2, self.scale)

    scenes = Scaled()
    with BaseFeed(scenes, None, workers=0) as feed:
        assert feed.scene_spec.fields[0].shape == (2,)
        scenes.scale = 2
        assert [batch.tolist() for batch in feed] == [[2, 2]] * 3


def test_the_kept_first_batch_is_freed_after_its_delivery(tmp_path):
    with BaseFeed(scenes_first.SlowBatches(tmp_path / "read"), None, workers=0) as feed:
        feed[0]
        assert feed._loader._sessions.present.runner._kept is None


@pytest.mark.heavy
def test_each_object_of_a_class_is_checked_for_reused_arrays():
    with BaseFeed(scenes_first.Reading(False), 8) as feed:
        feed[0]
        assert feed.stats().workers > 1
    with pytest.warns(kf.FeedWarning, match="same array"):
        _, stats = _first_of(scenes_first.Reading(True))
    assert stats.workers == 1


def _first_of(sequence):
    with BaseFeed(sequence, 8) as feed:
        return feed[0], feed.stats()


def test_a_reused_array_next_to_a_text_is_reported():
    class Named(scenes_first.Reusing):
        def __getitem__(self, index):
            return super().__getitem__(index), f"scene {index}"

    feed = BaseFeed(Named(), 8, **THREADS)
    with pytest.warns(kf.FeedWarning, match="same array"):
        feed[0]
    feed.close()


def test_array_like_objects_in_scenes_are_read():
    class Picture:
        def __array__(self, dtype=None, copy=None):
            return np.zeros((4, 4, 3), np.uint8)

        def tobytes(self):
            return b""

    with BaseFeed([Picture()] * 6, 2, workers=0) as feed:
        assert feed[0].shape == (2, 4, 4, 3)
