"""The workers that run generators: one pool, and blocks of scenes as its tasks.

Invariant: a generator is always asked for at the same worker, and a worker serves in the order in which it is asked. A
pool that has failed stays failed; its user makes another.

Errors name the generator that was at work. A slot is given back once, when no worker can write to it any more.
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
from kerasfeed.loaders.generator_runner import BLOCK, HEADER, Block, BlockLayout, GeneratorRunner, Word
from kerasfeed.loaders.generators import Generators, named
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool, PoolOptions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.task import NOWHERE, Crash, FutureTask, Place, Record, Task

_serials = itertools.count(1)


class BlockFuture(SlotFuture):
    """The promise of a `Block`, whose first scenes may be read before it is done."""

    _given = 0  # bytes of it
    _looked = 0  # bytes that were there at the last call

    def early(self) -> Block | None:
        """A copy of the block so far, if it has new scenes, and none since the last call: the generator pauses."""
        view = self._slot.view
        control = view.control
        nbytes = control[Word.BYTES] if control[Word.SERIAL] == self._serial else 0
        looked, self._looked = self._looked, nbytes
        if not self._given < nbytes == looked:
            return None
        block = Block.of(view.room[:nbytes].copy(), view)
        if control[Word.SERIAL] != self._serial:  # the slot has another task
            return None
        self._given = nbytes
        return block


class GeneratorPool:
    """Workers of one kind, and the slots of their blocks.

    Attributes:
        depth: Blocks of each generator that are worth asking for ahead.
        pool: The workers.
        slots: Memory of blocks.
        generators: What is run.
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
            generators: What to run.
            failure_log: The policy, and where warnings go.
            workers: How many, at least 1; never more than there are generators.
            worker_type: "process", "thread", or "auto": processes if the generators can be sent there.
            max_memory: Upper limit of the memory of blocks, bytes.
            environment: Directory and environment of worker processes.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        self.generators = generators
        policy, count = failure_log.policy, len(generators.numbers)
        size = max(1, min(workers, count))
        self.depth = 3 if count <= 4 * size else 2
        most = count * self.depth + size  # blocks in flight
        # Finished blocks wait for their turn, and the scenes of other blocks are still referenced.
        layout = BlockLayout.sharing(max_memory, 2 * most + 3 * count + 4 * size)
        options = PoolOptions(
            workers=size, who=f"the feed of {generators.name}", seed=generators.seed, timeout=policy.timeout,
            # A block is tried twice at least: the scenes before the one that ended the worker come then.
            tries=max(2, policy.tries),
            addressed=True, environment=environment, deferred_warnings=failure_log.deferred_warnings,
        )  # fmt: skip
        self.pool: Pool = make_pool(GeneratorRunner(generators, layout), options, worker_type)
        try:
            self.slots = SlotPool(layout, self.pool.memory, max_memory=max_memory, in_flight=most)
        except BaseException:
            self.pool.close()
            raise
        self.pool.on_failure = self.slots.close  # wakes threads that wait for memory
        self._stuck: set[BlockTask] = set()  # a thread that was given up may still write to their slots

    def submit(self, n: int, start: int, repetition: int) -> BlockFuture:
        """Promise the next `Block` of a generator, or what the generator has raised, as the result.

        Args:
            n: Number of the generator.
            start: The scene to begin with; `GO_ON` for going on.
            repetition: Number of the repetition.

        Raises:
            FeedClosedError: The workers were closed.
            WorkerDiedError: They have failed.
        """
        try:
            slot = self.slots.acquire()
        except FeedClosedError:  # the slots close with the pool: say why that ended
            raise self.pool.failure or FeedClosedError(CLOSED_BEFORE_DONE) from None
        try:
            serial = next(_serials)
            worker = self.generators.numbers.index(n) % self.pool.options.workers
            future = BlockFuture(slot, serial)
            task = BlockTask(
                BLOCK, n, worker, future, blocks=self, held=[slot], slot=slot, start=start, repetition=repetition,
                serial=serial,
            )  # fmt: skip
            self.pool.submit([task])
        except Exception:  # it was not sent
            self.slots.release(slot)
            raise
        return future

    def block(self, task: "BlockTask", payload: NDArray[np.uint8] | None) -> Block:
        """The block of a task that was done, whose memory is free again when nothing refers to it.

        Args:
            task: The task.
            payload: Its scenes, where they had no room in the slot.
        """
        view = task.slot.view
        if payload is None:
            nbytes = view.control[Word.BYTES]
            exporter = self.slots.lease(task.slot)
            if exporter is not None:
                task.held.clear()
                return Block.of(np.ndarray((nbytes,), np.uint8, exporter, HEADER), view)
            payload = view.room[:nbytes].copy()
        return Block.of(payload, view)

    def release(self, task: "BlockTask") -> None:
        """Give the slot of a task back, unless that was done before, or it was leased."""
        with self.pool.lock:
            self._stuck.discard(task)
            self.slots.stuck = len(self._stuck)
        if task.held:
            self.slots.release(task.held.pop())

    def note_stuck(self, task: "BlockTask") -> None:
        """Note that a thread hangs in a task; it may still write to the slot, so that stays in flight."""
        with self.pool.lock:
            if task.held:
                self._stuck.add(task)
            self.slots.stuck = len(self._stuck)

    def close(self) -> None:
        """End the workers and free everything; idempotent. Blocks already delivered stay valid."""
        if not self.pool.is_here:
            return
        self.slots.close()  # whoever waits for one need not wait for the workers
        self.pool.close()
        self.slots.free(flying=False)
        self._stuck.clear()  # tasks refer to this object: only the collector would free them


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockTask(FutureTask):
    """The next block of generator `number`, into a slot.

    Attributes:
        blocks: Whose task it is.
        held: The slot where the block goes, alone in a list, until it is leased or released.
        slot: The same, also after that.
        start: The scene to begin with, in a new generator; `GO_ON` for going on.
        repetition: Number of the repetition.
        serial: Unique in the process, so that a cancellation that comes late cannot touch the slot's next block.
    """

    blocks: GeneratorPool
    held: list[Slot]
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
        """See `Task.done`; the payload is a block that had no room in the slot."""
        try:
            if self.held and not self.future.done():
                self.set_result(self.blocks.block(self, payload))
        finally:
            self.blocks.release(self)  # unless it was leased
        return ()

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        assert place.scene is not None
        self.blocks.release(self)
        self._fail(error, place.scene, worker, traceback)
        return ()

    def crashed(self, note: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        self.blocks.release(self)
        self._fail(crash.kind(ending_text(crash, count)), note)
        return ()

    def cancelled(self) -> None:
        """See `Task.cancelled`."""
        self.blocks.release(self)

    def stuck(self, note: int, crash: Crash) -> None:
        """See `Task.stuck`; the slot stays in flight until the thread is back."""
        self.blocks.note_stuck(self)
        self._fail(crash.kind(f"{self.text(note)} {crash.thread_text}"), note)

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else f"scene {note} of generator {self.number} (repetition {self.repetition})"

    def _fail(self, error: BaseException, position: int, worker: str = "", traceback: str = "") -> None:
        count = self.blocks.generators.count
        self.set_result(named(error, self.number, count, position, self.repetition, worker, traceback))
