"""`shared`: long lists and dicts that all worker processes share.

Invariant: the content is a few read-only NumPy arrays, which worker processes map. An item is made from their bytes at
each access: it equals the item that was passed, and changing it changes no other.
"""

import functools
import io
import operator
import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from types import FunctionType
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from kerasfeed.spec.lists import PYTHON_NUMBERS
from kerasfeed.util.array_bits import exact_text
from kerasfeed.util.error_text import class_name, message_of, pluralize

_K = TypeVar("_K")
_T = TypeVar("_T")
_SURROGATES = "surrogatepass"  # names of files may have some


@overload
def shared(items: Mapping[_K, _T]) -> Mapping[_K, _T]: ...  # type: ignore[overload-overlap]  # a mapping is iterable
@overload
def shared(items: Iterable[_T]) -> Sequence[_T]: ...
def shared(items: Any) -> Any:
    """Return a read-only list or dict that all worker processes share.

    Worker processes share the large NumPy arrays of a sequence, but each of them has its own copy of a Python list or
    dict. A list of five million file names takes 477 MB in each worker; as `kf.shared(names)` it takes 145 MB once.

    Items of a list, and values of a dict, are text, bytes, numbers, or any objects that can be pickled. They are kept
    as bytes (numbers of one type as one array), and made again at each access, which takes a few microseconds. So
    changes to an item are lost.

    Args:
        items: An iterable with an order, or a dict whose keys are text, bytes or integers.

    Returns:
        A mapping in the same order for a dict, otherwise a sequence, whose slices are plain lists. It can be pickled.

    Raises:
        TypeError: `items` is a set, a string, a table, or an array of numbers or text, which workers share already. Or
            a key has another type, or an item cannot be pickled.

    Examples:
        >>> names = kf.shared([f"room-{number}.npy" for number in range(1000)])
        >>> names
        <shared list of 1,000 items, 0.0 MB>
        >>> names[-1], names[3:5]
        ('room-999.npy', ['room-3.npy', 'room-4.npy'])
        >>> kf.shared({"room-3": {"floor": 2}})["room-3"]
        {'floor': 2}
    """
    if isinstance(items, SharedList | SharedDict):
        return items
    if isinstance(items, Mapping):
        return SharedDict(items)
    if isinstance(items, set | frozenset):
        why = ": a set has no order that other processes share. Pass sorted(...)"
    elif isinstance(items, np.ndarray) and items.dtype != object:
        why = f" of {items.dtype}: worker processes share arrays already. Keep it as it is"
    elif hasattr(items, "columns"):
        why = ": pass one of its columns"
    elif isinstance(items, str | bytes) or not isinstance(items, Iterable):
        why = ""
    else:
        return SharedList(items)
    raise TypeError(f"kf.shared() needs a list or dict, received {class_name(items)}{why}")


class SharedList(Sequence[Any]):
    """The list that `shared` returns."""

    def __init__(self, items: Iterable[Any], keys: Sequence[Any] = ()) -> None:
        """Copy `items`.

        Messages name an item by its key, if `keys` is given.
        """
        items = items if isinstance(items, list | tuple) else list(items)
        kinds = set(map(type, items))
        self._globals: list[Any] = []  # classes and functions that pickled items name
        self._number_type, self._data = _as_numbers(items, kinds)
        self._starts = np.zeros(0, np.int64)  # int64[N + 1]: bytes [starts[n], starts[n + 1]) of the data are item n
        self._codec = ""
        if self._number_type is None:
            self._codec = "text" if kinds <= {str, np.str_} else "bytes" if kinds <= {bytes, np.bytes_} else "pickle"
            self._pack(items, keys)
        for values in (self._data, self._starts):
            values.flags.writeable = False

    def _pack(self, items: Sequence[Any], keys: Sequence[Any]) -> None:
        objects: dict[int, tuple[int, Any]] = {}  # number and object of each class and function, by id
        pickled = functools.partial(_pickled, objects=objects)
        encode: Callable[[Any], bytes] = {"text": _utf8, "bytes": exact_text}.get(self._codec, pickled)
        data, starts = bytearray(), array("q", [0])
        for number, item in enumerate(items):
            try:
                data += encode(item)
            except Exception as error:
                which = f"the value of {keys[number]!r}" if keys else f"item {number}"
                raise TypeError(
                    f"kf.shared(): {which} ({class_name(item)}) cannot be pickled: {message_of(error)}"
                ) from error
            starts.append(len(data))
        self._data, self._starts = np.array(data, np.uint8), np.array(starts, np.int64)
        self._globals = [each for _, each in objects.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self._data.nbytes + self._starts.nbytes

    def __len__(self) -> int:
        return len(self._starts) - 1 if self._number_type is None else len(self._data)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._item(number) for number in range(*index.indices(len(self)))]
        number, length = operator.index(index), len(self)
        if not -length <= number < length:
            raise IndexError(f"index {number} is out of range: the shared list has {pluralize(length, 'item')}")
        return self._item(number % length)

    def _item(self, number: int) -> Any:
        if self._number_type is not None:
            return self._number_type(self._data[number])
        content = self._data[self._starts.item(number) : self._starts.item(number + 1)].tobytes()
        if self._codec == "pickle":
            return _Unpickler(content, self._globals).load()
        return content.decode(errors=_SURROGATES) if self._codec == "text" else content

    def __repr__(self) -> str:
        return f"<shared list of {pluralize(len(self), 'item')}, {self.nbytes / 1e6:.1f} MB>"


