"""The commands that show a user's object."""

import sys
import types

import pytest

import kerasfeed as kf
from kerasfeed.cli.main import found_object, main

MODULE = """
import time
import numpy as np

class Rooms:
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return np.full(3, index, np.float32)

class Needs(Rooms):
    def __init__(self, path):
        self.path = path

def make():
    return Rooms()

number = 5
rooms = Rooms()
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """A user's module, in the current directory."""
    (tmp_path / "my_rooms.py").write_text(MODULE)
    (tmp_path / "my_broken.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_rooms", None)


@pytest.mark.parametrize("name", ["Rooms", "make", "rooms"])
def test_an_object_may_be_an_instance_a_class_or_a_function(name):
    assert len(found_object(f"my_rooms:{name}")) == 60


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_rooms", "needs MODULE:OBJECT, for example rooms:Rooms, received 'my_rooms'"),
        ("my_rooms:Halls", "module 'my_rooms' has no attribute 'Halls'"),
        ("my_rooms:Needs", "calling 'my_rooms:Needs' without arguments raised TypeError"),
        ("no_such_module:x", "module 'no_such_module' cannot be imported: ModuleNotFoundError"),
        ("my_broken:x", "No module named 'nothing_of_this_name'"),
        ("my_rooms:number", "needs an object with __len__ and __getitem__"),
    ],
)
def test_an_object_that_cannot_be_loaded_is_reported_in_one_line(name, message, capsys):
    assert main(["profile", name]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert message in error
    assert error.startswith("kerasfeed profile: ")
    assert error.count("\n") == 1


@pytest.mark.heavy
def test_profile_prints_the_verdict(capsys):
    assert main(["profile", "my_rooms:Rooms", "--seconds", "1", "--batch-size", "4"]) == 0
    assert capsys.readouterr().out.startswith("Rooms: ")


@pytest.fixture
def explored(monkeypatch):
    """Replace the functions of the other commands, and record their calls."""
    calls = []

    def function(name, result):
        def called(*given, **named):
            calls.append((name, *given, named))
            return result

        return called

    figure = types.SimpleNamespace(savefig=lambda path: calls.append(("savefig", str(path))))
    results = {"check_sequence": types.SimpleNamespace(ok=False), "describe": "statistics", "show": figure}
    for name in results:
        monkeypatch.setattr(kf, name, lambda *given, name=name, **named: function(name, results[name])(*given, **named))
    return calls, results


def test_check_exits_with_1_if_a_check_fails(explored):
    calls, results = explored
    assert main(["check", "my_rooms:rooms", "--scenes", "4"]) == 1
    assert calls[0][0] == "check_sequence"
    assert calls[0][2] == {"scenes": 4, "seconds": 60.0}
    results["check_sequence"].ok = True
    assert main(["check", "my_rooms:rooms"]) == 0


def test_describe_prints_statistics(explored, capsys):
    assert main(["describe", "my_rooms:Rooms"]) == 0
    assert capsys.readouterr().out == "statistics\n"


def test_show_writes_a_picture(explored, capsys):
    calls, _ = explored
    assert main(["show", "my_rooms:Rooms", "--index", "3", "--out", "room.png"]) == 0
    assert calls[0][2] == 3
    assert calls[1] == ("savefig", "room.png")
    assert capsys.readouterr().out == "room.png\n"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["check", "my_rooms:Rooms", "--scenes", "0"], "--scenes: must be an integer of at least 1, received '0'"),
        (["profile", "my_rooms:Rooms", "--batch-size", "0"], "--batch-size: must be an integer of at least 1"),
    ],
)
def test_an_argument_out_of_range_is_refused(command, text, capsys):
    with pytest.raises(SystemExit):
        main(command)
    assert text in capsys.readouterr().err
