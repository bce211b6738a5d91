"""`Cached`: scenes kept in memory or on disk once they have been read.

Invariant: a scene that is served is one that the sequence gave under the key that it has now, bit for bit. The key
(`kerasfeed.sequences.cache_key`) covers code, state and source files; whatever cannot be keyed, and whatever is random
or differs when it is read twice, is refused, and whatever cannot be kept is read again.
"""

import operator
import os
import re
import threading
import time
import warnings
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning, KerasfeedError
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.cache_key import Key, UnkeyableError, key_of
from kerasfeed.sequences.cache_store import SceneFiles, SceneMemory, encoded, frozen_leaves
from kerasfeed.sequences.context import UnrandomContext
from kerasfeed.sequences.indexing import place_in
from kerasfeed.sequences.view_base import SceneByScene, View, identity_of
from kerasfeed.spec.nesting import structure_text
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import class_name, message_of
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.lru import PerProcess
from kerasfeed.util.resources import memory
from kerasfeed.util.validate import check_integer, local_path

_LOOK_SECONDS = 0.2  # between looks at what is inside attributes
_LOOK_SHARE = 50  # and at least this many times what a look takes
_FEW_FILES = 8  # looked at for every scene: 2 us each
_MANY_FILES = 256  # beyond, a scene that is kept may have been read while a file changed, within 0.2 s
_PROBED = 3  # scenes of a process that are read twice, and after which the whole state is compared


