"""Chunks that are given before they are full, where their generator pauses.

Invariant: a chunk is closed once, by the thread that runs the generator or by the one that watches it, under its lock;
nothing is added to it after that. What was given early is what its task gives later, too.

A worker cannot answer while the generator's own code waits, so a second thread of it closes the chunk, and says in the
slot that it is there. A consumer that has nothing else looks there.
"""

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.feeds.generators.chunk_codec import ChunkWriter
from kerasfeed.feeds.generators.chunk_slot import ChunkSlot

STALE_SECONDS = 0.01  # a scene waits as long for the next one, up to twice that with the looking
_IDLE_SECONDS = 1.0  # after which the thread ends


class OpenChunk:
    """A chunk that is being filled.

    Attributes:
        lock: Held by whoever adds a scene, or closes the chunk.
        data: The chunk, uint8[bytes], once it is closed.
        touched: When the last scene came, s of `time.perf_counter`.
    """

    def __init__(self, writer: ChunkWriter, slot: ChunkSlot, serial: int, head: Any) -> None:
        """Fill `slot` by `writer`, for the task `serial`; `head` is that of the chunk if its generator goes on."""
        self.lock = threading.Lock()
        self.data: NDArray[np.uint8] | None = None
        self.touched = 0.0
        self._writer = writer
        self._slot = slot
        self._serial = serial
        self._head = head

    def close(self, head: Any) -> NDArray[np.uint8]:
        """The chunk, by the thread that fills it."""
        with self.lock:
            if self.data is None:
                self.data = self._writer.finish(head)
            return self.data

    def give_early(self) -> None:
        """Close the chunk, and say in its slot that it is there; where it is not there, its task gives it later."""
        with self.lock:
            if self.data is None:
                self.data = self._writer.finish(self._head)
                if np.may_share_memory(self.data, self._slot.room):
                    self._slot.control[3] = len(self.data)
                    self._slot.control[2] = self._serial


class ChunkWatch:
    """The thread of one worker that gives chunks early; it runs as long as there are some to watch."""

    def __init__(self) -> None:
        self._chunk: OpenChunk | None = None
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._runs = self._closed = False

    def watch(self, chunk: OpenChunk) -> None:
        """Watch a chunk that has a scene."""
        with self._lock:  # the thread, which ends when it is idle, has seen this, or has ended
            self._chunk = chunk
            self._awake.set()
            if not self._runs and not self._closed:
                self._runs = True
                threading.Thread(target=self._run, name="kerasfeed-chunks", daemon=True).start()

    def forget(self) -> None:
        """The chunk is closed."""
        self._chunk = None

    def close(self) -> None:
        """End the thread; idempotent."""
        self._closed = True
        self._awake.set()

    def _run(self) -> None:
        while not self._closed:
            if not self._awake.wait(_IDLE_SECONDS):
                with self._lock:
                    if not self._awake.is_set():
                        self._runs = False
                        return
            self._awake.clear()
            while not self._closed and (chunk := self._chunk) is not None:
                late = chunk.touched + STALE_SECONDS - time.perf_counter()
                if late <= 0:
                    with self._lock:  # else it might forget the chunk that has come after this one
                        if self._chunk is chunk:
                            self._chunk = None
                    chunk.give_early()
                else:
                    del chunk
                    time.sleep(max(late, STALE_SECONDS / 2))
        with self._lock:
            self._runs = False
