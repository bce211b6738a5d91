"""The clocks of the HDF5 cases that are not plain loops: whole epochs with their decodes, and the opening of a file.

Invariant: as in `benchmarks.measure`, all times are taken inside the process of the case.
"""

import time

from benchmarks.measure import Opener
from benchmarks.peers.job import Job


def epoch_figures(opener: Opener, job: Job, seconds: float) -> dict[str, float]:
    """Takes whole epochs of a feed over `job.sequence.points`: one to warm up, then at least two.

    Returns:
        `epoch_s`, the mean time of an epoch after the first; `scenes_per_s`; and, if this process decodes,
        `decodes_per_chunk`, the maximum over all epochs of chunks decoded in an epoch over chunks stored.
    """
    dataset = job.sequence.points
    stored = -(-len(dataset) // dataset.block_size)
    decodes: list[float] = []
    begin = 0.0
    with opener(job) as epochs:
        while len(decodes) < 3 or time.perf_counter() - begin < seconds:
            before = dataset.stats().decoded
            if len(decodes) == 1:
                begin = time.perf_counter()
            for _ in epochs.feed:
                pass
            decodes.append((dataset.stats().decoded - before) / stored)
        mean = (time.perf_counter() - begin) / (len(decodes) - 1)
    figures = {"epoch_s": mean, "scenes_per_s": len(job.sequence) / mean}
    return {**figures, "decodes_per_chunk": max(decodes)} if any(decodes) else figures


def open_figures(opener: Opener, job: Job) -> dict[str, float]:
    """Opens a file and reads its first row.

    Returns:
        `open_s`, seconds until the row is there; `index_mb`, megabytes of the reader's chunk index, absent if
        the reader keeps none.
    """
    job.sequence.close()
    begin = time.perf_counter()
    with opener(job) as opened:
        begin = opened.begun or begin
        opened.dataset[0]
        figures = {"open_s": time.perf_counter() - begin}
    return figures if opened.index_nbytes is None else {**figures, "index_mb": opened.index_nbytes / 1e6}