class SharedDict(Mapping[Any, Any]):
    """The dict that `shared` returns.

    It finds a key by a 64-bit digest, which is the same in all processes.
    """

    def __init__(self, items: Mapping[Any, Any]) -> None:
        codes = []
        for key in items:
            try:
                codes.append(_code(key))
            except TypeError:
                raise TypeError(
                    f"kf.shared(): a key must be text, bytes or an integer, received {key!r} of type {class_name(key)}"
                ) from None
        digests = np.array([_digest(code) for code in codes], np.uint64)
        self._rows = np.argsort(digests, kind="stable")
        self._digests = digests[self._rows]
        self._keys = SharedList(codes)
        self._values = SharedList(items.values(), list(items))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return map(_key, self._keys)

    def __getitem__(self, key: Any) -> Any:
        try:
            code = _code(key)
        except TypeError:
            raise KeyError(key) from None
        digest = _digest(code)
        position = int(self._digests.searchsorted(digest))
        while position < len(self) and self._digests[position] == digest:
            row = self._rows.item(position)
            if self._keys[row] == code:
                return self._values[row]
            position += 1  # another key has the same digest
        raise KeyError(key)

    def __repr__(self) -> str:
        nbytes = self._keys.nbytes + self._values.nbytes + self._rows.nbytes + self._digests.nbytes
        return f"<shared dict of {pluralize(len(self), 'item')}, {nbytes / 1e6:.1f} MB>"


def _as_numbers(items: Sequence[Any], kinds: set[type]) -> tuple[type | None, NDArray[Any]]:
    """Return the common type of numbers, and their array.

    For other items, return None and an empty array.
    """
    kind = next(iter(kinds)) if len(kinds) == 1 else object
    is_number = issubclass(kind, np.number | np.bool_) and kind.__name__ != "timedelta64"
    if kind in PYTHON_NUMBERS or is_number:
        with suppress(OverflowError):  # integers outside int64
            return kind, np.array(items, kind)
    return None, np.zeros(0, np.uint8)


def _utf8(text: str) -> bytes:
    return str(exact_text(text)).encode(errors=_SURROGATES)


def _pickled(item: Any, objects: dict[int, tuple[int, Any]]) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, objects).dump(item)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """A pickler that replaces classes and functions by numbers.

    They may belong to the main module, which other processes cannot import.
    """

    def __init__(self, stream: io.BytesIO, objects: dict[int, tuple[int, Any]]) -> None:
        super().__init__(stream, protocol=5)
        self._objects = objects

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, type | FunctionType):
            return None
        return self._objects.setdefault(id(obj), (len(self._objects), obj))[0]


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, objects: list[Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._objects = objects

    def persistent_load(self, number: int) -> Any:
        return self._objects[number]


def _code(key: Any) -> bytes:
    """Return the bytes of a key; equal keys have equal bytes."""
    if isinstance(key, str):
        return b"t" + _utf8(key)
    return b"b" + exact_text(key) if isinstance(key, bytes) else b"i%d" % operator.index(key)


def _key(code: bytes) -> Any:
    kind, content = code[:1], code[1:]
    return content.decode(errors=_SURROGATES) if kind == b"t" else content if kind == b"b" else int(content)


def _digest(code: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(code, digest_size=8).digest(), "little"))
