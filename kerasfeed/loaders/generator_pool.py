"""The workers that run generators: one pool, and blocks of scenes as its tasks.

Invariant: a generator is always asked for at the same worker, and a worker serves in the order in which it is asked. A
pool that has failed stays failed; the next block that is asked for starts another.

What has failed is told in the words of a stream, here where it is known which generator was at work. The future gives
the block, or the error of the generator; it raises what is no generator's fault. A slot is given back once, when no
worker can write to it any more.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.batches.slots import Slot, SlotFuture, SlotPool
from kerasfeed.loaders.failures.exceptions import ending_text
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.generator_runner import BLOCK, HEADER, Block, BlockLayout, GeneratorRunner, Word
from kerasfeed.loaders.generators import Generators, named
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool, PoolOptions, Sessions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.task import NOWHERE, Crash, FutureTask, Place, Record, Task

_serials = itertools.count(1)


class BlockFuture(SlotFuture):
    """The promise of a `Block`, whose first scenes may be read before it is done.

    Attributes:
        given: Bytes of it that were.
    """

    given = 0
    _looked = 0  # bytes that were there the last time

    def early(self, position: int) -> Block | None:
        """A copy of what there is of it, where that is more than was given, and no more than at the last call.

        Args:
            position: Number of the scene that it must begin with, unless some were given.
        """
        view, looked = self._slot.view, self._looked
        self._looked = self._made()
        if not self.given < self._looked == looked or not (self.given or view.control[Word.POSITION] == position):
            return None
        found = Block.of(view.room[:looked].copy(), view)
        if self._made() < looked:  # its worker has died, or the slot has another task
            return None
        self.given = looked
        return found

    def _made(self) -> int:
        control = self._slot.view.control
        nbytes: int = control[Word.BYTES] if control[Word.SERIAL] == self._serial else 0
        return nbytes


class BlockSession:
    """One pool, and the slots of its blocks.

    Attributes:
        pool: The workers.
        slots: Memory of blocks.
        generators: What is run.
        blocks: Delivered so far.
        copied: Of these, copied out of their slots.
    """

    def __init__(self, pool: Pool, slots: SlotPool, generators: Generators) -> None:
        """Ask the workers of `pool` for blocks, in `slots`, of `generators`."""
        self.pool = pool
        self.slots = slots
        self.generators = generators
        self.blocks = 0
        self.copied = 0
        self._stuck: set[BlockTask] = set()  # a thread that was given up may still write to their slots
        pool.on_failure = slots.close  # whoever waits for memory is to know

    def submit(self, n: int, start: int, repetition: int) -> BlockFuture:
        """Promise a block; see `GeneratorPool.ask`."""
        try:
            slot = self.slots.acquire()
        except FeedClosedError:  # the slots close with the pool: say why that ended
            raise self.pool.failure or FeedClosedError(CLOSED_BEFORE_DONE) from None
        try:
            serial = next(_serials)
            worker = self.generators.numbers.index(n) % self.pool.options.workers
            future = BlockFuture(slot, serial)
            task = BlockTask(
                BLOCK, n, worker, future, session=self, held=[slot], slot=slot, start=start, repetition=repetition,
                serial=serial,
            )  # fmt: skip
            self.pool.submit([task])
        except Exception:  # it was not sent
            self.slots.release(slot)
            raise
        return future

    def block(self, task: "BlockTask", payload: NDArray[np.uint8] | None) -> Block | None:
        """The block of a task that was done, whose memory is free again when nothing refers to it.

        Args:
            task: The task.
            payload: Its scenes, where they had no room in the slot.
        """
        try:
            if not task.held or task.future.done():
                return None
            self.blocks += 1
            view = task.slot.view
            if payload is None:
                nbytes = view.control[Word.BYTES]
                exporter = self.slots.lease(task.slot)
                if exporter is not None:
                    task.held.clear()
                    return Block.of(np.ndarray((nbytes,), np.uint8, exporter, HEADER), view)
                payload = view.room[:nbytes].copy()
                self.copied += 1
            return Block.of(payload, view)
        finally:
            self.release(task)  # unless it was leased

    def release(self, task: "BlockTask") -> None:
        """Give the slot of a task back, unless that was done before, or it was leased."""
        if task.held:
            self.slots.release(task.held.pop())
        self.note_stuck(task)

    def note_stuck(self, task: "BlockTask") -> None:
        """Note whether a task that a thread hangs in has its slot yet, to which the thread may still write."""
        with self.pool.lock:
            (self._stuck.add if task.held else self._stuck.discard)(task)
            self.slots.stuck = len(self._stuck)

    def close(self) -> None:
        """End the workers and free everything; idempotent. Blocks already delivered stay valid."""
        if not self.pool.is_here:
            return
        self.slots.close()  # whoever waits for one need not wait for the workers
        self.pool.close()
        self.slots.free(flying=False)
        self._stuck.clear()  # tasks refer to this session: only the collector would free them


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockTask(FutureTask):
    """The next block of generator `number`, into a slot.

    Attributes:
        session: Whose task it is.
        held: The slot where the block goes, alone in a list, until it is leased or released.
        slot: The same, also after that.
        start: The scene to begin with, in a generator made afresh; `GO_ON` for going on.
        repetition: Number of the repetition.
        serial: Unique in the process, so that a cancellation that comes late cannot touch the slot's next block.
    """

    session: BlockSession
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
        self.set_result(self.session.block(self, payload))
        return ()

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        assert place.scene is not None
        return self._fail(self._named(error, place.scene, worker, traceback))

    def crashed(self, note: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        remedy = "To go on without generators that do so use on_error='skip'"
        return self._fail(self._named(crash.kind(f"{ending_text(crash, count)} {remedy}"), note))

    def cancelled(self) -> None:
        """See `Task.cancelled`."""
        self.session.release(self)

    def stuck(self, note: int, crash: Crash) -> None:
        """See `Task.stuck`; the slot stays in flight until the thread is back."""
        self.session.note_stuck(self)
        self.set_result(self._named(crash.kind(f"{self.text(note)} {crash.thread_text}"), note))

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else f"scene {note} of generator {self.number} (repetition {self.repetition})"

    def _fail(self, error: BaseException) -> Sequence[Task]:
        self.session.release(self)
        self.set_result(error)
        return ()

    def _named(self, error: BaseException, position: int, worker: str = "", traceback: str = "") -> BaseException:
        return named(error, self.number, self.session.generators.count, position, self.repetition, worker, traceback)


class GeneratorPool:
    """Workers of one kind, at least one.

    Attributes:
        depth: Blocks of each generator that are worth asking for ahead.
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
        """Start them, without waiting; see `GeneratorSource` for the arguments.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        self._generators = generators
        policy, count = failure_log.policy, len(generators.numbers)
        size = max(1, min(workers, count))
        self.depth = 3 if count <= 4 * size else 2
        self._most = count * self.depth + size  # blocks in flight
        self._max_memory = max_memory
        # What has arrived waits for its turn, and scenes of other blocks are held.
        self._layout = BlockLayout.sharing(max_memory, 2 * self._most + 3 * count + 4 * size)
        self._runner = GeneratorRunner(generators, self._layout)
        self._sessions: Sessions[BlockSession] = Sessions(self, forks=False)
        self._options = PoolOptions(
            workers=size, who=f"the feed of {generators.name}", seed=generators.seed, timeout=policy.timeout,
            # Failures are dealt with by whoever joins the generators; of the workers it is only wanted that they are
            # replaced. A block is tried twice at least: the scenes before the one that ended the worker come then.
            tries=max(2, policy.tries),
            addressed=True, environment=environment, deferred_warnings=failure_log.deferred_warnings,
        )  # fmt: skip
        self._worker_type = worker_type
        self._sessions.current(self._start)

    def _start(self) -> BlockSession:
        pool = make_pool(self._runner, self._options, self._worker_type)
        try:
            self._worker_type = pool.worker_type
            slots = SlotPool(self._layout, pool.memory, max_memory=self._max_memory, in_flight=self._most)
        except BaseException:
            pool.close()
            raise
        return BlockSession(pool, slots, self._generators)

    def ask(self, n: int, start: int, repetition: int) -> BlockFuture:
        """Promise the next `Block` of a generator, or what it has raised, as the result.

        Args:
            n: Number of the generator.
            start: The scene to begin with; `GO_ON` for going on.
            repetition: Number of the repetition.

        Raises:
            FeedClosedError: The workers were closed.
            WorkerDiedError: They have failed.
        """
        return self._sessions.current(self._start).submit(n, start, repetition)

    def stats(self) -> LoaderStats:
        """Counters; a batch is a block here."""
        session = self._sessions.present
        blocks, copied, slots = (session.blocks, session.copied, session.slots.total) if session else (0, 0, 0)
        pids = session.pool.pids() if session else ()
        return LoaderStats(
            self._worker_type, self._options.workers, blocks, copied, slots, self._layout.nbytes, pids,
            self._sessions.respawns,
        )  # fmt: skip

    def close(self) -> None:
        """End them; idempotent."""
        self._sessions.close()
