"""`Feed`: arguments, epochs, iteration, display in notebooks."""

import contextlib
import gc
import pickle
import sqlite3

import h5py
import keras
import numpy as np
import pandas as pd
import pytest
import scenes

import kerasfeed as kf

# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, received 0"),
        ({"batch_size": -3}, ValueError, "batch_size must be at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an integer, received 2.5 of type float"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer"),
        ({"workers": -1}, ValueError, "workers must be at least 0, received -1.*calling thread"),
        ({"workers": "many"}, TypeError, "workers must be an integer, received 'many'"),
        ({"worker_type": "fork"}, ValueError, "worker_type must be one of auto, process, thread, received 'fork'"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"max_queue_size": 0}, ValueError, "max_queue_size must be at least 1"),
        ({"max_memory": 0}, ValueError, "max_memory must be at least 1"),
        ({"shard_index": 2, "shard_count": 2}, ValueError, r"shard_index must be below shard_count \(2\), received 2"),
        ({"shard_index": -1}, ValueError, "shard_index must be at least 0"),
        ({"shard_count": 0}, ValueError, "shard_count must be at least 1"),
        ({"num_workers": 4}, TypeError, "no argument 'num_workers'. Use workers"),
        ({"drop_last": True}, TypeError, "no argument 'drop_last'. Use drop_remainder"),
        ({"use_multiprocessing": True}, TypeError, 'no argument .use_multiprocessing.. Use worker_type="process"'),
        ({"collate_fn": len}, TypeError, "no argument 'collate_fn'. Use collate: 'stack', 'pad', 'ragged'"),
        ({"pin_memory": True}, TypeError, "no argument 'pin_memory'. Use feed.to_torch"),
        ({"suffle": True}, TypeError, "no argument 'suffle'. Did you mean 'shuffle'. It takes sequence, batch_size"),
        ({"in_order": True}, TypeError, "no argument 'in_order', and none is needed: batches always come in order"),
        ({"order": [4, 3, 2]}, TypeError, r"received \[4, 3, 2\] of type list. .* kf.Subset"),
        ({"colour": 1}, TypeError, "no argument 'colour'. It takes sequence, batch_size, shuffle"),
        ({"batch_size": 40, "drop_remainder": True}, ValueError, "drop_remainder=True drops every scene: .* 37 scenes"),
        (
            {"shard_count": 2},
            ValueError,
            "shard_count=2 needs shard_index, the number of this shard, in .0, 2.: without",
        ),
        (
            {"batch_size": 4, "shard_index": 0, "shard_count": 3},
            ValueError,
            "the last step has 1 scene for 3 shards.*drop_remainder",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_error_for_a_bad_argument_says_what_to_change(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.Feed(scenes.Clouds(), **{"batch_size": 8, "workers": 0, **arguments})


class NoLength:
    def __getitem__(self, index):
        return index


class ReadByLoop:
    """Has a length and can be iterated, like a set; or, as `OfTorch`, like a torch IterableDataset."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter(range(3))


class OfTorch:
    def __getitem__(self, index):
        raise NotImplementedError

    def __iter__(self):
        return iter(range(3))


class Endless(keras.utils.PyDataset):
    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return np.zeros((2, 1))


@pytest.mark.parametrize(
    ("sequence", "batch_size", "error", "message"),
    [
        ((k for k in range(3)), 2, TypeError, r"received a generator, which can only be read forward.*__getitem__"),
        (iter([1]), 2, TypeError, "can only be read forward"),
        ([], 2, ValueError, r"the sequence is empty: len\(list\) is 0"),
        ({"x": np.zeros(3)}, 2, TypeError, "received a dict. For a dict of arrays pass kf.Zip"),
        ("rooms.h5", 2, TypeError, r"received a str. Open a file first: kf.HDF5File\(path\), or write a class"),
        (7, 2, TypeError, "received a int without __len__ and __getitem__. Subclass kerasfeed.SceneSequence"),
        (NoLength(), 2, TypeError, "received a NoLength without __len__. Subclass kerasfeed.SceneSequence$"),
        (ReadByLoop(), 2, TypeError, r"a ReadByLoop without __getitem__.*kf.StreamFeed\(lambda: data, batch_size\)"),
        (OfTorch(), 2, TypeError, r"an? OfTorch without __len__.*kf.StreamFeed\(lambda: data, batch_size\)"),
        (scenes.Clouds, 2, TypeError, r"received the class Clouds: write Clouds\(...\)"),
        (Endless(), None, TypeError, "needs a finite sequence, but Endless has no length"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_error_for_an_object_that_is_not_a_sequence_names_a_remedy(sequence, batch_size, error, message):
    with pytest.raises(error, match=message):
        kf.Feed(sequence, batch_size, workers=0)


def test_the_error_for_a_slice_of_a_feed_names_islice():
    with kf.Feed([1, 2, 3], 2, workers=0) as feed:
        with pytest.raises(
            TypeError, match=r"number of a batch, received a slice. Loop over itertools.islice\(feed, count"
        ):
            feed[:2]
        assert feed[np.int64(1)].tolist() == [3]


class ReadBothWays:
    """An iterator that can be indexed, like Keras's `ImageDataGenerator().flow(...)`."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def __iter__(self):
        return self

    def __next__(self):
        raise AssertionError("it is indexed")


def test_an_iterator_that_can_be_indexed_is_accepted():
    for sequence in (ReadBothWays(), kf.Map(ReadBothWays(), abs)):
        with kf.Feed(sequence, 2, workers=0) as feed:
            assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3]]


