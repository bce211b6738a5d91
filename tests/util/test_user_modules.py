"""Which modules of the user's run another text than their files hold."""

import importlib
import os
import sys

import pytest

from kerasfeed.util import user_modules
from kerasfeed.util.user_modules import ModuleEditedError, ModuleTexts, ModuleWatch, module_texts


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    """A module that was imported, and its file."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "rooms_of_a_user.py"
    path.write_text("offset = 100\n")
    module = importlib.import_module("rooms_of_a_user")
    yield module, path
    del sys.modules["rooms_of_a_user"]
    user_modules._loaded.pop("rooms_of_a_user", None)


@pytest.mark.parametrize("is_known", [True, False], ids=["seen before", "cached by Python"])
def test_a_module_that_was_edited_after_its_import_is_told_until_it_is_reloaded(rooms, is_known):
    module, path = rooms
    if is_known:
        assert not module_texts().edited
    path.write_text("offset = 2000\n")
    assert module_texts().edited == {"rooms_of_a_user": str(path)}
    importlib.reload(module)
    assert not module_texts().edited


def test_a_module_of_sequences_is_noted_at_its_import_where_python_writes_no_cache(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "halls_of_a_user.py"
    path.write_text(
        "import kerasfeed as kf\nclass Halls(kf.SceneSequence):\n"
        "    def __len__(self): return 1\n    def __getitem__(self, index): return index\n"
    )
    try:
        importlib.import_module("halls_of_a_user")
        path.write_text(path.read_text() + "offset = 1\n")
        assert module_texts().edited == {"halls_of_a_user": str(path)}
    finally:
        del sys.modules["halls_of_a_user"]
        user_modules._loaded.pop("halls_of_a_user", None)


@pytest.mark.parametrize("is_known", [True, False], ids=["seen before", "cached by Python"])
def test_a_file_that_was_only_touched_is_no_edit(rooms, is_known):
    _, path = rooms
    if is_known:
        module_texts()
    os.utime(path, (1, 1))
    assert not module_texts().edited


def test_an_old_cache_tells_nothing_where_python_writes_none(rooms, monkeypatch):
    """Python then runs the text that the file holds, and leaves the cache of the one before."""
    _, path = rooms
    path.write_text("offset = 2000\n")
    del sys.modules["rooms_of_a_user"]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert importlib.import_module("rooms_of_a_user").offset == 2000
    assert not module_texts().edited


def test_modules_that_are_installed_are_not_looked_at(rooms):
    found = module_texts().now
    assert str(rooms[1]) in found
    assert not any("-packages" in path or path in (os.__file__, user_modules.__file__) for path in found)


def test_a_worker_refuses_a_module_of_another_text_and_names_those_that_its_parent_has_otherwise(rooms):
    _, path = rooms
    expected = module_texts()
    ModuleWatch(expected).check()
    watch = ModuleWatch(ModuleTexts(expected.now, {"rooms_of_a_user": str(path), "others": "others.py"}))
    watch.check()
    assert watch.edited() == f"rooms_of_a_user ({path})"
    path.write_text("offset = 2000\n")
    with pytest.raises(ModuleEditedError, match=r"rooms_of_a_user \(.*\) was edited .*importlib.reload"):
        ModuleWatch(expected).check()
