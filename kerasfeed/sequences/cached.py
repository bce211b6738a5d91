"""`Cached`: scenes kept in memory or on disk after the first read.

Invariant: a cached scene equals the scene of the sequence, bit for bit. In memory it is kept as long as the object
exists. On disk it is stored under the user's key, the number of scenes, the scenes that views inside select, and the
files that the sequence's readers open. Scenes that use random numbers, or differ when they are read twice, are refused.
"""

import os
import re
import threading
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning, KerasfeedError
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.cache_store import SceneFiles, SceneMemory, encoded, frozen_leaves
from kerasfeed.sequences.context import UnrandomContext
from kerasfeed.sequences.indexing import position_in
from kerasfeed.sequences.view_base import SceneByScene, View, identity_of, source_paths
from kerasfeed.spec.nesting import structure_text
from kerasfeed.util.error_text import class_name, message_of, pluralize
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.lru import PerProcess
from kerasfeed.util.resources import memory
from kerasfeed.util.validate import check_integer, local_path

_PROBED = 3  # scenes that each process reads twice


class Cached(SceneByScene, SceneSequence):
    """The scenes of a sequence, kept in memory or on disk.

    Use it for scenes that are slow to read or compute and are the same in every epoch. Apply random changes after the
    cache: `kf.Map(kf.Cached(sequence), augment)`. A sequence that uses `self.rng` is refused. So is a sequence whose
    scenes differ when they are read again: each process reads its first three scenes twice.

    In memory, scenes are kept as long as this object exists, once for all threads and worker processes of the machine
    (on macOS each process keeps its own). On disk, they are stored under `key`, a string that you choose. Choose
    another key whenever the scenes change: after you change the code of the class, the code of a function that it
    calls, its arguments or the data that it reads by itself, or install other versions of packages. The cache itself
    detects a change of the number of scenes, and of the scenes that a view selects, such as a `Subset`: the parts of a
    `kerasfeed.split` may have one key. It also detects another file, and a change of the size or modification time of a
    local file, if a reader of kerasfeed in the sequence opens it (`HDF5File`, `FileSequence`, `TFRecordSequence`).

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`.
        path: Folder that keeps the scenes, one file each. Several processes and later runs share it. None keeps scenes
            in memory.
        max_memory: Upper limit of the scenes kept in memory, bytes. Scenes beyond it are read each time. None is an
            eighth of the memory of the machine or container. Refused with `path`.
        key: A string that names this version of the scenes, such as "v1". Required with `path`, and refused without it.

    Raises:
        TypeError: `sequence` cannot be indexed, or `key` is missing or not a string.
        ValueError: `path` and `max_memory` are both given, or a value is out of range.
        OSError: The folder `path` cannot be created.

    Examples:
        >>> def slow(scene):
        ...     print("reading", scene)
        ...     return scene
        >>> scenes = kf.Cached(kf.Map([1.0, 2.0], slow), "scenes", key="v1")
        >>> scenes[0]
        reading 1.0
        reading 1.0
        1.0
        >>> scenes[0]
        1.0
    """

    _memory: SceneMemory | None
    _files: SceneFiles | None
    _passed_on = View._passed_on - {"read_ahead"}  # cached scenes need no reading

    def __init__(
        self,
        sequence: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        max_memory: int | None = None,
        key: str | None = None,
    ) -> None:
        self._hold(sequence)
        if path is not None and max_memory is not None:
            raise ValueError("kf.Cached keeps scenes on disk (path) or in memory (max_memory): give one of them")
        if max_memory is not None:
            max_memory = check_integer("max_memory", max_memory, 1, what="a number of bytes", unit=" byte")
        _check_key(key, is_on_disk=path is not None)
        self._max_memory = memory() // 8 if max_memory is None else min(max_memory, memory())
        self.path = None if path is None else local_path("path", path, what="a folder").absolute()
        self._begin_empty()
        if self.path is None:
            with suppress(OSError):  # reported when a scene is written
                self._scene_memory()  # before this process forks
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"path={str(path)!r} must be a folder, or a name for a new one: {message_of(error)}"
            ) from error
        readable = re.sub(r"[^\w.-]", "_", str(key))[:80]
        view = identity_of(self.sequence)  # the parts of a `split` may have one length, and must not share scenes
        state = zlib.crc32(repr((key, len(self), view, _source_files(self.sequence))).encode())
        self._files = SceneFiles(self.path / f"{class_name(self.sequence)}-{readable}-{state:08x}")

    def _begin_empty(self) -> None:
        self._lock = PerProcess(threading.Lock)
        self._probes = _PROBED
        self._memory = None
        self._files = None
        self._nestings: dict[str, Any] = {}
        self._writes = True

    def __getstate__(self) -> dict[str, Any]:
        state = {
            name: getattr(self, name) for name in ("_parts", "_lengths", "_offered", "_max_memory", "path", "_files")
        }
        if self.path is None:
            with suppress(OSError):  # each process then has its own memory, and reports the error when it reads
                state["_memory"] = self._scene_memory()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin_empty()
        self.__dict__.update(state)

    @property
    def nbytes(self) -> int:
        """Bytes of the scenes in memory, for all processes that share it."""
        return 0 if self._memory is None else self._memory.nbytes

    def _identity(self) -> str:
        return identity_of(self.sequence)  # the cache does not change the scenes

    def __getitem__(self, index: int | slice) -> Any:
        """Return scene `index`.

        You may change its arrays. Negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            KerasfeedError: The scene uses random numbers, or differs when it is read again.
            Exception: The sequence raised it.
        """
        position = position_in(index, self)
        kept = self._kept(position)
        leaves, treespec = self._read(position) if kept is None else kept
        return treespec.unflatten(leaves)

    def _kept(self, position: int) -> tuple[list[Any], Any] | None:
        if not self._nestings:  # the first scene that is read shows how fields are nested
            return None
        store = self._files or self._memory
        stored = None if store is None else store.read(position)
        treespec = None if stored is None else self._nestings.get(stored[1])
        return None if stored is None or treespec is None else (stored[0], treespec)

    def _copy_kept(self, positions: NDArray[np.int64], structure: str, out: Sequence[NDArray[Any]]) -> bool:
        memory = self._memory
        return memory is not None and memory.copy_rows(positions, structure, out)

    def _scene_memory(self) -> SceneMemory:
        with self._lock.here():
            if self._memory is None:
                self._memory = SceneMemory(len(self), self._max_memory)
            return self._memory

    def _read(self, position: int) -> tuple[list[Any], Any]:
        name = class_name(self.sequence)
        remedy = (
            f"Apply random changes after the cache: kf.Map(kf.Cached({name}(...)), function), where function(scene, "
            "rng) gets the generator"
        )
        refusal = (
            f"scene {position} of {name} uses random numbers or the epoch, but a cache would keep one draw for every "
            f"epoch. {remedy}"
        )
        with UnrandomContext(refusal), self._reading(0, [position], [position]):
            leaves, treespec = frozen_leaves(self.sequence[position])
            if self._probes > 0 and not _alike((leaves, treespec), frozen_leaves(self.sequence[position])):
                raise KerasfeedError(
                    f"scene {position} of {name} differs when it is read again, but a cache would keep one of the two "
                    f"for every epoch. {remedy}"
                )
        self._probes -= 1
        structure = structure_text(treespec)
        self._nestings[structure] = treespec
        if self._writes:
            self._keep(position, leaves, structure)
        return leaves, treespec

    def _keep(self, position: int, leaves: list[Any], structure: str) -> None:
        try:
            if self._files is not None:
                self._files.write(position, encoded(leaves, structure))
            else:
                self._scene_memory().write(position, leaves, structure)
        except OSError as error:
            self._writes = False
            where, remedy = repr(str(self.path)), "Free some space, or pass another path"
            if self._files is None:
                where, remedy = "memory", "Lower max_memory, or pass a path"
            warnings.warn(
                f"kf.Cached cannot write to {where} ({message_of(error)}). This process caches no further scenes, and "
                f"reads them each time. {remedy}",
                FeedWarning,
                stacklevel=2,
            )

    def clear(self) -> None:
        """Delete all scenes in memory, or under the current key.

        Scenes under other keys stay in `path`.

        Examples:
            >>> scenes = kf.Cached([np.zeros(3), np.ones(3)])
            >>> _ = scenes[0]
            >>> scenes.clear()
            >>> scenes.nbytes
            0
        """
        with self._lock.here():
            store = self._files or self._memory
            if store is not None:
                store.clear()

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else f"in {str(self.path)!r}"
        return f"Cached of {class_name(self.sequence)} {where}, {pluralize(len(self), 'scene')}"


def _alike(one: tuple[list[Any], Any], other: tuple[list[Any], Any]) -> bool:
    return digest(one[0], structure_text(one[1])) == digest(other[0], structure_text(other[1]))


def _check_key(key: Any, *, is_on_disk: bool) -> None:
    if is_on_disk and not isinstance(key, str):
        received = "" if key is None else f", received {key!r} of type {class_name(key)}"
        raise TypeError(
            f"kf.Cached(sequence, path) needs a key: a string such as key='v1'{received}. Change it whenever the "
            "scenes change: with the class, its arguments, or data that it reads by itself"
        )
    if key is not None and not is_on_disk:
        raise TypeError("key= is for scenes kept on disk: pass a path, or leave key out")


def _source_files(sequence: Any) -> list[tuple[str, int, int]]:
    """Return path or URL of the readers' files, in their order, with size and modification time (ns) of local ones."""
    files = []
    for path in source_paths(sequence):
        size = modified = -1
        with suppress(OSError, ValueError):
            status = os.stat(path)  # noqa: PTH116 - ten times as fast, and there may be many
            size, modified = status.st_size, status.st_mtime_ns
        files.append((path, size, modified))
    return files
