"""Scenes kept in memory that all processes of a machine share.

Invariant: a scene is there once its record in the table is, which is written last: what a killed process leaves half
written is never read. One process writes at a time, under a lock that the system frees with the process. Readers wait
for it only to see the key, once after each beginning: they copy, and look afterwards whether the memory was begun anew
meanwhile.

The memory is one anonymous file (memfd): nothing appears in /dev/shm, and nothing is left behind by a killed process.
Whoever unpickles it opens that file through /proc of the process that pickled it. Where there is no such file, as in a
pickle that came from another machine, or on macOS, each process has memory of its own.

It holds, one after the other: counters, the key, the table (a record a scene), and the scenes as they come, as
`kerasfeed.sequences.cache_files` has them. What nothing was written to takes no memory.
"""

import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.sequences.cache_files import decoded
from kerasfeed.util.lru import PerProcess

try:
    import fcntl
except ImportError:  # Windows, where no other process has this memory
    fcntl = None  # type: ignore[assignment]

_NAME = "kerasfeed-scenes"
_GENERATION, _NBYTES, _KEY_BYTES = range(3)  # int64 each
_TOKEN_AT, _KEY_AT, _TABLE_AT = 64, 128, 1 << 16
_TOKEN_BYTES = 16


class SceneMemory:
    """Memory for the scenes of one sequence; threads and processes may use it at once."""

    def __init__(self, length: int, limit: int, key: str = "", *, opened: tuple[int, bytes] | None = None) -> None:
        """Empty memory for the scenes of `key`, or that which was `opened` already: its descriptor and token.

        Args:
            length: Number of scenes.
            limit: Upper limit of what they take, bytes.
            key: Their key.
            opened: See above.

        Raises:
            OSError: The system refuses it.
        """
        self._length, self._limit = length, limit
        self._scenes_at = _TABLE_AT + 8 * length
        nbytes = self._scenes_at + limit
        self._fd, self._token = opened or (_new_file(), os.urandom(_TOKEN_BYTES))
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd).atexit = False  # other threads may be writing still
            if opened is None:
                os.ftruncate(self._fd, nbytes)
            self._memory = mmap.mmap(self._fd, nbytes)
        else:
            private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
            self._memory = mmap.mmap(-1, nbytes, **private)  # not shared with forks, which the lock would not keep off
        self._view = memoryview(self._memory)
        self._words = self._view[: 8 * (_KEY_BYTES + 1)].cast("q")
        self._table: NDArray[np.int64] = np.ndarray(length, np.int64, self._memory, _TABLE_AT)
        self._threads = PerProcess(threading.Lock)
        self._held = (0, "")  # generation and key, as they were seen last
        if opened is None:
            self._memory[_TOKEN_AT : _TOKEN_AT + _TOKEN_BYTES] = self._token
            self._empty(key)
        _opened[self._token] = self

    def __reduce__(self) -> Any:
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return _attached, (path, self._token, self._length, self._limit)

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

    def _empty(self, key: str) -> None:
        """Begin anew. Where a process is killed in the midst of it, the memory is of no key, and begun by the next."""
        words = self._words
        words[_GENERATION] += 1  # first, so that who is reading drops what comes
        words[_KEY_BYTES] = words[_NBYTES] = 0
        try:
            self._memory.madvise(mmap.MADV_REMOVE, _TABLE_AT)
        except (OSError, AttributeError):  # not to be had: pages stay, and are written anew
            self._table[...] = 0
        name = key.encode()
        self._memory[_KEY_AT : _KEY_AT + len(name)] = name
        words[_KEY_BYTES] = len(name)

    def _is_of(self, key: str, after: str = "") -> bool:
        """Whether scenes of `key` are held, for which it begins anew where those of `after` are. Under the lock."""
        held = self._look()[1]
        if held == after:
            self._empty(key)
        return held in (after, key)

    def _look(self) -> tuple[int, str]:
        """How often the memory was begun, and the key of its scenes. Under the lock."""
        key = self._memory[_KEY_AT : _KEY_AT + self._words[_KEY_BYTES]].decode()
        self._held = self._words[_GENERATION], key
        return self._held

    @property
    def nbytes(self) -> int:
        """Bytes of the scenes that are there."""
        return self._words[_NBYTES]

    def begin(self, key: str, after: str) -> bool:
        """Begin anew for scenes of `key`, where those of the key `after` are held; False where others are."""
        with self._locked():
            return self._is_of(key, after) or self._is_of(key)

    def read(self, index: int, key: str) -> tuple[list[Any], str] | None:
        """Copies of the fields of a scene of `key`, and the text of its nesting; None where it is not there."""
        if self._held[0] != self._words[_GENERATION]:
            with self._locked():
                self._look()
        generation, held = self._held
        record = int(self._table[index])
        if held != key or not record:
            return None
        start = self._scenes_at + record
        try:
            size = int.from_bytes(self._view[start - 8 : start], "little")
            found = decoded(self._view[start : start + size])
        except Exception:  # noqa: BLE001 - begun anew meanwhile, or a dtype that this process does not know
            return None
        return found if self._words[_GENERATION] == generation else None

    def write(self, index: int, data: bytes, key: str) -> bool:
        """Keep an encoded scene of `key`, if it is not there and has room; False where scenes of another are held."""
        with self._locked():
            if not self._is_of(key):
                return False
            record = self._words[_NBYTES] + 8
            if not self._table[index] and record + len(data) <= self._limit:
                start = self._scenes_at + record
                self._memory[start - 8 : start] = len(data).to_bytes(8, "little")
                self._memory[start : start + len(data)] = data
                self._words[_NBYTES] = record + len(data)
                self._lock_file()  # a second time, so that every processor sees the scene before its record
                self._table[index] = record
        return True


_opened: weakref.WeakValueDictionary[bytes, SceneMemory] = weakref.WeakValueDictionary()
_opening = PerProcess(threading.Lock)


def _attached(path: str, token: bytes, length: int, limit: int) -> SceneMemory | None:
    """The memory that another process pickled; None where it cannot be reached.

    A process opens one descriptor of it: closing a second one would free the lock.
    """
    with _opening.here():
        memory = _opened.get(token)
        if memory is not None:
            return memory
        try:
            if not os.readlink(path).startswith(f"/memfd:{_NAME} "):  # noqa: PTH115 - of another process by now
                return None
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        if os.pread(fd, _TOKEN_BYTES, _TOKEN_AT) != token:
            os.close(fd)
            return None
        try:
            return SceneMemory(length, limit, opened=(fd, token))
        except OSError:  # no address space; it closes the descriptor
            return None


def _new_file() -> int:
    return os.memfd_create(_NAME, os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else -1
