"""The stores of `Cached`: files, or memory that processes share.

Invariant: a reader gets a complete scene or none, and never damaged data.

A file gets its name when it is complete. A CRC-32 of bytes and index detects a damaged file, and a file of another
scene. A file holds a pickle and the bytes of arrays. The pickle may name no class except `complex`, so reading a file
cannot run code.

In memory, the record of a scene in the table is written last. So a scene that a killed process left unfinished is never
read. One process writes at a time, under a lock that the system releases when the process ends. Readers take the lock
only to learn the layout of a row, once after each `clear`. They copy a scene without the lock, and then check that the
memory was not cleared meanwhile.

The memory is one anonymous file (memfd): nothing appears in /dev/shm, and a killed process leaves nothing behind. A
process that unpickles it opens the file through /proc of the process that pickled it. If there is no such file (a
pickle from another machine, or macOS), each process has separate memory. It contains, in this order: counters, the
layout of a row, the table (one record per scene), a column for each field of scenes shaped like the first one, and all
other scenes, pickled. Pages never written take no memory.
"""

import ast
import io
import mmap
import os
import pickle
import shutil
import sys
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.lists import PYTHON_NUMBERS, is_weak, own
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.array_bits import object_array
from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.lru import PerProcess
from kerasfeed.util.picklers import cloud_pickled

try:
    import fcntl
except ImportError:  # Windows, which does not share this memory between processes
    fcntl = None  # type: ignore[assignment]

_NAME = "kerasfeed-scenes"
_GENERATION, _NBYTES, _ROWS, _OTHERS, _HEAD_BYTES = range(5)  # int64 each
_TOKEN_AT, _HEAD_AT, _TABLE_AT = 64, 1 << 16, 1 << 17
_TOKEN_BYTES = 16
_ALIGNMENT = 64
_SLACK = 1 << 18  # bytes for the alignment of columns; the head describes at most 4,000 columns
_MAGIC = b"kerasfeed scene 3\n"
_SUFFIX = ".scene"
_PER_FOLDER = 1000


def frozen_leaves(scene: Any) -> tuple[list[Any], Any]:
    """Return copies of the fields of a scene, and the nesting.

    Raises:
        SpecError: A batch cannot hold a field.
    """
    leaves, treespec = flatten(scene)
    copies: list[Any] = []
    for path, leaf in zip(field_paths(treespec), leaves, strict=True):
        if isinstance(leaf, np.generic) and not isinstance(leaf, str | bytes):
            copies.append(leaf)
        elif isinstance(leaf, PYTHON_NUMBERS):
            copies.append(_plain(leaf))
        else:
            array = as_array(leaf, path)
            # A list of numbers stays a list, because it may be promoted and an array may not.
            copies.append(own(leaf) if is_weak(leaf) else own(array))
    return copies, treespec


def _plain(value: Any) -> Any:
    """Return numbers, also in lists, as plain Python numbers; text unchanged."""
    if type(value) is list:
        return value if set(map(type, value)) <= {*PYTHON_NUMBERS} else [_plain(item) for item in value]
    return next((kind(value) for kind in PYTHON_NUMBERS if isinstance(value, kind)), value)


def encoded(leaves: list[Any], structure: str) -> bytes:
    """Encode fields from `frozen_leaves` and the text of their nesting as bytes.

    First comes a pickle of text, numbers, lists and tuples only: the nesting, the fields that are not arrays, and dtype
    and shape of each array. The bytes of the arrays follow.
    """
    parts: list[Any] = []
    data: list[bytes] = []
    for leaf in leaves:
        if not isinstance(leaf, np.ndarray | np.generic):
            parts.append(_plain(leaf))
        elif leaf.dtype.kind in "OT":
            kind = "objects" if leaf.dtype.kind == "O" else "StringDType"
            parts.append((kind, leaf.reshape(-1).tolist(), leaf.shape))
        else:
            # Dtypes of other packages, such as bfloat16, are stored by name.
            descr = leaf.dtype.name if leaf.dtype.isbuiltin == 2 else np.lib.format.dtype_to_descr(leaf.dtype)
            parts.append(("scalar" if isinstance(leaf, np.generic) else "array", repr(descr), leaf.shape))
            data.append(leaf.tobytes())
    head = pickle.dumps((structure, parts), 5)
    return b"".join([len(head).to_bytes(8, "little"), head, *data])


