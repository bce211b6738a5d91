"""The page `docs/how-to/from-tf-data.md`: every snippet runs, and both sides of a pair deliver the same scenes."""

import re
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters import py_dataset_adapter
from places import ROOT

import kerasfeed as kf

DOCUMENT = ROOT / "docs" / "how-to" / "from-tf-data.md"
SNIPPETS = dict(re.findall(r"<!-- tested: (.*?) -->\n```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))


class Page:
    """The document, read from the top as far as a test needs: names stay from snippet to snippet."""

    def __init__(self, **known):
        self.names = {"__name__": "__main__", **known}
        self.feeds = []
        self.run("scenes")

    def run(self, name):
        exec(compile(SNIPPETS[name], f"snippet {name!r}", "exec"), self.names)
        self.feeds.append(self.names.get("feed"))
        return self.names


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Make pages, in an empty folder; their feeds are closed, and load in threads by default."""
    pages = []

    def make_page(**known):
        pages.append(Page(**known))
        return pages[-1]

    def on_threads(kind):
        def make_feed(*given, **arguments):
            # Of a PyDataset, too: worker processes would import Keras.
            chosen = {} if "worker_type" in arguments and arguments["batch_size"] else {"worker_type": "thread"}
            return kind(*given, **{**arguments, **chosen})

        return make_feed

    for name in ("Feed", "StreamFeed"):
        monkeypatch.setattr(kf, name, on_threads(getattr(kf, name)))
    monkeypatch.chdir(tmp_path)
    yield make_page
    for feed in {id(feed): feed for one in pages for feed in one.feeds if feed is not None}.values():
        feed.close()


def scenes_in(batches):
    """The scenes of batches one by one: text as text, and of arrays dtype, shape and bytes."""
    found = []
    for batch in batches:
        fields = [np.asarray(field) for field in tf.nest.flatten(batch)]
        found += [tuple(map(plain, rows)) for rows in zip(*fields, strict=True)]
    return found


def plain(row):
    if isinstance(row, bytes | str):
        return row.decode() if isinstance(row, bytes) else row
    return row.dtype.name, row.shape, row.tobytes()


def both(page, name, **known):
    """Batches of the snippets "before" and "after": what each has left as a dataset, a feed or a list."""
    names = page.run(f"{name} before")
    before = list(names.pop("dataset"))
    names = page.run(f"{name} after")
    return before, list(names["feed"]), names


class Recording(keras.Model):
    """Trains on nothing, and keeps the batches that it is given."""

    def __init__(self, kept):
        super().__init__()
        self.keep = kept.append
        self.compile(run_eagerly=True)

    def train_step(self, data):
        self.keep(tf.nest.map_structure(lambda field: field.numpy().copy(), tuple(data)))
        return {"loss": 0.0}


@pytest.mark.parametrize("name", ["from_generator", "map", "from_indexable", "light", "parallel_interleave"])
def test_both_sides_deliver_the_same_scenes_in_the_same_order(page, name):
    before, after, _ = both(page(), name)
    assert len(scenes_in(after)) == (60 if name == "from_indexable" else 100)
    assert scenes_in(after) == scenes_in(before)
    assert [len(tf.nest.flatten(batch)[0]) for batch in after] == [len(tf.nest.flatten(batch)[0]) for batch in before]


def test_a_generator_whose_scenes_have_numbers_becomes_a_shuffled_feed(page):
    names = page().run("from_generator by number")
    found = scenes_in(names["feed"])
    expected = scenes_in([(points[None], label[None]) for points, label in map(names["load"], range(100))])
    assert sorted(found) == sorted(expected)
    assert found != expected


def test_arguments_of_from_indexable_are_inferred(page):
    _, _, names = both(page(), "from_indexable")
    dataset, feed = names["dataset"], names["feed"]
    told = SNIPPETS["from_indexable after"].split("feed.element_spec  # ")[1].split("\n")[0]
    fields, label = feed.element_spec
    assert told == f"the nesting of a batch: points {fields['points']}, name {fields['name']}, label {label}"
    assert dataset.element_spec == (
        {"points": tf.TensorSpec((None, None, 10), tf.float32), "name": tf.TensorSpec((None,), tf.string)},
        tf.TensorSpec((None,), tf.int64),
    )


def test_tf_data_itself_makes_the_same_batches_of_single_scenes(page):
    before, _, names = both(page(), "from_indexable")
    exec(SNIPPETS["from_indexable by scene"], names)
    dataset = names.pop("dataset")  # TensorFlow keeps the handwritten function, and so these names, for ever
    assert scenes_in(dataset) == scenes_in(before)
    assert len(dataset) == len(before)
    del dataset  # AutoGraph has logged an exception, whose traceback holds this frame


@pytest.mark.heavy
def test_fit_is_given_the_same_batches(page, monkeypatch):
    # A fork of a process that runs TensorFlow may hang for ever: its workers are threads here.
    monkeypatch.setattr(py_dataset_adapter, "get_pool_class", lambda _: lambda workers, **_: ThreadPool(workers))
    seen = []
    reader = page(model=Recording(seen))
    reader.run("fit_generator before")
    before = seen.copy()
    assert len(before) == 6
    for name in ("fit_generator after", "fit_generator by scene"):
        seen.clear()
        reader.run(name)
        assert scenes_in(seen) == scenes_in(before)


def test_fit_is_given_the_same_scenes_by_an_endless_generator(page):
    seen = []
    reader = page(model=Recording(seen))
    reader.run("endless before")
    before = seen.copy()
    seen.clear()
    reader.run("endless after")
    assert len(seen) == len(before) == 6
    assert sorted(scenes_in(seen)) == sorted(scenes_in(before))


def test_a_session_is_fed_the_same_totals(page):
    reader = page()
    before = [total.tolist() for total in reader.run("feed_dict before")["totals"]]
    after = [total.tolist() for total in reader.run("feed_dict after")["totals"]]
    assert sum(map(len, after)) == 100
    assert after == before


def test_queue_runners_deliver_the_scenes_once_and_a_feed_for_as_many_epochs_as_one_likes(page):
    reader = page()
    before = scenes_in(reader.run("queue_runners before")["seen"])
    after = scenes_in(reader.run("queue_runners after")["seen"])
    assert len(before) == 100
    assert sorted(after[:100]) == sorted(before)
    assert after[100:] == after[:100]


@pytest.mark.heavy
def test_a_dataset_needs_no_prefetch_to_give_the_same_batches(page):
    reader = page()
    before = scenes_in(reader.run("prefetch before")["dataset"])
    names = reader.run("prefetch after")
    assert len(before) == 100
    assert scenes_in(names["dataset"]) == before
    assert scenes_in(names["feed"].to_tf_dataset()) == before


def test_scenes_of_files_are_mixed_and_each_comes_once(page, tmp_path):
    numbers = iter(range(1000))
    for file, count in enumerate((7, 3, 12, 5, 1, 6)):
        rows = [next(numbers) for _ in range(count)]
        points = np.stack([np.full((16, 3), row, np.float32) for row in rows])
        np.savez(tmp_path / f"{file}.npz", points=points, labels=np.array(rows))
    paths = sorted(map(str, tmp_path.glob("*.npz")))
    reader = page(paths=paths)
    before, after, _ = both(reader, "interleave")
    mixed = scenes_in(after)
    assert len(mixed) == 34
    assert sorted(mixed) == sorted(scenes_in(before)) != mixed


@pytest.mark.heavy
def test_classes_are_balanced_by_index_as_by_rejection(page):
    before, after, names = both(page(), "rejection_resample")
    scenes = {plain(points): plain(label) for points, label in map(names["load_rare"], range(1000))}
    for batches in (before, after):
        assert all(scenes[points] == label for points, label in scenes_in(batches))
    shares = [np.mean(np.concatenate([labels for _, labels in batches])) for batches in (before, after)]
    assert 0.35 < shares[0] < 0.65  # drawn
    assert shares[1] == 0.5  # counted


@pytest.mark.heavy
def test_buckets_are_the_same_and_so_is_what_is_in_them(page):
    before, after, names = both(page(), "bucket")
    edges = [16, 32, 48]

    def told(batches):
        """Bucket and rows of every batch, and all scenes without their padding."""
        shapes, scenes = [], []
        for batch in map(np.asarray, batches):
            lengths = {int(np.count_nonzero(row == row[0])) if row[0] else 5 for row in batch}
            assert batch.shape[1] == max(lengths)
            buckets = {int(np.searchsorted(edges, length, side="right")) for length in lengths}
            assert len(buckets) == 1
            shapes.append((buckets.pop(), len(batch)))
            scenes += [int(row[0]) for row in batch]
        return sorted(shapes), sorted(scenes)

    assert told(after)[1] == list(range(200))
    assert told(after) == told(before)
    assert len(names["feed"]) == len(before)


@pytest.mark.heavy
def test_shards_of_records_hold_the_same_scenes_for_every_reader(page):
    reader = page()
    before, after, names = both(reader, "tfrecords")
    expected = sorted(scenes_in(names["feed"].epoch(0)))
    assert len(expected) == 100
    assert sorted(scenes_in(before)) == sorted(scenes_in(after)) == expected
    names = reader.run("tfrecords crosswise")
    feed = names["feed"]
    ours = [(batch["points"], batch["label"]) for batch in feed]
    assert sorted(scenes_in(ours)) == sorted(scenes_in(names["dataset"])) == expected


def test_a_thread_that_receives_data_feeds_one_epoch_today_and_several_through_a_stream(page):
    reader = page()
    before = scenes_in(reader.run("thread before")["dataset"])
    with reader.run("thread after")["feed"] as feed:
        assert len(before) == 100
        for _ in range(2):
            assert scenes_in(feed) == before


def test_workers_do_not_import_tensorflow_for_a_function_that_it_was_given():
    def load(index):
        return np.int64("tensorflow" in sys.modules)

    class Asked(kf.SceneSequence):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return load(index)

    assert tf.numpy_function(load, [0], tf.int64) == 1
    with kf.Feed(Asked(), 2, workers=1, worker_type="process") as feed:
        assert feed[0].tolist() == [0, 0]


def test_the_document_has_no_snippet_that_no_test_runs():
    tested = set(re.findall(r'"([a-z_ ]+)"', Path(__file__).read_text()))
    assert [name for name in SNIPPETS if name not in tested and name.rsplit(" ", 1)[0] not in tested] == []
    assert DOCUMENT.read_text().count("```python") == len(SNIPPETS)
