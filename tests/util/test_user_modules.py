"""Differences between the modules of two processes that a user can fix."""

import importlib
import sys
import textwrap

import pytest

from kerasfeed.util.user_modules import differences, differences_text, module_values

SETTINGS = """
    import datetime, functools, os, threading, time
    from dataclasses import dataclass
    from enum import Enum
    from pathlib import Path

    Color = Enum("Color", "RED BLUE")

    SIZE = 5
    ROOT: Path = Path("data")
    COLOR = Color.RED
    OPTIONS = {"size": 5, "deep": {"names": ["a"]}, "lock": threading.Lock()}
    LABELS = ["a", "b"]

    @dataclass
    class Config:
        size: int = 5

    CONFIG = Config()
    KINDS = {"b", "a", "c"}

    def load(path, size=5):
        return {"x", "y", size}

    @functools.lru_cache
    def count(path):
        return 5

    class Rooms:
        root = None
        def __getitem__(self, index):
            return load(index)
        @staticmethod
        def helper():
            return 1

    # what a module changes by itself
    STARTED = time.time()
    PID = os.getpid()
    CACHE, REGISTRY = {}, []
    COUNT = 0
    LARGEST = 0
    _state = 0

    def run_name():
        return f"{datetime.datetime.now():%H%M%S.%f}"

    RUN = run_name()
    LENGTHS = {}

    class Counted:
        made = 0
        def __init__(self):
            Counted.made += 1

    def local():
        SIZE = 1
        SIZE += 1
        ROOT = 2
        ROOT = ROOT * 2

    def work():
        global COUNT, LARGEST, _state
        COUNT += 1
        LARGEST = max(LARGEST, COUNT)
        _state = 5
        LENGTHS["a"] = 3
        Counted()
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A user's module, its file, and a function that compares it with a new import."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "settings_of_a_user.py"
    path.write_text(textwrap.dedent(SETTINGS))

    def there():
        here = module_values()
        del sys.modules["settings_of_a_user"]
        importlib.invalidate_caches()
        importlib.import_module("settings_of_a_user")
        return {name.removeprefix("settings_of_a_user."): values for name, values in differences(here).items()}

    yield importlib.import_module("settings_of_a_user"), path, there
    sys.modules.pop("settings_of_a_user", None)


def test_module_values_set_by_a_script_are_named_with_both_values(settings):
    module, _, there = settings
    module.SIZE, module.ROOT, module.COLOR, module.EXTRA = 10, module.Path("other"), module.Color.BLUE, 1.5
    module.OPTIONS["size"] = 10
    module.OPTIONS["deep"]["names"].append("b")
    del module.OPTIONS["deep"]["names"][0]
    module.LABELS.append("c")
    module.Rooms.root = "/data"
    module.CONFIG.size = 10
    found = there()
    assert found.pop("ROOT")[0].endswith("Path('data')")
    assert found == {
        "SIZE": ("5", "10"),
        "COLOR": ("Color.RED", "Color.BLUE"),
        "EXTRA": ("not set", "1.5"),
        "OPTIONS['size']": ("5", "10"),
        "OPTIONS['deep']['names']": ("['a']", "['b']"),
        "LABELS": ("['a', 'b']", "['a', 'b', 'c']"),
        "CONFIG.size": ("5", "10"),
        "Rooms.root": ("None", "'/data'"),
    }


def test_functions_and_methods_that_were_replaced_are_named(settings):
    module, _, there = settings
    module.load = lambda path: 0
    module.Rooms.helper = staticmethod(lambda: 2)
    module.Rooms.__getitem__ = test_functions_and_methods_that_were_replaced_are_named
    assert set(there()) == {"load", "Rooms.helper", "Rooms.__getitem__"}


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("SIZE = 5", "SIZE = 6", {"SIZE"}),
        ('{"x", "y", size}', '{"x", "z", size}', {"load"}),
        ("size=5", "size=6", {"load"}),
        ("return 5", "return 6", {"count"}),
        ("return load(index)", "return load(index + 1)", {"Rooms.__getitem__"}),
        ("root = None", "paths = []", {"Rooms.root"}),
        ("class Rooms:", "# a comment moves the lines below\n\nclass Rooms:", set()),
    ],
)
def test_edits_since_the_import_are_named_except_comments(settings, old, new, names):
    _, path, there = settings
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert set(there()) == names


def test_values_that_a_module_changes_itself_are_ignored(settings):
    module, _, there = settings
    module.work()
    module.PID = module.PID - 1
    module.RUN += " earlier"
    assert there() == {}


def test_imported_values_that_their_module_changes_itself_are_ignored(settings, tmp_path):
    module = settings[0]
    path = tmp_path / "importing_settings_of_a_user.py"
    path.write_text("from settings_of_a_user import *\nfrom settings_of_a_user import SIZE as SHAPE, PID as NUMBER")
    importing = importlib.import_module(path.stem)
    here = module_values()
    module.work()
    importing.PID = importing.NUMBER = 1
    importing.SHAPE = 6
    try:
        assert differences(here) == {f"{path.stem}.SHAPE": ("6", "5")}
    finally:
        del sys.modules[path.stem]


def test_values_that_cannot_be_described_are_not_compared(settings):
    module, _, there = settings
    module.OPTIONS["lock"] = module.Rooms()
    module.MODEL = object()
    module.LABELS.append(module.Rooms)
    assert there() == {}


def test_installed_modules_are_not_compared(settings):
    found = module_values()
    assert "settings_of_a_user" in found
    assert not any(name.split(".")[0] in ("numpy", "os", "pytest", "kerasfeed", "__main__") for name in found)


def test_the_warning_is_short_and_shows_the_difference_of_long_values():
    long = [f"scene_{n}" for n in range(30)]
    values = {f"settings.N{n}": (str(n), str(n + 1)) for n in range(7)}
    text = differences_text({"settings.NAMES": (repr(long), repr([*long[:20], "other"])), **values})
    assert "'scene_20'" in text
    assert "'other'] here" in text
    assert "'scene_5'" not in text
    assert "settings.N3 is 3 there and 4 here; and 3 more" in text
