"""Cached: the key under which a scene is kept, and that nothing stale or random is ever served."""

import functools
import importlib
import os
import pickle
import types
from collections import OrderedDict
from datetime import date
from fractions import Fraction

import h5py
import numpy as np
import pytest
import scenes
from scenes_views import Noisy, Squares, jittered

import kerasfeed as kf
from kerasfeed.sequences.cache_key import key_of


def test_an_attribute_that_is_set_anew_is_noticed_at_once(where):
    squares = Squares()
    cached = kf.Cached(kf.Subset(squares, [3, 4]), **where)
    for factor in (1, 5, 1, 7):
        squares.factor = factor
        for _ in range(3):
            assert cached[0]["x"][0][0, 0] == 3 * factor


def test_what_changes_inside_an_attribute_is_noticed(where, monkeypatch):
    monkeypatch.setattr("kerasfeed.sequences.cached._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("kerasfeed.sequences.cached._LOOK_SHARE", 0)
    table = np.arange(5.0)
    cached = kf.Cached(kf.Map(range(5), lambda index: table[index]), **where)
    assert cached[3] == 3
    table[3] = 30
    assert cached[3] == 30


class FromFile(kf.SceneSequence):
    """Scenes of a file of numbers."""

    def __init__(self, path):
        self.path = str(path)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.load(self.path)[index]


class FromHDF5(kf.SceneSequence):
    """The same from an HDF5File, which is not to be open while the file changes."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 3

    def __getitem__(self, index):
        with kf.HDF5File(self.path) as file:
            return file["x"][index]


class FromFolder(FromFile):
    def __getitem__(self, index):
        return np.load(os.path.join(self.path, "values.npy"))[index]  # noqa: PTH118


def _write(path, values):
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["x"] = values
    else:
        np.save(path, values)


@pytest.mark.parametrize(("sequence", "name"), [(FromFile, "x.npy"), (FromHDF5, "x.h5"), (FromFolder, "values.npy")])
def test_a_source_file_that_changes_is_read_again(where, tmp_path, sequence, name):
    path = tmp_path / "data" / name
    path.parent.mkdir()
    _write(path, np.array([1.0, 2.0, 3.0]))
    cached = kf.Cached(sequence(path.parent if sequence is FromFolder else path), **where)
    for value in (3.0, 5.0, 7.0):
        _write(path, np.array([1.0, 2.0, value]))
        os.utime(path, ns=(int(value), int(value)))
        assert [cached[2] for _ in range(3)] == [value] * 3


def test_a_file_that_changes_while_a_scene_is_read_leaves_nothing_wrong_under_the_old_key(where, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.array([1.0]))
    found = path.stat()

    class Meddled(FromFile):
        def __getitem__(self, index):
            if meddle:
                np.save(path, np.array([9.0]))
                os.utime(path, ns=(5, 5))
            return super().__getitem__(index)

    meddle = []
    Meddled._cache_state = lambda self: self.path
    cached = kf.Cached(Meddled(path), **where)
    meddle.append(True)
    assert cached[0] == 9.0
    meddle.clear()
    np.save(path, np.array([1.0]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert cached[0] == 1.0


def _class(code, **names):
    space = {"kf": kf, "np": np, "__name__": "users_module", **names}
    exec(f"class Rooms(kf.SceneSequence):\n  def __len__(self): return 3\n{code}", space)
    return space["Rooms"]


def _function(code, **names):
    space = {"__name__": "users_module", **names}
    exec(code, space)
    return next(value for value in reversed(space.values()) if isinstance(value, types.FunctionType))


CODES = {
    "the method": [_class("  def __getitem__(self, index): return index * 2"),
                   _class("  def __getitem__(self, index): return index * 3")],
    "what the method calls": [
        _class("  def __getitem__(self, index): return f(index)", f=_function(f"def f(x): return x * {n}"))
        for n in (2, 3)
    ],
    "the method of a script": [
        _class(f"  def __getitem__(self, index): return index * {n}", __name__="__main__") for n in (2, 3)
    ],
    "a global": [_class("  def __getitem__(self, index): return index * scale", scale=n) for n in (2, 3)],
    "a default": [_class(f"  def __getitem__(self, index, by={n}): return index * by") for n in (2, 3)],
    "a class attribute": [_class(f"  scale = {n}\n  def __getitem__(self, index): return index * self.scale")
                          for n in (2, 3)],
    "a property": [_class(f"  @property\n  def scale(self): return {n}\n"
                          "  def __getitem__(self, index): return index * self.scale") for n in (2, 3)],
    "a function inside": [_class(f"  def __getitem__(self, index): return (lambda x: x * {n})(index)") for n in (2, 3)],
}  # fmt: skip


@pytest.mark.parametrize("what", CODES)
def test_code_that_changes_makes_another_key(tmp_path, what):
    one, other = CODES[what]
    assert [kf.Cached(one(), tmp_path)[2] for _ in range(2)] == [4, 4]
    assert [kf.Cached(other(), tmp_path)[2] for _ in range(2)] == [6, 6]
    assert len(list(tmp_path.iterdir())) == 2
    assert key_of(one()).digest == key_of(one()).digest != key_of(other()).digest


def test_a_module_that_the_code_uses_and_that_changes_makes_another_key(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kf_inner.py").write_text("def f(x): return 2 * x")
    (tmp_path / "kf_outer.py").write_text("import kf_inner\ndef g(x): return kf_inner.f(x)")
    outer, inner = importlib.import_module("kf_outer"), importlib.import_module("kf_inner")
    rooms = _class("  def __getitem__(self, index): return outer.g(index)", outer=outer)
    before = key_of(rooms()).digest
    assert key_of(rooms()).digest == before
    (tmp_path / "kf_inner.py").write_text("def f(x): return 3.5 * x")
    importlib.reload(inner)
    assert rooms()[2] == 7
    assert key_of(rooms()).digest != before


@pytest.mark.heavy
def test_a_sequence_over_an_hdf5_file_has_one_key_in_every_process(path, tmp_path):
    class Scans(kf.SceneSequence):
        def __init__(self):
            self.file = kf.HDF5File(path)
            self.points = self.file["points"]

        def __len__(self):
            return len(self.points)

        def __getitem__(self, index):
            return self.file["points"][index], index

    for _ in range(2):
        with kf.Feed(kf.Cached(Scans(), tmp_path / "kept"), 6, workers=2, worker_type="process") as feed:
            assert sum(int(labels.sum()) for _, labels in feed) == sum(range(24))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert len(list((tmp_path / "kept").rglob("*.scene"))) == 24


def test_equal_sequences_have_equal_keys_and_every_difference_tells():
    def state(**attributes):
        made = Noisy()
        for name, value in attributes.items():
            setattr(made, name, value)
        return key_of(made).digest

    values = [
        1, 1.0, "1", b"1", None, True, (1,), [1], {1}, {"a": 1}, {"a": 2}, {"b": 1}, np.float32(1), np.int64(1),
        np.arange(3), np.arange(3.0), np.arange(3)[::-1], np.array(["a", 1], object), range(3), slice(3), jittered,
        functools.partial(jittered, 1), lambda: 1, lambda: 2, np.sum, np.sin, types.SimpleNamespace(a=1),
        types.SimpleNamespace(a=2), kf.Subset([5], [0]), Fraction(1, 2), OrderedDict(a=1), date(2020, 1, 1),
        date(2020, 1, 2),
    ]  # fmt: skip
    keys = [state(value=value) for value in values]
    assert len(set(keys)) == len(keys)
    assert [state(value=value) for value in values] == keys
    shared = (1, 2)
    assert state(a=shared, b=shared) == state(a=(1, 2), b=pickle.loads(pickle.dumps(shared)))
    circle = [1]
    circle.append(circle)
    assert state(a=circle) == state(a=circle)
    assert state(a={"x", "y", "zebra"}) == state(a={"zebra", "y", "x"})


class Opened(scenes.Clouds):
    def __init__(self):
        super().__init__(3)
        self.handles = (each for each in "abc")
        self.parts = [{"handle": None}]


def test_state_that_cannot_be_compared_is_refused_and_a_key_or_getstate_helps(tmp_path):
    with pytest.raises(
        TypeError, match=r"cannot compare Opened.handles, a builtins.generator, .*__getstate__.*key='...'"
    ):
        kf.Cached(Opened())
    opened = Opened()
    opened.handles = None
    opened.parts[0]["handle"] = np.random.default_rng(0)
    with pytest.raises(TypeError, match=r"cannot compare Opened.parts\[0\]\['handle'\], a numpy.random._generator.Gen"):
        kf.Cached(opened)
    cached = kf.Cached(Opened(), tmp_path, key="version/1")
    assert [cached[1][1], cached[1][1]] == [1, 1]
    [folder] = tmp_path.iterdir()
    assert folder.name.startswith("Opened-version_1-")
    Opened.__getstate__ = lambda self: {"length": self.length}
    try:
        assert kf.Cached(Opened())[1][1] == 1
    finally:
        del Opened.__getstate__


def test_a_sequence_that_reading_changes_is_refused(where):
    class Counting(scenes.Clouds):
        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return super().__getitem__(index)

    with pytest.raises(
        kf.KerasfeedError, match=r"reading scene 1 changed Counting itself.*__getstate__, .*; or pass key="
    ):
        kf.Cached(Counting(3), **where)[1]


@pytest.mark.parametrize("sequence", [Noisy(), kf.Map([(np.zeros(2), 0)], jittered), kf.Zip(Noisy(3), range(3))])
def test_a_random_scene_is_refused_in_words(sequence, where):
    cached = kf.Cached(sequence, **where)
    message = r"scene 0 of \w+ asks for random numbers.*Put what is random after the cache: kf.Map\(kf.Cached"
    with pytest.raises(kf.KerasfeedError, match=message):
        cached[0]
    with kf.Feed(cached, 1, workers=0, seed=0) as feed, pytest.raises(kf.KerasfeedError, match=message):
        feed[0]


def test_a_relative_name_is_another_file_in_another_folder(tmp_path, monkeypatch):
    for factor in (1, 2):
        folder = tmp_path / str(factor)
        folder.mkdir()
        monkeypatch.chdir(folder)
        np.save("x.npy", np.arange(3.0) * factor)
        os.utime("x.npy", ns=(5, 5))  # as after unpacking: equal in size and mtime
        assert list(kf.Cached(FromFile("x.npy"), tmp_path / "kept")) == [0, factor, 2 * factor]


def test_scenes_that_differ_when_they_are_read_twice_are_refused_in_words(where, tmp_path):
    class Drifting(scenes.Clouds):
        def __getitem__(self, index):
            points, label = super().__getitem__(index)
            return points + np.float32(np.random.random()), label

    message = (
        r"scene 1 of Drifting differs when it is read again, .*one of the two.*kf.Map\(kf.Cached\(Drifting.*pass key="
    )
    with pytest.raises(kf.KerasfeedError, match=message):
        kf.Cached(Drifting(3), **where)[1]
    kept = kf.Cached(Drifting(3), key="one draw", **where)
    assert np.array_equal(kept[1][0], kept[1][0])
