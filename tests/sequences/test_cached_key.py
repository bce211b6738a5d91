"""The key of a cache: what changes it, what does not, and that it is the same in every process."""

import argparse
import dataclasses
import functools
import importlib
import logging
import os
import re
import subprocess
import sys
import threading
import types
import typing
from pathlib import Path

import numpy as np
import pytest
from programs import ROOT
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.sequences.cache_key import key_of

ROOMS = """
import kf_project.shared as shared
from kf_project.functions import scaled

LIMIT = 3

class Rooms:
    base = 1

    def __len__(self):
        return LIMIT

    def __getitem__(self, index):
        from .later import shifted
        import code
        return shifted(scaled(index)) * shared.FACTOR + code.NUMBER
"""
PROJECT = {
    "kf_project/__init__.py": "",
    "kf_project/rooms.py": ROOMS,
    "kf_project/shared.py": "FACTOR = 2",
    "kf_project/functions.py": "def scaled(x):\n    import kf_project.deep.inner as inner\n    return inner.f(x)",
    "kf_project/deep/__init__.py": "",
    "kf_project/deep/inner.py": "def f(x): return x * 2",
    "kf_project/later.py": "import importlib\nshifted = importlib.import_module('kf_project.loaded').shifted",
    "kf_project/loaded.py": "def shifted(x): return x + 1",
    "kf_project/unrelated.py": "A = 1",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder of modules, and the key of the class in it, as a new program finds it."""
    for name, text in {**PROJECT, "code.py": "NUMBER = 1"}.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "run").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forgotten = []

    def forget():
        for name in list(sys.modules):
            if name == "code" or name.split(".")[0] == "kf_project":
                forgotten.append((name, sys.modules.pop(name)))
        importlib.invalidate_caches()

    def key(change=None):
        forget()
        rooms = importlib.import_module("kf_project.rooms")
        if change is not None:
            change(rooms)
        return key_of(rooms.Rooms()).digest

    yield types.SimpleNamespace(src=tmp_path / "src", key=key)
    forget()
    for name, module in forgotten:
        if name == "code":
            sys.modules.setdefault(name, module)


@pytest.mark.parametrize("name", ["code.py", *(name for name in PROJECT if name != "kf_project/unrelated.py")])
def test_the_text_of_every_module_that_code_imports_is_part_of_the_key(project, name):
    before = project.key()
    assert project.key() == before
    with (project.src / name).open("a") as file:
        file.write("\n# changed\n")
    assert project.key() != before


def test_other_modules_and_new_files_are_no_part_of_the_key(project):
    before = project.key()
    (project.src / "kf_project" / "unrelated.py").write_text("A = 2")
    (project.src / "new.py").write_text("")
    Path("here.txt").write_text("in the folder in which the program runs")
    assert project.key() == before


def test_a_folder_whose_name_ends_like_that_of_installed_packages_holds_modules_of_yours(tmp_path, monkeypatch):
    folder = tmp_path / "my-packages"
    (folder / "kf_own-1.dist-info").mkdir(parents=True)
    (folder / "kf_own-1.dist-info" / "METADATA").write_text("Name: kf_own\nVersion: 1")
    monkeypatch.syspath_prepend(folder)
    keys = []
    for text in ("# one", "# other"):
        monkeypatch.delitem(sys.modules, "kf_own", raising=False)
        (folder / "kf_own.py").write_text(f"def f(x): return x  {text}")
        keys.append(key_of(kf.Map([1], importlib.import_module("kf_own").f)).digest)
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda rooms: setattr(rooms, "LIMIT", 4),
        lambda rooms: setattr(rooms.shared, "FACTOR", 4),
        lambda rooms: setattr(rooms, "scaled", lambda x: x),
        lambda rooms: setattr(rooms.scaled, "attribute", 4),
        lambda rooms: setattr(rooms.Rooms, "base", 4),
        lambda rooms: setattr(rooms.Rooms, "__len__", lambda self: 4),
    ],
    ids=["a global", "a global of another module", "a function", "a function's attribute", "a class's", "a method"],
)
def test_what_the_program_sets_in_its_modules_is_part_of_the_key(project, change):
    assert project.key(change) == project.key(change) != project.key()


ARGUMENTS = argparse.Namespace(size=1, rate=1)


class Sized:
    """A sequence with an argument of the program."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index * ARGUMENTS.size


def test_of_the_arguments_of_a_program_those_count_that_code_names(monkeypatch):
    before = key_of(Sized()).digest
    monkeypatch.setattr(ARGUMENTS, "rate", 2)
    assert key_of(Sized()).digest == before
    monkeypatch.setattr(ARGUMENTS, "size", 2)
    assert key_of(Sized()).digest != before


def test_a_module_that_is_edited_and_not_loaded_again_is_still_what_runs(project):
    rooms = importlib.import_module("kf_project.rooms")
    before = key_of(rooms.Rooms()).digest
    path = project.src / "kf_project" / "shared.py"
    path.write_text("FACTOR = 2  # changed")
    assert key_of(rooms.Rooms()).digest == before
    importlib.reload(rooms.shared)
    assert key_of(rooms.Rooms()).digest != before


# ---- state


class Holder:
    """A sequence with any attribute."""

    def __init__(self, held):
        self.held = held

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return str(index).split("."), "/".join("ab"), index


class Tagged(np.ndarray):
    """An array with an attribute."""


class Listed(list):
    """A list with an attribute."""


class Mapped(dict):
    """A dict with an attribute."""


class Named(str):
    """A text with an attribute."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Some options."""

    size: int = 1
    names: tuple[str, ...] = ()
    more: dict = dataclasses.field(default_factory=dict)


def _tagged(value, tag, name="tag"):
    setattr(value, name, tag)
    return value


def _with_attribute(number):
    def function(x):
        return x

    function.number = number
    return function


def _masked(mask, **more):
    return np.ma.masked_array([1.0, 2.0], mask, **more)


PAIRS = {
    "an array": [lambda n=n: np.array([n]) for n in (1, 2)],
    "a dtype": [lambda n=n: np.zeros(1, n) for n in ("<i4", ">i4")],
    "a mask": [lambda n=n: _masked(n) for n in ([0, 1], [1, 0])],
    "a masked array's fill value": [lambda n=n: _masked([0, 1], fill_value=n) for n in (1.0, 2.0)],
    "a masked array's attribute": [lambda n=n: _tagged(_masked([0, 1]), n) for n in (1, 2)],
    "an attribute of an array": [lambda n=n: _tagged(np.zeros(2).view(Tagged), n) for n in (1, 2)],
    "an array's own mask": [lambda n=n: _tagged(np.zeros(2).view(Tagged), n, "_mask") for n in (1, 2)],
    "an attribute of a list": [lambda n=n: _tagged(Listed([1]), n) for n in (1, 2)],
    "an attribute of a dict": [lambda n=n: _tagged(Mapped(a=1), n) for n in (1, 2)],
    "an attribute of a text": [lambda n=n: _tagged(Named("a"), n) for n in (1, 2)],
    "an attribute of a function": [lambda n=n: _with_attribute(n) for n in (1, 2)],
    "an array of objects": [lambda n=n: np.array([n, None], object) for n in ("a", "b")],
    "a record": [lambda n=n: np.array([(n, 2.0)], [("a", "i1"), ("b", "f8")]) for n in (1, 2)],
    "a dataclass": [lambda n=n: Options(n) for n in (1, 2)],
    "a dataclass inside": [lambda n=n: Options(1, (), {"a": [n]}) for n in (1, 2)],
    "a pattern": [lambda n=n: re.compile(n) for n in ("a+", "b+")],
    "a pattern's flags": [lambda n=n: re.compile("a", n) for n in (0, re.IGNORECASE)],
    "a union": [lambda n=n: n for n in (int | str, int | float)],
    "an optional": [lambda n=n: n for n in (typing.Optional[int], typing.Optional[float])],  # noqa: UP045
    "the order of a dict": [lambda n=n: dict(n) for n in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])],
    "a set": [lambda n=n: {"a", n} for n in ("b", "c")],
    "a partial": [lambda n=n: functools.partial(max, n) for n in (1, 2)],
    "a cached function": [lambda n=n: functools.lru_cache(maxsize=None)(lambda x: x + n) for n in (1, 2)],
    "a vectorized function": [lambda n=n: np.vectorize(lambda x: x + n, otypes=[float]) for n in (1, 2)],
    "a namespace": [lambda n=n: types.SimpleNamespace(x=[n]) for n in (1, 2)],
    "a bound method": [lambda n=n: Holder(n).__len__ for n in (1, 2)],
    "a class": [lambda n=n: n for n in (Holder, Options)],
}  # fmt: skip


