"""The slots in which chunks of scenes travel, as workers and the consumer see them.

Invariant: a chunk stands behind a header of 64 bytes, on a boundary of 64 bytes, as its fields need it.
"""

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasfeed.pool.memory import align

HEADER = 64
_LARGEST = 64 << 20  # bytes of a slot, at most; pages that are not written cost nothing


class ChunkSlot:
    """The views of one slot.

    Attributes:
        control: int64[8]; the number of the last task given up while in this slot, and the bytes of its chunk; the
            number of the last task whose chunk was given early, and the bytes of that.
        room: uint8[bytes] for the chunk.
    """

    __slots__ = ("control", "room")

    def __init__(self, memory: Any, base: int, nbytes: int) -> None:
        self.control = memoryview(memory)[base : base + HEADER].cast("q")
        self.room = np.ndarray((nbytes - HEADER,), np.uint8, memory, base + HEADER)


@dataclass(frozen=True)
class ChunkLayout:
    """What slots are like.

    Attributes:
        nbytes: Of a slot, whole pages.
    """

    nbytes: int

    @classmethod
    def sharing(cls, max_memory: int, slots: int) -> "ChunkLayout":
        """The layout of slots of which so many have room in `max_memory` bytes."""
        page = mmap.ALLOCATIONGRANULARITY
        return cls(max(align(8192, page), min(_LARGEST, max_memory // slots) // page * page))

    @property
    def capacity(self) -> int:
        """Bytes of a chunk, about: as many again are kept for what is told of its scenes."""
        return (self.nbytes - HEADER) // 2

    def view(self, memory: Any, base: int) -> ChunkSlot:
        """The views of the slot that stands at `base` in `memory`."""
        return ChunkSlot(memory, base, self.nbytes)