def test_mappings_of_arrays_and_groups_of_rows_are_refused_early(tmp_path):
    frame = pd.DataFrame({"room": [0, 0, 1], "x": [1.0, 2.0, 3.0]})
    with h5py.File(tmp_path / "rooms.h5", "w") as file:
        file["points"] = np.zeros((3, 2))
        found = [(file, r"File holds arrays by name: open it as file = kf.HDF5File\(path\) and pass one of them")]
        found.append((kf.HDF5File(tmp_path / "rooms.h5"), 'HDF5File holds arrays by name: .*file\\["points"\\]'))
        found.append((frame.groupby("room"), "DataFrameGroupBy holds groups of rows: pass a list of them"))
        for sequence, message in found:
            for make in (lambda sequence=sequence: kf.Feed(sequence, 2), lambda sequence=sequence: kf.Zip(sequence)):
                with pytest.raises(TypeError, match=message):
                    make()


def test_items_that_are_batches_need_batch_size_none():
    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.full((2, 1), index)

    with pytest.raises(ValueError, match="is a batch already: use batch_size=None"):
        kf.Feed(Data(), 4)
    with kf.Feed(Data(), None, workers=0) as feed:
        assert [batch[0, 0] for batch in feed] == [0, 1, 2]
        with pytest.raises(TypeError, match=r"is a Feed already, which gives batches: pass feed\.sequence"):
            kf.Feed(feed, 2)


@pytest.mark.heavy
def test_a_sequence_of_batches_goes_through_processes_unchanged():
    with kf.Feed(scenes.Reshuffled(), None, workers=2, worker_type="process") as feed:
        assert feed.element_spec[0].shape == (None, 1)  # the last batch may be smaller
        assert [values.tolist() for values, _ in feed] == [[[0], [1]], [[2], [3]], [[4], [5]]]


# ---- batches and epochs


@pytest.fixture(params=[("inline", 0), ("thread", 2), ("process", 2)], ids=lambda value: value[0])
def feed(request):
    kind, workers = request.param
    with kf.Feed(
        scenes.Clouds(), 8, shuffle=True, seed=3, workers=workers,
        worker_type="thread" if kind == "inline" else kind,
    ) as made:  # fmt: skip
        yield made


def _labels(batches):
    return [label for _, labels in batches for label in labels.tolist()]


