"""Picklers that keep NULs at the end of text, and file names.

Invariant: every worker gets text unchanged, and a worker's traceback has the lines of the user's file. Everything that
the main module defines can be pickled: functions with a cache (it arrives empty), singledispatch functions, objects
whose `__getattr__` delegates to another object, and a main module that `multiprocessing` imported in a child process.
"""

import functools
import io
import operator
import pickle
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

from kerasfeed.util.array_bits import exact_text
from kerasfeed.util.user_modules import is_importable


def _reduced_text(text: Any) -> tuple[Any, tuple[Any]]:
    return type(text), (exact_text(text),)


def _reduced_code(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    # cloudpickle 3.1.3 gives all code one file name, so tracebacks would have no lines.
    make, values = cloudpickle.Pickler.dispatch_table[CodeType](code)
    number = next(number for number, value in enumerate(values) if isinstance(value, str))  # the first text
    return make, (*values[:number], code.co_filename, *values[number + 1 :])


def _reduced_property(obj: Any) -> tuple[Any, ...]:
    # Before Python 3.12 a cached_property has a lock.
    return type(obj), (obj.func,), {name: value for name, value in vars(obj).items() if name not in ("func", "lock")}


_TEXT: dict[Any, Any] = {np.str_: _reduced_text, np.bytes_: _reduced_text}


_CHILD_MAIN = "__mp_main__"  # the name of the main module in processes that multiprocessing has started
_Cached = type(functools.lru_cache(len))
_generic: Any = functools.singledispatch(len)
# Attributes that functools or tf.numpy_function sets, not the user.
_MADE = {*vars(_generic), *functools.WRAPPER_ASSIGNMENTS, "cache_parameters", "ag_dnc_wrapper__"}


def _dispatching(implementations: dict[Any, Callable[..., Any]]) -> Any:
    made = functools.singledispatch(implementations[object])
    for kind, implementation in implementations.items():
        made.register(kind, implementation)
    return made


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _asks_its_own_attributes(kind: type) -> bool:
    """Whether pickle would call `__getattr__` of a new object for `__setstate__`.

    A `__getattr__` that delegates (`return getattr(self.dataset, name)`) then calls itself without end, because the
    object has no attributes yet.
    """
    if not hasattr(kind, "__getattr__") or hasattr(kind, "__setstate__") or kind in CloudPickler.dispatch_table:
        return False
    if issubclass(kind, type):  # its instances are classes, which are pickled by name
        return False
    return all(getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__"))


def _restore(obj: Any, state: dict[str, Any]) -> None:
    obj.__dict__.update(state)


def can_be_imported(value: Any) -> bool:
    """Whether a worker gets this object by importing its name."""
    is_module = isinstance(value, ModuleType)
    name = (value.__name__ if is_module else value.__module__) or "__main__"
    if any(f"{name}.".startswith(f"{other}.") for other in ("__main__", *cloudpickle.list_registry_pickle_by_value())):
        return False
    try:
        module = sys.modules[name]
        return (module if is_module else operator.attrgetter(value.__qualname__)(module)) is value
    except (AttributeError, KeyError):
        return False


def _send_by_value(name: str) -> None:
    """Make cloudpickle send a module by value if it cannot be imported.

    Raises:
        pickle.PicklingError: It is a compiled library, which cannot be sent by value.
    """
    packages = name.split(".")
    for count in range(1, len(packages) + 1):
        each = ".".join(packages[:count])
        if each in cloudpickle.list_registry_pickle_by_value() or each == "__main__":
            return
        if each in sys.modules and not is_importable(each):
            if not getattr(sys.modules[each], "__file__", ".py").endswith(".py"):
                raise pickle.PicklingError(f"a new interpreter cannot import the compiled module {each!r} by its name")
            cloudpickle.register_pickle_by_value(sys.modules[each])
            return


class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler for code that cannot be imported; keeps file names."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        {**_TEXT, CodeType: _reduced_code, functools.cached_property: _reduced_property}
    )

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules: set[str] = set()  # already handled by _send_by_value
        if _CHILD_MAIN in sys.modules:  # no other process can import it
            cloudpickle.register_pickle_by_value(sys.modules[_CHILD_MAIN])

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle `obj`.

        Pickle calls this for every object except built-in values and containers.
        """
        kind = type(obj)
        if kind in (FunctionType, ModuleType, _Cached) or issubclass(kind, type):
            name = obj.__name__ if kind is ModuleType else getattr(obj, "__module__", None)
            if isinstance(name, str) and name not in self._modules:
                self._modules.add(name)
                _send_by_value(name)
        if _asks_its_own_attributes(type(obj)):
            reduced = obj.__reduce_ex__(5)
            if len(reduced) == 5 and type(reduced[2]) is dict:
                return *reduced, _restore
        if type(obj) is _Cached:
            made: tuple[Any, ...] = _cached, (obj.__wrapped__, obj.cache_parameters())
        elif type(obj) is FunctionType and obj.__code__ is _generic.__code__:
            made = _dispatching, (dict(vars(obj)["registry"]),)
        else:
            return super().reducer_override(obj)
        if can_be_imported(obj):
            return super().reducer_override(obj)
        return *made, {name: value for name, value in vars(obj).items() if name not in _MADE} or None


def cloud_pickled(value: Any) -> bytes:
    """Pickle `value` with `CloudPickler`; `pickle.loads` restores it.

    Raises:
        Exception: Pickling raised it.
    """
    stream = io.BytesIO()
    CloudPickler(stream, protocol=5).dump(value)
    return stream.getvalue()


class _KeepingUnpickler(pickle.Unpickler):
    """An unpickler that does not modify existing classes.

    `_class_setstate` is private to cloudpickle (present in 3.0 to 3.1).
    """

    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)
        if (module, name) == ("cloudpickle.cloudpickle", "_class_setstate"):
            return functools.partial(_complete, found)
        return found


def _complete(set_state: Callable[..., Any], kind: type, state: Any) -> Any:
    return kind if all(name in vars(kind) for name in state[0]) else set_state(kind, state)


def unpickled(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Unpickle data that this process, or its worker, has pickled.

    Classes of this process stay unchanged. `pickle.loads` would replace the methods of a class of the main module by
    copies, which do not see later changes of the module's variables.

    Raises:
        Exception: Unpickling raised it.
    """
    return _KeepingUnpickler(io.BytesIO(data), buffers=buffers).load()


def pickled_with_buffers(pickler: type[Any], value: Any, out_of_band_from: int) -> list[memoryview]:
    """Return a list: the pickle of `value`, then its buffers.

    `pickle.loads(first, buffers=others)` restores the value.

    Args:
        pickler: The class of the pickler.
        value: The value.
        out_of_band_from: Least number of bytes of a separate buffer, which is not copied.

    Raises:
        Exception: Pickling raised it.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < out_of_band_from:
            return True
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    pickler(stream, protocol=5, buffer_callback=keep_in_band).dump(value)
    return [stream.getbuffer(), *buffers]
