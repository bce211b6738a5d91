"""`kf.from_indexable`: scenes of a sequence as elements of a `tf.data.Dataset`."""

import gc
import threading
import time
import weakref

import ml_dtypes
import numpy as np
import optree
import pytest
import scenes
import tensorflow as tf
from scenes_frameworks import Numbered, run_script
from waits import SECONDS, wait_until_nothing_follows

import kerasfeed as kf
from kerasfeed.adapters.tensorflow.dtypes import arrays_of
from kerasfeed.adapters.tensorflow.indexable import SceneReaders, ScenesCursor
from kerasfeed.util.resources import cores


class Clouds(kf.SceneSequence):
    """Nested, with text, and of lengths that vary."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        points = np.full((3 + index % 7, 10), index, np.float32)
        return {"points": points, "names": [f"cloud {index}", np.array(["a" * index, "é"])]}, index % 2


def test_the_elements_are_the_scenes_with_their_nesting_text_and_varying_shapes():
    dataset = kf.from_indexable(Clouds(), num_parallel_calls=3)
    assert dataset.element_spec == (
        {
            "points": tf.TensorSpec((None, 10), tf.float32),
            "names": (tf.TensorSpec((), tf.string), tf.TensorSpec((2,), tf.string)),
        },
        tf.TensorSpec((), tf.int64),
    )
    assert len(dataset) == len(dataset.take(99)) == 60
    assert len(dataset.batch(7)) == 9
    for index, (scene, label) in enumerate(dataset):
        (expected, (name, words)), number = Clouds()[index][0].values(), Clouds()[index][1]
        assert np.array_equal(scene["points"].numpy(), expected)
        assert scene["names"][0].numpy().decode() == name
        assert [word.decode() for word in scene["names"][1].numpy()] == words.tolist()
        assert label.numpy() == number


def test_tf_data_shuffles_pads_and_prefetches_them():
    dataset = kf.from_indexable(Clouds()).map(lambda scene, label: (scene["points"], label))
    batches = list(dataset.shuffle(60, seed=1).padded_batch(16).prefetch(2))
    assert sorted(int(v) for points, _ in batches for v in points.numpy()[:, 0, 0]) == list(range(60))
    ragged = list(dataset.apply(tf.data.experimental.dense_to_ragged_batch(16)))
    assert ragged[0][0].row_lengths().numpy().tolist() == [3 + index % 7 for index in range(16)]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "complex128", "bfloat16"])
def test_dtypes_arrive_unharmed(dtype):
    values = np.arange(12).reshape(6, 2).astype(tf.as_dtype(dtype).as_numpy_dtype)
    found = list(kf.from_indexable(values, num_parallel_calls=1))
    assert [one.dtype.name for one in found] == [dtype] * 6
    assert np.array_equal(np.stack([one.numpy() for one in found]), values)


@pytest.mark.parametrize("calls", [1, 12])
def test_num_parallel_calls_scenes_are_read_at_once(calls):
    class Meeting(Numbered):
        def __getitem__(self, index):
            if begun and index < calls:
                barrier.wait(20)  # the first scenes, one in each thread, are all here at once
            with lock:
                inside.append(inside[-1] + 1)
            time.sleep(0.001)
            with lock:
                inside.append(inside[-1] - 1)
            return index

    barrier, lock, inside, begun = threading.Barrier(calls), threading.Lock(), [0], []
    dataset = kf.from_indexable(Meeting(60), num_parallel_calls=calls)
    begun.append(True)
    assert [int(value) for value in dataset] == list(range(60))
    assert max(inside) <= calls


def test_none_and_autotune_are_the_number_of_cores():
    for calls in (None, tf.data.AUTOTUNE):
        kept = kf.from_indexable(np.arange(99.0), num_parallel_calls=calls)
        reading = [thread for thread in threading.enumerate() if thread.name.startswith("kerasfeed-scenes")]
        assert len(reading) == min(99, cores())
        del kept


def test_a_call_of_tensorflow_takes_all_scenes_that_have_been_read():
    class Waiting(Numbered):
        def __getitem__(self, index):
            time.sleep(0.005)  # so each task reads one scene
            return index

    readers = SceneReaders(Waiting(400), 0, 8)
    readers.expect(readers.infer([0]), arrays_of)
    cursor = ScenesCursor(lambda: readers, 0, 400, in_order=True)
    counts = []
    while max(counts, default=0) < 8 and sum(counts) < 400:
        first, (scenes,) = cursor.take(SECONDS)
        assert scenes.tolist() == list(range(first, first + len(scenes)))
        counts.append(len(scenes))
        time.sleep(0.05)
    cursor.close()
    assert max(counts) >= 8


def test_without_an_order_scenes_come_as_soon_as_they_are_read():
    class OneSlow(Numbered):
        def __getitem__(self, index):
            if index == 0 and threading.current_thread() is not threading.main_thread() and begun:
                assert others.wait(20)
            return index

    begun, others = [], threading.Event()
    dataset = kf.from_indexable(OneSlow(24), num_parallel_calls=2, deterministic=False)
    begun.append(True)
    found = []
    for value in dataset:
        found.append(int(value))
        if len(found) == 20:
            others.set()
    assert sorted(found) == list(range(24))
    assert found.index(0) >= 19


@pytest.mark.heavy
def test_random_numbers_are_a_function_of_seed_iteration_and_index():
    def numbers(dataset, times):
        return [[float(value) for value in dataset] for _ in range(times)]

    class Drawn(Numbered):
        def __getitem__(self, index):
            return self.rng.random()

    one = numbers(kf.from_indexable(Drawn(20), num_parallel_calls=1, seed=3), 2)
    other = numbers(kf.from_indexable(Drawn(20), num_parallel_calls=7, seed=3), 2)
    with kf.Feed(Drawn(20), 20, seed=3, workers=0) as feed:
        assert one == other == [feed[0].tolist(), next(feed.epoch(1)).tolist()]
    assert numbers(kf.from_indexable(Drawn(20), seed=4), 1) != one[:1]


@pytest.mark.parametrize("kind", [ValueError, StopIteration, KeyError])
def test_an_exception_arrives_with_its_whole_text_and_the_next_scene_follows(kind):
    iterator = iter(kf.from_indexable(scenes.Failing(13, kind("bad scan")), num_parallel_calls=3))
    assert [int(next(iterator)[1]) for _ in range(13)] == list(range(13))
    with pytest.raises(tf.errors.UnknownError, match=f"{kind.__name__}: .*bad scan") as caught:
        next(iterator)
    assert "kerasfeed: scene 13, epoch 0, in scene thread" in str(caught.value)
    del caught
    assert [int(label) for _, label in iterator] == list(range(14, 37))


def test_an_exception_in_a_graph_keeps_its_text_and_the_other_scenes_follow():
    dataset = kf.from_indexable(scenes.Failing(13, ValueError("bad scan")), num_parallel_calls=2)
    with pytest.raises(tf.errors.UnknownError, match="ValueError: bad scan"):
        list(dataset.batch(8))
    kept = dataset.ignore_errors()
    assert [int(label) for _, label in kept] == [index for index in range(37) if index != 13]


def test_a_scene_unlike_the_first_ones_is_named():
    class Odd(Numbered):
        def __getitem__(self, index):
            return np.zeros(3 if index == 7 else 2)

    with pytest.raises(
        tf.errors.UnknownError, match=r"scene 7: field 'scene': expected float64\[2\], received float64\[3\]"
    ):
        list(kf.from_indexable(Odd(24)))


def test_text_that_utf_8_cannot_encode_fails_its_own_scene_alone():
    words = [f"word {index}" for index in range(40)]
    words[13] = "\ud800"
    kept = kf.from_indexable(words, num_parallel_calls=2).ignore_errors()
    assert [word.numpy().decode() for word in kept] == words[:13] + words[14:]
    with pytest.raises(tf.errors.UnknownError, match=r"scene 13: field 'scene' holds the text .*UTF-8 cannot encode"):
        list(kf.from_indexable(words))


def test_with_a_signature_no_scene_is_read_first_and_each_is_checked():
    class Odd(Numbered):
        def __getitem__(self, index):
            read.append(index)
            return np.zeros(2 + (index == 3)), index, "text"

    read = []
    signature = tf.TensorSpec((None,), tf.float64), tf.TensorSpec((), tf.int32), kf.ArraySpec((), str)
    dataset = kf.from_indexable(Odd(6), output_signature=signature)
    assert not read
    assert dataset.element_spec == (*signature[:2], tf.TensorSpec((), tf.string))
    assert [(len(x), int(y)) for x, y, _ in dataset] == [(2 + (index == 3), index) for index in range(6)]
    dataset = kf.from_indexable(Odd(6), output_signature=(tf.TensorSpec((2,), tf.float64), *signature[1:]))
    with pytest.raises(
        tf.errors.UnknownError, match=r"scene 3: field '0': expected float64\[2\].*None in output_signature"
    ):
        list(dataset)
    with pytest.raises(TypeError, match=r"nesting of kf.ArraySpec\(shape, dtype\) or tf.TensorSpec.*received 'int32'"):
        kf.from_indexable(Odd(6), output_signature="int32")


@pytest.mark.parametrize("form", [lambda points: points, lambda points: (points,), lambda points: {"points": points}])
def test_empty_scenes_arrive(form):  # `unbatch` would crash
    class Points(Numbered):
        def __getitem__(self, index):
            return form(np.arange(index % 5, dtype=np.int32))

    found = list(kf.from_indexable(Points(24), num_parallel_calls=2))
    assert {optree.tree_structure(scene) for scene in found} == {optree.tree_structure(form(0))}
    assert [optree.tree_leaves(scene)[0].numpy().tolist() for scene in found] == [[*range(k % 5)] for k in range(24)]


def test_scenes_that_are_all_empty_arrive():
    found = list(kf.from_indexable(np.zeros((5, 0, 2), np.float32)))
    assert [scene.shape for scene in found] == [(0, 2)] * 5


def test_a_sequence_that_reuses_its_array_gives_the_right_scenes():
    class Reusing(Numbered):
        def __init__(self, length):
            super().__init__(length)
            self.array = np.zeros(5)

        def __getitem__(self, index):
            self.array[:] = index
            return self.array

    found = [value.numpy().tolist() for value in kf.from_indexable(Reusing(200), num_parallel_calls=1)]
    assert found == [[index] * 5 for index in range(200)]


def test_worker_hooks_are_called_in_each_thread_and_their_exceptions_arrive():
    class Hooked(Numbered):
        def on_worker_begin(self, worker):
            began.append((worker.index, worker.count, worker.worker_type))
            if broken:
                raise OSError("no such disk")

        def on_worker_end(self):
            ended.append(1)

    began, ended, broken = [], [], []
    dataset = kf.from_indexable(Hooked(24), num_parallel_calls=3)
    assert len(list(dataset)) == 24
    assert set(began) <= {(number, 3, "thread") for number in range(3)}
    assert len(set(began)) == len(began) > 0  # a thread that got no scene has not begun
    del dataset
    deadline = time.monotonic() + 20
    while len(ended) < len(began) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert len(ended) == len(began)
    broken.append(True)
    with pytest.raises(kf.KerasfeedError, match=r"on_worker_begin failed in scene thread .*no such disk"):
        kf.from_indexable(Hooked(24), num_parallel_calls=1)


def test_an_object_that_is_not_a_sequence_of_scenes_is_refused():
    with pytest.raises(
        TypeError, match=r"from_indexable\(\) needs a sequence that can be indexed, received a generator"
    ):
        kf.from_indexable(k for k in range(3))
    with pytest.raises(ValueError, match="the sequence is empty"):
        kf.from_indexable([])
    with kf.Feed(np.arange(4.0), 2, workers=1) as feed, pytest.raises(TypeError, match=r"pass feed\.sequence"):
        kf.from_indexable(feed)
    for calls in (0, 1.5, "many"):
        with pytest.raises((TypeError, ValueError), match="num_parallel_calls must be"):
            kf.from_indexable(np.arange(4.0), num_parallel_calls=calls)
    with pytest.raises(TypeError, match=r"field 'scene' is .*, a dtype TensorFlow lacks"):
        kf.from_indexable(np.zeros(3, np.longdouble))


@pytest.mark.heavy
@pytest.mark.parametrize("change", [lambda dataset: dataset, lambda dataset: dataset.shuffle(4).batch(2).prefetch(2)])
def test_leaving_a_loop_waits_for_no_scene_and_drops_those_ahead(change):
    class Slow(Numbered):
        def __getitem__(self, index):
            if begun:
                read.append(index)
                in_time.append(go_on.wait(SECONDS))
            return index

    begun, read, in_time, go_on = [], [], [], threading.Event()
    dataset = kf.from_indexable(Slow(100_000), num_parallel_calls=2)
    begun.append(True)
    iterators = [iter(change(dataset))]
    thread = threading.Thread(target=lambda: next(iterators[0], None))
    thread.start()
    while len(read) < 2:
        time.sleep(0.01)
    go_on.set()
    thread.join()
    go_on.clear()
    iterators.clear()
    go_on.set()  # for the scenes being read: if the loop above had waited for them, this would come too late
    wait_until_nothing_follows(read)
    assert all(in_time)
    assert len(read) < 5000


def test_the_threads_end_with_the_dataset():
    dataset = kf.from_indexable(np.arange(24.0), num_parallel_calls=4)
    alive = weakref.ref(dataset)
    batches = dataset.batch(4)
    del dataset
    assert [len(list(batches)) for _ in range(2)] == [6, 6]
    del batches
    deadline = time.monotonic() + 20
    while any(thread.name.startswith("kerasfeed-scenes") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.05)
    assert alive() is None


def test_it_is_read_in_a_graph_and_by_a_strategy():
    dataset = kf.from_indexable(np.arange(24.0), num_parallel_calls=2)

    @tf.function
    def total():
        found = tf.constant(0.0, tf.float64)
        for value in dataset:
            found += value
        return found

    assert total().numpy() == total().numpy() == sum(range(24))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    batches = strategy.experimental_distribute_dataset(dataset.batch(6))
    assert [batch.numpy().tolist()[0] for batch in batches] == [0, 6, 12, 18]


@pytest.mark.heavy
def test_a_program_may_end_while_scenes_are_read(tmp_path):
    printed = run_script(
        tmp_path,
        """
        import lean_keras
        import threading
        import kerasfeed as kf

        class Endless(kf.SceneSequence):
            def __len__(self): return 99
            def __getitem__(self, index):
                if begun and index > 3:
                    threading.Event().wait()
                return index

        begun = []
        dataset = kf.from_indexable(Endless(), num_parallel_calls=3)
        begun.append(True)
        iterator = iter(dataset)
        print("first", int(next(iterator)))
        """,
    )
    assert "first 0" in printed


@pytest.mark.parametrize("dtype", ["int4", "float8_e4m3fn", "bfloat16"])
def test_dtypes_that_tf_data_cannot_unbatch_arrive(dtype):
    numbers = np.arange(6).reshape(3, 2).astype(getattr(ml_dtypes, dtype))
    found = np.array([scene.numpy() for scene in kf.from_indexable(numbers)])
    assert found.dtype == numbers.dtype
    assert np.array_equal(found, numbers)


def test_a_table_is_a_dataset_of_its_rows():
    pd = pytest.importorskip("pandas", reason="pandas is not installed (pip install kerasfeed[test])")
    frame = pd.DataFrame({"x": [1.0, 2.0], "name": ["a", "b"]}, index=[7, 5])
    found = list(kf.from_indexable(frame).as_numpy_iterator())
    assert [(row["x"], row["name"]) for row in found] == [(1, b"a"), (2, b"b")]