class Cached(SceneByScene, SceneSequence):
    """The scenes of a sequence, each read once and then kept in memory or on disk.

    For scenes that are slow to read or compute and are the same in every epoch. Put what is random after the cache:
    `kf.Map(kf.Cached(sequence), augment)`. A sequence that uses `self.rng` is refused, and so is one that gives another
    scene when it is read again: each process reads its first three scenes twice.

    Scenes are kept under a key. It is computed from what pickle would take of the sequence; from the code of its class
    and of functions of yours that this uses, with the values of the globals that they name; from the text of your
    modules that these are in, and of all that they import, at the top or inside a function; from the versions of
    installed packages; and from size and modification time of every file that an attribute names, and of all files
    below a folder that one names: as a `Path`, or as text with a separator (`"data/"`). When one of these changes,
    scenes are read again. An attribute that is assigned is noticed at once, and so is a changed file, unless there are
    more than 8. More files than that, and changes inside an attribute, are noticed within 0.2 s, or 50 times the time
    it takes to look. Not noticed are files that no attribute names, modules and globals whose name is made while the
    program runs, and what the program sets in modules that are imported inside functions: pass a `key` of your own
    where these matter.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`.
        path: Folder that keeps the scenes, one file each. Several processes and later runs share it. None keeps scenes
            in memory, as long as this object lives, once for all threads and worker processes of the machine (on macOS
            each process keeps its own).
        max_memory: Upper limit of the scenes kept in memory, bytes. Scenes beyond it are read each time. None is an
            eighth of the memory of the machine or container. Only without `path`.
        key: A text that takes the place of the computed key, for state that cannot be compared. Nothing else is looked
            at then, and no scene is read twice, so change it whenever the scenes change.

    Raises:
        TypeError: `sequence` cannot be indexed, or its state cannot be compared; the message says what to do.
        ValueError: `path` and `max_memory` are both given, or a value is out of range.
        OSError: The folder `path` cannot be made.

    Examples:
        >>> def slow(scene):
        ...     print("reading", scene)
        ...     return scene
        >>> scenes = kf.Cached(kf.Map([1.0, 2.0], slow), key="1")
        >>> scenes[0], scenes[0]
        reading 1.0
        (1.0, 1.0)
    """

    _passed_on = View._passed_on - {"read_ahead"}  # scenes that are kept need not be read

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
        if key is not None and not isinstance(key, str):
            raise TypeError(f"key must be a text, received {key!r} of type {type(key).__name__}")
        self._given_key = key
        self._max_memory = memory() // 8 if max_memory is None else min(max_memory, memory())
        self.path = None if path is None else local_path("path", path, what="a folder").absolute()
        if self.path is not None:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise type(error)(
                    f"path={str(path)!r} must be a folder, or a name for a new one: {message_of(error)}"
                ) from error
        self._begin_empty()
        self._check_key()
        if self.path is None:
            with suppress(OSError):  # told where a scene is to be kept
                self._scene_memory()  # before this process is forked

    def _begin_empty(self) -> None:
        self._lock, self._looking = PerProcess(threading.Lock), PerProcess(threading.Lock)
        self._key = Key("", {})
        self._seen: list[Any] = []
        self._look_again = 0.0
        self._probes = _PROBED
        self._memory: SceneMemory | None = None
        self._files: SceneFiles | None = None
        self._nestings: dict[str, Any] = {}
        self._writes = True

    def __getstate__(self) -> dict[str, Any]:
        state = {
            name: getattr(self, name)
            for name in ("_parts", "_lengths", "_offered", "_given_key", "_max_memory", "path")
        }
        if self.path is None:
            with suppress(OSError, UnkeyableError):  # each process then has its own, and says why where it reads
                self._check_key()
                state |= {"_memory": self._scene_memory(), "_key": Key(self._key.digest, {})}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin_empty()
        self.__dict__.update(state)

    def _cache_state(self) -> Any:
        return self._parts, self._given_key

    @property
    def nbytes(self) -> int:
        """Bytes of the scenes that are kept in memory, by all processes that share it."""
        return 0 if self._memory is None else self._memory.nbytes

    def _identity(self) -> str:
        return identity_of(self.sequence)  # its scenes are the same

    def __getitem__(self, index: int | slice) -> Any:
        """Scene `index`, with arrays that you may change. Negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            KerasfeedError: The scene uses random numbers, differs when it is read again, or reading it changes the
                sequence's key.
            Exception: What the sequence raises.
        """
        place = place_in(index, len(self), self)
        self._check_key()
        kept = self._kept(place)
        leaves, treespec = self._read(place) if kept is None else kept
        return treespec.unflatten(leaves)

    def _kept(self, place: int) -> tuple[list[Any], Any] | None:
        found, files, memory = None, self._files, self._memory
        if self._nestings and files is not None:  # the first scene that is read tells how they are nested
            found = files.read(place)
        elif self._nestings and memory is not None:
            found = memory.read(place, self._key.digest)
        treespec = None if found is None else self._nestings.get(found[1])
        return None if found is None or treespec is None else (found[0], treespec)

    def _copy_kept(self, places: NDArray[np.int64], structure: str, out: Sequence[NDArray[Any]]) -> bool:
        if self._memory is None:
            return False
        try:
            self._check_key()
        except Exception:  # noqa: BLE001 - raised again where the scenes are read one by one
            return False
        memory = self._memory
        return memory is not None and memory.copy_rows(places, self._key.digest, structure, out)

    def _scene_memory(self) -> SceneMemory:
        with self._lock.here():
            if self._memory is None:
                self._memory = SceneMemory(len(self), self._max_memory, self._key.digest)
            return self._memory

    def _read(self, place: int) -> tuple[list[Any], Any]:
        key, files, seen = self._key, self._files, self._seen
        name = class_name(self.sequence)
        remedy = (
            f"Put what is random after the cache: kf.Map(kf.Cached({name}(...)), function), where function(scene, rng) "
            "is given the generator"
        )
        refusal = (
            f"scene {place} of {name} asks for random numbers, or for the epoch, and a cache would keep one draw for "
            f"every epoch. {remedy}"
        )
        with UnrandomContext(refusal), self._reading(0, [place], [place]):
            leaves, treespec = frozen_leaves(self.sequence[place])
            checked = self._given_key is None and self._probes > 0
            if checked and not _alike((leaves, treespec), frozen_leaves(self.sequence[place])):
                raise KerasfeedError(
                    f"scene {place} of {name} differs when it is read again, and a cache would keep one of the two "
                    f"for every epoch. {remedy}; or pass key='...' to keep what comes first"
                )
        self._probes -= 1
        self._check_key(afresh=self._probes >= 0)
        if self._key.digest == key.digest and (len(key.files) > _MANY_FILES or key.holds()):
            self._keep(key, files, place, leaves, treespec)
        elif self._key.files == key.files and key.digest != self._key.digest and seen is not self._seen:
            raise KerasfeedError(
                f"reading scene {place} changed {name} itself, and with it the key of kf.Cached. Keep what changes "
                "while scenes are read (counters, open files) out of the state, with __getstate__, and out of globals "
                "that its code names; or pass key='...'"
            )
        return leaves, treespec

    def _keep(self, key: Key, files: SceneFiles | None, place: int, leaves: list[Any], treespec: Any) -> None:
        structure = structure_text(treespec)
        self._nestings[structure] = treespec
        if not self._writes:
            return
        try:
            if files is not None:
                files.write(place, encoded(leaves, structure))
            elif not self._scene_memory().write(place, leaves, structure, key.digest):  # it is another key's by now
                self._check_key(afresh=True)
                if self._key.digest == key.digest:
                    self._memory = None
        except OSError as error:
            self._writes = False
            where, remedy = repr(str(self.path)), "Make room, or give another path"
            if files is None:
                where, remedy = "memory", "Lower max_memory, or give a path"
            warnings.warn(
                f"kf.Cached cannot write to {where} ({message_of(error)}); from here on this process keeps no more "
                f"scenes and reads them each time. {remedy}",
                FeedWarning,
                stacklevel=2,
            )

    def _check_key(self, *, afresh: bool = False) -> None:
        """Work the key out anew where something may have changed, or `afresh`; a new key begins an empty cache."""
        if self._given_key is not None:
            if not self._key.digest:
                readable = re.sub(r"[^\w.-]", "_", self._given_key)[:80]
                self._renew(Key(f"{readable}-{zlib.crc32(self._given_key.encode()):08x}", {}), [])
            return
        seen, now, key = _attributes(self.sequence, []), time.monotonic(), self._key
        same = now < self._look_again and len(seen) == len(self._seen) and all(map(operator.is_, seen, self._seen))
        if same and not afresh and (len(key.files) > _FEW_FILES or key.holds()):
            return
        with self._looking.here():
            found = key_of(self.sequence, own=self.path)
            took = time.monotonic() - now
            self._look_again = now + took + max(_LOOK_SECONDS, _LOOK_SHARE * took)
            self._renew(found, seen)

    def _renew(self, key: Key, seen: list[Any]) -> None:
        with self._lock.here():
            if key.digest != self._key.digest:
                self._nestings = {}
                if self._memory is not None and not self._memory.begin(key.digest, after=self._key.digest):
                    self._memory = None
                if self.path is not None:
                    self._files = SceneFiles(self.path / f"{class_name(self.sequence)}-{key.digest}")
            self._key, self._seen = key, seen

    def clear(self) -> None:
        """Delete all scenes kept under the present key, for all processes that share them.

        Scenes under older keys stay in `path`.

        Examples:
            >>> scenes = kf.Cached([np.zeros(3), np.ones(3)])
            >>> _ = scenes[0]
            >>> scenes.clear()
            >>> scenes.nbytes
            0
        """
        self._check_key()
        with self._lock.here():
            if self._files is not None:
                self._files.clear()
            if self._memory is not None:
                self._memory.begin(self._key.digest, after=self._key.digest)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else f"in {str(self.path)!r}"
        return f"Cached of {class_name(self.sequence)} {where}, {counted(len(self), 'scene')}"


def gives_the_same_twice(sequence: Any, places: Iterable[int]) -> bool:
    """Whether scenes that are read twice are the same both times, and draw no random numbers.

    Raises:
        Exception: What the sequence raises.
    """
    with UnrandomContext("drawn"):
        return all(_alike(frozen_leaves(sequence[place]), frozen_leaves(sequence[place])) for place in places)


def _alike(one: tuple[list[Any], Any], other: tuple[list[Any], Any]) -> bool:
    return digest(one[0], structure_text(one[1])) == digest(other[0], structure_text(other[1]))


def _attributes(sequence: Any, found: list[Any]) -> list[Any]:
    """The values of all attributes of a sequence and of what is inside views, as they are now."""
    found.append(sequence)
    if isinstance(sequence, View):
        for part in sequence._parts:
            _attributes(part, found)
    elif hasattr(sequence, "__dict__"):
        found += vars(sequence).values()
    return found
