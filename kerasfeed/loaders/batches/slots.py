"""Batch memory: a pool of slots, which are leased to the consumer.

Invariant: a slot is free, in flight (a loader fills it) or leased (something refers to its memory). A leased slot is
never acquired. The lease ends when the exporter, a ctypes array over the slot, is collected; every ndarray, tf.Tensor,
jax.Array and torch.Tensor over the slot keeps that exporter alive. (The exporter is not an ndarray: NumPy collapses
chains of views, so a finalizer on an array can run while a view of it lives.)

The pool grows up to `max_memory`, so that no consumer waits. At that limit, a finished batch is copied to ordinary
memory, so that the slots in flight always return, and a consumer that keeps many batches cannot stop the loader.
"""

import ctypes
import mmap
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kerasfeed.errors import FeedClosedError, SceneTimeoutError
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.util.polling import NotYet

_TRIM_EVERY = 64


@dataclass(frozen=True, eq=False)
class Slot:
    """Memory of one batch.

    Attributes:
        memory: The segment that holds it.
        segment_offset: Offset of the segment in the file of the `PoolMemory`, bytes.
        offset: Offset of the slot in the segment, bytes.
        view: The layout's views of the memory, for loaders in this process.
    """

    memory: mmap.mmap
    segment_offset: int
    offset: int
    view: Any


class SlotFuture(Future[Any]):
    """The future of a batch in a slot.

    If it is cancelled, workers skip its rows.
    """

    # It holds no reference that leads back to it: a cycle would keep slots leased until the collector runs.
    def __init__(self, slot: Slot, serial: int) -> None:
        """Promise batch number `serial` in `slot`, whose view has a `control`."""
        super().__init__()
        self._slot, self._serial, self._owner = slot, serial, os.getpid()

    def cancel(self) -> bool:
        """See `Future.cancel`."""
        # A fork shares the slot's memory with its owner, and cancels its inherited futures as it ends.
        is_new = not self.cancelled() and os.getpid() == self._owner
        cancelled = super().cancel()
        if is_new and cancelled:
            self._slot.view.control[0] = self._serial
        return cancelled


