"""Short texts that tell functions, arrays and objects apart, in this process and in the next.

Invariant: equal values give equal digests in every process of one Python version. Nothing that changes from run to run
(addresses, the order of sets) enters, nor whether equal parts are one object or two. Two functions of equal code over
equal values are one and the same.
"""

import copyreg
import functools
import hashlib
import logging
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed.util.array_bits import comparable, exact_text, is_masked_array

_BYTES = 12  # 96 bits: a chance of 1e-17 that two of a million differ and look alike
_ATOMS = (bool, int, float, complex, str, bytes, type(None))
# What may be part of anything and says nothing of values; loggers, for they know their handlers.
_WITHOUT_STATE = (
    type(threading.Lock()), type(threading.RLock()), threading.local, logging.Logger, weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary, weakref.WeakSet,
)  # fmt: skip
_PARTS_OF: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    np.vectorize: ("pyfunc", "otypes", "signature", "excluded"),  # it keeps what it has made of them
}
_OF_MEMMAP = {"_mmap", "filename", "offset", "mode"}
_OF_MASKED = {
    "_mask", "_fill_value", "_hardmask", "_sharedmask", "_isfield", "_baseclass", "_optinfo", "_basedict",
}  # fmt: skip


def digest(*values: Any) -> str:
    """Hexadecimal digest of values: arrays, numbers, text, containers of them, functions, objects.

    A function is its code, its defaults, what it encloses and its attributes; an object its class's name and what
    pickle would take of it. What pickle does not take is its class's name alone.
    """
    hasher = Hasher()
    return joined("several", *map(hasher.of, values)).hex()


def joined(label: str, *parts: bytes) -> bytes:
    """The digest of a label and of digests in their order."""
    text = label.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(b"".join([b"%d " % len(text), text, *parts]), digest_size=_BYTES).digest()


