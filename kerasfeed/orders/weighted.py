"""Orders that draw scenes by weight, or evenly over classes.

Invariant: the scene at a position is a function of (seed, epoch, position) only, computed without earlier positions. So
these orders can be divided into steps and shards, and resumed, like any other order. No scene is read and then dropped.
"""

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order
from kerasfeed.orders.groups import (
    EPOCHS_KEPT,
    Groups,
    Identified,
    Kept,
    Portable,
    check_length,
    check_names,
    check_numbers,
)
from kerasfeed.orders.permutation import (
    BLOCK,
    MOST_SCENES,
    SMALL_ROUNDS,
    in_blocks,
    permute_each,
    stream_keys,
    uniforms,
)
from kerasfeed.util.array_bits import frozen
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_BLOCKS_KEPT = 64


class Drawn(Identified, Order):
    """Base class of orders that draw each position; caches the last blocks.

    Args:
        identity: See `Order.identity`.
        what: The argument that has one entry per scene.
        made_for: Number of its entries.
        count: Scenes in an epoch; None for `made_for`.
    """

    def __init__(self, identity: str, what: str, made_for: int, count: int | None) -> None:
        self._what = what
        self.made_for: int = made_for
        self._count = made_for if count is None else check_integer("num_scenes", count, 1, most=MOST_SCENES)
        self._identity = f"{type(self).__name__}({identity}, num_scenes={self._count})"
        self._blocks: Kept[NDArray[np.int64]] = Kept(_BLOCKS_KEPT)

    @abstractmethod
    def draw(self, positions: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the indices at any positions, int64[P]."""

    def num_scenes(self, length: int) -> int:
        """See `Order.num_scenes`."""
        check_length(self._what, self.made_for, length)
        return self._count

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`."""

        def block(number: int) -> NDArray[np.int64]:
            return self._blocks.get_or_load((number, seed, epoch), partial(self._block, number, seed, epoch))[0]

        return in_blocks(start, stop, block)

    def _block(self, block: int, seed: int, epoch: int) -> NDArray[np.int64]:
        positions = np.arange(block * BLOCK, min((block + 1) * BLOCK, self._count), dtype=np.int64)
        return frozen(self.draw(positions, seed, epoch))


class Weighted(Drawn):
    """Draw scenes with replacement: scene k with probability `weights[k] / sum(weights)`.

    A scene may come several times in an epoch, or not at all. Its random numbers (`self.rng`) depend on (seed, epoch,
    index), so a scene that comes twice in an epoch is augmented in the same way both times.
    `kf.show(kf.Weighted(weights))` draws a cloud that is denser where weights are larger.

    Args:
        weights: Numbers >= 0, [number of scenes], in the order of the indices; they need not sum to 1. A scene of
            weight 0 never comes. Or a function that takes the epoch, an integer from 0, and returns such numbers. It
            must return the same numbers whenever it is called with the same epoch. The constructor calls it for epoch
            0. It is called for another epoch when that epoch is first needed.
        num_scenes: Scenes in an epoch, at least 1. None uses the number of weights.

    Raises:
        TypeError: `weights` are not numbers, or `num_scenes` is not an integer.
        ValueError: `weights` has another length than the sequence, a weight is negative or not finite, or all are 0.
        Exception: The function raised it; a note has the epoch.

    Examples:
        >>> order = kf.Weighted([0, 1, 3], num_scenes=1000)
        >>> with kf.Feed(np.arange(3), batch_size=1000, order=order, seed=0, workers=0) as feed:
        ...     print(np.bincount(feed[0]))
        [  0 231 769]
        >>> harder = kf.Weighted(lambda epoch: [1, epoch, epoch**2], num_scenes=1000)
        >>> with kf.Feed(np.arange(3), batch_size=1000, order=harder, seed=0, workers=0) as feed:
        ...     print([np.bincount(batch, minlength=3).tolist() for epoch in (0, 1, 2) for batch in feed.epoch(epoch)])
        [[1000, 0, 0], [352, 305, 343], [165, 275, 560]]
    """

    def __init__(self, weights: Any, num_scenes: int | None = None) -> None:
        self._function = Portable(weights) if callable(weights) else None
        self._epochs: Kept[NDArray[np.float64]] = Kept(EPOCHS_KEPT)
        self._cumulative = _cumulated("weights", weights) if self._function is None else self._called(0)
        count = len(self._cumulative)
        what = digest(self._cumulative) if self._function is None else f"of {self._function.identity()}"
        super().__init__(f"{count} weights {what}", "weights", count, num_scenes)

    def __str__(self) -> str:
        return f"{self._count:,} drawn by weight"

    def __repr__(self) -> str:
        of = "" if self._function is None else f" of {self._function}"
        return f"Weighted(<{self.made_for:,} weights{of}>, num_scenes={self._count})"

    def spread(self, length: int) -> float:
        """See `Order.spread`: two draws by the weights of epoch 0."""
        return float(2 * (self._cumulative * (1 - self._cumulative)).sum())

    def draw(self, positions: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Drawn.draw`; O(log length) per scene."""
        drawn = uniforms(positions, stream_keys(seed, (SeedStream.WEIGHTED, epoch)))
        return np.searchsorted(self._of(epoch), drawn, side="right").astype(np.int64)

    def _of(self, epoch: int) -> NDArray[np.float64]:
        """Return the cumulative shares in an epoch, float64[number of scenes]."""
        if self._function is None or epoch == 0:
            return self._cumulative
        cumulative = self._epochs.get_or_load(epoch, lambda: self._called(epoch))[0]
        if len(cumulative) != self.made_for:
            raise ValueError(
                f"weights={self._function} returned {len(cumulative):,} weights for epoch {epoch} and "
                f"{self.made_for:,} for epoch 0: return one for each scene, in the order of their indices"
            )
        return cumulative

    def _called(self, epoch: int) -> NDArray[np.float64]:
        assert self._function is not None
        return _cumulated(f"weights={self._function} for epoch {epoch}", self._function.call("weights", epoch))


def _cumulated(what: str, weights: Any) -> NDArray[np.float64]:
    """Return the cumulative shares of weights; `what` names them in messages."""
    checked = check_numbers(what, weights, whole=False)
    largest = checked.max()
    if largest == 0:
        raise ValueError(f"{what}: all {len(checked):,} are 0, so no scene can be drawn. Give one a weight above 0")
    cumulative = np.cumsum(checked / largest)
    cumulative /= cumulative[-1]
    cumulative[np.flatnonzero(checked)[-1] :] = 1.0  # rounding must not leave a draw in [0, 1) beyond the end
    return frozen(cumulative)


class Balanced(Drawn):
    """Draw all classes, and the scenes of a class, equally often.

    With C classes, every C consecutive positions (0 to C - 1, C to 2 C - 1, ...) hold one scene of each class, in
    random order. The scenes of a class come in random order; after the last, they come again in another order. So in an
    epoch the counts of two classes differ by at most one, and so do the counts of two scenes of a class. Scenes of
    small classes repeat; from a large class, each epoch takes different scenes. A scene that comes twice in an epoch
    has the same random numbers (`self.rng`) both times, so it is augmented in the same way. With `num_scenes` = classes
    x scenes of the smallest class, no scene comes twice. `kf.show(kf.Balanced(labels))` draws a cloud that is denser
    where small classes are.

    Args:
        labels: Class of each scene: int, bool or str[number of scenes], in the order of their indices;
            `kerasfeed.labels_of` reads them from a sequence.
        num_scenes: Scenes in an epoch, at least 1. None uses the number of labels.

    Raises:
        TypeError: `labels` are neither integers, booleans nor strings, or `num_scenes` is not an integer.
        ValueError: `labels` has another length than the sequence, or is empty.

    Examples:
        >>> labels = np.array([0] * 90 + [1] * 10)
        >>> with kf.Feed(labels, batch_size=20, order=kf.Balanced(labels), seed=0, workers=0) as feed:
        ...     print(np.bincount(feed[0]))
        [10 10]
    """

    def __init__(self, labels: Any, num_scenes: int | None = None) -> None:
        checked = check_names(
            "labels", labels, "kf.labels_of(sequence, field) reads them, labels.argmax(-1) converts one-hot labels"
        )
        names, numbers = np.unique(checked, return_inverse=True)
        self._groups = Groups.of(numbers, len(names))
        self._sizes = self._groups.sizes
        super().__init__(f"{len(names)} classes {self._groups.digest()}", "labels", len(checked), num_scenes)

    def __str__(self) -> str:
        return f"{self._count:,} balanced over {self._groups.count:,} classes"

    def __repr__(self) -> str:
        return (
            f"Balanced(<{self.made_for:,} labels of {self._groups.count:,} classes with {self._sizes.min():,} to "
            f"{self._sizes.max():,} scenes>, num_scenes={self._count})"
        )

    def spread(self, length: int) -> float:
        """See `Order.spread`: the distance of two scenes whose classes are drawn evenly."""
        cumulative = np.cumsum(1 / self._sizes[self._groups.numbers()])
        cumulative /= cumulative[-1]
        return float(2 * (cumulative * (1 - cumulative)).sum())

    def draw(self, positions: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Drawn.draw`; O(1) per scene."""
        count = self._groups.count
        runs, offsets = np.divmod(positions, count)
        class_keys = stream_keys(seed, (SeedStream.CLASS, epoch), SMALL_ROUNDS)
        member_keys = stream_keys(seed, (SeedStream.CLASS_MEMBER, epoch), SMALL_ROUNDS)
        classes = permute_each(offsets, np.full_like(offsets, count), runs, class_keys)
        sizes = self._sizes[classes]
        rounds, ranks = np.divmod(runs, sizes)
        chosen = permute_each(ranks, sizes, rounds * count + classes, member_keys)
        indices: NDArray[np.int64] = self._groups.members[self._groups.offsets[classes] + chosen].astype(np.int64)
        return indices
