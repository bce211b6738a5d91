"""`SourceRun`: one repetition of the generators, with or without workers.

Invariant: the scenes of a repetition do not depend on the workers, and neither does their order unless
`deterministic=False`. An exception of a generator is raised after the earlier scenes, and ends the repetition.

With workers, generator k of a repetition lives in worker `k % workers`. If the worker dies, the generator runs again up
to the next scene, which only the merge knows.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from itertools import islice
from typing import Any, NoReturn

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.stream_merge import Lane, Merge
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.generator_pool import BlockFuture, GeneratorPool
from kerasfeed.loaders.generator_runner import GO_ON, Block, Kind, scenes_in
from kerasfeed.loaders.generators import ENDED, GeneratorRun, Generators, named
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.error_text import counted, is_the_programs

_PAUSE_SECONDS = 0.01  # wait before taking an incomplete block from a worker
_NO_NOTE = [0, 0]  # progress is not watched in the calling thread


class Left(BaseException):
    """Internal: the repetition was left.

    Not an `Exception`, which would empty a shuffle buffer.
    """


class SourceRun:
    """One repetition of the generators.

    One thread iterates over `items()`; any thread may call `leave`.
    """

    def __init__(
        self,
        generators: Generators,
        pool: GeneratorPool | None,
        failure_log: FailureLog,
        repetition: int,
        items: int = 0,
        ended: Sequence[tuple[int, int]] = (),
        *,
        in_turn: bool = True,
    ) -> None:
        """Begin after the first `items` scenes.

        Args:
            generators: The generators to run.
            pool: The workers; None if the generators run in the calling thread. Items may then be of any type.
            failure_log: Receives failures and warnings.
            repetition: Number of the repetition.
            items: Scenes of the repetition that were joined before.
            ended: See `Merge`.
            in_turn: Whether the generators take turns; without workers they always do.
        """
        self._generators, self._pool, self._log, self._repetition = generators, pool, failure_log, repetition
        self._merge = Merge(generators.numbers, items, ended, in_turn=in_turn or pool is None)
        self._left = False
        self._runs: dict[int, GeneratorRun] = {}  # in the calling thread
        self._pending: dict[int, deque[BlockFuture]] = {}  # futures of the next blocks, in order
        self._kinds: dict[bytes, Kind] = {}  # of scenes from workers
        lanes = [lane for lane in self._merge.lanes if not lane.ended]
        if pool is None:
            self._runs = {lane.n: GeneratorRun(generators, lane.n, repetition, lane.position) for lane in lanes}
        else:
            self._pending = {lane.n: deque() for lane in lanes}
            for lane in lanes * pool.depth:
                self._request(pool, lane)

    def items(self) -> Iterator[Any]:
        """Return an iterator over the scenes.

        The run does not hold it: the cycle would keep the memory of blocks after the feed is closed. The iterator
        raises the exception of a generator, with a note that names the generator and the scene, or `Left`.
        """
        return self._merge.joined(self._make if self._pool is None else self._collect_next)

    @property
    def ended(self) -> tuple[tuple[int, int], ...]:
        """See `Merge.ended`."""
        return self._merge.ended

    def leave(self) -> None:
        """End the generators and stop reading ahead; idempotent.

        A thread that waits for `items()` soon gets `Left`.
        """
        self._left = True
        for run in list(self._runs.values()):
            run.end()
        for pending in list(self._pending.values()):
            _cancel(pending)

    # ---- in the calling thread

    def _make(self, lanes: Sequence[Lane]) -> None:
        """Make the next scene; remake and drop earlier scenes if needed."""
        lane = lanes[0]
        run = self._runs[lane.n]
        try:
            with run.context:
                item = None
                while run.position <= lane.position and item is not ENDED:
                    if self._left:
                        raise Left
                    item = run.next(_NO_NOTE)
        except BaseException as error:
            if self._left:
                raise Left from None
            if is_the_programs(error):
                raise
            self._fail(lane, named(error, lane.n, self._generators.count, lane.position, self._repetition))
        if item is not ENDED:
            lane.add([own_copy(item)])
        else:
            self._end(lane, run.position)

    # ---- from workers

    def _collect_next(self, lanes: Sequence[Lane]) -> None:
        """Wait for a block of a lane and add its scenes.

        If a generator pauses, add its scenes so far.
        """
        assert self._pool is not None
        pending = {self._pending[lane.n][0]: lane for lane in lanes}
        done = wait(pending, _PAUSE_SECONDS, FIRST_COMPLETED).done
        if self._left:
            raise Left
        for future, lane in pending.items():
            if future in done:
                self._collect(self._pool, lane)
            elif not done and (block := future.early()) is not None:
                self._add(lane, block)

    def _collect(self, pool: GeneratorPool, lane: Lane) -> None:
        pending = self._pending[lane.n]
        try:
            block: Block | BaseException = pending.popleft().result()
        except CancelledError:
            raise Left from None
        if isinstance(block, BaseException):
            self._fail(lane, block)
        elif block.lost:  # its worker died: run the generator again up to the next scene
            _cancel(pending)
            pending.clear()
        else:
            self._add(lane, block)
            if block.ended:
                self._end(lane, lane.received if len(block.data) else block.position)
        if lane.ended:
            _cancel(pending)
        while not lane.ended and len(pending) < pool.depth:
            self._request(pool, lane)

    def _add(self, lane: Lane, block: Block) -> None:
        """Add the scenes of a block that were not added early."""
        lane.add(islice(scenes_in(block.data, self._kinds), max(0, lane.received - block.position), None))

    def _request(self, pool: GeneratorPool, lane: Lane) -> None:
        pending = self._pending[lane.n]
        pending.append(pool.submit(lane.n, GO_ON if pending else lane.received, self._repetition))

    def _fail(self, lane: Lane, error: BaseException) -> NoReturn:
        """Log and raise the failure of a generator at its next scene.

        The index in the log is computed as if no generator had ended.
        """
        self._log.note(lane.position * self._generators.count + lane.n, self._repetition, None, error)
        raise error

    def _end(self, lane: Lane, scenes: int) -> None:
        """Mark a generator as ended after `scenes` scenes."""
        lane.ended = True
        if scenes < lane.received:
            self._log.deferred_warnings.defer(
                "shorter",
                f"generator {lane.n} was run again, to go on behind its scene {lane.received - 1}, and has ended after "
                f"{counted(scenes, 'scene')}: it gives other scenes than before, so the stream is not the same. "
                "Make it depend on its arguments alone: draw from `rng`, sort its files",
                FeedWarning,
            )


def _cancel(pending: deque[BlockFuture]) -> None:
    for future in list(pending):
        future.cancel()