def name_of(function: Any) -> str:
    """What to call a callable in a message: its qualified name, or its class's."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__qualname__", type(inner).__qualname__)


class Hasher:
    """Takes digests of values that may share parts, and hold themselves; each part is looked at once.

    One that has raised is not to be used again.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the value, so that no other one gets its id
        self._open: dict[int, int] = {}  # how deep each value is that is being looked at
        self._path: list[Any] = []

    def of(self, value: Any, name: Any = "") -> bytes:
        """The digest of a value; `name` is what an error calls it, a key in a tuple."""
        if type(value) in _ATOMS:
            return self._atom(value)
        if id(value) in self._open:
            return joined(f"circle {len(self._open) - self._open[id(value)]}")
        if id(value) not in self._known:
            self._open[id(value)] = len(self._open)
            self._path.append(name)
            self._known[id(value)] = value, self._taken_apart(value)
            del self._open[id(value)]
            self._path.pop()
        return self._known[id(value)][1]

    def _atom(self, value: Any) -> bytes:
        if isinstance(value, str):
            return joined(f"str {value}")
        if isinstance(value, bytes):
            return joined("bytes", value)
        return joined(
            f"{type(value).__name__} {value:#x}" if type(value) is int else f"{type(value).__name__} {value!r}"
        )

    def _taken_apart(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (list, tuple):
            return joined(f"{kind.__name__} {len(value)}", *(self.of(each, (k,)) for k, each in enumerate(value)))
        if kind in (set, frozenset):
            return joined(kind.__name__, *sorted(map(self.of, value)))
        if kind in (dict, types.MappingProxyType):
            pairs = ((self.of(key), self.of(each, (key,))) for key, each in value.items())
            return joined("dict", *(part for pair in pairs for part in pair))
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return _of_code(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, os.PathLike):
            return self._file(value)
        if isinstance(value, _WITHOUT_STATE):
            return joined(f"a {kind.__qualname__}")
        return self._object(value)

    def _named(self, label: str, parts: Iterable[tuple[str, Any]]) -> bytes:
        each = list(parts)
        return joined(f"{label} {[name for name, _ in each]}", *(self.of(part, name) for name, part in each))

    def _array(self, value: Any) -> bytes:
        if isinstance(value, np.str_ | np.bytes_):
            return joined(type(value).__name__, self._atom(exact_text(value)))
        array = np.asarray(value)
        label = f"{type(value).__qualname__} {array.dtype.str} {array.dtype} {array.shape}"
        more = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in _OF_MEMMAP}
        if is_masked_array(value):
            more = {name: part for name, part in more.items() if name not in _OF_MASKED}
            fill = vars(value).get("_fill_value")  # made when it is first used
            is_own = fill is not None and not np.array_equal(fill, np.ma.default_fill_value(array.dtype))
            more |= {"mask": np.ma.getmaskarray(value), "fill_value": fill if is_own else None}
        if isinstance(value, np.memmap) and value.filename is not None and value.mode != "c":
            whole = value
            while isinstance(whole.base, np.memmap):
                whole = whole.base
            start = array.ctypes.data - whole.ctypes.data
            content: Any = Path(value.filename), value.offset, start, array.strides
        elif array.dtype.names is not None:
            content = [array[name] for name in array.dtype.names]  # without the bytes between them
        elif array.dtype.hasobject or array.dtype.kind == "T":
            content = array.tolist()
        else:
            data: Any = np.ascontiguousarray(comparable(array)).reshape(-1).view(np.uint8)
            return joined(label, self.of(more), hashlib.blake2b(data, digest_size=_BYTES).digest())
        return joined(label, self.of(more), self.of(content))

    def _function(self, function: types.FunctionType) -> bytes:
        return joined(f"function {function.__qualname__}", self.of(function.__code__), self._around(function))

    def _around(self, function: types.FunctionType) -> bytes:
        """Of what a function holds beside its code."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        parts = [("", (function.__defaults__, function.__kwdefaults__))]
        parts += [(name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
        return self._named("with", [*parts, *vars(function).items()])

    def _class(self, cls: type) -> bytes:
        called = next((vars(kind)["__call__"] for kind in cls.__mro__ if "__call__" in vars(kind)), None)
        code = called.__code__ if isinstance(called, types.FunctionType) else None
        return joined(f"class {cls.__module__}.{cls.__qualname__}", self.of(code))

    def _module(self, module: types.ModuleType) -> bytes:
        return joined(f"module {module.__name__}")

    def _file(self, path: Any) -> bytes:
        return joined(f"path {os.fspath(path)!r}")

    def _object(self, value: Any) -> bytes:
        try:
            parts = _state_of(value)
        except Exception as error:  # noqa: BLE001 - whatever pickling raises
            return self._without_state(value, error)
        return joined("object", self.of(type(value)), self._named("of", parts))

    def _without_state(self, value: Any, error: Exception) -> bytes:
        return joined("object", self.of(type(value)))


def _state_of(value: Any) -> list[tuple[str, Any]]:
    """Named parts of an object: what pickle would take.

    Raises:
        Exception: It has none that could be compared.
    """
    kind = type(value)
    own: Callable[[Any], Any] | None = getattr(kind, "_cache_state", None)
    if own is not None:
        return [("", own(value))]
    names = _PARTS_OF.get(kind)
    if names is None and "__wrapped__" in getattr(value, "__dict__", ()):  # functools.lru_cache and its like
        names = ("__wrapped__",)
    if names is not None:
        return [(name, getattr(value, name)) for name in names]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):  # it pickles with addresses
        data = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        about = str(value.dtype), tuple(value.shape), value.requires_grad
        return [("tensor", (*about, data)), *sorted(vars(value).items())]
    if any(each.__name__ == "KerasSaveable" for each in kind.__mro__):
        raise TypeError("what Keras saves differs from time to time")
    reduced = copyreg.dispatch_table[kind](value) if kind in copyreg.dispatch_table else value.__reduce_ex__(4)
    if isinstance(reduced, str):  # the name of a global
        return [(reduced, None)]
    made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    several = ("", (made, arguments, list(items or ()), list(pairs or ())))
    if type(state) is dict and all(type(name) is str for name in state):
        return [several, *sorted(state.items())]  # attributes, in whatever order they were set
    return [several, (".", state)]


@functools.lru_cache(maxsize=1024)
def _of_code(code: types.CodeType) -> bytes:
    """Of a code object, without the names of files and the numbers of lines."""
    inside = Hasher()  # one that takes no text of code for the name of a file
    parts = code.co_code, code.co_exceptiontable, code.co_consts, code.co_names, code.co_varnames, code.co_freevars
    return joined(f"code {code.co_flags}", *map(inside.of, parts))


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
