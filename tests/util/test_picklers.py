"""What picklers keep that others change; for text see `test_exact_text`."""

import pickle
import sys
import traceback
import types

import cloudpickle
import pytest

from kerasfeed.orders.groups import Portable
from kerasfeed.pool.processes.shared_objects import copy_as_sent

_SOURCE = """
def load(index):
    def inner():
        return (lambda: 1 / index)()
    return inner()
def group_of(index):
    return 1 / index
"""


@pytest.fixture
def rooms(monkeypatch):
    """A module that is sent by value, as `__main__` is."""
    module = types.ModuleType("rooms")
    monkeypatch.setitem(sys.modules, "rooms", module)
    exec(compile(_SOURCE, "/home/me/rooms.py", "exec"), module.__dict__)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


def lines_of(function):
    with pytest.raises(ZeroDivisionError) as raised:
        function(0)
    return [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(raised.value.__traceback__)[1:]]


def test_code_that_is_sent_to_a_worker_keeps_its_file_and_its_lines(rooms):
    sent = copy_as_sent(rooms.load, shares=True)
    assert sent is not rooms.load
    assert lines_of(sent) == [f"/home/me/rooms.py:{line}" for line in (5, 4, 4)]


def test_a_function_of_an_order_keeps_its_file_and_its_lines(rooms):
    sent = pickle.loads(pickle.dumps(Portable(rooms.group_of)))
    assert sent.function is not rooms.group_of
    assert lines_of(sent.function) == ["/home/me/rooms.py:7"]
