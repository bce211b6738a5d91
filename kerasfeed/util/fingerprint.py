"""Digests of arrays, numbers, text, containers of them, and functions.

The saved states of feeds contain such digests.

Invariant: equal values have equal digests in every process of one Python version. Digests do not depend on addresses
or on the order of sets. Two functions are equal if their code, defaults and enclosed values are equal.
"""

import copyreg
import functools
import hashlib
import os
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from kerasfeed.util.array_bits import comparable, exact_text, is_masked_array

_BYTES = 12  # 96 bits: two of a million values collide with a probability of 1e-17
_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_PACKAGES = frozenset({"pandas", "polars", "torch", "jaxlib", "tensorflow"})  # of arrays and tables in memory
_DEPTH = 16  # of nesting; a value below it is represented by its class


def digest(*values: Any) -> str:
    """Hexadecimal digest of values: arrays, numbers, text, containers of them, functions, objects.

    A function is its code, its defaults and its enclosed values; an object is its class and its attributes.
    """
    known: dict[int, tuple[Any, bytes]] = {}
    return joined("several", *(_of(value, (), known) for value in values)).hex()


def digest_of_names(paths: Iterable[Any]) -> str:
    """Digest of the names of files, in this order, without the folder that all are in."""
    names = list(map(str, paths))
    common = os.path.commonprefix(names)  # noqa: RUF071 - works for URLs, too
    folder = common.rfind("/") + 1  # files such as train-0 and train-1 keep the name that they share
    return digest("\0".join(name[folder:] for name in names))  # a list of a million names would take seconds


def joined(label: str, *parts: bytes) -> bytes:
    """Return the digest of a label and a sequence of digests."""
    text = label.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(b"".join([b"%d " % len(text), text, *parts]), digest_size=_BYTES).digest()


def name_of(function: Any) -> str:
    """Return the qualified name of a callable or its class."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__qualname__", type(inner).__qualname__)


def _of(value: Any, above: tuple[int, ...], known: dict[int, tuple[Any, bytes]]) -> bytes:
    """Return the digest of a value.

    Args:
        value: The value.
        above: The ids of the values that contain it.
        known: By id, each value digested before, with its digest.
    """
    if type(value) in _ATOMS:
        return _atom(value)
    if id(value) in above:
        return joined(f"circle {len(above) - above.index(id(value))}")
    if id(value) not in known:
        each = functools.partial(_of, above=(*above, id(value)), known=known)
        known[id(value)] = value, _of_parts(value, each, len(above))
    return known[id(value)][1]


def _of_parts(value: Any, each: Callable[[Any], bytes], depth: int) -> bytes:
    kind = type(value)
    if isinstance(value, list | tuple):
        return joined(f"{kind.__name__} {len(value)}", *map(each, value))
    if isinstance(value, set | frozenset):
        return joined(kind.__name__, *sorted(map(each, value)))
    if isinstance(value, dict):
        return joined(kind.__name__, *(each(part) for pair in value.items() for part in pair))
    if isinstance(value, np.ndarray | np.generic):
        return _array(value, each)
    if isinstance(value, type):
        return joined(f"class {value.__module__}.{value.__qualname__}")
    if isinstance(value, types.CodeType):
        return _of_code(value)
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        parts = value.__code__, value.__defaults__, value.__kwdefaults__, cells
        return joined(f"function {value.__qualname__}", *map(each, parts))
    if isinstance(value, types.MethodType):
        return joined("method", each(value.__self__), each(value.__func__))
    if isinstance(value, functools.partial):
        return joined("partial", each(value.func), each(value.args), each(value.keywords))
    if _is_foreign_array(value):
        content = None
        with suppress(Exception):  # a tensor of a graph or of another device
            content = np.asarray(value)
        return joined(f"array {kind.__qualname__}", each(content), each(list(getattr(value, "columns", ()))))
    is_whole = depth < _DEPTH and kind is not types.ModuleType
    attributes = getattr(value, "__dict__", {}) if is_whole else {}
    if "__wrapped__" in attributes:  # functools.lru_cache and the like
        return each(attributes["__wrapped__"])
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))  # functions in C, and modules
    state = [dict(attributes)] if attributes or not is_whole else _pickled_parts(value)
    return joined(f"object {kind.__module__}.{kind.__qualname__} {name}", *map(each, state))


def _is_foreign_array(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.partition(".")[0] in _PACKAGES and hasattr(kind, "__array__")


def _pickled_parts(value: Any) -> list[Any]:
    """Return what pickle stores of objects without attributes, such as ranges."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return []
    return [list(part) if isinstance(part, Iterator) else part for part in reduced] if type(reduced) is tuple else []


def _atom(value: Any) -> bytes:
    if isinstance(value, str):
        return joined(f"str {value}")
    if isinstance(value, bytes):
        return joined("bytes", value)
    return joined(f"{type(value).__name__} {value:#x}" if type(value) is int else f"{type(value).__name__} {value!r}")


def _array(value: Any, each: Callable[[Any], bytes]) -> bytes:
    if isinstance(value, np.str_ | np.bytes_):
        return joined(type(value).__name__, _atom(exact_text(value)))
    array = np.asarray(value)
    label = f"{type(value).__qualname__} {array.dtype.str} {array.dtype} {array.shape}"
    mask = each(np.ma.getmaskarray(value)) if is_masked_array(value) else b""
    if array.dtype.names is not None:
        return joined(label, mask, each([array[name] for name in array.dtype.names]))  # without padding bytes
    if array.dtype.hasobject or array.dtype.kind == "T":
        return joined(label, mask, each(array.tolist()))
    data: Any = np.ascontiguousarray(comparable(array)).reshape(-1).view(np.uint8)
    return joined(label, mask, hashlib.blake2b(data, digest_size=_BYTES).digest())


@functools.lru_cache(maxsize=1024)
def _of_code(code: types.CodeType) -> bytes:
    """Return a code object's digest, without file names and line numbers."""
    parts = code.co_code, code.co_exceptiontable, code.co_consts, code.co_names, code.co_varnames, code.co_freevars
    return joined(f"code {code.co_flags}", *(_of(part, (), {}) for part in parts))


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
