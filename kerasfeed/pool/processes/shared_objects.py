"""A shared file that carries objects from the parent to all workers.

Invariant: only the parent posts. It completes a post before it raises the version, and a worker reads a topic only
after a task has named the version. Each object is pickled once. Its arrays go into the file as out-of-band buffers of
pickle protocol 5 (PEP 574), and each worker maps them copy-on-write: workers share the pages, yet each may write to its
arrays.

The file begins with one line per topic and per worker. In its line, a worker records its present task, so that the
parent can name the task of a dead worker. Another line records which random generators scenes use.
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
from kerasfeed.sequences.held_random import Held, generator_kinds, generators_in
from kerasfeed.util.picklers import CloudPickler, can_be_imported, pickled_with_buffers, unpickled

_PAGE = mmap.ALLOCATIONGRANULARITY
_LINE = 64
_OUT_OF_BAND_FROM = 4096
_RANDOM = 3  # item in the line of Topic.START


class Topic(enum.IntEnum):
    """Kinds of posted objects."""

    START = 0
    RUNNER = 1
    POSTED = 2


class _Pickler(CloudPickler):
    """Pickle memory-mapped arrays as their file names, and functions without TensorFlow's mark.

    A `Held` receives the random generators that were pickled before it, and those in the classes and modules that the
    worker imports for these objects.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kinds = generator_kinds()
        self._found: list[Any] = []  # generators, and pairs of a class or module and the name of its generator
        self._known: set[int] = set()  # ids of classes and modules that were searched for generators

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for every object."""
        owner = obj if isinstance(obj, type | FunctionType) else type(obj)
        if issubclass(type(obj), self._kinds):
            self._found.append(obj)
        elif type(obj) is Held:
            obj.fill(self._found)
            return Held, (self._found.copy(),)
        elif id(owner) not in self._known:
            others = generators_in(owner, self._kinds, self._known)
            self._found += (each for each in others if can_be_imported(each[0]))
        if type(obj) is np.memmap and (file := _memmap_arguments(obj)) is not None:
            return _open_memmap, file
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and isinstance(reduced, tuple) and isinstance(reduced[2], tuple):
            # tf.numpy_function attaches itself to its function, so each worker would import TensorFlow.
            reduced[2][0].pop("ag_dnc_wrapper__", None)
        return reduced


def _memmap_arguments(array: np.memmap[Any, Any]) -> tuple[Any, ...] | None:
    """Arguments of `_open_memmap`; None if the bytes of the file may differ."""
    memory, name = array._mmap, array.filename  # type: ignore[attr-defined]
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else None
    # With mode "c", or without a name, the file's bytes may differ from the array's.
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


def pickled(value: Any, out_of_band_from: int = _OUT_OF_BAND_FROM) -> list[memoryview]:
    """Pickle `value` for workers: the pickle, then its large arrays, not copied.

    Large arrays have at least `out_of_band_from` bytes.

    Raises:
        Exception: Pickling failed.
    """
    return pickled_with_buffers(_Pickler, value, out_of_band_from)


def held_by(*values: Any) -> Held:
    """Return the random generators that workers would find in `values`.

    Empty if `values` cannot be pickled.
    """
    held = Held()
    with suppress(Exception):
        pickled((*values, held))
    return held


def copy_as_sent(value: Any, *, shares: bool) -> Any:
    """Return `value` as a worker receives it.

    Args:
        value: The object to copy.
        shares: Whether the copy shares the large arrays of `value`.

    Raises:
        Exception: Pickling or unpickling failed.
    """
    head, *buffers = pickled(value)
    return unpickled(head, buffers if shares else [bytearray(buffer) for buffer in buffers])


class SharedObjects:
    """The shared file, in the parent or in one worker.

    Attributes:
        copied_bytes: Size of the last posted object without the arrays that workers share; each worker has a copy.
    """

    copied_bytes = 0

    def __init__(self, fd: int, workers: int, unpickle: Callable[..., Any] = pickle.loads) -> None:
        """Open a shared file.

        Args:
            fd: Its descriptor; `SharedObjects.create` has given the file its size.
            workers: Number of workers.
            unpickle: Called as `unpickle(data, buffers=...)` to restore an object.
        """
        self.fd = fd
        self._unpickled = unpickle
        self._kept: dict[Topic, list[tuple[int, int]]] = {topic: [] for topic in Topic}  # offset and size of posts
        self._head_bytes = align(_LINE * (len(Topic) + workers), _PAGE)
        self._head = mmap.mmap(fd, self._head_bytes)
        # Line of a topic: version (0 for none), offset, bytes. Line of a worker: see `worker_line`.
        self._lines = memoryview(self._head).cast("q")

    @classmethod
    def create(cls, workers: int) -> "SharedObjects":
        """Create a shared file for `workers` workers."""
        fd = anonymous_file("kerasfeed-objects")
        try:
            os.ftruncate(fd, align(_LINE * (len(Topic) + workers), _PAGE))
            return cls(fd, workers, unpickled)
        except BaseException:
            os.close(fd)
            raise

    def post(self, topic: Topic, value: Any) -> int:
        """Replace the object of `topic`; return its new version.

        Raises:
            OSError: The system has no memory for it.
            Exception: `value` cannot be pickled.
        """
        parts = pickled(value)
        self.copied_bytes = parts[0].nbytes
        table = align(8 * (1 + len(parts)))
        starts, cursor = [], table
        for part in parts:
            starts.append(cursor)
            cursor = align(cursor + part.nbytes)
        nbytes = align(cursor, _PAGE)
        offset = os.fstat(self.fd).st_size
        with naming_memory("the feed", nbytes, offset, what="the objects of its workers"):
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
        # The previous post stays: a worker may be about to read it, and reads it to the end before it takes this post.
        kept = self._kept[topic]
        kept.append((offset, nbytes))
        if len(kept) > 2:
            offset, nbytes = kept.pop(0)
            if hasattr(mmap, "MADV_REMOVE"):
                with mmap.mmap(self.fd, nbytes, offset=offset) as memory:
                    memory.madvise(mmap.MADV_REMOVE)
        return version + 1

    def read(self, topic: Topic) -> tuple[int, Any]:
        """Version and object of `topic`.

        Raises:
            LookupError: The topic has no object yet.
            Exception: Unpickling failed, for example with ModuleNotFoundError.
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
            # A newer post came during the read, which imports can make slow. The memory may have been freed.

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
        """The random generators that scenes have used; see `RandomWatch`."""
        return self._lines[_RANDOM]

    def record_random(self, used: int) -> None:
        """Record for all workers that scenes use these generators."""
        if used:
            self._lines[_RANDOM] |= used

    def worker_line(self, number: int) -> memoryview:
        """int64[8] of one worker.

        Item 0 is the number of its task + 1, or 0 when it is idle; item 1 its position in the task; item 2 the lowest
        valid number. The worker refuses tasks with lower numbers: another worker died after they were sent, and they
        are sent again.
        """
        start = (len(Topic) + number) * _LINE // 8
        return self._lines[start : start + _LINE // 8]

    def close(self) -> None:
        """Close the descriptor and the map, which has a descriptor too; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._lines.release()
            with suppress(BufferError):  # another thread is reading a line; the map is freed when it has finished
                self._head.close()
