"""Exceptions that cannot be printed or sent are still raised, from every call of the user's code."""

import json
from pathlib import Path

import hostile_errors as hostile
import numpy as np
import pytest
from error_kinds import bring_up
from hostile_errors import KINDS, WORST, arrived, dealt
from scenes_sized import KINDS as LOADERS

import kerasfeed as kf
from kerasfeed.util import error_text

PACKAGE = Path(kf.__file__).parent
EVERY = pytest.mark.parametrize("kind", KINDS)
WORSE = pytest.mark.parametrize("kind", WORST)
on_every_loader = pytest.mark.parametrize("loader", LOADERS)


def _caught(action):
    """The exception of `action`; pytest's own `raises` examines exceptions."""
    found = []
    try:
        action()
    except BaseException as error:
        found.append(error)
    assert found, "nothing was raised"
    return found[0]


def _assert_arrives(action, kind):
    """Fail without the exception itself, because pytest could not print it."""
    error = _caught(action)
    has_arrived, text = arrived(error, kind), error_text.full_text(error)
    del error
    if not has_arrived:
        pytest.fail(text, pytrace=False)


def _raise(kind):
    raise KINDS[kind]("x")


# ---- scenes


@pytest.fixture(scope="module")
def feeds(tmp_path_factory):
    """A feed on each loader, and the file that names the exception of their scene 9."""
    path = tmp_path_factory.mktemp("kind") / "kind"
    path.write_text("Str")
    made = {}
    for loader, (workers, worker_type) in LOADERS.items():
        arguments = {"workers": min(workers, 1), "worker_type": worker_type}
        made[loader] = kf.Feed(hostile.Raising(path), 4, **arguments)
        bring_up(made[loader])
    yield made, path
    for feed in made.values():
        feed.close()


@on_every_loader
@EVERY
def test_a_hostile_exception_of_a_scene_is_raised_in_a_loop(feeds, loader, kind):
    made, path = feeds
    path.write_text(kind)
    feed, taken = made[loader], []

    def loop():
        for batch in feed.epoch(0):
            taken.extend(batch[1].tolist())

    _assert_arrives(loop, kind)
    assert taken == [*range(8)]
    assert feed[1][1].tolist() == [4, 5, 6, 7]
    assert len(repr(feed.failures)) < 100_000


@pytest.mark.parametrize("loader", ["inline", "thread"])
@EVERY
def test_a_hostile_exception_of_a_scene_is_replaced_recorded_and_logged(tmp_path, loader, kind):
    (tmp_path / "kind").write_text(kind)
    workers, worker_type = LOADERS[loader]
    log = tmp_path / "log"
    arguments = {"workers": workers, "worker_type": worker_type, "on_error": "replace", "error_log": str(log)}
    with kf.Feed(hostile.Raising(tmp_path / "kind"), 4, **arguments) as feed:
        assert len(list(feed)) == 3
        assert [row.index for row in feed.failures] == [9]
    assert json.loads(log.read_text())["index"] == 9


@pytest.mark.heavy
@on_every_loader
def test_a_message_of_100_mb_is_raised_whole_and_shortened_in_notes(tmp_path, loader):
    class Long(hostile.Raising):
        def __getitem__(self, index):
            if index == 9:
                raise ValueError("x" * 100_000_000)
            return float(index), index

    workers, worker_type = LOADERS[loader]
    with kf.Feed(Long(tmp_path), 4, workers=min(1, workers), worker_type=worker_type) as feed:
        error = _caught(lambda: feed[2])
        assert (type(error), len(str(error))) == (ValueError, 100_000_000)
        assert sum(map(len, error.__notes__)) < 100_000


# ---- other objects of the user; each action raises the exception `kind`


class Whole(kf.SceneSequence):
    """Scenes of one number, and methods that raise."""

    def __init__(self, kind, *raising):
        self.kind, self.raising = kind, raising

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return float(index), index

    def __getattribute__(self, name):
        if name in object.__getattribute__(self, "__dict__").get("raising", ()):
            return lambda *_: _raise(object.__getattribute__(self, "kind"))
        return object.__getattribute__(self, name)


class Hooks(Whole):
    def on_worker_begin(self, worker):
        pass

    def on_worker_end(self):
        pass

    def on_epoch_begin(self):
        pass

    def on_epoch_end(self):
        pass


class Batches(Whole):
    def get_batch(self, indices):
        return indices.astype(float), indices


class Ahead(Whole):
    def read_ahead(self, indices):
        pass


def _feed(loader, sequence, **arguments):
    workers, worker_type = LOADERS[loader]
    return kf.Feed(sequence, 4, **{"workers": min(1, workers), "worker_type": worker_type, **arguments})


def _reading(loader, sequence, **arguments):
    with _feed(loader, sequence, **arguments) as feed:
        list(feed)


WAYS = {
    "get_batch": lambda loader, kind: _reading(loader, Batches(kind, "get_batch")),
    "read_ahead": lambda loader, kind: _reading(loader, Ahead(kind, "read_ahead")),
    "on_worker_begin": lambda loader, kind: _reading(loader, Hooks(kind, "on_worker_begin")),
    "on_epoch_begin": lambda loader, kind: _reading(loader, Hooks(kind, "on_epoch_begin")),
    "on_epoch_end": lambda loader, kind: _reading(loader, Hooks(kind, "on_epoch_end")),
    "first scenes": lambda loader, kind: _reading(loader, Whole(kind, "__getitem__", "kind")),
    "collate": lambda loader, kind: _reading(loader, Whole(kind), collate=lambda scenes: _raise(kind)),
    "order": lambda loader, kind: _reading(loader, Whole(kind), order=lambda length, seed, epoch: _raise(kind)),
}
CASES = [(way, "thread", kind) for way, kind in dealt(WAYS)] + [
    (way, loader, kind)
    for way in WAYS
    for loader in ("inline", "process")
    for kind in WORST[: 3 if loader == "inline" else 1]
]


