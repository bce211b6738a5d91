"""An order whose batches hold scenes of similar length.

Invariant: every scene comes exactly once per epoch, unless `drop_remainder` drops it. A batch never mixes buckets.
Every epoch has the same number of steps.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import EpochBatches, Order, Shuffled
from kerasfeed.orders.groups import Groups, Identified, check_length, check_numbers
from kerasfeed.orders.permutation import shuffled
from kerasfeed.util.array_bits import frozen
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer


@dataclass(frozen=True)
class PaddingReport:
    """Result of `Bucketed.report`: the padding that bucketing saves.

    `str` of it is one line.

    Attributes:
        scenes: Scenes in an epoch.
        steps: Batches in an epoch.
        batch_size: Scenes in a batch of the full shuffle used for comparison.
        padded: Share of all values in the batches that are padding, in [0, 1).
        shuffled_padded: The same for a full shuffle in batches of `batch_size`.
        saved: Share of the values in the full shuffle's batches that bucketing saves; negative if it adds values.
    """

    scenes: int
    steps: int
    batch_size: int
    padded: float
    shuffled_padded: float
    saved: float

    def __str__(self) -> str:
        return (
            f"{self.scenes:,} scenes in {self.steps:,} batches: {self.padded:.1%} padding (full shuffle in batches of "
            f"{self.batch_size:,}: {self.shuffled_padded:.1%}), {self.saved:.1%} of all values saved"
        )


class Bucketed(Identified, Order):
    """Make batches of scenes of similar length, to save padding.

    Scenes are shuffled within each bucket of lengths, and the batches of all buckets are shuffled. Bucket k holds the
    lengths in [boundaries[k - 1], boundaries[k]), as in tf.data's `bucket_by_sequence_length`. The last batch of each
    bucket may be short, unless the feed drops or pads remainders. If lengths grow with the index,
    `kf.show(kf.Bucketed(lengths, boundaries), batch_size=32)` draws each batch as a patch in the band of its bucket.

    Args:
        lengths: Length of each scene: int[number of scenes], at least 0, in the order of their indices;
            `kerasfeed.labels_of` reads them from a sequence.
        boundaries: Ascending integers >= 0, at least one.
        batch_sizes: Number of scenes in a batch of each bucket: one integer more than `boundaries` has. They replace
            the feed's `batch_size` and, like it, count the scenes of one shard. None uses the feed's `batch_size` for
            all buckets.

    Raises:
        TypeError: `lengths`, `boundaries` or `batch_sizes` are not integers.
        ValueError: `lengths` has another length than the sequence, `boundaries` do not ascend, `batch_sizes` has the
            wrong length, or a number is too small.

    Examples:
        >>> lengths = np.array([3, 9, 4, 8, 3, 9])
        >>> order = kf.Bucketed(lengths, boundaries=[5])
        >>> with kf.Feed(lengths, batch_size=3, order=order, seed=0, workers=0) as feed:
        ...     for batch in sorted(feed, key=min):
        ...         print(sorted(batch.tolist()))
        [3, 3, 4]
        [8, 9, 9]
        >>> print(order.report(batch_size=3))
        6 scenes in 2 batches: 7.7% padding (full shuffle in batches of 3: 29.4%), 23.5% of all values saved
    """

    def __init__(self, lengths: Any, boundaries: Any, batch_sizes: Any = None) -> None:
        self._lengths = frozen(check_numbers("lengths", lengths, whole=True))
        self._boundaries = _check_boundaries(boundaries)
        self._batch_sizes = None if batch_sizes is None else _check_batch_sizes(batch_sizes, len(self._boundaries) + 1)
        numbers = np.searchsorted(np.array(self._boundaries), self._lengths, side="right")
        self._groups = Groups.of(numbers, len(self._boundaries) + 1)
        self.made_for: int = self._groups.length
        self._identity = f"Bucketed({self._groups.count} buckets, {self._groups.digest()})"

    @property
    def bucket_sizes(self) -> tuple[int, ...]:
        """Number of scenes in each bucket.

        Examples:
            >>> kf.Bucketed([3, 9, 4], boundaries=[5]).bucket_sizes
            (2, 1)
        """
        return tuple(self._groups.sizes.tolist())

    def __str__(self) -> str:
        return f"{self._groups.count:,} buckets by length"

    def __repr__(self) -> str:
        sizes = "" if self._batch_sizes is None else f", batch_sizes={list(self._batch_sizes)}"
        return f"Bucketed(<{self.made_for:,} lengths>, boundaries={list(self._boundaries)}{sizes})"

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and other._batch_sizes == self._batch_sizes  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return super().__hash__()

    def num_scenes(self, length: int) -> int:
        """See `Order.num_scenes`."""
        check_length("lengths", self.made_for, length)
        return length

    def batches(self, length: int, batch_size: int, shard_count: int, drop_remainder: bool) -> EpochBatches:
        """See `Order.batches`."""
        self.num_scenes(length)
        sizes = self._batch_sizes or (batch_size,) * self._groups.count
        return EpochBatches(self.bucket_sizes, tuple(size * shard_count for size in sizes), drop_remainder)

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`; positions go through the buckets one after the other."""
        members, offsets = self._groups.members, self._groups.offsets.tolist()
        pieces = [np.empty(0, np.int64)]
        for bucket, (first, last) in enumerate(pairwise(offsets)):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                stream = (SeedStream.BUCKET_MEMBER, epoch, bucket)
                ranks = shuffled(begin - first, end - first, last - first, seed, stream)
                pieces.append(members[first + ranks].astype(np.int64))
        return pieces[-1] if len(pieces) <= 2 else np.concatenate(pieces)

    def report(self, batch_size: int | None = None, *, seed: int = 0, epoch: int = 0) -> PaddingReport:
        """Compare the padding in batches with a full shuffle.

        Takes time in proportion to the number of scenes.

        Args:
            batch_size: The `batch_size` of the feed. Required if the order has no `batch_sizes`. Otherwise None
                compares with a full shuffle of as many batches.
            seed: The seed of the feed.
            epoch: Epoch, from 0.

        Returns:
            A [PaddingReport][kerasfeed.orders.bucketed.PaddingReport]; printed, it is one line.

        Raises:
            TypeError: `batch_size` is required, or is not an integer.
            ValueError: `batch_size` is below 1.

        Examples:
            >>> kf.Bucketed([3, 9, 4, 8, 3, 9], boundaries=[5]).report(batch_size=3).steps
            2
        """
        count = self.made_for
        if batch_size is None and self._batch_sizes is None:
            raise TypeError("the padding depends on the batch size, and this order has none: write report(batch_size)")
        batch_rows = 1 if batch_size is None else check_integer("batch_size", batch_size, 1)
        bounds = self.batches(count, batch_rows, 1, drop_remainder=False)
        even = max(1, round(count / bounds.steps)) if batch_size is None else batch_rows
        starts = [
            np.arange(first, first + size, rows)
            for first, size, rows in zip(self._groups.offsets.tolist(), bounds.sizes, bounds.rows, strict=False)
        ]
        ours = self._values(self.indices(0, count, length=count, seed=seed, epoch=epoch), np.concatenate(starts))
        full = Shuffled().indices(0, count, length=count, seed=seed, epoch=epoch)
        theirs = self._values(full, np.arange(0, count, even))
        total = int(self._lengths.sum())
        return PaddingReport(
            scenes=count,
            steps=bounds.steps,
            batch_size=even,
            padded=1 - total / ours if ours else 0.0,
            shuffled_padded=1 - total / theirs if theirs else 0.0,
            saved=1 - ours / theirs if theirs else 0.0,
        )

    def _values(self, indices: NDArray[np.int64], starts: NDArray[np.int64]) -> int:
        """Number of values in all batches, each padded to its longest scene.

        `starts` has the first position of each batch.
        """
        rows = np.diff(np.append(starts, len(indices)))
        return int((np.maximum.reduceat(self._lengths[indices], starts) * rows).sum())


def _check_boundaries(boundaries: Any) -> tuple[int, ...]:
    checked = _integers("boundaries", boundaries, 0)
    if not checked or any(one >= other for one, other in pairwise(checked)):
        raise ValueError(
            f"boundaries must be one or more ascending integers, received {list(checked)}: k boundaries make k + 1 "
            "buckets, for example [128, 256, 512]"
        )
    return checked


def _check_batch_sizes(batch_sizes: Any, buckets: int) -> tuple[int, ...]:
    checked = _integers("batch_sizes", batch_sizes, 1)
    if len(checked) != buckets:
        raise ValueError(
            f"batch_sizes needs one integer per bucket, {buckets} for {buckets - 1} boundaries (the last bucket holds "
            f"all longer scenes), received {len(checked)}"
        )
    return checked


def _integers(what: str, values: Any, least: int) -> tuple[int, ...]:
    try:
        parts = list(values)
    except TypeError:
        raise TypeError(f"{what} must be a list of integers, received {values!r}") from None
    return tuple(check_integer(f"{what}[{number}]", value, least) for number, value in enumerate(parts))
