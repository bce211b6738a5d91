"""Objects that only our picklers keep unchanged; for text see `test_exact_text`."""

import contextlib
import enum
import functools
import importlib.util
import pickle
import sys
import traceback
import types

import cloudpickle
import pytest

from kerasfeed.orders.groups import Portable
from kerasfeed.pool.processes.shared_objects import copy_as_sent
from kerasfeed.util.picklers import cloud_pickled

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
    """A module that is sent by value, like `__main__`."""
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


def test_code_sent_to_a_worker_keeps_its_file_and_lines(rooms):
    sent = copy_as_sent(rooms.load, shares=True)
    assert sent is not rooms.load
    assert lines_of(sent) == [f"/home/me/rooms.py:{line}" for line in (5, 4, 4)]


def test_a_function_of_an_order_keeps_its_file_and_lines(rooms):
    sent = pickle.loads(pickle.dumps(Portable(rooms.group_of)))
    assert sent.function is not rooms.group_of
    assert lines_of(sent.function) == ["/home/me/rooms.py:7"]


# ---- functions with a cache, or with several implementations

_CACHED = """
import functools
import importlib.util
class Part:
    pass
@functools.cache
def fibonacci(index):
    return index if index < 2 else fibonacci(index - 1) + fibonacci(index - 2)
@functools.singledispatch
def size(value):
    return 1
@size.register
def _(value: list):
    return sum(map(size, value))
@size.register
def _(value: Part):
    return 7
class Rooms:
    @functools.lru_cache(maxsize=3)
    def load(self, index):
        return index + 1
    @staticmethod
    @functools.lru_cache
    def double(index):
        return 2 * index
    @functools.cached_property
    def count(self):
        return 5
    @functools.singledispatchmethod
    def kind(self, value):
        return "any"
    @kind.register
    def _(self, value: int):
        return "int"
"""


@pytest.fixture
def cached(rooms):
    """The module, with functions that keep results."""
    exec(compile(_CACHED, "/home/me/rooms.py", "exec"), rooms.__dict__)
    return rooms


def _sent(value):
    return copy_as_sent(value, shares=True)


def test_a_function_with_a_cache_is_sent_with_an_empty_one(cached):
    cached.fibonacci(9)
    cached.fibonacci.limit = 30
    sent = _sent(cached.fibonacci)
    assert sent is not cached.fibonacci
    assert sent.cache_info().currsize == 0
    assert sent(9) == 34
    assert sent.cache_info().currsize == 10, "it calls itself"
    assert sent.cache_parameters() == {"maxsize": None, "typed": False}
    assert (sent.__name__, sent.limit) == ("fibonacci", 30)


def test_a_function_with_several_implementations_is_sent_with_all_of_them(cached):
    size, part = _sent((cached.size, cached.Part()))
    assert size is not cached.size
    assert size([1, [2, 3], part]) == 10


def test_a_class_with_cached_methods_can_be_sent(cached):
    made = cached.Rooms()
    assert (made.load(1), made.count) == (2, 5)
    sent = _sent(made)
    assert (sent.load(1), sent.load(1), sent.double(4), sent.count) == (2, 2, 8, 5)
    assert (sent.kind(1), sent.kind("1")) == ("int", "any")
    assert type(sent).load.cache_parameters()["maxsize"] == 3


def test_nested_and_builtin_functions_with_a_cache_can_be_sent():
    @functools.lru_cache
    def inner(index):
        return -index

    assert _sent(inner)(4) == -4
    assert _sent(functools.lru_cache(len))("four") == 4


def test_an_importable_function_with_a_cache_is_sent_by_reference():
    assert _sent(_importable) is _importable
    assert _sent(_generic) is _generic


@functools.lru_cache
def _importable(index):
    return index


@functools.singledispatch
def _generic(value):
    return value


class Wrapper:
    def __init__(self, inside):
        self.inside = inside

    def __getattr__(self, name):
        return getattr(self.inside, name)


class Kept(Wrapper):
    def __getstate__(self):
        return {"inside": self.inside, "was_sent": True}


class Named(list):
    def __getattr__(self, name):
        return getattr(self.inside, name)


class Kind(enum.Enum):  # its class has a __getattr__ before Python 3.12
    ROOM = 1


def test_an_object_that_forwards_attributes_can_be_sent():
    assert _sent(Wrapper(Wrapper([1]))).inside.inside == [1]
    assert _sent(Wrapper([1, 1])).count(1) == 2
    assert _sent(Kept([1])).was_sent
    named = Named([1])
    named.inside = (2, 2)
    assert _sent([named]) == [[1]]
    assert _sent(named).inside == (2, 2)
    assert _sent([Kind, Kind.ROOM, Wrapper]) == [Kind, Kind.ROOM, Wrapper]


@pytest.fixture
def by_path(tmp_path):
    """Load a module by its path, under a name that no other process can import."""

    def load(name="rooms_by_path", folder=tmp_path, text="SIZE = 5\nclass Rooms:\n    def size(self): return SIZE\n"):
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in ("rooms_by_path", "rooms_by_hand"):
        if module := sys.modules.get(name):
            with contextlib.suppress(ValueError):
                cloudpickle.unregister_pickle_by_value(module)
            del sys.modules[name]


def arrived(value, *names):
    """`value`, as it arrives in a process that has not imported these modules."""
    pickled = cloud_pickled(value)
    kept = {name: sys.modules.pop(name) for name in names}
    try:
        return pickle.loads(pickled)
    finally:
        sys.modules.update(kept)


def test_a_module_loaded_by_its_path_is_sent_by_value(by_path):
    rooms = by_path()
    rooms.SIZE = 10
    assert arrived(rooms.Rooms(), "rooms_by_path").size() == 10
    assert arrived(rooms, "rooms_by_path").SIZE == 10


def test_a_module_added_to_sys_modules_by_hand_is_sent_by_value(by_path):
    module = sys.modules["rooms_by_hand"] = types.ModuleType("rooms_by_hand")
    exec("def size(): return 5", vars(module))
    assert arrived(module.size, "rooms_by_hand")() == 5


def test_a_module_shadowed_on_the_search_path_is_sent_by_value(by_path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "other").mkdir()
    by_path()
    other = by_path(folder=tmp_path / "other", text="class Rooms:\n    def size(self): return 6\n")
    assert arrived(other.Rooms(), "rooms_by_path").size() == 6


def test_an_importable_module_is_sent_by_name(by_path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    rooms = by_path()
    rooms.SIZE = 10
    assert pickle.loads(cloud_pickled(rooms.Rooms)) is rooms.Rooms
    assert arrived(rooms.Rooms(), "rooms_by_path").size() == 5
    assert "rooms_by_path" not in cloudpickle.list_registry_pickle_by_value()


def test_a_compiled_module_that_cannot_be_imported_is_refused(by_path, tmp_path):
    module = by_path()
    module.__file__ = str(tmp_path / "rooms_by_path.so")
    with pytest.raises(pickle.PicklingError, match="'rooms_by_path'"):
        cloud_pickled(module.Rooms())
