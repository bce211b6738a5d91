"""Exceptions as bytes, from a worker process to the consumer."""

import pickle
from dataclasses import dataclass

import pytest
from error_kinds import KINDS

import kerasfeed as kf
from kerasfeed.pool.exception_pickle import Sent


def _sent(error):
    return pickle.loads(pickle.dumps(Sent.of(error))).as_exception()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].make is not None and kind != "lock"])
def test_every_kind_of_exception_keeps_its_message_attributes_and_notes(kind):
    error = KINDS[kind].make()
    error.add_note("first")
    error.add_note("second")
    made = _sent(error)
    assert type(made).__name__ == type(error).__name__
    assert made.__notes__ == ["first", "second"]
    assert made.args == error.args or kind == "group"
    if kind != "mute":
        assert str(made) == str(error)
    assert getattr(made, "why", None) == getattr(error, "why", None)


def test_an_exception_is_pickled_once_and_restored_once():
    counts = {"pickled": 0, "made": 0}

    class Counting:
        def __reduce__(self):
            counts["pickled"] += 1
            return _count, (counts,)

    def _count(found):
        counts["made"] += 1

    error = ValueError("x")
    error.attribute = Counting()
    sent = Sent.of(error)
    assert counts["pickled"] == 1
    assert type(sent.as_exception()) is ValueError


def test_an_unpicklable_exception_becomes_a_scene_error_with_its_text():
    error = _sent(KINDS["lock"].make())
    assert type(error) is kf.errors.SceneError
    assert (
        str(error) == "the sequence raised HoldsLockError: bad lock (an exception that cannot be sent to this process)"
    )


def test_an_exception_that_cannot_be_restored_becomes_a_scene_error():
    class Exits(Exception):
        def __reduce__(self):
            return exec, ("raise ValueError",)

    class Number(Exception):
        def __reduce__(self):
            return int, (3,)

    assert type(_sent(Exits("x"))) is type(_sent(Number("x"))) is kf.errors.SceneError


def test_a_frozen_exception_and_one_with_slots_keep_their_attributes():
    @dataclass(frozen=True)
    class Frozen(Exception):
        scan: str
        line: int

    class Slots(Exception):
        __slots__ = ("scan",)

        def __init__(self, scan, line):
            super().__init__(f"{scan}:{line}")
            self.scan = scan

    frozen, slots = _sent(Frozen("a", 3)), _sent(Slots("b", 4))
    assert (frozen.scan, frozen.line, frozen.args) == ("a", 3, ("a", 3))
    assert (slots.scan, str(slots)) == ("b", "b:4")


def test_an_os_error_with_a_custom_constructor_keeps_errno():
    class DiskError(OSError):
        def __init__(self, disk, code):
            super().__init__(code, f"disk {disk}")
            self.disk = disk

    error = _sent(DiskError("sda", 5))
    assert (error.errno, error.strerror, error.disk, str(error)) == (5, "disk sda", "sda", "[Errno 5] disk sda")


def test_builtin_exceptions_keep_attributes_besides_their_arguments():
    class Missing(ImportError):
        def __init__(self, module):
            super().__init__(f"no {module}", name=module)

    class File(OSError):
        pass

    assert (_sent(Missing("x")).name, str(_sent(Missing("x")))) == ("x", "no x")
    assert _sent(File(2, "gone", "a.h5")).filename == "a.h5"