@pytest.mark.parametrize("what", PAIRS)
def test_state_that_differs_has_another_key_and_equal_state_the_same(what):
    one, other = PAIRS[what]
    assert key_of(Holder(one())).digest == key_of(Holder(one())).digest != key_of(Holder(other())).digest


def test_locks_and_loggers_have_no_state():
    for make in (threading.Lock, threading.RLock, threading.local, lambda: logging.getLogger("any")):
        assert key_of(Holder(make())).digest == key_of(Holder(make())).digest


def test_parts_of_a_file_mapped_into_memory_have_keys_of_their_own(tmp_path):
    np.arange(8, dtype="<i8").tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", "<i8", "r")
    assert key_of(Holder(mapped[:4])).digest == key_of(Holder(mapped[:4])).digest != key_of(Holder(mapped[4:])).digest
    assert list(key_of(Holder(mapped)).files) == [str(tmp_path / "x.bin")]


def test_tensors_and_modules_of_pytorch_have_the_key_of_their_values():
    torch = pytest.importorskip("torch")

    def net(value):
        layer = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(layer.weight, value)
        torch.nn.init.constant_(layer.bias, 0)
        return torch.nn.Sequential(layer, torch.nn.ReLU())

    pairs = [
        [lambda n=n: torch.tensor([n, 2.0]) for n in (1.0, 2.0)],
        [lambda n=n: torch.zeros(2, dtype=n) for n in (torch.bfloat16, torch.float16)],
        [lambda n=n: net(n) for n in (1.0, 2.0)],
    ]
    for one, other in pairs:
        assert key_of(Holder(one())).digest == key_of(Holder(one())).digest != key_of(Holder(other())).digest