@pytest.mark.light(where=lambda feed: feed[0] != "process")
def test_a_feed_is_a_py_dataset_without_keras_workers(feed):
    assert isinstance(feed, keras.utils.PyDataset)
    assert feed.use_multiprocessing is False
    assert len(feed) == feed.num_batches == 5


def test_each_loop_is_a_new_epoch_of_every_scene(feed):
    first, second = _labels(feed), _labels(feed)
    assert sorted(first) == sorted(second) == list(range(37))
    assert first != second
    assert _labels(feed.epoch(0)) == first
    assert _labels(feed.epoch(1)) == second
    assert _labels(feed) == _labels(feed.epoch(2))


@pytest.mark.light(where=lambda feed: feed[0] != "process")
def test_random_access_stays_within_the_current_epoch(feed):
    batches = list(feed.epoch(0))
    for step in (3, 0, 4, -1, 3):
        points, labels = feed[step]
        assert np.array_equal(points, batches[step][0])
        assert np.array_equal(labels, batches[step][1])
    for step in (5, -6):
        with pytest.raises(IndexError):
            feed[step]
    iterator = iter(feed)
    next(iterator)
    assert np.array_equal(feed[1][1], batches[1][1])
    _labels(feed)
    assert np.array_equal(feed[1][1], next(iter(list(feed.epoch(1))[1:]))[1])


def test_a_loop_left_early_counts_as_an_epoch_and_the_next_is_whole(feed):
    for _ in feed:
        break
    assert sorted(_labels(feed)) == list(range(37))
    assert feed.clock.current == 1


@pytest.mark.light(where=lambda feed: feed[0] != "process")
def test_two_loops_at_once_are_two_epochs(feed):
    pairs = list(zip(feed, feed, strict=True))
    assert _labels(pair[0] for pair in pairs) == _labels(feed.epoch(0))
    assert _labels(pair[1] for pair in pairs) == _labels(feed.epoch(1))


@pytest.mark.light(where=lambda feed: feed[0] != "process")
def test_the_spec_of_a_batch_has_the_batch_axis_first(feed):
    points, labels = feed.element_spec
    assert points == kf.ArraySpec((None, 4, 3), np.dtype(np.float32))
    assert labels == kf.ArraySpec((None,), np.dtype(np.int64))
    with kf.Feed(scenes.Clouds(), 8, drop_remainder=True, workers=0) as full:
        assert full.element_spec[0].shape == (8, 4, 3)


def test_a_feed_without_a_seed_draws_and_keeps_one():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, workers=0) as one:
        order = _labels(one.epoch(0))
        with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=one.seed, workers=0) as other:
            assert _labels(other.epoch(0)) == order


def test_a_feed_pickles_as_its_arguments(feed):
    with pickle.loads(pickle.dumps(feed)) as copy:
        assert _labels(copy.epoch(1)) == _labels(feed.epoch(1))


def test_the_error_of_a_closed_feed_says_that_it_is_closed(feed):
    feed.close()
    with pytest.raises(kf.errors.FeedClosedError, match="the feed is closed; make a new one"):
        feed[0]


@pytest.mark.light(where=lambda feed: feed[0] != "process")
def test_a_feed_remains_usable_after_an_iterator_is_dropped(feed):
    for _ in range(20):
        next(iter(feed))
    gc.collect()
    assert sorted(_labels(feed)) == list(range(37))


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_hooks_are_called_once_per_epoch_and_workers_see_their_changes(worker_type):
    sequence = scenes.Reshuffled()
    with kf.Feed(sequence, None, workers=2, worker_type=worker_type) as feed:
        seen = [[(batch[0].ravel().tolist(), batch[1].tolist()) for batch in feed] for _ in range(3)]
    for epoch, batches in enumerate(seen):
        order = [float((k + epoch) % 6) for k in range(6)]
        assert [value for values, _ in batches for value in values] == order
        assert {number for _, numbers in batches for number in numbers} == {epoch + 1}
    assert sequence.began == 3


