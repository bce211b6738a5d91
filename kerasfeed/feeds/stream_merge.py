"""The scenes of one repetition in their order: join, deal, shuffle.

Invariant: the scene at a position depends only on the numbers and lengths of the generators and on the seed, and not
on the workers, unless `deterministic=False`. So the number of joined scenes and the lengths of the ended generators
determine the positions of all generators. `Merge`, `dealt` and `Shuffler` are pure: only `SourceRun` waits and runs
generators. An exception of a generator is raised after the earlier scenes, and ends the repetition.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NoReturn

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.sharding import Shard
from kerasfeed.loaders.batches.slots import SlotFuture
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.generator_pool import GeneratorPool
from kerasfeed.loaders.generators import (
    CONTINUE,
    ENDED,
    Block,
    GeneratorRun,
    Generators,
    Kind,
    generator_error,
    scenes_in,
)
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import is_the_programs, pluralize

_TICK_SECONDS = 0.01  # between two checks whether the run was closed
_UNWATCHED = [0, 0]  # progress that nothing reads: the calling thread is not watched


@dataclass(frozen=True)
class StreamPosition:
    """A position in a stream, between two batches.

    Attributes:
        repetition: Number of the repetition, from 0.
        step: The next batch of the repetition, from 0.
        ended: Number and length of each generator that ended before this position.
    """

    repetition: int = 0
    step: int = 0
    ended: tuple[tuple[int, int], ...] = ()


def positions(numbers: Sequence[int], items: int, lengths: Mapping[int, int]) -> dict[int, int]:
    """Return the number of each generator's next scene, after `items` joined scenes.

    Args:
        numbers: All generators, in the order of their turns.
        items: Scenes joined, at least 0.
        lengths: Lengths of the generators whose end is known.

    Returns:
        Number of the scene by number of the generator, without ended generators; the generator with the next turn comes
        first.
    """
    rounds, left, living = 0, items, len(numbers)
    for length in sorted(lengths[n] for n in numbers if n in lengths):
        if left < living * (length - rounds):
            break
        left -= living * (length - rounds)
        rounds, living = length, living - 1
    if not living:
        return {}
    more, left = divmod(left, living)
    rounds += more
    names = [n for n in numbers if lengths.get(n, rounds + 1) > rounds]
    return {**dict.fromkeys(names[left:], rounds), **dict.fromkeys(names[:left], rounds + 1)}


class Lane:
    """One generator of a merge.

    Attributes:
        n: Its number.
        position: The scene to join next, from 0.
        scenes: Scenes received but not yet joined.
        ended: Whether no scene follows `scenes`.
    """

    def __init__(self, n: int, position: int) -> None:
        self.n = n
        self.position = position
        self.scenes: deque[Any] = deque()
        self.ended = False

    @property
    def received(self) -> int:
        """Number of scenes received."""
        return self.position + len(self.scenes)


class Merge:
    """Generators joined scene by scene.

    Attributes:
        lanes: The generators that have not left; the generator with the next turn comes first.
        in_turn: Whether the generators take turns; else any generator with a scene gives the next one.
        ended: Number and length of each generator that has left.
    """

    def __init__(
        self, numbers: Sequence[int], items: int = 0, ended: Sequence[tuple[int, int]] = (), *, in_turn: bool = True
    ) -> None:
        """Continue after `items` joined scenes; `ended` may also hold later ends."""
        living = positions(numbers, items, dict(ended))
        self.lanes = deque(Lane(n, position) for n, position in living.items())
        self.in_turn = in_turn
        self.ended = tuple((n, length) for n, length in ended if n not in living)

    def joined(self, supply: Callable[[Sequence[Lane]], None]) -> Iterator[Any]:
        """Yield the scenes.

        Args:
            supply: Called, if the next scene is missing, with the lanes that may give it. It adds scenes to a lane or
                marks a lane as ended.
        """
        lanes = self.lanes
        while lanes:
            lane = lanes[0]
            if not self.in_turn:
                lane = next((each for each in lanes if each.scenes or each.ended), lane)
                lanes.rotate(-lanes.index(lane))
            if lane.scenes:
                lane.position += 1
                lanes.rotate(-1)
                yield lane.scenes.popleft()
            elif lane.ended:
                lanes.popleft()
                self.ended = (*self.ended, (lane.n, lane.position))
            else:
                supply([lane] if self.in_turn else list(lanes))


def dealt(items: Iterator[Any], shard: Shard, warnings: DeferredWarnings) -> Iterator[Any]:
    """Yield item `shard.index` of each round of `shard.count` items.

    All shards run the same items, so all get the same number. An incomplete last round is dropped with a warning in
    `warnings`.
    """
    while len(scenes := list(islice(items, shard.count))) == shard.count:
        yield scenes[shard.index]
    if scenes:
        warnings.defer(
            "dealt",
            f"the last {pluralize(len(scenes), 'scene')} of a repetition cannot be dealt to {shard.count} shards "
            "evenly, and are dropped",
            FeedWarning,
        )


class Shuffler:
    """Items shuffled in a buffer; see `kerasfeed.orders.buffered`.

    The numbers of the items in the buffer follow from the position and the seed. So the buffer is filled again from
    the items, and no state holds a scene.

    Attributes:
        first: The first item needed.
    """

    def __init__(self, order: BufferShuffled, seed: int, repetition: int, delivered: int) -> None:
        """Continue after the first `delivered` shuffled items of a repetition."""
        self._order, self._seed, self._repetition = order, seed, repetition
        # Whether the stream ends within the buffer is unknown, so start from a full buffer at an earlier position.
        self._filled_at = max(0, delivered - order.buffer_size)
        self._dropped = delivered - self._filled_at  # items that leave the buffer and were delivered before
        self._slots: dict[int, int] | None = None  # slot of each item of the full buffer; None: slot = number
        if self._filled_at:
            numbers = order.held(self._filled_at, seed=seed, epoch=repetition).tolist()
            self._slots = {number: slot for slot, number in enumerate(numbers)}
        self.first = min(self._slots) if self._slots else 0

    def shuffled(self, items: Iterator[Any]) -> Iterator[Any]:
        """Shuffle `items`, which begin at number `first`.

        An exception is raised after the earlier items.
        """
        return islice(self._shuffled(items), self._dropped, None)

    def _shuffled(self, items: Iterator[Any]) -> Iterator[Any]:
        buffer: dict[int, Any] = {}  # item by slot
        order, seed, epoch = self._order, self._seed, self._repetition
        raised: list[Exception] = []
        try:
            for number, item in enumerate(islice(items, self._filled_at + order.buffer_size - self.first), self.first):
                slot = number if self._slots is None else self._slots.get(number)
                if slot is not None:
                    buffer[slot] = own_copy(item)
            for item, slot in zip(items, order.slots_from(self._filled_at, seed=seed, epoch=epoch), strict=False):
                leaving, buffer[slot] = buffer[slot], own_copy(item)
                yield leaving
        except Exception as error:  # noqa: BLE001 - raised after the items that came before it
            raised.append(error)
        rest = [buffer[slot] for slot in sorted(buffer)]
        for slot in order.rest(len(rest), seed=seed, epoch=epoch).tolist():
            yield rest[slot]
        if raised:
            raise raised.pop()  # pop: the traceback holds this frame, so a reference here would be a cycle


class SourceRun:
    """One repetition of the generators.

    With workers, the k-th generator of this shard runs in worker `k % workers`. If the worker dies, the generator runs
    again up to the next scene, which only the merge knows. One thread iterates over `items()`; any thread may call
    `close`.

    Attributes:
        merge: The generators, joined.
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
        self.merge = Merge(generators.numbers, items, ended, in_turn=in_turn or pool is None)
        self._closed = False
        lanes = list(self.merge.lanes)
        # In the calling thread, the generators; else the futures of their next blocks, in order.
        self._runs = {lane.n: GeneratorRun(generators, lane.n, repetition, lane.position) for lane in lanes if not pool}
        self._pending: dict[int, deque[SlotFuture]] = {lane.n: deque() for lane in lanes}
        self._kinds: dict[bytes, Kind] = {}  # of scenes from workers
        if pool is not None:
            for lane in lanes * pool.depth:
                self._request(pool, lane)

    def items(self) -> Iterator[Any]:
        """Return an iterator over the scenes.

        The run does not hold the iterator: such a cycle would keep the memory of blocks after the feed is closed. The
        iterator raises the exception of a generator, with a note that names the generator and the scene. After `close`
        it raises a `CancelledError`.
        """
        return self.merge.joined(partial(self._collect_next, self._pool) if self._pool else self._make)

    def close(self) -> None:
        """End the generators and stop reading ahead; idempotent.

        A thread that waits for `items()` soon gets `CancelledError`.
        """
        self._closed = True
        for run in self._runs.values():
            run.end()
        for pending in self._pending.values():
            _cancel(pending)

    # ---- in the calling thread

    def _make(self, lanes: Sequence[Lane]) -> None:
        """Make the next scene of the lane with the next turn."""
        lane = lanes[0]
        run = self._runs[lane.n]
        try:
            with run.context:
                item = ENDED if self._closed else run.next(_UNWATCHED)
        except BaseException as error:
            if is_the_programs(error):
                raise
            if not self._closed:
                self._fail(
                    lane, generator_error(error, lane.n, self._generators.count, lane.position, self._repetition)
                )
        if self._closed:
            raise CancelledError
        if item is not ENDED:
            lane.scenes.append(own_copy(item))
        else:
            self._mark_ended(lane, run.position)

    # ---- from workers

    def _collect_next(self, pool: GeneratorPool, lanes: Sequence[Lane]) -> None:
        """Wait for a block of a lane and add its scenes."""
        pending: dict[Future[Any], Lane] = {self._pending[lane.n][0]: lane for lane in lanes}
        done = wait(pending, _TICK_SECONDS, FIRST_COMPLETED).done
        if self._closed:
            raise CancelledError
        for future in done:
            self._collect(pool, pending[future])

    def _collect(self, pool: GeneratorPool, lane: Lane) -> None:
        pending = self._pending[lane.n]
        block: Block | BaseException = pending.popleft().result()
        if isinstance(block, BaseException):
            self._fail(lane, block)
        if block.lost:  # its worker died: run the generator again up to the next scene
            _cancel(pending)
            pending.clear()
        lane.scenes.extend(scenes_in(block.data, self._kinds))
        if block.length is not None:
            self._mark_ended(lane, block.length)
            _cancel(pending)
        while not lane.ended and len(pending) < pool.depth:
            self._request(pool, lane)

    def _request(self, pool: GeneratorPool, lane: Lane) -> None:
        pending = self._pending[lane.n]
        pending.append(pool.submit(lane.n, CONTINUE if pending else lane.received, self._repetition))

    def _fail(self, lane: Lane, error: BaseException) -> NoReturn:
        """Log and raise the failure of a generator at its next scene.

        The index in the log is computed as if no generator had ended.
        """
        self._log.record(lane.position * self._generators.count + lane.n, self._repetition, None, error)
        raise error

    def _mark_ended(self, lane: Lane, scenes: int) -> None:
        """Mark a generator as ended after `scenes` scenes."""
        lane.ended = True
        if scenes < lane.received:
            self._log.deferred_warnings.defer(
                "shorter",
                f"generator {lane.n} ran again to continue after its scene {lane.received - 1}, and ended after "
                f"{pluralize(scenes, 'scene')}: it yields other scenes than before, so the stream differs. Make it "
                "depend only on its arguments: draw from `rng`, sort its files",
                FeedWarning,
            )


def _cancel(pending: deque[SlotFuture]) -> None:
    for future in list(pending):
        future.cancel()
