"""The two references without a framework: a loop of `np.stack`, and the limit of copying alone."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.peers.job import Job, stack

SLOTS = 4
"""Preallocated destinations that `memcpy` fills in turn; a single one would stay in the processor's cache."""


@contextmanager
def plain(job: Job) -> Iterator[Iterable[tuple[np.ndarray, ...]]]:
    """Reads and stacks each batch in the calling thread."""
    yield map(job.batch_of, range(job.steps))


@contextmanager
def first_fit(job: Job) -> Iterator[Iterable[Any]]:
    """Packs dicts of tokens: each goes to the first of `batch_size` rows that has room; a batch ends if none has."""
    yield _packed(job, len(job.sequence) // job.batch_size, job.sequence.packed_length)


def _packed(job: Job, steps: int, length: int) -> Iterator[dict[str, np.ndarray]]:
    for epoch in range(job.epochs):
        batch, used = _empty(job.batch_size, length), [0] * job.batch_size
        for step in range(epoch * steps, (epoch + 1) * steps):
            for scene in job.scenes_of(step):
                tokens = scene["tokens"]
                count = len(tokens)
                row = next((row for row, start in enumerate(used) if start + count <= length), -1)
                if row < 0:
                    yield batch
                    batch, used, row = _empty(job.batch_size, length), [0] * job.batch_size, 0
                start = used[row]
                used[row] = stop = start + count
                batch["tokens"][row, start:stop] = tokens
                batch["segment_ids"][row, start:stop] = batch["segment_ids"][row, start - 1] + 1 if start else 1
                batch["positions"][row, start:stop] = np.arange(count)
        yield batch


def _empty(rows: int, length: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((rows, length), np.int32) for name in ("tokens", "segment_ids", "positions")}


@contextmanager
def memcpy(job: Job) -> Iterator[Iterable[tuple[np.ndarray, ...]]]:
    """Copies the bytes of each batch from memory into a slot used before."""
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