def test_the_error_for_a_hook_with_an_argument_explains_the_call():
    class Scheduled(scenes.Clouds):
        def on_epoch_begin(self, epoch):
            self.epoch = epoch

    with kf.Feed(Scheduled(), 4, workers=0) as feed, pytest.raises(TypeError, match="'epoch'") as raised:
        feed[0]
    assert "Scheduled.on_epoch_begin, which a feed calls once an epoch, without arguments" in raised.value.__notes__[0]


def _labels_of_a_loop(feed, look):
    labels = []
    for step, (_, batch) in enumerate(feed):
        labels += batch.ravel().tolist()
        if step == 2:
            look(feed)
    return sorted(labels)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "look",
    [lambda feed: next(iter(feed)), lambda feed: list(feed.epoch(0)), lambda feed: feed.submit(1, 0).result()],
    ids=["loop", "epoch", "submit"],
)
def test_starting_another_epoch_within_a_loop_over_a_class_with_hooks_raises(look, workers):
    with kf.Feed(scenes.Reordered(), 4, workers=workers, worker_type="thread") as feed:
        with pytest.raises(RuntimeError, match=r"Reordered has on_epoch_begin .*only one epoch.*feed\[0\] returns"):
            _labels_of_a_loop(feed, look)
        assert sorted(batch for _, labels in feed for batch in labels.ravel()) == list(range(40))


def test_a_loop_over_a_class_with_hooks_can_index_the_feed():
    with kf.Feed(scenes.Reordered(), 4, workers=0) as feed:
        assert _labels_of_a_loop(feed, lambda feed: feed[0]) == list(range(40))
        assert feed.sequence.began == 1


def test_parallel_loops_over_a_class_without_hooks_are_independent():
    with kf.Feed(np.arange(12), 2, shuffle=True, seed=0, workers=0) as feed:
        epochs = [np.concatenate(list(feed.epoch(number))) for number in range(3)]
        together = np.array(list(zip(feed, feed, feed.epoch(2), strict=True)))
    assert [together[:, number].ravel().tolist() for number in range(3)] == [epoch.tolist() for epoch in epochs]


@pytest.mark.parametrize("step", [2, -2])
def test_a_hook_that_changes_the_length_raises_a_clear_error_in_the_next_epoch(step):
    with kf.Feed(scenes.Growing(step), 2, workers=0) as feed:
        assert _labels(feed) == list(range(6))
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"has changed its length from 6 to \d+, .*: make the feed again"):
                list(feed)


@pytest.mark.heavy
def test_a_map_style_dataset_of_another_framework_is_a_sequence():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return torch.full((2,), float(index)), index

    with kf.Feed(Data(), 2, workers=0) as feed:
        values, labels = feed[1]
        assert values.tolist() == [[2.0, 2.0], [3.0, 3.0]]
        assert labels.tolist() == [2, 3]


@pytest.mark.heavy
def test_the_default_is_no_workers_for_memory_and_processes_for_classes():
    with kf.Feed([1, 2, 3], 2) as feed:
        assert feed.stats().worker_type == "inline"
    with kf.Feed(scenes.Clouds(), 2, workers=2) as feed:
        assert feed.stats().worker_type == "process"


class Named(kf.Feed):
    """A feed with its own `__init__`."""

    def __init__(self, name):
        self.name = name
        super().__init__(np.arange(6), 2, seed=3, workers=0)
        self._tag = [name]
        self.own = self.describe

    def describe(self):
        return self.name


def test_a_feed_subclass_with_its_own_init_pickles_as_itself():
    with Named("rooms") as feed, pickle.loads(pickle.dumps(feed)) as copy:
        assert type(copy) is Named
        assert (copy.name, copy._tag, copy.seed) == ("rooms", ["rooms"], 3)
        assert copy.own.__self__ is copy
        assert [batch.tolist() for batch in copy] == [[0, 1], [2, 3], [4, 5]]


