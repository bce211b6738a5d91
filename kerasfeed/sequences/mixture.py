"""`Mixture`: sequences mixed in fixed proportions.

Invariant: the source of an index, and the scene in it, are a function of (weights, lengths, seed, index), and of the
epoch if weights are a function. Computing them takes O(sources) memory. In every prefix of the mixture, each source has
its share to within two scenes.

Method: a Huffman tree of the sources by weight. Each node divides its scenes between two branches as evenly as integers
allow: the first branch, of share p, gets round(n p) of the first n (a Beatty sequence), in exact integer arithmetic. A
count is wrong by at most 1/2 at one node, and an error is multiplied by the shares below it. Since a branch of a branch
has at most half of the weight, the sum is less than 2. Within a source, scenes come in computed permutations
(`kerasfeed.orders.permutation`), a new one for each pass.
"""

import heapq
import math
import operator
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.groups import EPOCHS_KEPT, Kept, Portable
from kerasfeed.orders.permutation import MOST_SCENES, generator, permute_one, stream_keys
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.context import current_epoch
from kerasfeed.sequences.routed import Routed
from kerasfeed.sequences.view_base import OfSeveral
from kerasfeed.sequences.views import listed_parts
from kerasfeed.util.error_text import class_name, pluralize
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_TABLE_BELOW = 1 << 11  # scenes of longer sources are computed one by one, in 10 us, because tables are too large


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the tree: divides scenes between two branches.

    Attributes:
        weight: Weight of `first`, an integer in a common unit.
        total: Weight of both branches.
        first: A node, or the number of a source.
        second: A node, or the number of a source.
    """

    weight: int
    total: int
    first: "_Node | int"
    second: "_Node | int"


class Mixture(Routed, OfSeveral, SceneSequence):
    """Scenes of several sequences in fixed proportions, evenly interleaved.

    Each pass through a source visits every scene once, in random order; the next pass has another order. An index
    selects the same scene in every epoch, unless `weights` is a function.

    Args:
        sequences: The sources, at least one, none of them empty.
        weights: One positive number for each source; only their ratios count. Or a function that takes the epoch, an
            integer from 0, and returns such numbers; some may be 0. It must return the same numbers whenever it is
            called with the same epoch. Each epoch then has its own proportions and its own order of each source.
            Outside a feed, scenes come from epoch 0.
        num_scenes: Number of scenes in the mixture, at least 1. None is the smallest number with which the mixture
            contains every scene of every source; some scenes then occur several times. Required if `weights` is a
            function.
        seed: Integer >= 0 that decides the order within the sources.

    Raises:
        TypeError: A source cannot be indexed, a number has the wrong type, or `num_scenes` is required.
        ValueError: A source is empty, the weights do not fit, or a number is out of range.
        Exception: The function raised it; a note has the epoch.

    Examples:
        >>> mixture = kf.Mixture([["a"] * 100, ["b"] * 100], [3, 1], num_scenes=8)
        >>> "".join(sorted(mixture))
        'aaaaaabb'
        >>> mixture.counts()
        (6, 2)
        >>> harder = kf.Mixture([["a"] * 100, ["b"] * 100], lambda epoch: [3, epoch], num_scenes=8)
        >>> [harder.counts(epoch=epoch) for epoch in range(4)]
        [(8, 0), (6, 2), (5, 3), (4, 4)]
    """

    def __init__(self, sequences: Any, weights: Any, num_scenes: int | None = None, seed: int = 0) -> None:
        if not isinstance(sequences, list | tuple):
            raise TypeError(f"kf.Mixture needs a list of sequences and a list of weights, received {sequences!r:.60}")
        self._hold(*listed_parts("Mixture", (sequences,)))
        for number, length in enumerate(self._lengths):
            if not length:
                raise ValueError(f"kf.Mixture: sequences[{number}], a {class_name(self._parts[number])}, is empty")
        self._function = Portable(weights) if callable(weights) else None
        if self._function is not None and num_scenes is None:
            raise TypeError(
                "kf.Mixture needs num_scenes if weights is a function: all epochs have the same number of scenes"
            )
        self._seed = check_integer("seed", seed, 0)
        self._epochs: Kept[_Node | int] = Kept(EPOCHS_KEPT)
        self.weights = _shares("weights", weights, len(self._parts)) if self._function is None else self._called(0)
        self._tree = _tree_of(self.weights)
        if num_scenes is None and (num_scenes := self._enough()) > MOST_SCENES:
            raise ValueError(
                f"the mixture would have more than {MOST_SCENES:,} scenes: pass num_scenes, or weights that differ less"
            )
        self._num_scenes = check_integer("num_scenes", num_scenes, 1, most=MOST_SCENES)

    def _functions(self) -> tuple[Any, ...]:
        return () if self._function is None else (self._function.function,)

    def counts(self, num_scenes: int | None = None, *, epoch: int = 0) -> tuple[int, ...]:
        """Return the number of scenes that come from each source.

        Args:
            num_scenes: Count only the first `num_scenes` scenes of the mixture. None counts all.
            epoch: Epoch, from 0, whose proportions are used if `weights` is a function.

        Returns:
            One integer for each source.

        Examples:
            >>> kf.Mixture([["a"] * 10, ["b"] * 10], [1, 1], num_scenes=6).counts()
            (3, 3)
        """
        counts = [0] * len(self._parts)
        tree = self._tree_of_epoch(check_integer("epoch", epoch, 0))
        stack: list[tuple[_Node | int, int]] = [(tree, len(self) if num_scenes is None else num_scenes)]
        while stack:
            node, total = stack.pop()
            if isinstance(node, int):
                counts[node] = total
            else:
                first = _dealt(node, total)
                stack += [(node.first, first), (node.second, total - first)]
        return tuple(counts)

    def _enough(self) -> int:
        """Return the smallest number of scenes with every scene of every source."""
        high = sum(self._lengths)
        while high <= MOST_SCENES and not self._complete(high):
            high = min(2 * high, MOST_SCENES + 1)
        return bisect_left(range(high), True, key=self._complete)

    def _complete(self, num_scenes: int) -> bool:
        return all(count >= length for count, length in zip(self.counts(num_scenes), self._lengths, strict=True))

    def _called(self, epoch: int) -> tuple[Fraction, ...]:
        assert self._function is not None
        what = f"weights={self._function} for epoch {epoch}"
        return _shares(what, self._function.call("weights", epoch), len(self._parts), zeros=True)

    def _tree_of_epoch(self, epoch: int) -> "_Node | int":
        if self._function is None or epoch == 0:
            return self._tree
        return self._epochs.get_or_load(epoch, lambda: _tree_of(self._called(epoch)))[0]

    def __len__(self) -> int:
        return self._num_scenes

    def _route(self, position: int) -> tuple[int, int]:
        epoch = None if self._function is None else current_epoch()
        node = self._tree_of_epoch(epoch or 0)
        while not isinstance(node, int):
            first = _dealt(node, position)
            if _dealt(node, position + 1) > first:
                node, position = node.first, first
            else:
                node, position = node.second, position - first
        turn, position = divmod(position, self._lengths[node])
        source = (node,) if epoch is None else (node, epoch)
        return node, _scene_at(position, self._lengths[node], turn, self._seed, source)

    def _routes(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        routes = np.array([self._route(position) for position in positions.tolist()], np.int64).reshape(-1, 2)
        return routes[:, 0], routes[:, 1]

    def _choice(self) -> str:
        shares = ", ".join(map(str, self.weights)) if self._function is None else f"by {self._function.identity()}"
        return f"{shares} (seed {self._seed})"

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{float(share):.3g} of {class_name(part)}" for share, part in zip(self.weights, self._parts, strict=True)
        )
        first = "" if self._function is None else " in epoch 0"
        return f"Mixture of {shares}{first}, {pluralize(len(self), 'scene')}"


def _shares(what: str, weights: Any, sources: int, *, zeros: bool = False) -> tuple[Fraction, ...]:
    """Return the shares of the sources.

    `what` names the weights in messages. `zeros` allows some of them to be 0.
    """
    try:
        fractions = [_fraction(weight) for weight in weights]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} must be numbers, one per sequence, received {weights!r:.60}") from None
    if len(fractions) != sources:
        raise ValueError(f"{sources} sequences need {sources} weights, received {len(fractions)} as {what}")
    for number, weight in enumerate(fractions):
        if weight < 0 or (not weight and not zeros):
            need = "at least 0" if zeros else "positive; leave the sequence out"
            raise ValueError(f"{what}: weight {number} is {float(weight)}, but must be {need}")
    if not any(fractions):
        raise ValueError(f"{what}: all are 0, so no scene can be drawn. Give one sequence a weight above 0")
    total = sum(fractions)
    return tuple(weight / total for weight in fractions)


def _fraction(weight: Any) -> Fraction:
    weight = weight if isinstance(weight, int) else np.asarray(weight)[()]  # NumPy's number for a tensor
    # A float means the decimal that it prints as: 0.7 and 0.3 mean 7 and 3 in 10, not 53-bit numbers.
    return Fraction(str(weight) if isinstance(weight, float | np.floating) else operator.index(weight))


def _tree_of(shares: tuple[Fraction, ...]) -> "_Node | int":
    unit = math.lcm(*(share.denominator for share in shares))
    weights = [share.numerator * (unit // share.denominator) for share in shares]
    ticket = count()  # equal weights are taken in their order, so that the tree is unique
    heap: list[tuple[int, int, _Node | int]] = [(weight, next(ticket), k) for k, weight in enumerate(weights) if weight]
    heapq.heapify(heap)
    while len(heap) > 1:
        weight, _, node = heapq.heappop(heap)
        other_weight, _, other = heapq.heappop(heap)
        total, shared = weight + other_weight, math.gcd(weight, other_weight)
        heapq.heappush(heap, (total, next(ticket), _Node(weight // shared, total // shared, node, other)))
    return heap[0][2]


def _dealt(node: _Node, scenes: int) -> int:
    """Return how many of the first `scenes` go to the first branch."""
    total = node.total
    return (2 * scenes * node.weight + total) // (2 * total)


def _scene_at(position: int, length: int, turn: int, seed: int, source: tuple[int, ...]) -> int:
    if length < _TABLE_BELOW:
        return int(_table(length, turn, seed, source)[position])
    return permute_one(position, length, _keys(turn, seed, source))


# Indices come in any order, so these caches hold many sources and passes.
@lru_cache(maxsize=8192)  # at most 4 KiB each
def _table(length: int, turn: int, seed: int, source: tuple[int, ...]) -> NDArray[np.uint16]:
    return generator(_seed_of(seed, source), (0, turn)).permutation(length).astype(np.uint16)


@lru_cache(maxsize=8192)
def _keys(turn: int, seed: int, source: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(stream_keys(_seed_of(seed, source), (0, turn)).tolist())


@lru_cache(maxsize=8192)
def _seed_of(seed: int, source: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(SeedStream.MIXTURE, *source)).generate_state(1, np.uint64)[0])
