"""How the positions of an epoch are cut into global batches.

Invariant: pure arithmetic. The number of steps is the same in every epoch, and every position that is not dropped is
part of exactly one step.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """One global batch.

    Attributes:
        start: First position, inclusive.
        stop: Last position, exclusive; at least `start` + 1.
        full: Scenes the batch has when it is not short, at least `stop` - `start`.
    """

    start: int
    stop: int
    full: int


class Cut(ABC):
    """The global batches of an epoch: those of all shards together."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of global batches in an epoch; 0 where dropping short ones leaves none."""

    @property
    @abstractmethod
    def full(self) -> int:
        """Scenes of the largest global batch, were it not short."""

    @property
    def sizes_when_full(self) -> tuple[int, ...]:
        """Scenes of a global batch that is not short, of one bucket after the other."""
        return (self.full,)

    @property
    @abstractmethod
    def largest(self) -> int:
        """Most scenes that a global batch really has."""

    @property
    @abstractmethod
    def smallest(self) -> int:
        """Fewest scenes that a global batch really has."""

    @property
    @abstractmethod
    def kept(self) -> int:
        """Positions of an epoch that are part of a global batch; all, unless short ones are dropped."""

    @property
    @abstractmethod
    def has_one_size(self) -> bool:
        """Whether all global batches have one size, but for those that are short."""

    @abstractmethod
    def bounds(self, step: int, *, seed: int, epoch: int) -> Bounds:
        """The global batch of a step, in [0, steps)."""


@dataclass(frozen=True)
class EvenCut(Cut):
    """Consecutive positions, `global_rows` at a time; the last batch may be short.

    Attributes:
        scenes: Positions in an epoch, at least 1.
        global_rows: Scenes of a global batch, at least 1.
        drop_remainder: Whether a short last batch is left out.
    """

    scenes: int
    global_rows: int
    drop_remainder: bool

    @property
    def steps(self) -> int:
        """See `Cut.steps`."""
        whole, remainder = divmod(self.scenes, self.global_rows)
        return whole + (remainder > 0 and not self.drop_remainder)

    @property
    def full(self) -> int:
        """See `Cut.full`."""
        return self.global_rows

    @property
    def largest(self) -> int:
        """See `Cut.largest`."""
        return min(self.scenes, self.global_rows)

    @property
    def smallest(self) -> int:
        """See `Cut.smallest`."""
        return self.global_rows if self.drop_remainder else self.scenes % self.global_rows or self.global_rows

    @property
    def kept(self) -> int:
        """See `Cut.kept`."""
        return min(self.scenes, self.steps * self.global_rows)

    @property
    def has_one_size(self) -> bool:
        """See `Cut.has_one_size`."""
        return True

    def bounds(self, step: int, *, seed: int, epoch: int) -> Bounds:
        """See `Cut.bounds`."""
        start = step * self.global_rows
        return Bounds(start, min(start + self.global_rows, self.scenes), self.global_rows)
