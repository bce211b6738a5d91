"""What a peer is asked to do.

Invariant: frozen, and made before the clock starts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Job:
    """A sequence to be read in batches.

    Attributes:
        sequence: The sequence of the workload, unchanged.
        scene: One scene of it, read before the clock starts: the shapes and dtypes that a user writes by
            hand.
        batch_size: Scenes a batch, at least 1.
        workers: Concurrent reads, at least 1.
        for_fit: Whether the batches go to `model.fit` (one iteration an epoch) instead of one long loop.
    """

    sequence: Any
    scene: tuple[np.ndarray, ...]
    batch_size: int
    workers: int
    for_fit: bool

    @property
    def steps(self) -> int:
        """Whole batches in an epoch."""
        return len(self.sequence) // self.batch_size

    def scenes_of(self, step: int) -> list[tuple[np.ndarray, ...]]:
        """The scenes of batch `step`, read one after the other."""
        start = step * self.batch_size
        return [self.sequence[index] for index in range(start, start + self.batch_size)]


def stack(scenes: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The fields of `scenes`, each with a leading axis over the scenes."""
    return tuple(np.stack(field) for field in zip(*scenes, strict=True))