# ---- files


@pytest.mark.parametrize("name", ["Path('x.bin')", "'x.bin'", "'./x.bin'", "os.path.abspath('x.bin')", "{1: 'x.bin'}",
                                  "np.array(['no', 'x.bin'])", "np.array([('x.bin', 1)], 'U9, i4')",
                                  "Path('.')", "'./'"])  # fmt: skip
def test_a_file_that_an_attribute_names_is_part_of_the_key(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.bin").write_bytes(b"1")
    held = eval(name)
    before = key_of(Holder(held)).digest
    assert key_of(Holder(held)).digest == before
    Path("x.bin").write_bytes(b"12")
    assert key_of(Holder(held)).digest != before


@pytest.mark.parametrize("held", [".", "..", "/", "//", "train", "a/b", "s3://bucket", {"train": 1}, "x" * 9999, "\0"])
def test_texts_that_name_no_file_are_just_texts(held, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train").mkdir()
    before = key_of(Holder(held)).digest
    for name in ("new", "train/new"):
        Path(name).write_text("")
    key = key_of(Holder(held))
    assert (key.digest, key.files) == (before, {})


def test_a_cache_inside_the_folder_of_its_sources_is_no_source(tmp_path):
    (tmp_path / "1").write_text("1")
    cached = kf.Cached(Holder(tmp_path), tmp_path / "kept")
    assert [each[2] for each in (cached[0], cached[1], cached[0])] == [0, 1, 0]
    assert len(list((tmp_path / "kept").iterdir())) == 1
    for _ in range(2):
        kf.labels_of(Holder(tmp_path), "2", cache=tmp_path / "labels.npz", workers=0, progress=False)
    assert (tmp_path / "labels.npz").exists()


# ---- processes

PROGRAM = """
import functools, re, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import kerasfeed as kf
from kerasfeed.sequences.cache_key import key_of
import helper

SIZE = int(sys.argv[2])

def scaled(x):
    import late
    return late.f(x) * SIZE if x in {"p", "q", "r"} else helper.f(x)

class Rooms(kf.SceneSequence):
    words = {"some", "words", "in", "a", "set"}
    def __init__(self):
        self.sets = [{"a", "b", "c"}, frozenset("xyz"), {("a", 1), ("b", 2)}]
        self.array = np.arange(3)
        self.pattern = re.compile("a/b")
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return scaled(index)

print(key_of(kf.Map(Rooms(), functools.partial(scaled))).digest)
"""


def test_a_key_is_the_same_in_every_process_and_another_for_another_argument(tmp_path):
    (tmp_path / "helper.py").write_text("def f(x): return x")
    (tmp_path / "late.py").write_text("def f(x): return x")

    def key(seed, size):
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), size], capture_output=True, text=True, check=True,
            timeout=PROGRAM_SECONDS, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        ).stdout  # fmt: skip

    before = key("1", "3")
    assert key("2", "3") == before
    assert key("1", "4") != before
    (tmp_path / "late.py").write_text("def f(x): return x + 1")
    assert key("1", "3") != before
