"""The pool of workers that run generators, in blocks of scenes.

Invariant: all requests for a generator go to the same worker, and a worker answers requests in order. A failed pool
stays failed; the caller makes a new one.

Errors name the generator. A slot is released once, when no worker can write to it any more.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.batches.slots import Slot, SlotFuture, SlotPool
from kerasfeed.loaders.failures.exceptions import ending_text
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.generators import BLOCK, HEADER, Block, BlockLayout, GeneratorRunner, Generators, generator_error
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool, PoolOptions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.task import NOWHERE, Crash, FailurePosition, FutureTask, Record, Task

_serials = itertools.count(1)


class GeneratorPool:
    """Workers of one type, and the slots of their blocks.

    Attributes:
        depth: Number of blocks of each generator to request ahead.
        pool: The workers.
        slots: Memory of blocks.
        generators: The generators to run.
    """

    def __init__(
        self,
        generators: Generators,
        failure_log: FailureLog,
        *,
        workers: int,
        worker_type: str,
        max_memory: int,
        environment: Environment,
    ) -> None:
        """Start the workers, without waiting for them.

        Args:
            generators: The generators to run.
            failure_log: Holds the policy and receives warnings.
            workers: Maximum number of workers, at least 1; there are never more workers than generators.
            worker_type: "process", "thread", or "auto": processes if the generators can be pickled.
            max_memory: Upper limit of the memory of blocks, bytes.
            environment: Directory and environment of worker processes.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: Worker processes cannot start.
        """
        self.generators = generators
        policy, count = failure_log.policy, len(generators.numbers)
        size = max(1, min(workers, count))
        self.depth = 3 if count <= 4 * size else 2
        in_flight = count * self.depth + size  # blocks
        # Slots also hold finished blocks before their turn, and blocks with referenced scenes.
        layout = BlockLayout.sharing(max_memory, 2 * in_flight + 3 * count + 4 * size)
        options = PoolOptions(
            workers=size, owner=f"the feed of {generators.name}", seed=generators.seed, timeout=policy.timeout,
            # At least two tries: the second delivers the scenes before the scene that ended the worker.
            tries=max(2, policy.tries),
            addressed=True, environment=environment, deferred_warnings=failure_log.deferred_warnings,
        )  # fmt: skip
        self.pool: Pool = make_pool(GeneratorRunner(generators, layout), options, worker_type)
        try:
            self.slots = SlotPool(layout, self.pool.memory, max_memory=max_memory, in_flight=in_flight)
        except BaseException:
            self.pool.close()
            raise
        self.pool.on_failure = self.slots.close  # wakes threads that wait for memory
        # Tasks that hold their slots, and whether a hung thread may still write to the slot.
        self._in_flight: dict[BlockTask, bool] = {}

    def submit(self, n: int, start: int, repetition: int) -> SlotFuture:
        """Request the next `Block` of a generator.

        Args:
            n: Number of the generator.
            start: First scene of a new run; `CONTINUE` to continue the current run.
            repetition: Number of the repetition.

        Returns:
            A future whose result is the block or, also as a result, the exception to raise for the generator.

        Raises:
            FeedClosedError: The pool is closed.
            WorkerDiedError: The pool has failed.
            SceneTimeoutError: Only hung threads could return a slot.
        """
        try:
            slot = self.slots.acquire()
        except FeedClosedError:  # the slots close with the pool: raise the failure of the pool instead
            raise self.pool.failure or FeedClosedError(CLOSED_BEFORE_DONE) from None
        serial = next(_serials)
        worker = self.generators.numbers.index(n) % self.pool.options.workers
        future = SlotFuture(slot, serial)
        task = BlockTask(
            BLOCK, n, worker, future, blocks=self, slot=slot, start=start, repetition=repetition, serial=serial
        )
        self._in_flight[task] = False
        try:
            self.pool.submit([task])
        except Exception:  # the task was not sent
            self.release(task)
            raise
        return future

    def deliver(self, task: "BlockTask", data: NDArray[np.uint8] | None) -> None:
        """Set the result of a finished task.

        Its slot is released with the last reference to the block.

        Args:
            task: The task.
            data: The scenes, uint8[bytes], if they did not fit in the slot; else None.
        """
        with self.pool.lock:
            if task not in self._in_flight or task.future.done():
                return
            view = task.slot.view
            nbytes, length, lost = view.control[1:].tolist()
            if data is None and (exporter := self.slots.lease(task.slot)) is not None:
                del self._in_flight[task]
                data = np.ndarray((nbytes,), np.uint8, exporter, HEADER)
        block = view.room[:nbytes].copy() if data is None else data
        task.set_result(Block(block, length if length >= 0 else None, bool(lost)))

    def release(self, task: "BlockTask") -> None:
        """Release the slot of a task unless it is released or leased."""
        with self.pool.lock:
            was_stuck = self._in_flight.pop(task, None)
            self.slots.stuck -= bool(was_stuck)
        if was_stuck is not None:
            self.slots.release(task.slot)

    def mark_stuck(self, task: "BlockTask") -> None:
        """Keep the slot of a stuck task in flight.

        The hung thread may still write to the slot.
        """
        with self.pool.lock:
            if self._in_flight.get(task) is False:
                self._in_flight[task] = True
                self.slots.stuck += 1

    def close(self) -> None:
        """End the workers and free everything; idempotent. Blocks already delivered stay valid."""
        if not self.pool.is_here:
            return
        self.slots.close()  # first: wakes threads that wait for a slot before the workers end
        self.pool.close()
        self.slots.free(may_deliver=False)
        self._in_flight.clear()  # breaks a reference cycle: tasks refer to this object


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockTask(FutureTask):
    """The next block of generator `number`, into a slot.

    Attributes:
        blocks: The pool of the task.
        slot: The slot, also after its release.
        start: First scene of a new run; `CONTINUE` to continue the current run.
        repetition: Number of the repetition.
        serial: Unique in the process, so that a late cancellation cannot affect the slot's next block.
    """

    blocks: GeneratorPool
    slot: Slot
    start: int
    repetition: int
    serial: int

    def record(self) -> Record:
        """See `Task.record`."""
        slot = self.slot
        return (
            self.kind, self.number, self.start, self.repetition, self.serial, slot.segment_offset, len(slot.memory),
            slot.offset,
        )  # fmt: skip

    def done(self, payload: Any, seconds: float, worker: str) -> Sequence[Task]:
        """See `Task.done`; the payload is a block larger than the slot."""
        try:
            self.blocks.deliver(self, payload)
        finally:
            self.blocks.release(self)  # no effect on a leased slot
        return ()

    def failed(self, position: FailurePosition, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        assert position.scene is not None
        self.blocks.release(self)
        self._fail(error, position.scene, worker, traceback)
        return ()

    def crashed(self, position: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        self.blocks.release(self)
        self._fail(crash.kind(ending_text(crash, count)), position)
        return ()

    def cancelled(self) -> None:
        """See `Task.cancelled`."""
        self.blocks.release(self)

    def stuck(self, position: int, crash: Crash) -> None:
        """See `Task.stuck`; the slot stays in flight until the thread returns."""
        self.blocks.mark_stuck(self)
        self._fail(crash.kind(f"{self.text(position)} {crash.thread_text}"), position)

    def text(self, position: int) -> str:
        """See `Task.text`."""
        if position == NOWHERE:
            return ""
        return f"scene {position} of generator {self.number} (repetition {self.repetition})"

    def _fail(self, error: BaseException, position: int, worker: str = "", traceback: str = "") -> None:
        count = self.blocks.generators.count
        self.set_result(generator_error(error, self.number, count, position, self.repetition, worker, traceback))
