"""An order that shuffles blocks and mixes scenes of a few blocks.

Invariant: every scene comes exactly once per epoch, and the scenes of a window of blocks have consecutive positions.
With `block_of`, a block is a name that occurs, so no block is empty.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order, Shuffled
from kerasfeed.orders.groups import Groups, Identified, Kept, Portable, check_length, check_names
from kerasfeed.orders.permutation import MOST_SCENES, generator, shuffled
from kerasfeed.util.array_bits import frozen
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_WINDOWS_KEPT = 8
_EPOCHS_KEPT = 2
_HOW = "for example the name of each scene's file"


@dataclass(frozen=True)
class BlockReport:
    """Result of `BlockShuffled.report`; `str` of it is two lines.

    Attributes:
        scenes: Number of scenes in an epoch.
        blocks: Number of blocks of the sequence.
        held: Number of blocks that the reader keeps: the `window` of the order.
        reads: Number of blocks read in an epoch.
        shuffled_reads: Number of blocks that the same reader reads in a full shuffle; an estimate for long epochs.
        mixing: `mixing` of the order.
        shuffled_mixing: `mixing` of a full shuffle, about 1.
    """

    scenes: int
    blocks: int
    held: int
    reads: int
    shuffled_reads: int
    mixing: float
    shuffled_mixing: float

    def __str__(self) -> str:
        return (
            f"{self.scenes:,} scenes in {self.blocks:,} blocks, {self.held:,} of them kept by the reader\n"
            f"reads per epoch {self.reads:,} (full shuffle {self.shuffled_reads:,}), "
            f"mixing {self.mixing:.2f} (full shuffle {self.shuffled_mixing:.2f})"
        )


@dataclass(frozen=True, init=False, repr=False)
class BlockShuffled(Order):
    """Shuffle blocks of scenes, and mix the scenes of a few blocks.

    Use it for scenes that are cheap to read together, such as the scenes of one HDF5 chunk or one file. Every scene
    comes exactly once per epoch. An epoch is divided into windows of `window` blocks, and the scenes of a window are
    mixed. A reader that keeps that many blocks reads each block once; with a full shuffle it reads almost one block per
    scene. A window of all blocks is a full shuffle.

    `kf.show(kf.BlockShuffled(50))` draws each block as a dash, with the `window` dashes of a window above each other.

    If the length of the sequence is not a multiple of `block_size`, the last block is shorter; it is shuffled like the
    others.

    Args:
        block_size: Number of consecutive scenes in a block, at least 1. Or an object with an attribute `block_size`,
            such as a dataset of an `HDF5File`, whose blocks are its chunks; or with an attribute `block_of`, such as a
            `FileSequence` or a view of one, whose blocks are the files. Pass either this or `block_of`.
        block_of: The block of each scene, for blocks of different sizes, or of scenes that are not consecutive: int or
            str[number of scenes], such as the name of each scene's file. Or a function from an index to an int or str,
            called once for each index when the length of the sequence is first known. Keeps 4 bytes per scene.
        window: Number of blocks whose scenes are mixed, at least 1. A larger window mixes better and takes more
            memory: a window of W has about 1 - 1 / W of the `mixing` of a full shuffle.

    Raises:
        TypeError: An argument has the wrong type, or both or neither of `block_size` and `block_of` are given.
        ValueError: A number is below 1, or `block_of` has another length than the sequence.

    Examples:
        >>> order = kf.BlockShuffled(3, window=1)
        >>> with kf.Feed(np.arange(9), batch_size=3, order=order, seed=0, workers=0) as feed:
        ...     for batch in sorted(feed, key=min):  # with window=1 a batch of this size is one block
        ...         print(sorted(batch.tolist()))
        [0, 1, 2]
        [3, 4, 5]
        [6, 7, 8]
        >>> print(kf.BlockShuffled(100, window=4).report(10_000))
        10,000 scenes in 100 blocks, 4 of them kept by the reader
        reads per epoch 100 (full shuffle 9,650), mixing 0.72 (full shuffle 1.00)
    """

    block_size: int | None
    window: int
    _named: "BlockNames | None"
    _epochs: "Kept[_EvenBlocks | _NamedBlocks]" = field(compare=False)
    _windows: Kept[NDArray[np.int64]] = field(compare=False)

    def __init__(self, block_size: Any = None, *, block_of: Any = None, window: int = 4) -> None:
        if (block_size is None) == (block_of is None):
            received = "neither" if block_of is None else "both"
            raise TypeError(
                "BlockShuffled needs either block_size (number of scenes in a block, or a dataset that has a "
                f"block_size) or block_of (the block of each scene), received {received}"
            )
        if block_of is None and (blocks := getattr(block_size, "block_of", None)) is not None:
            block_size, block_of = None, blocks
        block_of = getattr(block_of, "block_of", block_of)
        size, named = None, None
        if block_of is None:
            what = (
                "an integer, or a dataset that has a block_size (pass an array of the block of each scene as block_of)"
            )
            block_size = getattr(block_size, "block_size", block_size)
            size = check_integer("block_size", block_size, 1, most=MOST_SCENES, what=what)
        else:
            named = BlockNames(block_of)
        object.__setattr__(self, "block_size", size)
        object.__setattr__(self, "window", check_integer("window", window, 1))
        object.__setattr__(self, "_named", named)
        object.__setattr__(self, "_epochs", Kept(_EPOCHS_KEPT))
        object.__setattr__(self, "_windows", Kept(_WINDOWS_KEPT))
        object.__setattr__(self, "made_for", None if named is None else named.made_for)

    def __str__(self) -> str:
        blocks = f"blocks of {self.block_size:,}" if self._named is None else str(self._named)
        return f"{blocks} shuffled, windows of {self.window:,}"

    def __repr__(self) -> str:
        blocks = f"block_size={self.block_size}" if self._named is None else f"block_of=<{self._named}>"
        return f"BlockShuffled({blocks}, window={self.window})"

    def identity(self) -> str:
        """See `Order.identity`."""
        return repr(self) if self._named is None else f"BlockShuffled({self._named.identity()}, window={self.window})"

    def num_scenes(self, length: int) -> int:
        """See `Order.num_scenes`."""
        if self._named is not None:
            self._named.groups(length)
        return length

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`. Caches the last 8 windows."""
        blocks = self._epochs.get_or_load((length, seed, epoch), lambda: self._in_order(length, seed, epoch))[0]
        pieces = [np.empty(0, np.int64)]
        position = start
        while position < stop:
            number = blocks.rank_at(position) // self.window
            first = blocks.position_of(number * self.window)
            mix = partial(self._mixed, blocks, seed, epoch, number)
            scenes = self._windows.get_or_load((length, seed, epoch, number), mix)[0]
            until = min(stop, first + len(scenes))
            pieces.append(scenes[position - first : until - first])
            position = until
        return np.concatenate(pieces)

    def _in_order(self, length: int, seed: int, epoch: int) -> "_EvenBlocks | _NamedBlocks":
        """The blocks of an epoch, in their order."""
        if self._named is not None:
            return _NamedBlocks.of(self._named.groups(length), seed, epoch)
        assert self.block_size is not None
        return _EvenBlocks.of(self.block_size, length, seed, epoch)

    def _mixed(self, blocks: "_EvenBlocks | _NamedBlocks", seed: int, epoch: int, number: int) -> NDArray[np.int64]:
        """Indices of the scenes of window `number`, mixed."""
        first = number * self.window
        scenes = blocks.scenes(first, min(first + self.window, blocks.count))
        stream = SeedStream.BLOCK_WINDOW if self._named is None else SeedStream.NAMED_WINDOW
        generator(seed, (stream, epoch, number)).shuffle(scenes)
        return frozen(scenes)

    def block_positions(self, indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """See `Order.block_positions`: with `block_of`, positions after sorting scenes by block."""
        return indices if self._named is None else self._named.groups(length).positions()[indices]

    def reads_per_epoch(self, length: int) -> int:
        """Number of block reads per epoch if `window` blocks are kept.

        Args:
            length: Number of scenes in the sequence.

        Returns:
            The number of blocks: each is read once.

        Raises:
            ValueError: `block_of` has another length.

        Examples:
            >>> kf.BlockShuffled(100).reads_per_epoch(950)
            10
        """
        if self._named is not None:
            return self._named.groups(length).count
        assert self.block_size is not None
        return -(-length // self.block_size)

    def report(self, length: int | None = None, *, seed: int = 0, epoch: int = 0) -> BlockReport:
        """Compare reads per epoch and `mixing` with a full shuffle.

        Args:
            length: Number of scenes in the sequence. None uses the length of `block_of`.
            seed: The seed of the feed.
            epoch: Epoch, from 0.

        Returns:
            A [BlockReport][kerasfeed.orders.blocks.BlockReport]; printed, it is two lines.

        Raises:
            TypeError: `length` is None, and the order fits any length.
            ValueError: `block_of` has another length.

        Examples:
            >>> kf.BlockShuffled(100, window=4).report(10_000).reads
            100
        """
        if length is None:
            length = self.made_for
        if length is None:
            raise TypeError(f"{self!r} fits sequences of any length: write report(length)")
        full = Shuffled()
        blocks = self.block_size or 1 if self._named is None else self._named.groups(length).numbers()
        return BlockReport(
            scenes=length,
            blocks=self.reads_per_epoch(length),
            held=self.window,
            reads=self.reads_per_epoch(length),
            shuffled_reads=round(full.block_reads(length, blocks, held=self.window, seed=seed, epoch=epoch)),
            mixing=self.mixing(length, seed=seed, epoch=epoch),
            shuffled_mixing=full.mixing(length, seed=seed, epoch=epoch),  # does not depend on how scenes are numbered
        )


@dataclass(frozen=True)
class _EvenBlocks:
    """The blocks of one epoch: full blocks permuted, the short block inserted.

    The rank of a block is its number in the order of the epoch, from 0.

    Attributes:
        size: Number of scenes in a full block.
        full: Number of full blocks.
        short: Number of scenes in the short block, in [0, size); 0 for none.
        short_rank: Rank of the short block, in [0, full]; `full` if there is none.
        seed: The feed's seed.
        epoch: Epoch number, from 0.
    """

    size: int
    full: int
    short: int
    short_rank: int
    seed: int
    epoch: int

    @classmethod
    def of(cls, size: int, length: int, seed: int, epoch: int) -> "_EvenBlocks":
        """The blocks of a sequence of `length` scenes in one epoch."""
        full, short = divmod(length, size)
        rank = int(generator(seed, (SeedStream.SHORT_BLOCK, epoch)).integers(full + 1)) if short else full
        return cls(size, full, short, rank, seed, epoch)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.full + (self.short > 0)

    def rank_at(self, position: int) -> int:
        """Return the rank of the block that holds `position`."""
        # After the short block, add the scenes that it lacks, as if all blocks were full.
        is_behind = position >= self.short_rank * self.size + self.short
        return (position + is_behind * (self.size - self.short)) // self.size

    def position_of(self, rank: int) -> int:
        """Return the first position of the block at `rank`."""
        return rank * self.size - (rank > self.short_rank) * (self.size - self.short)

    def scenes(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the indices of the blocks at ranks [first, stop), copied."""
        holds_short = self.short > 0 and first <= self.short_rank < stop
        begin = first - (first > self.short_rank)  # ranks among the full blocks
        end = stop - (stop > self.short_rank)
        chosen = Shuffled().indices(begin, end, length=self.full, seed=self.seed, epoch=self.epoch)
        scenes: NDArray[np.int64] = (chosen[:, None] * self.size + np.arange(self.size, dtype=np.int64)).ravel()
        begin = self.full * self.size
        return np.append(scenes, np.arange(begin, begin + self.short)) if holds_short else scenes


class BlockNames(Identified):
    """The block of each scene, from an array or a function.

    Args:
        block_of: See `BlockShuffled`.

    Attributes:
        made_for: Length of the array; None for a function.

    Raises:
        TypeError: The names are neither integers nor strings.
        ValueError: There is not one name per scene.
    """

    def __init__(self, block_of: Any) -> None:
        self._called: Kept[Groups] = Kept(1)
        self.made_for: int | None = None
        if callable(block_of):
            self._function: Portable | None = Portable(block_of)
            self._identity = self._function.identity()
        else:
            self._function = None
            self._fixed = _groups(block_of)
            self._identity = self._fixed.digest()
            self.made_for = self._fixed.length

    def __str__(self) -> str:
        return f"{self._fixed.count:,} blocks" if self._function is None else f"blocks of {self._function}"

    def groups(self, length: int) -> Groups:
        """Return the blocks of a sequence of `length` scenes.

        Raises:
            ValueError: The array has another length.
            Exception: The function raised it; a note has the index.
        """
        if self._function is None:
            check_length("block_of", self._fixed.length, length)
            return self._fixed
        return self._called.get_or_load(length, lambda: self._call(length))[0]

    def _call(self, length: int) -> Groups:
        assert self._function is not None
        call = self._function.call
        return _groups([call("block_of", index) for index in range(length)])


def _groups(names: Any) -> Groups:
    unique, numbers = np.unique(check_names("block_of", names, _HOW), return_inverse=True)
    return Groups.of(numbers, len(unique))


@dataclass(frozen=True, eq=False)
class _NamedBlocks:
    """The blocks of one epoch in their order; see `_EvenBlocks`.

    Attributes:
        groups: The blocks.
        blocks: int64[number of blocks], the block at each rank.
        starts: int64[number of blocks + 1], the first position of the block at each rank, then the length.
    """

    groups: Groups
    blocks: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Groups, seed: int, epoch: int) -> "_NamedBlocks":
        """Return the blocks of `groups` in the order of an epoch."""
        blocks = shuffled(0, groups.count, groups.count, seed, (SeedStream.NAMED_BLOCK, epoch))
        return cls(groups, blocks, np.concatenate([[0], np.cumsum(groups.sizes[blocks])]))

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.groups.count

    def rank_at(self, position: int) -> int:
        """Return the rank of the block that holds `position`."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def position_of(self, rank: int) -> int:
        """Return the first position of the block at `rank`."""
        return int(self.starts[rank])

    def scenes(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the indices of the blocks at ranks [first, stop), copied."""
        members, offsets = self.groups.members, self.groups.offsets
        blocks = self.blocks[first:stop].tolist()
        return np.concatenate([members[offsets[block] : offsets[block + 1]] for block in blocks]).astype(np.int64)