def decoded(data: memoryview) -> tuple[list[Any], str]:
    """Return copies of the fields in `encoded` data, and their nesting.

    Raises:
        Exception: The data is not a scene.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    structure, parts = _PlainUnpickler(io.BytesIO(data[8:start])).load()
    leaves = []
    for part in parts:
        if type(part) is not tuple:
            leaves.append(part)
            continue
        kind, content, shape = part  # the texts, or a dtype
        if kind == "StringDType":
            leaves.append(np.array(content, np.dtypes.StringDType()).reshape(shape))
        elif kind == "objects":
            leaves.append(object_array(content, shape))
        else:
            dtype = _dtype_of(content)
            stop = start + prod(shape) * dtype.itemsize
            array = (
                np.frombuffer(data[start:stop], dtype).reshape(shape).copy() if stop > start else np.empty(shape, dtype)
            )
            leaves.append(array if kind == "array" else array[()])
            start = stop
    return leaves, structure


@lru_cache(maxsize=64)  # most scenes of a sequence have the same dtypes
def _dtype_of(descr: str) -> np.dtype[Any]:
    return np.lib.format.descr_to_dtype(ast.literal_eval(descr))


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, text, lists and tuples; refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the only class that such a pickle may name."""
        if (module, name) != ("builtins", "complex"):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a scene")
        return complex