def test_feed_workers_is_readable_and_cannot_be_set():
    for given, number in (({"workers": 0}, 0), ({"workers": 3, "worker_type": "thread"}, 3)):
        with kf.Feed(np.arange(6), 2, **given) as feed:
            assert feed.workers == number
            with pytest.raises(AttributeError, match="given when it is made"):
                feed.workers = 4


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("map", "kf.Map"), ("shuffle", "shuffle=True"), ("batch", "batch_size="), ("prefetch", "max_queue_size"),
     ("repeat", "epochs=N"), ("take", "islice"), ("set_epoch", r"epoch\(number\)")],
)  # fmt: skip
def test_errors_for_methods_of_other_datasets_name_the_method_of_kerasfeed(name, remedy):
    with kf.Feed(np.arange(6), 2, workers=0) as feed:
        assert not hasattr(feed, name)
        with pytest.raises(AttributeError, match=f"Feed has no method '{name}'. .*{remedy}"):
            getattr(feed, name)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            feed.nothing  # noqa: B018


def test_a_feed_of_batches_counts_batches():
    with kf.Feed([np.zeros(3)] * 4, None, workers=0) as feed:
        assert "4 batches" in repr(feed)


def test_auto_uses_one_thread_and_warns_for_an_unpicklable_sequence():
    class Locked(scenes.Clouds):
        def __init__(self):
            super().__init__()
            import threading

            self.lock = threading.Lock()

    with pytest.warns(UserWarning, match=r"uses one worker thread: the sequence \(Locked\) cannot be sent"):
        feed = kf.Feed(Locked(), 4)
    with feed:
        assert feed.stats().worker_type == "thread"
        assert sorted(_labels(feed)) == list(range(37))


def test_thread_bound_objects_work_with_workers_0_as_the_warning_says():
    class Rows:
        def __init__(self):
            self.connection = sqlite3.connect(":memory:")

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return self.connection.execute("select ?", (index,)).fetchone()

    rows = Rows()
    with contextlib.closing(rows.connection):
        with pytest.warns(UserWarning, match=r"attribute 'connection' .* sqlite3, needs workers=0"):
            feed = kf.Feed(rows, 3)
        with feed, pytest.raises(sqlite3.ProgrammingError):
            feed[0]
        with kf.Feed(rows, 3, workers=0) as feed:
            assert [batch[0].tolist() for batch in feed] == [[0, 1, 2], [3, 4, 5]]


# ---- scenes


def test_rng_works_outside_a_feed_and_cannot_be_replaced():
    sequence = scenes.Augmented()
    assert not np.array_equal(sequence[0][0], sequence[0][0])
    with pytest.raises(AttributeError, match=r"Augmented.rng cannot be set.*another name"):
        sequence.rng = np.random.default_rng(0)


def test_the_error_for_rng_in_get_batch_suggests_rng_for():
    class Rash(scenes.Clouds):
        def get_batch(self, indices):
            return np.zeros((len(indices), 4, 3), np.float32) + self.rng.normal(), indices

    class Careful(scenes.Augmented):
        def get_batch(self, indices):
            made = [self.rng_for(index) for index in indices]
            noise = [generator.normal(size=(4, 3)).astype(np.float32) for generator in made]
            points = [scenes.Clouds.__getitem__(self, int(index))[0] for index in indices]
            return np.stack(points) + np.stack(noise), np.array([g.integers(1000) for g in made])

    with kf.Feed(Rash(), 8, workers=0) as feed, pytest.raises(kf.KerasfeedError, match=r"use self.rng_for\(index\)"):
        feed[0]
    with kf.Feed(Careful(), 8, seed=1, workers=0) as one, kf.Feed(scenes.Augmented(), 8, seed=1, workers=0) as other:
        for a, b in zip(one[2], other[2], strict=True):
            assert np.array_equal(a, b)


