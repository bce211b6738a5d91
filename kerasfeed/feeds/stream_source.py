"""`SourceRun`: the generators of a feed in one repetition, run in the calling thread or by workers.

Invariant: the scenes of a repetition are the same, in the same order if that is fixed, wherever the generators run. An
exception of a generator comes after the scenes before it, and ends the repetition.

With workers, generator k of a repetition lives in worker `k % workers`. If it is lost with its worker, it is run again
up to the scene that is next, which only the merge knows.
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

_PAUSE_SECONDS = 0.01  # after which the scenes that a worker has so far are taken
_NO_NOTE = [0, 0]  # nothing watches the calling thread


class Left(BaseException):
    """Internal: the repetition was left. Not an `Exception`, after which a shuffle buffer would be emptied."""


class SourceRun:
    """One repetition of the generators. One thread iterates over `items`; any thread may call `leave`.

    Attributes:
        items: The scenes. The iterator raises what a generator raised, with a note that names the generator and the
            scene, or `Left`.
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
        """Begin behind the first `items` scenes.

        Args:
            generators: What runs.
            pool: The workers; None if the generators run in the calling thread. Items may then be of any kind.
            failure_log: Where failures and warnings go.
            repetition: Number of the repetition.
            items: Scenes of it that were joined before.
            ended: See `Merge`.
            in_turn: Whether the generators take turns; without workers they do.
        """
        self._generators, self._pool, self._log, self._repetition = generators, pool, failure_log, repetition
        self._merge = Merge(generators.numbers, items, ended, in_turn=in_turn or pool is None)
        self._left = False
        self._runs: dict[int, GeneratorRun] = {}  # in the calling thread
        self._pending: dict[int, deque[BlockFuture]] = {}  # promises of the next blocks, in their order
        self._kinds: dict[bytes, Kind] = {}  # of scenes that have come from workers
        lanes = [lane for lane in self._merge.lanes if not lane.ended]
        if pool is None:
            self._runs = {lane.n: GeneratorRun(generators, lane.n, repetition, lane.position) for lane in lanes}
        else:
            self._pending = {lane.n: deque() for lane in lanes}
            for lane in lanes * pool.depth:
                self._request(pool, lane)
        self.items: Iterator[Any] = self._merge.joined(self._make if pool is None else self._collect_next)

    @property
    def ended(self) -> tuple[tuple[int, int], ...]:
        """See `Merge.ended`."""
        return self._merge.ended

    def leave(self) -> None:
        """End the generators and stop working ahead; idempotent. `items` end soon if a thread waits for them."""
        self._left = True
        for run in list(self._runs.values()):
            run.end()
        for pending in list(self._pending.values()):
            _cancel(pending)

    # ---- in the calling thread

    def _make(self, lanes: Sequence[Lane]) -> None:
        """Make the next scene of a generator; scenes that were given before are made again and thrown away."""
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
        """Wait for a block of one of the `lanes`, and add its scenes. If a generator pauses, add its scenes so far."""
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
        elif block.lost:  # with its worker: the generator is run again, up to the scene that is next
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
        """Add the scenes of a block that have not come early."""
        lane.add(islice(scenes_in(block.data, self._kinds), max(0, lane.received - block.position), None))

    def _request(self, pool: GeneratorPool, lane: Lane) -> None:
        pending = self._pending[lane.n]
        pending.append(pool.submit(lane.n, GO_ON if pending else lane.received, self._repetition))

    def _fail(self, lane: Lane, error: BaseException) -> NoReturn:
        """A generator has failed at its next scene, whose index in the log is as if no generator had ended."""
        self._log.note(lane.position * self._generators.count + lane.n, self._repetition, None, error)
        raise error

    def _end(self, lane: Lane, scenes: int) -> None:
        """A generator has ended after so many scenes."""
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
