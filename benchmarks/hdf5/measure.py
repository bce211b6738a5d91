"""The clocks of the HDF5 cases that are no plain loop: whole epochs with their decodes, and the opening of a file.

Invariant: as in `benchmarks.measure`, everything is taken inside the process of the case.
"""

import time
from typing import Any

from benchmarks.measure import Opener
from benchmarks.peers.job import Job


def epoch_figures(opener: Opener, job: Job, seconds: float) -> dict[str, float]:
    """Takes whole epochs of a feed over `job.sequence.points` in this process, at least two.

    Returns:
        `decodes_per_chunk`, the greatest over the epochs of chunks decoded in an epoch over chunks stored; `epoch_s`,
        the mean time of an epoch; `scenes_per_s`.
    """
    dataset = job.sequence.points
    stored = -(-len(dataset) // dataset.block_size)
    decodes: list[float] = []
    begin = time.perf_counter()
    with opener(job) as epochs:
        while len(decodes) < 2 or time.perf_counter() - begin < seconds:
            before = dataset.stats().decoded
            for _ in epochs.feed:
                pass
            decodes.append((dataset.stats().decoded - before) / stored)
        mean = (time.perf_counter() - begin) / len(decodes)
    return {"decodes_per_chunk": max(decodes), "epoch_s": mean, "scenes_per_s": len(job.sequence) / mean}


def open_figures(opener: Opener, job: Job) -> dict[str, float]:
    """Opens a file and reads its first row.

    Returns:
        `open_s`, seconds until the row is there; `index_mb`, megabytes of the chunk index kept in memory, absent where
        the reader keeps none of its own.
    """
    job.sequence.close()
    begin = time.perf_counter()
    with opener(job) as dataset:
        dataset[0]
        figures = {"open_s": time.perf_counter() - begin}
        index = index_nbytes(dataset)
    return figures if index is None else {**figures, "index_mb": index / 1e6}


def index_nbytes(dataset: Any) -> int | None:
    """Memory of the chunk index that kerasfeed keeps of a dataset, bytes; None for a dataset of h5py."""
    return getattr(dataset, "index_nbytes", None)
