"""Blocks whose scenes are named one by one: of unequal size, standing anywhere in the sequence.

Invariant: a block without scenes does not exist, so the number of blocks is the number of names that occur.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.groups import Groups, Identified, Kept, Portable, check_length, check_names
from kerasfeed.orders.permutation import generator, shuffled
from kerasfeed.util.error_text import add_note
from kerasfeed.util.seed_streams import SeedStream

_WINDOWS_KEPT = 8
_EPOCHS_KEPT = 2
_HOW = "such as the file that each is in"


class NamedBlocks(Identified):
    """The block of each scene, as an array or a function gives it.

    Args:
        block_of: See `BlockShuffled`.

    Raises:
        TypeError: The names are neither integers nor strings.
        ValueError: They are not one a scene.
    """

    def __init__(self, block_of: Any) -> None:
        self._function: Portable | None = None
        self._called: Kept[Groups] = Kept(1)
        self._shuffles: Kept[NamedShuffle] = Kept(_EPOCHS_KEPT)
        if callable(block_of):
            self._function = Portable(block_of)
            self._identity = self._function.identity()
        else:
            self._fixed = _groups(block_of)
            self._identity = self._fixed.digest()

    @property
    def made_for(self) -> int | None:
        """Number of scenes named; None where a function names them."""
        return self._fixed.length if self._function is None else None

    def __str__(self) -> str:
        return f"{self._fixed.count:,} blocks" if self._function is None else f"blocks of {self._function}"

    def groups(self, length: int) -> Groups:
        """The blocks of a sequence of `length` scenes.

        Raises:
            ValueError: Not so many scenes are named.
            Exception: What the function raises, with the index as a note.
        """
        if self._function is None:
            check_length("block_of", self._fixed.length, length)
            return self._fixed
        return self._called.get_or_load(length, lambda: self._call(length))[0]

    def _call(self, length: int) -> Groups:
        assert self._function is not None
        names = []
        for index in range(length):
            try:
                names.append(self._function.function(index))
            except Exception as error:
                add_note(error, f"block_of={self._function} raised it for index {index}")
                raise
        return _groups(names)

    def shuffle(self, length: int, seed: int, epoch: int) -> "NamedShuffle":
        """These blocks in the order of one epoch."""
        groups = self.groups(length)
        return self._shuffles.get_or_load((length, seed, epoch), lambda: NamedShuffle.of(groups, seed, epoch))[0]


def _groups(names: Any) -> Groups:
    found, numbers = np.unique(check_names("block_of", names, _HOW), return_inverse=True)
    return Groups.of(numbers, len(found))


@dataclass(frozen=True, eq=False)
class NamedShuffle:
    """The blocks of one epoch in their order.

    Attributes:
        groups: The blocks.
        blocks: int64[blocks], the block at each rank.
        starts: int64[blocks + 1], the first position of each, and the length.
        seed: The feed's seed.
        epoch: Epoch number, from 0.
        windows: Windows kept, by (window, number).
    """

    groups: Groups
    blocks: NDArray[np.int64]
    starts: NDArray[np.int64]
    seed: int
    epoch: int
    windows: Kept[NDArray[np.int64]]

    @classmethod
    def of(cls, groups: Groups, seed: int, epoch: int) -> "NamedShuffle":
        """Blocks of `groups` in the order of an epoch."""
        blocks = shuffled(0, groups.count, groups.count, seed, (SeedStream.NAMED_BLOCK, epoch))
        starts = np.concatenate([[0], np.cumsum(groups.sizes[blocks])])
        return cls(groups, blocks, starts, seed, epoch, Kept(_WINDOWS_KEPT))

    def rank_at(self, position: int) -> int:
        """Which block of the epoch holds `position`."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def position_of(self, rank: int) -> int:
        """First position of the block at `rank`."""
        return int(self.starts[rank])

    def scenes(self, window: int, number: int) -> NDArray[np.int64]:
        """Indices of the scenes of window `number`, of `window` blocks, mixed."""
        return self.windows.get_or_load((window, number), lambda: self._mix(window, number))[0]

    def _mix(self, window: int, number: int) -> NDArray[np.int64]:
        members, offsets = self.groups.members, self.groups.offsets
        blocks = self.blocks[number * window : (number + 1) * window].tolist()
        scenes = np.concatenate([members[offsets[block] : offsets[block + 1]] for block in blocks]).astype(np.int64)
        generator(self.seed, (SeedStream.NAMED_WINDOW, self.epoch, number)).shuffle(scenes)
        scenes.setflags(write=False)
        return scenes