def test_a_sequence_is_iterable_without_calling_super_init():
    class Bare(kf.SceneSequence):
        def __init__(self):
            pass

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return self.rng.integers(10) * 0 + index

    assert [int(value) for value in Bare()] == [0, 1, 2]
    with kf.Feed(Bare(), 2, workers=1, worker_type="thread") as feed:
        assert [batch.tolist() for batch in feed] == [[0, 1], [2]]


def test_an_abstract_sequence_cannot_be_instantiated():
    with pytest.raises(TypeError, match="abstract"):
        kf.SceneSequence()


# ---- notebooks


@pytest.mark.light(where=lambda feed: feed[0] != "process")
def test_a_notebook_shows_the_fields_of_a_feed(feed):
    shown = feed._repr_html_()
    for text in ("Clouds", "37", "[?, 4, 3]", "float32", "shuffled, seed 3"):
        assert text in shown
    assert "37 scenes, batch_size=8, 5 steps" in repr(feed)


def test_a_notebook_shows_the_error_of_a_broken_sequence_instead_of_failing():
    broken = scenes.Failing(0, ValueError("<no data>"))
    with kf.Feed(broken, 4, workers=0) as feed:
        assert "ValueError: &lt;no data&gt;" in feed._repr_html_()


@pytest.mark.parametrize("name", ["__getitem__", "__iter__", "__len__", "epoch", "on_epoch_begin", "on_epoch_end"])
@pytest.mark.parametrize(("kind", "remedy"), [(kf.Feed, "kf.Map.*collate="), (kf.StreamFeed, "map.*collate=")])
def test_a_subclass_cannot_override_methods_that_only_some_consumers_call(kind, remedy, name):
    with pytest.raises(TypeError, match=rf"Mine overrides {name} of kf.{kind.__name__}, .*{remedy}"):
        type("Mine", (kind,), {name: lambda self, *arguments: None})
    mixin = type("Mixin", (), {name: lambda self, *arguments: None})
    with pytest.raises(TypeError, match=f"Mine overrides {name}"):
        type("Mine", (mixin, kind), {})
    type("Mine", (kind,), {"report": lambda self: None, "close": lambda self: kind.close(self)})


class Failing(kf.Feed):
    """A feed with a property that fails."""

    @property
    def room(self):
        return self.no_such_name


def test_a_failing_property_of_a_subclass_reports_the_missing_attribute():
    with Failing(np.arange(6), 2, workers=0) as feed, pytest.raises(AttributeError, match="no_such_name"):
        feed.room  # noqa: B018


@pytest.mark.parametrize(
    ("name", "remedy"), [("shuffle", "shuffle_buffer="), ("take", "islice"), ("set_epoch", "next repetition")]
)
def test_errors_for_methods_that_streams_lack_suggest_arguments_of_streams(name, remedy):
    with kf.StreamFeed(lambda: iter([1.0]), 1, workers=1) as feed:
        assert callable(feed.map)
        assert not hasattr(feed, name)
        with pytest.raises(AttributeError, match=f"StreamFeed has no method '{name}'. .*{remedy}"):
            getattr(feed, name)


def test_a_new_stream_reports_its_requested_workers():
    with kf.StreamFeed(lambda: iter([1.0]), 1, workers=1, worker_type="thread") as feed:
        assert feed.workers == 1
        assert len(list(feed)) == 1
        assert feed.workers == 1
        with pytest.raises(AttributeError, match=r"given when it is made: StreamFeed\(\.\.\., workers=N\)"):
            feed.workers = 2


def test_the_error_for_a_sparse_matrix_suggests_dense_rows():
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    for matrix in (sparse.csr_matrix(np.eye(3)), sparse.csr_array(np.eye(3))):
        with pytest.raises(TypeError, match=r"received a sparse csr_\w+\. Pass matrix\.toarray\(\); if"):
            kf.Feed(matrix, 2)
        rows = kf.Map(range(matrix.shape[0]), lambda row, matrix=matrix: matrix[[row]].toarray()[0])
        with kf.Feed(rows, 2, workers=0) as feed:
            assert feed[0].tolist() == [[1, 0, 0], [0, 1, 0]]
