"""One shared file in which the parent puts objects that all workers read.

Invariant: the parent alone posts; a post is complete before its version is raised, and a worker reads a topic only
after a task has told it the version. An object is pickled once. Its arrays travel as out-of-band buffers of pickle
protocol 5 (PEP 574) into the file, and each worker maps them copy-on-write: all share the pages, yet each may write to
its arrays as if they were its own.

The file's first bytes also hold the board, one line a worker, on which workers note what they are doing, so that the
parent can say what a dead one was at. What a worker finds out of the sequence that all must heed stands there too.
"""

import enum
import mmap
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from kerasfeed.pool.memory import align, anonymous_file
from kerasfeed.pool.resource_errors import naming_memory
from kerasfeed.sequences.held_random import Held, generator_kinds, generators_beside
from kerasfeed.util.picklers import CloudPickler, can_be_imported, pickled_beside, unpickled

_PAGE = mmap.ALLOCATIONGRANULARITY
_LINE = 64
_OUT_OF_BAND_FROM = 4096
_RANDOM = 3  # place in the line of Topic.START


class Topic(enum.IntEnum):
    """What can be posted."""

    START = 0
    RUNNER = 1
    POSTED = 2


class _Pickler(CloudPickler):
    """Sends a memory-mapped array as the name of its file, not as its bytes; functions without TensorFlow's mark.

    A `Held` gets the random generators that were pickled before it, and the ones in classes and modules that the worker
    imports for the objects before it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kinds = generator_kinds()
        self._found: list[Any] = []
        self._known: set[int] = set()  # ids of classes and modules whose generators were found

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for every object."""
        owner = obj if isinstance(obj, type | FunctionType) else type(obj)
        if issubclass(type(obj), self._kinds):
            self._found.append(obj)
        elif type(obj) is Held:
            obj.fill(self._found)
            return Held, (self._found.copy(),)
        elif id(owner) not in self._known:
            beside = generators_beside(owner, self._kinds, self._known)
            self._found += (each for each in beside if can_be_imported(each[0]))
        if type(obj) is np.memmap and (place := _file_place(obj)) is not None:
            return _open_memmap, place
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and isinstance(reduced, tuple) and isinstance(reduced[2], tuple):
            # tf.numpy_function hangs itself onto functions that it was given: each worker would import TensorFlow.
            reduced[2][0].pop("ag_dnc_wrapper__", None)
        return reduced


def _file_place(array: np.memmap[Any, Any]) -> tuple[Any, ...] | None:
    memory, name = array._mmap, array.filename  # type: ignore[attr-defined]
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else None
    # With mode "c", or without a name, the file does not hold what the array does.
    if memory is None or name is None or order is None or array.mode == "c" or not array.size:
        return None
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    within = array.ctypes.data - np.frombuffer(memory, np.uint8).ctypes.data
    if array.flags.writeable:
        array.flush()
    mode = "c" if array.flags.writeable else "r"
    return str(Path(name).absolute()), array.dtype, mode, start + within, array.shape, order


def _open_memmap(name: str, dtype: Any, mode: Any, offset: int, shape: tuple[int, ...], order: Any) -> Any:
    return np.memmap(name, dtype, mode, offset, shape, order)


def pickled(value: Any, beside_from: int = _OUT_OF_BAND_FROM) -> list[memoryview]:
    """`value` as workers get it: its pickle, and the arrays of so many bytes that stand beside that, not copied.

    Raises:
        Exception: What pickling raised.
    """
    return pickled_beside(_Pickler, value, beside_from)


def held_by(*values: Any) -> Held:
    """The random generators that workers would find in `values`; none if these do not pickle."""
    held = Held()
    with suppress(Exception):
        pickled((*values, held))
    return held


def copy_as_sent(value: Any, *, shares: bool) -> Any:
    """`value` as a worker gets it.

    Args:
        value: What is copied.
        shares: Whether the copy refers to the large arrays of `value`, and does not have its own.

    Raises:
        Exception: What pickling, or unpickling, raised.
    """
    head, *buffers = pickled(value)
    return unpickled(head, buffers if shares else [bytearray(buffer) for buffer in buffers])


