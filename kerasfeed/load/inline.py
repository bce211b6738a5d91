"""The reference loader: fills a slot in the calling thread. What every other loader must equal.

Invariant: `submit` returns a settled future; there are no threads and nothing is read ahead.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.costs import ReadCost
from kerasfeed.errors import FeedClosedError, WorkerStartError
from kerasfeed.load import Job, Loader, LoaderStats
from kerasfeed.load.batch import BatchInProgress
from kerasfeed.load.failure import Place, for_consumer
from kerasfeed.load.fill import Cancelled, FailedSceneError, Filler, probe
from kerasfeed.load.layout import Layout
from kerasfeed.load.slots import Arena, SlotPool
from kerasfeed.scene import SceneContext, Worker, optional_method
from kerasfeed.spec import SceneSpec, merge, probe_indices

_WORKER = "the calling thread"


class InlineLoader(Loader):
    """Loads each batch when it is asked for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock = threading.RLock()
        self._pool: SlotPool | None = None
        self._filler: Filler | None = None
        self._arena = Arena(shared=False)
        self._closed = False
        self._batches = 0
        self._copied = 0

    @property
    def spec(self) -> SceneSpec:
        """See `Loader.spec`."""
        return self._ready()[0].layout.spec

    @property
    def look_ahead(self) -> int:
        """See `Loader.look_ahead`."""
        return 1

    def submit(self, epoch: int, step: int) -> Future[Any]:
        """Load the batch now; see `Loader.submit`."""
        indices = self._job.plan.indices(epoch, step)
        pool, filler = self._ready()
        failed_ahead = read_ahead(filler, epoch, step, indices, _WORKER)
        if failed_ahead is not None:
            return failed_ahead
        slot = pool.acquire()
        batch = BatchInProgress(slot, epoch, step, len(indices))
        slot.view.indices[: len(indices)] = indices
        context = SceneContext(self._job.plan.seed, epoch)
        try:
            beside = filler.fill(slot.view, 0, len(indices), batch.serial, context)
            batch.add(0, len(indices), beside)
        except (FailedSceneError, Cancelled) as carrier:
            if isinstance(carrier, Cancelled) or not isinstance(carrier.__cause__, Exception):
                pool.release(slot)
                raise (carrier.__cause__ or carrier) from None
            failed = (carrier.index,) if carrier.index is not None else tuple(indices.tolist())
            error = for_consumer(carrier.__cause__, Place(failed, epoch, step, _WORKER))
            batch.fail(0, len(indices), carrier.row or 0, error)
        copied = batch.settle(pool)
        with self._lock:
            self._batches += 1
            self._copied += copied
        return batch.future

    def _ready(self) -> tuple[SlotPool, Filler]:
        with self._lock:
            if self._closed:
                raise FeedClosedError("the feed is closed; make a new one")
            if self._pool is None or self._filler is None:
                begin = optional_method(self._job.sequence, "on_worker_begin")
                if begin is not None:
                    try:
                        begin(Worker(0, 1, "inline"))
                    except Exception as error:
                        raise WorkerStartError(f"on_worker_begin failed: {type(error).__name__}: {error}") from error
                layout = infer_layout(self._job)
                self._pool = SlotPool(layout, self._arena, max_memory=self._job.max_memory, in_flight=1)
                self._filler = Filler(self._job.sequence, layout)
            return self._pool, self._filler

    def refresh(self, change: Callable[[], None]) -> None:
        """See `Loader.refresh`; the sequence is the one that is read."""
        change()

    def close(self) -> None:
        """See `Loader.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._pool is not None:
                self._pool.close()
                end = optional_method(self._job.sequence, "on_worker_end")
                if end is not None:
                    end()

    def stats(self) -> LoaderStats:
        """See `Loader.stats`."""
        total, nbytes = (self._pool.total, self._pool.layout.nbytes) if self._pool else (0, 0)
        return LoaderStats("inline", 1, self._batches, self._copied, total, nbytes)

    def waste(self) -> ReadCost | None:
        """See `Loader.waste`."""
        return self._filler.meter.waste() if self._filler else None


def read_ahead(filler: Filler, epoch: int, step: int, indices: NDArray[np.int64], worker: str) -> Future[Any] | None:
    """Announce a batch to the sequence; returns a failed future where the sequence raises."""
    try:
        filler.read_ahead(indices)
    except FailedSceneError as carrier:
        error = carrier.__cause__
        assert error is not None
        if not isinstance(error, Exception):
            raise error from None
        future: Future[Any] = Future()
        place = Place(tuple(indices.tolist()), epoch, step, worker, carrier.method)
        future.set_exception(for_consumer(error, place))
        return future
    return None


def refuse_after_fork(owner: int) -> None:
    """Refuse to go on in a fork of the process `owner`: its worker threads and processes are not here.

    Raises:
        FeedClosedError: This process is another.
    """
    if os.getpid() != owner:
        raise FeedClosedError(
            f"this feed belongs to process {owner} and this is a fork of it, where its workers are not. Make a feed "
            "here (a pickled feed makes itself anew)"
        )


def infer_layout(job: Job) -> Layout:
    """Read a few scenes in this thread and lay a slot out for them.

    Raises:
        SpecError: The scenes cannot be batched; the message names index and field.
        Exception: What the sequence raised, with a note that names the index.
    """
    specs = []
    for index in probe_indices(job.plan.length):
        try:
            specs.append((index, probe(job.sequence, index, job.plan.seed)))
        except FailedSceneError as carrier:
            assert carrier.__cause__ is not None
            raise for_consumer(carrier.__cause__, Place((index,), None, None, _WORKER)) from None
    return layout_for(job, specs)


def layout_for(job: Job, specs: list[tuple[int, SceneSpec]]) -> Layout:
    """Lay a slot out for scenes whose specs were read: pairs of index and spec."""
    merged = merge(specs)
    largest = tuple(max(sizes) for sizes in zip(*([f.nbytes for f in spec.fields] for _, spec in specs), strict=True))
    return Layout(merged, job.plan.rows, job.plan.batch_size is not None, largest)
