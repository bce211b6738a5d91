"""The two references without any framework: a loop of `np.stack`, and the limit that copying alone sets."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.peers.job import Job, stack

SLOTS = 4
"""Preallocated destinations that `memcpy` fills in turn; a single one would stay in the processor's cache."""


@contextmanager
def plain(job: Job) -> Iterator[Iterable[tuple[np.ndarray, ...]]]:
    """Reads and stacks each batch in the calling thread."""
    yield (stack(job.scenes_of(step)) for step in range(job.steps))


@contextmanager
def memcpy(job: Job) -> Iterator[Iterable[tuple[np.ndarray, ...]]]:
    """Copies the bytes of each batch from memory into a slot used before, and does nothing else."""
    fields = job.sequence.images if hasattr(job.sequence, "images") else job.sequence.points
    blocks = len(fields) // job.batch_size
    sources = [stack(job.scenes_of(step)) for step in range(blocks)]
    slots = [tuple(np.zeros_like(field) for field in sources[0]) for _ in range(SLOTS)]
    yield _copies(sources, slots, job.steps)


def _copies(
    sources: list[tuple[np.ndarray, ...]], slots: list[tuple[np.ndarray, ...]], steps: int
) -> Iterator[tuple[np.ndarray, ...]]:
    for step in range(steps):
        slot = slots[step % len(slots)]
        for destination, source in zip(slot, sources[step % len(sources)], strict=True):
            np.copyto(destination, source)
        yield slot