class SharedObjects:
    """The shared file, as the parent or one worker sees it."""

    def __init__(self, fd: int, workers: int, unpickle: Callable[..., Any] = pickle.loads) -> None:
        """Open the file behind `fd`, already sized by `SharedObjects.create`."""
        self.fd = fd
        self._unpickled = unpickle
        self._kept: dict[Topic, list[tuple[int, int]]] = {topic: [] for topic in Topic}  # offset and bytes of posts
        self._head_bytes = align(_LINE * (len(Topic) + workers), _PAGE)
        self._head = mmap.mmap(fd, self._head_bytes)
        # Line of a topic: version (0 for none), offset, bytes. Line of a worker: see `worker_line`.
        self._lines = memoryview(self._head).cast("q")

    @classmethod
    def create(cls, workers: int) -> "SharedObjects":
        """A new shared file, for `workers` workers."""
        fd = anonymous_file("kerasfeed-objects")
        try:
            os.ftruncate(fd, align(_LINE * (len(Topic) + workers), _PAGE))
            return cls(fd, workers, unpickled)
        except BaseException:
            os.close(fd)
            raise

    def post(self, topic: Topic, value: Any) -> int:
        """Replace what stands under `topic`; returns its new version.

        Raises:
            Exception: What pickling `value` raised.
        """
        parts = pickled(value)
        table = align(8 * (1 + len(parts)))
        starts, cursor = [], table
        for part in parts:
            starts.append(cursor)
            cursor = align(cursor + part.nbytes)
        nbytes = align(cursor, _PAGE)
        offset = os.fstat(self.fd).st_size
        with naming_memory("the feed", nbytes, offset, what="what its workers are to know"):
            os.ftruncate(self.fd, offset + nbytes)
            memory = mmap.mmap(self.fd, nbytes, offset=offset)
        with memory:
            sizes = [part.nbytes for part in parts]
            memory[: 8 * (1 + len(parts))] = b"".join(n.to_bytes(8, "little") for n in [len(parts), *sizes])
            for start, part in zip(starts, parts, strict=True):
                memory[start : start + part.nbytes] = part
        line = topic * _LINE // 8
        version = self._lines[line]
        self._lines[line + 1], self._lines[line + 2], self._lines[line] = offset, nbytes, version + 1
        # The one before stays: a worker may be about to read it, and says farewell to it when it takes this one.
        kept = self._kept[topic]
        kept.append((offset, nbytes))
        if len(kept) > 2:
            offset, nbytes = kept.pop(0)
            if hasattr(mmap, "MADV_REMOVE"):
                with mmap.mmap(self.fd, nbytes, offset=offset) as memory:
                    memory.madvise(mmap.MADV_REMOVE)
        return version + 1

    def read(self, topic: Topic) -> tuple[int, Any]:
        """Version and object that stand under `topic`.

        Raises:
            LookupError: Nothing was posted there.
            Exception: What unpickling raised, for example ModuleNotFoundError.
        """
        line = topic * _LINE // 8
        while True:
            version, offset, nbytes = self._lines[line : line + 3].tolist()
            if not version:
                raise LookupError(f"nothing was posted under {topic.name}")
            try:
                value = self._load(offset, nbytes)
            except Exception:
                if self._lines[line] == version:
                    raise
            else:
                if self._lines[line] == version:
                    return version, value
            # Replaced while it was read, which takes long where unpickling imports: its memory may have been freed.

    def _load(self, offset: int, nbytes: int) -> Any:
        memory = memoryview(mmap.mmap(self.fd, nbytes, offset=offset, access=mmap.ACCESS_COPY))
        count = int.from_bytes(memory[:8], "little")
        sizes = memory[8 : 8 + 8 * count].cast("q").tolist()
        cursor, parts = align(8 * (1 + count)), []
        for size in sizes:
            parts.append(memory[cursor : cursor + size])
            cursor = align(cursor + size)
        return self._unpickled(parts[0], buffers=parts[1:])

    @property
    def used_random(self) -> int:
        """The random generators that scenes were seen to use, which workers seed; see `RandomWatch`."""
        return self._lines[_RANDOM]

    def note_random(self, used: int) -> None:
        """Note that scenes use them; by whoever has seen it, for all."""
        if used:
            self._lines[_RANDOM] |= used

    def worker_line(self, number: int) -> memoryview:
        """int64[8] of one worker: number of its task + 1 (0 when idle), where in the task it is, lowest valid number.

        It does not begin tasks with lower numbers: they were sent before a worker died, and are sent anew.
        """
        start = (len(Topic) + number) * _LINE // 8
        return self._lines[start : start + _LINE // 8]

    def close(self) -> None:
        """Give back the descriptor and the map, which has a descriptor of its own; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._lines.release()
            with suppress(BufferError):  # somebody looks at a line just now, and gives the map back when done
                self._head.close()