class First(Whole):
    def __getitem__(self, index):
        _raise(self.kind)


WAYS["first scenes"] = lambda loader, kind: _reading(loader, First(kind))


@pytest.mark.parametrize(("way", "loader", "kind"), CASES)
def test_a_hostile_exception_of_a_method_or_function_is_raised(way, loader, kind):
    _assert_arrives(lambda: WAYS[way](loader, kind), kind)


@on_every_loader
@WORSE
def test_a_hostile_exception_of_on_worker_end_becomes_a_warning(loader, kind):
    feed = _feed(loader, Hooks(kind, "on_worker_end"))
    assert len(list(feed)) == 3
    with pytest.warns(kf.FeedWarning, match="on_worker_end failed in .*" + kind):
        feed.close()


# ---- streams


def _streaming(loader, make, function=None, **arguments):
    workers, worker_type = LOADERS[loader]
    feed = kf.StreamFeed(make, 4, workers=min(1, workers), worker_type=worker_type, **arguments)
    feed = feed if function is None else feed.map(function)
    with feed:
        list(feed)


def _given_after(kind, count=6):
    def make():
        yield from map(float, range(count))
        _raise(kind)

    return make


STREAMS = [(loader, kind) for loader in LOADERS for kind in WORST[: 1 if loader == "process" else 3]]


@pytest.mark.parametrize(("loader", "kind"), [*(("thread", kind) for kind in KINDS), *STREAMS[:3], *STREAMS[6:]])
def test_a_hostile_exception_of_a_generator_is_raised(loader, kind):
    _assert_arrives(lambda: _streaming(loader, _given_after(kind)), kind)


@pytest.mark.parametrize(("loader", "kind"), STREAMS)
def test_a_hostile_exception_of_a_generator_function_is_raised(loader, kind):
    _assert_arrives(lambda: _streaming(loader, lambda: _raise(kind)), kind)


@pytest.mark.parametrize(("loader", "kind"), STREAMS)
def test_a_hostile_exception_of_a_mapped_function_is_raised(loader, kind):
    def function(item):
        return _raise(kind) if item == 5 else item

    _assert_arrives(lambda: _streaming(loader, lambda: iter(range(9)), function), kind)


# ---- files


def _reading_file(kind):
    return kf.FileSequence(["a", "b"], lambda path: _raise(kind), [6, 6])[3]


FILES = {
    "tfrecords": lambda path, kind, **workers: kf.write_tfrecords(
        Raised(kind), path / "{shard}.tfrecord", num_shards=2, progress=False, **workers
    ),
    "hdf5": lambda path, kind, **workers: kf.write_hdf5(Raised(kind), path / "x.h5", progress=False, **workers),
    "labels": lambda path, kind, **workers: kf.labels_of(Raised(kind), 1, progress=False, **workers),
    "field": lambda path, kind, **workers: kf.labels_of(
        Whole(kind), lambda scene: _raise(kind), progress=False, **workers
    ),
    "file": lambda path, kind, **_: kf.FileSequence(["a", "b"], lambda path: _raise(kind), [6, 6])[3],
    "counts": lambda path, kind, **_: len(kf.FileSequence(["a", "b"], lambda path: _raise(kind))),
    "cached": lambda path, kind, **_: kf.Cached(Raised(kind), path, key="x")[9],
    "cached in memory": lambda path, kind, **_: kf.Cached(Raised(kind), max_memory=1000)[9],
}


class Raised(Whole):
    def __getitem__(self, index):
        return _raise(self.kind) if index == 9 else (np.float32(index), index)


@pytest.mark.parametrize(("way", "kind"), dealt(FILES))
def test_a_hostile_exception_is_raised_when_writing_files(tmp_path, way, kind):
    workers = {"workers": 1, "worker_type": "thread"}
    _assert_arrives(lambda: FILES[way](tmp_path, kind, **workers), kind)


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["tfrecords", "hdf5", "labels"])
def test_a_hostile_exception_is_raised_when_processes_write_files(tmp_path, way):
    workers = {"workers": 1, "worker_type": "process"}
    _assert_arrives(lambda: FILES[way](tmp_path, "Reduce", **workers), "Reduce")


# ---- TensorFlow


@WORSE
def test_a_hostile_exception_of_a_scene_is_raised_by_a_tf_dataset(feeds, kind):
    tf = pytest.importorskip("tensorflow")
    made, path = feeds
    path.write_text(kind)
    with pytest.raises(tf.errors.UnknownError, match="kerasfeed: scene 9, epoch"):
        list(made["thread"].to_tf_dataset())


@WORSE
def test_a_hostile_exception_of_a_scene_is_raised_by_fit(feeds, kind):
    keras = pytest.importorskip("keras")
    made, path = feeds
    path.write_text(kind)
    from keras_fits import identity

    model = keras.Sequential([keras.Input((1,)), identity()])
    model.compile("sgd", "mse", jit_compile=False)
    _assert_arrives(lambda: model.fit(made["process"], verbose=0), kind)
