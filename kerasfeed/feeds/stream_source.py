"""`GeneratorSource`: the generators of a feed, run in the calling thread or by workers, repetition after repetition.

Invariant: the items of a repetition are the same, in the same order if that is fixed, wherever the generators run. A
generator that has raised is over; the others continue as far as `on_error` allows it.

With workers, generator k of a repetition lives in worker `k % workers`. If it is lost with its worker, it is run again
up to the scene that is next, which only the merge knows.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from itertools import islice
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning, TooManyFailuresError
from kerasfeed.feeds.stream_merge import Lane, Left, Merge
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.failure_log import FailureLog, FailurePolicy
from kerasfeed.loaders.generator_pool import BlockFuture, GeneratorPool
from kerasfeed.loaders.generator_runner import GO_ON, Block, Kind, scenes_in
from kerasfeed.loaders.generators import ENDED, GeneratorRun, Generators, named
from kerasfeed.pool.base import CLOSED
from kerasfeed.pool.environment import Environment
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.error_text import add_note, counted, exception_text, is_the_programs, notes_of

_PAUSE_SECONDS = 0.01  # after which the scenes that a worker has so far are taken
_NO_NOTE = [0, 0]  # nothing watches the calling thread


class GeneratorSource:
    """Generators, and the workers that run them.

    Attributes:
        generators: What runs.
        failure_log: The record of failures: `index` is `position * count + n`, the scene's number in the repetition as
            long as no generator has ended; `epoch` is the repetition.
        is_share: Whether other shards have generators of their own, so that the number of their items is unknown.
        in_turn: Whether the generators take turns.
        pool: The workers; None if the generators run in the calling thread.
        failed: Numbers of the generators that have failed, in any repetition.
    """

    def __init__(
        self,
        generators: Generators,
        policy: FailurePolicy,
        *,
        workers: int = 0,
        worker_type: str = "auto",
        deterministic: bool = True,
        max_memory: int = 1 << 30,
        environment: Environment | None = None,
    ) -> None:
        """Start the workers, without waiting for them.

        Args:
            generators: What to run.
            policy: What to do about generators that fail.
            workers: How many; never more than there are generators. 0 runs them in the calling thread; items may then
                be of any kind.
            worker_type: "process", "thread", or "auto": processes if the generators can be sent there.
            deterministic: Whether generators take turns; else items come as they are ready.
            max_memory: Upper limit of the memory of blocks, bytes.
            environment: Directory and environment of worker processes; None is the present ones.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        self.generators = generators
        self.failure_log = FailureLog(policy, generators.count)
        self.is_share = len(generators.numbers) < generators.count
        self.in_turn = deterministic or not workers
        self.failed: set[int] = set()
        self.pool: GeneratorPool | None = None
        self._closed = False
        if workers:
            self.pool = GeneratorPool(
                generators, self.failure_log, workers=workers, worker_type=worker_type, max_memory=max_memory,
                environment=environment or Environment.now(),
            )  # fmt: skip

    def begin(self, repetition: int, items: int = 0, ended: Sequence[tuple[int, int]] = ()) -> "SourceRun":
        """Begin a repetition behind its first `items` items; see `Merge` for `ended`.

        Raises:
            FeedClosedError: The source is closed.
        """
        self.refuse_closed()
        return SourceRun(self, repetition, items, ended)

    def refuse_closed(self) -> None:
        """Raise if the source is closed.

        Raises:
            FeedClosedError: It is.
        """
        if self._closed:
            raise FeedClosedError(CLOSED)

    def stats(self) -> LoaderStats | None:
        """Counters of the workers, if there are any; a batch is a block here."""
        return None if self.pool is None else self.pool.stats()

    def close(self) -> None:
        """End the workers; idempotent."""
        self._closed = True
        if self.pool is not None:
            self.pool.close()


class _SourceLane:
    """What supplies one lane.

    Attributes:
        run: What runs in the calling thread; None if a worker runs the generator.
        pending: Promises of the next blocks, in their order.
        start: The scene with which the next requested block begins; `GO_ON` to continue.
        error: Raised after the scenes that have come.
    """

    def __init__(self, run: GeneratorRun | None, start: int) -> None:
        self.run = run
        self.pending: deque[BlockFuture] = deque()
        self.start = start
        self.error: BaseException | None = None