def failed_future(error: BaseException) -> Future[Any]:
    """Return a future of a batch, failed with `error`."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


class SlotPool:
    """Slots of one layout.

    Attributes:
        limit: Number of slots that fit into `max_memory`.
        stuck: Slots in flight that a hung thread may still write to.
        total: Number of slots that exist.
    """

    def __init__(self, layout: Any, arena: PoolMemory, *, max_memory: int, in_flight: int) -> None:
        """Make an empty pool.

        Args:
            layout: The layout of a slot: its `nbytes`, whole pages, and its `view`.
            arena: Memory for the slots; the pool does not close it.
            max_memory: Limit for all slots, bytes.
            in_flight: Batches that the loader wants in flight at once; up to half of the slots are reserved for them.

        Raises:
            ValueError: `max_memory` does not hold two slots.
        """
        self.layout = layout
        self.limit: int = max_memory // layout.nbytes
        if self.limit < 2:
            raise ValueError(
                f"max_memory={max_memory:,} bytes is too small: a batch takes {layout.nbytes:,} bytes, and memory for "
                f"at least two are needed. Use max_memory >= {2 * layout.nbytes:,} or a smaller batch_size"
            )
        self._most_leased = self.limit - max(1, min(in_flight, self.limit // 2))
        self._arena = arena
        self._exporter_type = ctypes.c_ubyte * layout.nbytes
        # A lease may end at any moment, even in a thread that holds `_lock`. Its callback appends to `_free` and
        # releases `_returned`, which are both atomic, and takes no lock.
        self._free: deque[Slot] = deque()
        # Released when a slot returns while a thread waits for one. (`SimpleQueue.get` would not do: in Python 3.11, a
        # thread that is woken late and finds the queue empty again waits for ever, whatever the timeout.)
        self._returned = threading.Lock()
        self._returned.acquire()
        self._cold: list[Slot] = []  # free slots without pages
        self._slots: list[Slot] = []
        self._leased: set[Slot] = set()
        self._lock = threading.Lock()
        self._acquired = 0
        self._fewest_free = 0
        self._starving = False
        self._closed = False
        self.stuck = 0
        self.total = 0

    def acquire(self, timeout: float | None = None) -> Slot:
        """Return a slot to fill; at the limit, wait for one.

        This never waits for the consumer.

        Args:
            timeout: How long to wait, s; None is for ever.

        Raises:
            NotYet: No slot became free in this time.
            FeedClosedError: The pool was closed while waiting.
            SceneTimeoutError: Only hung threads could return a slot.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            with self._lock:
                slot = self._take()
                if slot is not None:
                    return slot
                self._starving = True
                self._refuse_if_stuck()
            self._returned.acquire(timeout=0.05)  # bounded: the slot may have returned before `_starving` was set
            if deadline is not None and time.monotonic() >= deadline:
                raise NotYet
        raise FeedClosedError("the feed was closed while a batch waited for memory")

    def _refuse_if_stuck(self) -> None:
        if self.stuck and self.stuck >= self.taken - len(self._leased):
            raise SceneTimeoutError(
                f"threads that hang hold {self.stuck} of the {self.limit} batches that fit into max_memory, so no "
                "further batch can be loaded until they return. Delete batches that you no longer need, raise "
                "max_memory, or use worker_type='process', which ends workers that hang"
            )

    @property
    def taken(self) -> int:
        """Slots in flight or leased."""
        return self.total - len(self._free) - len(self._cold)

    def _take(self) -> Slot | None:
        self._acquired += 1
        if self._acquired % _TRIM_EVERY == 0:
            self._trim()
        try:
            slot = self._free.pop()  # the last one returned is still in the processor's cache
        except IndexError:
            if not self._cold and self.total < self.limit:
                self._grow()
            return self._cold.pop() if self._cold else None
        self._fewest_free = min(self._fewest_free, len(self._free))
        return slot

    def _grow(self) -> None:
        # Doubling keeps the number of segments logarithmic, and so the number of descriptors and maps in workers.
        count = max(1, min(max(2, self.total), self.limit - self.total))
        nbytes = self.layout.nbytes
        memory, segment_offset = self._arena.grow(count * nbytes)
        slots = [
            Slot(memory, segment_offset, offset, self.layout.view(memory, offset))
            for offset in range(0, count * nbytes, nbytes)
        ]
        self._slots.extend(slots)
        self.total += count
        self._cold.extend(slots)

    def _trim(self) -> None:
        # The consumer does not need slots that stayed free during all recent acquisitions.
        for _ in range(max(0, self._fewest_free - 2)):
            try:
                slot = self._free.popleft()
            except IndexError:
                break
            self._cold.append(slot)
            self._arena.discard(slot.memory, slot.offset, self.layout.nbytes)
        self._fewest_free = len(self._free)

    def release(self, slot: Slot) -> None:
        """Return a slot that was acquired and will not be leased."""
        if self._closed:  # other batches may keep the file of all slots alive for a long time
            self._arena.discard(slot.memory, slot.offset, self.layout.nbytes)
            return
        self._free.append(slot)
        if self._starving:
            self._starving = False
            self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # already released
            self._returned.release()

    def lease(self, slot: Slot) -> Any | None:
        """Lease an acquired slot.

        Returns:
            The exporter: an object with the buffer protocol, as long as the slot. The slot is free again when nothing
            refers to it. None at the limit: then the caller copies the batch out of the slot, and releases it.
        """
        exporter = self._exporter_type.from_buffer(slot.memory, slot.offset)
        with self._lock:
            if len(self._leased) >= self._most_leased:
                return None
            self._leased.add(slot)
        weakref.finalize(exporter, self._end_lease, slot).atexit = False
        return exporter

    def _end_lease(self, slot: Slot) -> None:
        self._leased.discard(slot)
        self.release(slot)

    def close(self) -> None:
        """Refuse further `acquire`."""
        self._closed = True
        self._free.clear()
        self._cold.clear()
        self._wake()

    def free(self, *, may_deliver: bool) -> None:
        """Close, and free the memory. Leases stay valid until they end.

        Args:
            may_deliver: Whether a batch in flight may still be delivered. If not, its memory is freed too.
        """
        self.close()
        slots, self._slots = self._slots, []
        for slot in slots:
            if not may_deliver and slot not in self._leased:
                self._arena.discard(slot.memory, slot.offset, self.layout.nbytes)