class SceneFiles:
    """The files of one key.

    Attributes:
        folder: Their folder; created when the first scene is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, index: int) -> Path:
        return self.folder / str(index // _PER_FOLDER) / f"{index}{_SUFFIX}"

    def read(self, index: int) -> tuple[list[Any], str] | None:
        """Return the fields of a scene and the text of its nesting.

        None if there is no complete file.
        """
        start = len(_MAGIC) + 4
        try:
            data = self._path(index).read_bytes()
        except OSError:
            return None
        body = memoryview(data)[start:]
        if data[:start] != _MAGIC + _checksum(index, body):
            return None
        try:
            return decoded(body)
        except (TypeError, pickle.UnpicklingError):  # an unknown dtype, or a pickle from another program
            return None

    def write(self, index: int, data: bytes) -> None:
        """Write an `encoded` scene, and replace an existing one.

        The scene is not kept if another process clears the cache meanwhile.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        path = self._path(index)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, b"".join([_MAGIC, _checksum(index, data), data]))
        except (FileNotFoundError, FileExistsError):
            if path.parent.is_file():
                raise
            # Another process clears the cache now, and has removed the folder: drop this scene.

    def clear(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _checksum(index: int, body: bytes | memoryview) -> bytes:
    """Return the CRC-32 of a scene's bytes and index."""
    return zlib.crc32(body, index & 0xFFFFFFFF).to_bytes(4, "little")


@dataclass(frozen=True)
class _Content:
    """The content of the memory between two calls of `clear`.

    Attributes:
        generation: How often it was cleared.
        head: The form of a row as text: its nesting, and kind, dtype and shape of each field. Empty without rows.
        structure: The nesting of a row, as text.
        columns: Kind of each field, and dtype[rows, ...] with its values.
        row_bytes: Bytes of a row.
        rows: Largest number of rows.
    """

    generation: int
    head: str = ""
    structure: str = ""
    columns: tuple[tuple[str, NDArray[Any]], ...] = ()
    row_bytes: int = 0
    rows: int = 0


class SceneMemory:
    """Shared memory for one sequence's scenes.

    It is safe for threads and processes.
    """

    def __init__(self, length: int, limit: int, *, opened: tuple[int, bytes] | None = None) -> None:
        """Make empty memory, or map memory that another process has made.

        Args:
            length: Number of scenes.
            limit: Largest total size of the stored scenes, bytes.
            opened: Descriptor and token of the other process's memory.

        Raises:
            OSError: The system refuses the memory.
        """
        self._length, self._limit = length, limit
        self._rows_at = _aligned(_TABLE_AT + 8 * length)
        self._others_at = _aligned(self._rows_at + limit + _SLACK)
        nbytes = self._others_at + limit
        self._fd, self._token = opened or (_new_file(), os.urandom(_TOKEN_BYTES))
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd).atexit = False  # other threads may still be writing
            if opened is None:
                os.ftruncate(self._fd, nbytes)
            self._memory = mmap.mmap(self._fd, nbytes)
        else:
            private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
            self._memory = mmap.mmap(-1, nbytes, **private)  # not shared with forks, because the lock would not be
        self._words = memoryview(self._memory)[: 8 * (_HEAD_BYTES + 1)].cast("q")
        self._table: NDArray[np.int64] = np.ndarray(length, np.int64, self._memory, _TABLE_AT)
        self._threads = PerProcess(threading.Lock)
        self._last_content = _Content(0)
        if opened is None:
            self._memory[_TOKEN_AT : _TOKEN_AT + _TOKEN_BYTES] = self._token
        _opened[self._token] = self

    def __reduce__(self) -> Any:
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return _attached, (path, self._token, self._length, self._limit)

    def __deepcopy__(self, _: Any) -> None:
        """A deep copy of a `Cached` begins empty, because its sequence may be changed."""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads.here():
            try:
                self._lock_file()
                yield
            finally:
                if fcntl is not None and self._fd >= 0:
                    fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _lock_file(self) -> None:
        if fcntl is not None and self._fd >= 0:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def clear(self) -> None:
        """Remove all scenes, for all processes."""
        with self._locked():
            words = self._words
            words[_GENERATION] += 1  # first, so that concurrent readers drop their copies
            self._table[...] = 0
            words[_NBYTES] = words[_ROWS] = words[_OTHERS] = words[_HEAD_BYTES] = 0
            with suppress(OSError, AttributeError):  # some systems keep the pages
                self._memory.madvise(mmap.MADV_REMOVE, _HEAD_AT)

    def _content(self, *, locked: bool = False) -> _Content:
        """Return the content, read again if it has changed."""
        content, words = self._last_content, self._words
        if content.generation == words[_GENERATION] and (content.head or not words[_HEAD_BYTES]):
            return content
        if not locked:
            with self._locked():
                return self._content(locked=True)
        head = self._memory[_HEAD_AT : _HEAD_AT + words[_HEAD_BYTES]].decode()
        self._last_content = _Content(words[_GENERATION], **(self._columns_of(head) if head else {}))
        return self._last_content

    def _columns_of(self, head: str) -> dict[str, Any]:
        structure, fields = ast.literal_eval(head)
        sizes = [prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in fields]
        rows = min(self._length, self._limit // max(1, sum(sizes)))
        columns, at = [], self._rows_at
        for (kind, dtype, shape), size in zip(fields, sizes, strict=True):
            columns.append((kind, np.ndarray((rows, *shape), dtype, self._memory, at)))
            at = _aligned(at + rows * size)
        return {"head": head, "structure": structure, "columns": tuple(columns), "row_bytes": sum(sizes), "rows": rows}

    @property
    def nbytes(self) -> int:
        """Bytes of the stored scenes."""
        return self._words[_NBYTES]

    def read(self, index: int) -> tuple[list[Any], str] | None:
        """Return copies of a scene's fields, and their nesting.

        None if not stored.
        """
        content = self._content()
        record = int(self._table[index])
        if not record or record > content.rows:
            return None
        if record > 0:
            leaves = [_value(kind, column, record - 1) for kind, column in content.columns]
            return (leaves, content.structure) if self._words[_GENERATION] == content.generation else None
        start = self._others_at - record - 1
        size = int(np.ndarray((), np.int64, self._memory, start))
        data = self._memory[start + 8 : start + 8 + size]
        if self._words[_GENERATION] != content.generation:
            return None
        try:
            structure, parts = pickle.loads(data)
        except Exception:  # noqa: BLE001 - unpickling may raise anything, for example for a missing class
            return None
        start += _aligned(8 + size)
        leaves = [
            _value(part[0], np.ndarray((1, *part[2]), part[1], self._memory, start + part[3]), 0)
            if type(part) is tuple else part
            for part in parts
        ]  # fmt: skip
        return (leaves, structure) if self._words[_GENERATION] == content.generation else None

    def copy_rows(self, indices: NDArray[np.int64], structure: str, out: Sequence[NDArray[Any]]) -> bool:
        """Copy scenes to rows of a batch; return whether that worked.

        If not, `out` may hold anything.

        Args:
            indices: int64[B], the scenes.
            structure: Their nesting, as text.
            out: dtype[B, ...] of each field.
        """
        content = self._content()
        records = self._table[indices]
        if content.structure != structure or records.min() < 1:
            return False
        pairs = [(column, rows) for (_, column), rows in zip(content.columns, out, strict=True)]
        if any(column.dtype != rows.dtype or column.shape[1:] != rows.shape[1:] for column, rows in pairs):
            return False
        for column, rows in pairs:
            np.take(column, records - 1, axis=0, out=rows, mode="clip")  # mode="raise" would copy twice
        return self._words[_GENERATION] == content.generation

    def write(self, index: int, leaves: list[Any], structure: str) -> None:
        """Store a scene, unless it is stored already or does not fit."""
        head = _head_of(leaves, structure)
        with self._locked():
            content = self._content(locked=True)
            if self._table[index]:
                return
            if head and not content.head:
                text = head.encode()
                self._memory[_HEAD_AT : _HEAD_AT + len(text)] = text
                self._words[_HEAD_BYTES] = len(text)
                content = self._content(locked=True)
            record = (
                self._put_row(content, leaves) if head and head == content.head else self._put_other(leaves, structure)
            )
            if record:
                self._lock_file()  # again, as a memory barrier: every processor sees the scene before its record
                self._table[index] = record

    def _put_row(self, content: _Content, leaves: list[Any]) -> int:
        row = self._words[_ROWS]
        if row == content.rows or self._words[_NBYTES] + content.row_bytes > self._limit:
            return 0
        for (_, column), leaf in zip(content.columns, leaves, strict=True):
            column[row] = leaf
        self._words[_ROWS] += 1
        self._words[_NBYTES] += content.row_bytes
        return row + 1

    def _put_other(self, leaves: list[Any], structure: str) -> int:
        """Store the size of a pickle, the pickle, and its arrays."""
        parts, arrays, end = [], [], 0
        for leaf in leaves:
            form = _form_of(leaf)
            if form is None or form[0] == "number":
                parts.append(leaf)
                continue
            parts.append((*form, end))
            arrays.append((end, leaf))
            end = _aligned(end + leaf.nbytes)
        if self._words[_NBYTES] + end > self._limit:
            return 0
        try:
            data = cloud_pickled((structure, parts))
        except Exception:  # noqa: BLE001 - pickling may raise anything; the scene is then read each time
            return 0
        at = self._words[_OTHERS]
        head = _aligned(8 + len(data))
        if self._words[_NBYTES] + head + end > self._limit:
            return 0
        start = self._others_at + at
        self._memory[start : start + 8 + len(data)] = len(data).to_bytes(8, sys.byteorder) + data
        for offset, leaf in arrays:
            np.ndarray(leaf.shape, leaf.dtype, self._memory, start + head + offset)[...] = leaf
        self._words[_OTHERS] += head + end
        self._words[_NBYTES] += head + end
        return -(at + 1)


_opened: weakref.WeakValueDictionary[bytes, SceneMemory] = weakref.WeakValueDictionary()
_opening = PerProcess(threading.Lock)


def _attached(path: str, token: bytes, length: int, limit: int) -> SceneMemory | None:
    """Return the memory that another process pickled.

    None if it cannot be opened. A process keeps only one descriptor of it, because closing a second one would release
    the lock.
    """
    with _opening.here():
        memory = _opened.get(token)
        if memory is not None:
            return memory
        try:
            if not os.readlink(path).startswith(f"/memfd:{_NAME} "):  # noqa: PTH115 - another process may have the id now
                return None
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        if os.pread(fd, _TOKEN_BYTES, _TOKEN_AT) != token:
            os.close(fd)
            return None
        try:
            return SceneMemory(length, limit, opened=(fd, token))
        except OSError:  # not enough address space; the finalizer closes the descriptor
            return None


def _new_file() -> int:
    return os.memfd_create(_NAME, os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else -1


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _form_of(leaf: Any) -> tuple[str, str, tuple[int, ...]] | None:
    """Return kind, dtype and shape of a field of plain bytes.

    None for any other field.
    """
    if isinstance(leaf, str | bytes | list):
        return None
    array = np.asarray(leaf)
    kind = "array" if leaf is array else "scalar" if isinstance(leaf, np.generic) else "number"
    return (kind, array.dtype.str, array.shape) if array.dtype.kind in "biufcmM" else None


def _head_of(leaves: list[Any], structure: str) -> str:
    """Return the `head` of a row with these fields.

    It is empty if they do not make a row of fixed size.
    """
    forms = [_form_of(leaf) for leaf in leaves]
    head = "" if None in forms else repr((structure, forms))
    return head if len(head.encode()) <= _TABLE_AT - _HEAD_AT else ""


def _value(kind: str, column: NDArray[Any], row: int) -> Any:
    return column[row, ...].copy() if kind == "array" else column[row] if kind == "scalar" else column[row].item()
