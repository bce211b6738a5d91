"""kerasfeed in a console: names, and the representations of objects."""

import importlib
import pickle
import re
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import kerasfeed as kf


class Rooms(kf.SceneSequence):
    def __len__(self):
        return 1234

    def __getitem__(self, index):
        return np.zeros(2)


class Lost(Rooms):
    def __len__(self):
        raise FileNotFoundError("rooms.h5")


class Named(Rooms):
    def __repr__(self):
        return "my own"


class Mixin:
    def __repr__(self):
        return "of the mixin"


class Mixed(Rooms, Mixin):
    pass


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        (Rooms(), "Rooms, 1,234 scenes"),
        (Lost(), "Lost, of unknown length (FileNotFoundError in __len__)"),
        (Named(), "my own"),
        (Mixed(), "of the mixin"),
        (Rooms()[10:20], "Subset of Rooms, 10 of 1,234 scenes"),
        (kf.Zip(Rooms(), Rooms()), "Zip of Rooms and Rooms, 1,234 scenes"),
        (kf.Concat(Rooms(), Rooms()), "Concat of Rooms and Rooms, 2,468 scenes"),
        (kf.Map(Rooms(), abs), "Map of abs over Rooms, 1,234 scenes"),
        (kf.Cached(Rooms()), "Cached of Rooms in memory, 1,234 scenes"),
        (kf.Patches(np.zeros((1234, 2)), (1, 2)), "Patches, 1,234 scenes"),
        (kf.Windows(np.zeros(1235), 2), "Windows, 1,234 scenes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_repr_of_a_sequence_contains_class_and_length(sequence, text):
    assert repr(sequence) == text


def test_the_repr_of_other_sequences_contains_class_and_length(tmp_path):
    kf.write_tfrecords(Rooms()[:5], tmp_path / "a-{shard}.tfrecord", num_shards=1, workers=0, progress=False)
    kf.write_hdf5(Rooms()[:5], tmp_path / "a.h5", workers=0, progress=False)
    records, file = kf.TFRecordSequence(tmp_path / "a-{shard}.tfrecord"), kf.HDF5Scenes(tmp_path / "a.h5")
    files = kf.FileSequence([tmp_path / "a.h5"], lambda path: [1, 2])
    for sequence in (records, file, files, kf.Mixture([Rooms(), Rooms()], [1, 1])):
        assert type(sequence).__name__ in repr(sequence)
        assert any(f"{len(sequence):,} {what}" in repr(sequence) for what in ("scenes", "records"))


def public(thing):
    return [name for name in dir(thing) if not name.startswith("__")]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("SummaryWriter", "keras.callbacks.TensorBoard"),
        ("DataLoader", "kf.Feed(sequence, batch_size)"),
        ("PyDataset", "kf.SceneSequence"),
        ("HDF5Matrix", "kf.HDF5File(path)[name]"),
        ("train_test_split", "kf.split"),
    ],
)
def test_the_error_for_a_name_that_users_try_suggests_a_replacement(name, instead):
    with pytest.raises(AttributeError, match=re.escape(instead)):
        getattr(kf, name)


def test_dir_of_the_package_lists_public_names():
    assert public(kf) == sorted(set(kf.__all__) - {"__version__"})
    assert "__version__" in dir(kf)


FEEDS = {
    "close",
    "element_spec",
    "failures",
    "num_batches",
    "plan",
    "scene_spec",
    "seed",
    "stats",
    "to_jax",
    "to_tf_dataset",
    "to_torch",
}


def test_dir_of_a_feed_lists_public_names():
    feed = kf.Feed(Rooms(), 4, workers=0)
    state = {"get_state", "load_state_dict", "set_state", "state_dict"}
    assert set(public(feed)) == FEEDS | state | {"epoch", "indices", "sequence", "shard", "start", "submit"}
    stream = kf.StreamFeed(lambda: iter([np.zeros(2)]), 4, workers=0)
    assert set(public(stream)) == FEEDS | state | {"map", "mixing", "shard"}
    assert set(public(stream.map(abs))) == set(public(stream))
    for each in (feed, stream):
        assert {"__iter__", "__class__", "__doc__"} <= set(dir(each))
        assert all(hasattr(type(each), name) or name in vars(each) for name in dir(each))
    feed.close()
    stream.close()


def test_dir_of_a_subclass_includes_its_own_names():
    class Mine(kf.Feed):
        rate = 3

        def report(self):
            return self.rate

    with Mine(Rooms(), 4, workers=0) as feed:
        assert {"rate", "report", "close"} <= set(public(feed))


def test_ipython_completes_public_names():
    completer = pytest.importorskip("IPython.core.completer", reason="IPython is not installed")
    with kf.Feed(Rooms(), 4, workers=0) as feed:
        found = completer.Completer(namespace={"feed": feed, "kf": kf}, global_namespace={})
        assert {match.removeprefix("feed.") for match in found.attr_matches("feed.s")} == {
            "scene_spec", "seed", "sequence", "set_state", "shard", "start", "state_dict", "stats", "submit",
        }  # fmt: skip
        assert {match.removeprefix("kf.") for match in found.attr_matches("kf.S")} == {
            name for name in kf.__all__ if name.startswith("S")
        }


def test_fit_on_the_dataset_of_a_feed_draws_no_warning():
    import keras

    with kf.Feed([(np.zeros(2, np.float32), np.float32(1))] * 8, 4, shuffle=True, seed=0, workers=0) as feed:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(feed.to_tf_dataset(), shuffle=False, verbose=0)


class Own(kf.Feed):
    """A user's feed, made like a feed."""


def test_a_pickled_copy_of_a_feed_has_the_same_class():
    class Local(kf.Feed):
        pass

    for kind, dumps in ((kf.Feed, pickle.dumps), (Own, pickle.dumps), (Local, cloudpickle.dumps)):
        with kind(Rooms(), 4, workers=0, seed=3) as feed, pickle.loads(dumps(feed)) as copy:
            assert type(copy) is kind
            assert (copy.seed, len(copy)) == (3, len(feed))
    with Local(Rooms(), 4, workers=0) as feed, pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(feed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kf.Feed(Rooms()), r"Feed.__init__\(\) missing 1 required positional argument: 'batch_size'"),
        (lambda: kf.Feed(Rooms(), 4, True), r"Feed.__init__\(\) takes 3 positional arguments"),
        (lambda: kf.StreamFeed(), r"StreamFeed.__init__\(\) missing 1"),
    ],
)
def test_error_messages_of_python_name_the_public_class(call, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


def test_the_stub_lists_the_public_names_and_their_modules():
    stub = Path(kf.__file__).with_name("__init__.pyi").read_text()
    listed = re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)
    assert sorted(name for _, name in listed) == sorted(set(kf.__all__) - {"__version__"})
    for module, name in listed:
        assert getattr(importlib.import_module(module), name) is getattr(kf, name)
