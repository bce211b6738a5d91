"""The job of a peer.

Invariant: frozen, and made before the clock starts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

import numpy as np


def stack(scenes: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The fields of `scenes`, each with a leading axis over the scenes."""
    return tuple(np.stack(field) for field in zip(*scenes, strict=True))


@dataclass(frozen=True)
class Job:
    """A sequence to be read in batches.

    Attributes:
        sequence: The sequence of the workload, unchanged.
        scene: One scene of it, read before the clock starts: the shapes and dtypes that a user writes by
            hand.
        batch_size: Scenes per batch, at least 1.
        workers: Concurrent reads, at least 1.
        for_fit: Whether the batches go to `model.fit` (one iteration per epoch) instead of one long loop.
        shuffle: Whether the order is random, and different in each epoch.
        epochs: Epochs in one loop, at least 1.
        collate: From a list of scenes to a batch.
        scenes_in: From a batch to the number of scenes in it; None if each batch has `batch_size`.
        options: More arguments of `kf.Feed`.
    """

    sequence: Any
    scene: Any
    batch_size: int
    workers: int
    for_fit: bool
    shuffle: bool = False
    epochs: int = 1
    collate: Callable[[list[Any]], Any] = stack
    scenes_in: Callable[[Any], int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Whole batches in all epochs."""
        return len(self.sequence) // self.batch_size * self.epochs

    def indices_of(self, step: int) -> list[int]:
        """The indices of batch `step`, counted over all epochs."""
        epoch, step = divmod(step, len(self.sequence) // self.batch_size)
        start = step * self.batch_size
        if not self.shuffle:
            return list(range(start, start + self.batch_size))
        indices: list[int] = _permutation(len(self.sequence), epoch)[start : start + self.batch_size].tolist()
        return indices

    def scenes_of(self, step: int) -> list[Any]:
        """The scenes of batch `step`: read by one call of `__getitems__`, if the sequence has it, else one by one."""
        indices = self.indices_of(step)
        if hasattr(self.sequence, "__getitems__"):
            scenes: list[Any] = self.sequence.__getitems__(indices)
            return scenes
        return [self.sequence[index] for index in indices]

    def batch_of(self, step: int) -> Any:
        """Batch `step`."""
        return self.collate(self.scenes_of(step))

    def repeated(self, loader: Iterable[Any]) -> Iterable[Any]:
        """All epochs of a loader that yields one each time."""
        return loader if self.epochs == 1 else chain.from_iterable(repeat(loader, self.epochs))


@lru_cache(maxsize=2)
def _permutation(length: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).permutation(length)
