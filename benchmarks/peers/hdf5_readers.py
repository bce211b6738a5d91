"""Readers of one HDF5 file without a framework: threads or processes that fill batches of random scenes.

Invariant: every reader fills memory that was used before, in its fastest way, and reads scenes in the same random
order. A threaded reader has `job.workers` threads, each with its own batches; threads and processes pass on only a
token per batch.
"""

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kerasfeed as kf
from benchmarks.hdf5 import files, fills
from benchmarks.hdf5.scenes import StoredScenes, virtual_order
from benchmarks.peers.job import Job

SLOTS = 4
"""Batches that a reader fills in turn; a single one would stay in the processor's cache."""
WAITING = 4
"""Batches that readers may be ahead of the consumer."""
BUSY_TURNS = 2_600
"""Turns of the loop of `count_up`."""


def in_file_order(scenes: StoredScenes) -> NDArray[np.int64]:
    """In the order of the file."""
    return np.arange(scenes.stored)


def in_random_order(scenes: StoredScenes) -> NDArray[np.int64]:
    """In the order of a full shuffle."""
    return virtual_order(scenes.stored)


def in_block_order(scenes: StoredScenes) -> NDArray[np.int64]:
    """In the order of kerasfeed's `BlockShuffled`, in one epoch."""
    return kf.BlockShuffled(files.CHUNK_SCENES).indices(0, scenes.stored, length=scenes.stored, seed=0, epoch=0)


@dataclass(frozen=True)
class Reading:
    """A way to read a file.

    Attributes:
        make: From the scenes to the object that fills a batch.
        order: From the scenes to the rows of the file in the order of reading.
        busy: Whether the consumer runs Python while it waits, and so holds the GIL nearly always.
    """

    make: Callable[[Any], fills.Fill]
    order: Callable[[Any], NDArray[np.int64]] = in_random_order
    busy: bool = False

    def batches(self, scenes: Any, batch_size: int, part: int, parts: int) -> Iterator[None]:
        """Fills batches for ever; reader `part` of `parts` begins at its share of the file."""
        fill, order = self.make(scenes), self.order(scenes)
        slots = [np.zeros((batch_size, *scenes.points.shape[1:]), scenes.points.dtype) for _ in range(SLOTS)]
        steps = len(order) // batch_size
        step = steps * part // parts
        while True:
            first = step % steps * batch_size
            fill(order[first : first + batch_size], slots[step % SLOTS])
            step += 1
            yield

    @contextmanager
    def by_threads(self, job: Job) -> Iterator[Iterator[None]]:
        """A token for each batch that one of `job.workers` threads, including the consumer's, has filled."""
        if job.workers == 1:
            yield self.batches(job.sequence, job.batch_size, 0, 1)
            return
        tokens: queue.Queue[Any] = queue.Queue(WAITING)
        ended = threading.Event()

        def work(part: int) -> None:
            try:
                for _ in self.batches(job.sequence, job.batch_size, part, job.workers):
                    tokens.put(None)
                    if ended.is_set():
                        return
            except BaseException as error:  # noqa: BLE001  (raised where the token is taken)
                tokens.put(error)

        threads = [threading.Thread(target=work, args=(part,), daemon=True) for part in range(job.workers)]
        for thread in threads:
            thread.start()
        yield _taken(tokens, self.busy, lambda: True)
        ended.set()
        while any(thread.is_alive() for thread in threads):
            try:
                tokens.get(timeout=0.05)
            except queue.Empty:
                pass

    @contextmanager
    def by_processes(self, job: Job) -> Iterator[Iterator[None]]:
        """A token for each batch that one of `job.workers` processes has filled. Batches are not copied."""
        context = multiprocessing.get_context("spawn")
        tokens = context.Queue(WAITING)
        processes = [
            context.Process(target=_work_in_process, args=(self, job, part, tokens), daemon=True)
            for part in range(job.workers)
        ]
        for process in processes:
            process.start()
        yield _taken(tokens, self.busy, lambda: all(process.is_alive() for process in processes))
        for process in processes:
            process.terminate()
            process.join()


def _work_in_process(reading: Reading, job: Job, part: int, tokens: Any) -> None:
    for _ in reading.batches(job.sequence, job.batch_size, part, job.workers):
        tokens.put(None)


def _taken(tokens: Any, busy: bool, alive: Callable[[], bool]) -> Iterator[None]:
    while True:
        try:
            token = tokens.get_nowait() if busy else tokens.get(timeout=1.0)
        except queue.Empty:
            if not alive():
                raise RuntimeError("a reader process ended") from None
            if busy:
                count_up()
            continue
        if token is not None:
            raise token
        yield


def count_up() -> int:
    """About 0.2 ms of Python that holds the GIL."""
    state = 0
    for turn in range(BUSY_TURNS):
        state = (state * 31 + turn) & 0xFFFF
    return state


def h5py(job: Job) -> Any:
    """h5py in threads that share one handle."""
    return Reading(fills.h5py).by_threads(job)


def h5py_processes(job: Job) -> Any:
    """h5py in processes with a handle each."""
    return Reading(fills.h5py).by_processes(job)


def h5py_list(job: Job) -> Any:
    """h5py, a list of rows at once."""
    return Reading(fills.h5py_list).by_threads(job)


def h5py_sequential(job: Job) -> Any:
    """h5py in the order of the file, with a cache that holds some chunks."""
    return Reading(fills.h5py_cached, in_file_order).by_threads(job)


def h5py_blocks(job: Job) -> Any:
    """h5py in block order, with a cache that holds a window."""
    return Reading(fills.h5py_cached, in_block_order).by_threads(job)


def h5py_busy(job: Job) -> Any:
    """h5py in threads with a busy main loop."""
    return Reading(fills.h5py, busy=True).by_threads(job)


def h5py_busy_processes(job: Job) -> Any:
    """h5py in processes with a busy main loop."""
    return Reading(fills.h5py, busy=True).by_processes(job)


def hidefix(job: Job) -> Any:
    """Threads that read with hidefix."""
    return Reading(fills.hidefix).by_threads(job)


def pyfive(job: Job) -> Any:
    """Threads that read with pyfive."""
    return Reading(fills.pyfive).by_threads(job)


def zarr(job: Job) -> Any:
    """Threads that read with zarr."""
    return Reading(fills.zarr).by_threads(job)


def memcpy(job: Job) -> Any:
    """Copies from memory, in threads."""
    return Reading(fills.memcpy).by_threads(job)


def kerasfeed(job: Job) -> Any:
    """Threads that share one `HDF5File`."""
    return Reading(fills.kerasfeed).by_threads(job)


def kerasfeed_processes(job: Job) -> Any:
    """Processes with an `HDF5File` each."""
    return Reading(fills.kerasfeed).by_processes(job)


def kerasfeed_take(job: Job) -> Any:
    """`HDF5Dataset.take`, a batch of rows at once."""
    return Reading(fills.take).by_threads(job)


def kerasfeed_busy(job: Job) -> Any:
    """Threads that share one `HDF5File`, with a busy main loop."""
    return Reading(fills.kerasfeed, busy=True).by_threads(job)


def kerasfeed_busy_processes(job: Job) -> Any:
    """Processes with an `HDF5File` each, with a busy main loop."""
    return Reading(fills.kerasfeed, busy=True).by_processes(job)