class SourceRun:
    """One repetition of a source. One thread takes; any thread may call `leave`."""

    def __init__(self, source: GeneratorSource, repetition: int, items: int, ended: Sequence[tuple[int, int]]) -> None:
        """See `GeneratorSource.begin`."""
        generators = source.generators
        self._source, self._repetition, self._pool = source, repetition, source.pool
        self._merge = Merge(generators.numbers, items, ended, in_turn=source.in_turn)
        self._supplies: dict[Lane, _SourceLane] = {}
        for lane in self._merge.lanes:
            run = None if self._pool else GeneratorRun(generators, lane.n, repetition, lane.position)
            self._supplies[lane] = _SourceLane(run, lane.position)
        self._failed = 0  # generators of this repetition
        self._kinds: dict[bytes, Kind] = {}  # of scenes that have come from workers
        self._taking = threading.Lock()  # held by the thread that takes
        self._left = False
        for _ in range(self._pool.depth if self._pool is not None else 0):
            for lane, supply in self._supplies.items():
                if not lane.ended:
                    self._ask(lane, supply)

    @property
    def ended(self) -> tuple[tuple[int, int], ...]:
        """See `Merge.ended`."""
        return self._merge.ended

    def take(self, limit: int) -> list[Any]:
        """The next items, at least 1 and at most `limit`; none at the end of the repetition. Waits.

        Raises:
            Exception: What a generator raised; a note names the generator and the scene. The items before it have been
                returned by earlier calls.
            Left: The repetition was left.
            FeedClosedError: The source is closed.
        """
        items: list[Any] = []
        try:
            with self._taking:
                over = self._left
                while not over:
                    if self._pool is not None and not self._source.in_turn:
                        self._collect_all()
                    items += self._merge.take(limit - len(items))
                    over = self._left or len(items) == limit or not self._supply(waits=not items)
        finally:
            if self._left:
                self._end_generators()
        if self._left and not items:
            self._source.refuse_closed()
            raise Left
        return items

    def leave(self) -> None:
        """Stop working ahead; idempotent. A `take` that waits returns or raises soon."""
        self._left = True
        for supply in list(self._supplies.values()):
            self._drop_pending(supply)
        self._end_generators()

    def _end_generators(self) -> None:
        """End the generators of the calling thread, and drop all scenes; if a thread takes, it does that instead."""
        if self._taking.acquire(blocking=False):
            try:
                for supply in self._supplies.values():
                    if supply.run is not None:
                        supply.run.end()
                self._supplies.clear()
                self._merge.lanes.clear()
            finally:
                self._taking.release()

    # ---- supplying

    def _supply(self, *, waits: bool) -> bool:
        """Bring the next scene nearer; False if there is none, or if that takes waiting or raising and `waits` is not.

        Raises:
            Exception: What a generator raised.
        """
        lanes = self._merge.lanes
        while lanes and not self._left:
            awaited = list(islice(lanes, 1 if self._source.in_turn else None))
            for lane in awaited:
                supply = self._supplies[lane]
                if supply.error is None and supply.pending and not supply.pending[0].done():
                    continue
                if supply.error is not None and not waits:
                    return False
                self._advance(lane, supply)
                return True
            if not waits:
                return False
            pending = [self._supplies[lane].pending[0] for lane in awaited]
            if not wait(pending, _PAUSE_SECONDS, FIRST_COMPLETED).done:
                for lane in awaited:
                    self._take_early(lane)
            if any(lane.scenes for lane in awaited):
                return True
        return False

    def _advance(self, lane: Lane, supply: _SourceLane) -> None:
        if supply.error is not None:
            self._fail(lane, supply.error)
        elif supply.run is not None:
            self._make(lane, supply, supply.run)
        else:
            self._collect(lane, supply)

    def _collect_all(self) -> None:
        """Collect the blocks that have come, so that all generators with scenes take part."""
        for lane in self._merge.lanes:
            pending = self._supplies[lane].pending
            if not (lane.scenes or lane.ended) and pending and pending[0].done():
                self._collect(lane, self._supplies[lane])

    def _make(self, lane: Lane, supply: _SourceLane, run: GeneratorRun) -> None:
        """Make the next item of a generator in this thread; items that were given before are thrown away."""
        try:
            with run.context:
                item = run.next(_NO_NOTE)
                while item is not ENDED and run.position <= lane.position and not self._left:
                    item = run.next(_NO_NOTE)
        except BaseException as error:  # whatever it is, the policy decides
            if is_the_programs(error):
                raise
            supply.error = named(error, lane.n, self._source.generators.count, lane.position, self._repetition)
            return
        if item is ENDED:
            lane.ended = True
            if run.position < lane.position:
                self._warn_of_end(lane, run.position)
        elif run.position > lane.position:
            lane.add([own_copy(item)])

    def _collect(self, lane: Lane, supply: _SourceLane) -> None:
        """Add the scenes of the next block, which has come, and request others."""
        assert self._pool is not None
        if not supply.pending:
            self._ask(lane, supply)
            return
        future = supply.pending[0]
        try:
            block: Block | BaseException = future.result()
        except CancelledError:  # the consumer has left
            return
        except Exception:  # no generator's fault: the workers were closed, or have failed
            self.leave()
            raise
        finally:
            supply.pending.popleft()
        if isinstance(block, BaseException):
            supply.error = block
        elif block.lost:  # with its worker: the generator is run again, up to the scene that is next
            self._drop_pending(supply)
            supply.start = lane.received
        else:
            known = lane.received - block.position  # scenes of it that have come early
            if known > 0 and not future.given:  # it was run again, and has nothing more
                self._warn_of_end(lane, block.position)
            lane.add(islice(scenes_in(block.data, self._kinds), known if future.given else 0, None))
            lane.ended = lane.ended or block.ended
        if lane.ended or supply.error is not None:
            self._drop_pending(supply)
        while supply.error is None and not lane.ended and len(supply.pending) < self._pool.depth:
            self._ask(lane, supply)

    def _take_early(self, lane: Lane) -> None:
        """Add the scenes that there are of a block while its generator pauses."""
        block = self._supplies[lane].pending[0].early(lane.received)
        if block is not None:
            lane.add(islice(scenes_in(block.data, self._kinds), lane.received - block.position, None))

    def _ask(self, lane: Lane, supply: _SourceLane) -> None:
        assert self._pool is not None
        start, supply.start = supply.start, GO_ON
        future = self._pool.ask(lane.n, start, self._repetition)
        supply.pending.append(future)
        if self._left:
            future.cancel()

    def _drop_pending(self, supply: _SourceLane) -> None:
        for future in list(supply.pending):
            future.cancel()
        if not self._left:
            supply.pending.clear()

    # ---- failing

    def _fail(self, lane: Lane, error: BaseException) -> None:
        """Record that a generator failed, and continue without it, or end the repetition.

        Raises:
            Exception: `error` itself, or TooManyFailuresError.
        """
        self._drop_pending(self._supplies[lane])
        self._merge.drop(lane)
        log, generators = self._source.failure_log, self._source.generators
        try:
            log.note(lane.position * generators.count + lane.n, self._repetition, None, error)
            if log.policy.on_error == "raise":
                raise error
            refusal = self._refusal(lane, error)
            if refusal is not None:
                raise refusal from error
        except BaseException:
            self.leave()
            raise

    def _refusal(self, lane: Lane, error: BaseException) -> TooManyFailuresError | None:
        """What ends the repetition because one more generator has failed; None if it continues."""
        policy, ever, count = self._source.failure_log.policy, self._source.failed, len(self._source.generators.numbers)
        ever.add(lane.n)
        self._failed += 1
        most = policy.most_failed(count)
        is_asked_for = isinstance(policy.max_failures, int)  # a count; the default keeps one generator at least
        if len(ever) <= most and (is_asked_for or self._failed < count):
            return None
        why = (
            f"{len(ever)} of {counted(count, 'generator')} failed and on_error={policy.on_error!r} allows {most}"
            if len(ever) > most
            else f"all of {counted(count, 'generator')} failed in repetition {self._repetition}"
        )
        refusal = TooManyFailuresError(
            f"{why}. The last was generator {lane.n}, at its scene {lane.position}: {exception_text(error)}. "
            "feed.failures lists them; repair the generators, or catch in them what may be passed over"
        )
        for note in notes_of(error):
            add_note(refusal, note)
        return refusal

    def _warn_of_end(self, lane: Lane, scenes: int) -> None:
        self._source.failure_log.deferred_warnings.defer(
            "shorter",
            f"generator {lane.n} was run again, to go on behind its scene {lane.received - 1}, and has ended after "
            f"{counted(scenes, 'scene')}: it gives other scenes than before, so the stream is not the same. "
            "Make it depend on its arguments alone: draw from `rng`, sort its files",
            FeedWarning,
        )
