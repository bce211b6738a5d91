"""Scenes that travel together: packed into a slot by a worker, and taken out as views of it.

Invariant: what is taken out equals what was put in, whatever the scenes' shapes, and does not change when the
generator goes on. A chunk is groups of scenes of one structure each, then a pickled table of them, then its place.
"""

import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.feeds.generators.chunk_groups import EvenGroup, Group, Structure, UnevenGroup, nbytes_of, scenes_of
from kerasfeed.feeds.generators.chunk_leaves import is_plain, plain
from kerasfeed.spec.nesting import flatten

_TRAILER = 8


class ChunkWriter:
    """Packs scenes of one generator, chunk after chunk.

    Attributes:
        memory: Where the chunk is: what `begin` was given, or memory of its own where a scene has no room there.
    """

    def __init__(self, capacity: int) -> None:
        """Make chunks of about `capacity` bytes; of more where a single scene is larger."""
        self._capacity = capacity
        self._most = 0  # bytes of arrays in this chunk
        self.memory = np.empty(0, np.uint8)
        self._groups: list[Group] = []
        self._text = 0
        self._is_uneven = False  # whether shapes were seen to differ
        self._known: dict[Structure, bytes] = {}
        self._last: tuple[Structure | None, bytes] = (None, b"")

    def begin(self, memory: NDArray[np.uint8]) -> None:
        """Begin a chunk in `memory`, uint8[bytes]."""
        self._groups = []
        self._text = 0
        self.memory = memory
        self._most = min(self._capacity, len(memory))

    def add(self, scene: Any) -> bool:
        """Put a scene in; False where the chunk is full.

        Raises:
            SpecError: A field is of a type that no batch can hold; the message names the field.
        """
        if self._text > self._capacity:
            return False
        last = self._groups[-1] if self._groups else None
        text = None if last is None else last.add(scene)
        if text is None:
            leaves, treespec = flatten(scene)
            if not leaves or not all(map(is_plain, leaves)):
                leaves = plain(leaves, treespec, scene)
                scene = treespec.unflatten(leaves)
                text = None if last is None else last.add(scene)
            if text is None:
                group = self._group(leaves, treespec)
                if group is None:
                    return False
                self._groups.append(group)
                text = group.add(scene)
                assert text is not None
        self._text += text
        return True

    def _group(self, leaves: list[Any], treespec: optree.PyTreeSpec) -> Group | None:
        last = self._groups[-1] if self._groups else None
        nbytes = nbytes_of(leaves)
        if last is None and nbytes > self._most:
            self._most = nbytes
            if nbytes > len(self.memory):
                self.memory = np.empty(nbytes, np.uint8)
        if last is not None and last.stop + nbytes > self._most:
            return None
        memory = self.memory[: self._most]
        kind = UnevenGroup if self._is_uneven else EvenGroup
        group: Group = kind(leaves, treespec, memory, last)
        if last is not None and group.structure is last.structure:  # of another shape, then
            self._is_uneven = True
            group = UnevenGroup(leaves, treespec, memory, last)
        return group

    def finish(self, head: Any) -> NDArray[np.uint8]:
        """The chunk, uint8[bytes], with `head`, which pickles; at the beginning of `memory`."""
        last = self._groups[-1] if self._groups else None
        used = 0 if last is None else last.stop
        groups = [(self._described(each), each.rows, each.offset, each.stride, each.columns) for each in self._groups]
        about = pickle.dumps((head, groups), pickle.HIGHEST_PROTOCOL)
        total = used + len(about) + _TRAILER
        if total > len(self.memory):
            memory = np.empty(total, np.uint8)
            memory[:used] = self.memory[:used]
            self.memory = memory
        chunk = self.memory[:total]
        chunk[used : total - _TRAILER] = np.frombuffer(about, np.uint8)
        chunk[total - _TRAILER :] = np.frombuffer(used.to_bytes(_TRAILER, "little"), np.uint8)
        return chunk

    def _described(self, group: Group) -> bytes:
        if group.structure is not self._last[0]:  # hashing one takes longer than looking
            found = self._known.get(group.structure)
            if found is None:
                found = self._known[group.structure] = cloudpickle.dumps(group.structure)
            self._last = (group.structure, found)
        return self._last[1]


class ChunkReader:
    """Takes scenes out of chunks."""

    def __init__(self) -> None:
        self._known: dict[bytes, Structure] = {}

    def read(self, chunk: NDArray[np.uint8]) -> tuple[Any, Iterator[tuple[bytes, list[Any]]]]:
        """The head of a chunk, and its scenes, in groups of one structure, each with what describes that.

        Args:
            chunk: What `finish` gave, at a place that is as well aligned; arrays of the scenes refer to it.
        """
        memory = chunk.data
        used = int.from_bytes(memory[-_TRAILER:], "little")
        head, groups = pickle.loads(memory[used:-_TRAILER])
        return head, (self._group(chunk, *group) for group in groups)

    def _group(self, chunk: NDArray[np.uint8], described: bytes, *place: Any) -> tuple[bytes, list[Any]]:
        structure = self._known.get(described)
        if structure is None:
            structure = self._known[described] = pickle.loads(described)
        return described, scenes_of(structure, chunk, *place)
