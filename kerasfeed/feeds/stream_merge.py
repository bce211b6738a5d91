"""The scenes of one repetition in their order: join, deal, shuffle.

Invariant: the scene at a position depends only on the numbers and lengths of the generators and on the seed, and not
on the workers, unless `deterministic=False`. So the number of joined scenes and the lengths of the ended generators
determine the positions of all generators. `Merge`, `dealt` and `Shuffler` are pure: only `SourceRun` waits and runs
generators. An exception of a generator is raised after the earlier scenes, and ends the repetition.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from kerasfeed.loaders.generator_runner import GO_ON, Block, Kind, scenes_in
from kerasfeed.loaders.generators import ENDED, GeneratorRun, Generators, named
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import counted, is_the_programs

_TICK_SECONDS = 0.01  # between two looks whether the repetition was left
_NO_NOTE = [0, 0]  # progress is not watched in the calling thread


@dataclass(frozen=True)
class StreamPosition:
    """A position in a stream, between two batches.

    Attributes:
        repetition: Number of the repetition, from 0.
        step: The next batch of it, from 0.
        ended: Number and length of each generator that ended before this position.
    """

    repetition: int = 0
    step: int = 0
    ended: tuple[tuple[int, int], ...] = ()


def positions(numbers: Sequence[int], items: int, lengths: Mapping[int, int]) -> dict[int, int]:
    """Return the next scene of each generator after `items` joined scenes.

    Args:
        numbers: All generators, in the order of their turns.
        items: Scenes joined, at least 0.
        lengths: Lengths of the generators whose end is known.

    Returns:
        Scene by generator, without ended generators; the generator with the next turn comes first.
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
        length: Number of its scenes; None while unknown.
        scenes: Scenes received but not yet joined.
        ended: Whether no scene follows `scenes`.
    """

    def __init__(self, n: int, position: int, length: int | None) -> None:
        self.n = n
        self.position = position
        self.length = length
        self.scenes: deque[Any] = deque()
        self.ended = position == length

    @property
    def received(self) -> int:
        """Number of scenes received."""
        return self.position + len(self.scenes)

    def add(self, scenes: Iterable[Any]) -> None:
        """Add received scenes; drop scenes past a known end."""
        room = None if self.length is None else self.length - self.received
        self.scenes.extend(islice(scenes, room))
        self.ended = self.ended or self.received == self.length


class Merge:
    """Generators joined scene by scene.

    Attributes:
        lanes: The generators that have not left; the generator with the next turn comes first.
        in_turn: Whether the generators take turns; else any generator with a scene gives the next one.
        ended: Number and length of the generators that have left, or whose end was known at the beginning.
    """

    def __init__(
        self, numbers: Sequence[int], items: int = 0, ended: Sequence[tuple[int, int]] = (), *, in_turn: bool = True
    ) -> None:
        """Continue after `items` joined scenes and the ends in `ended`."""
        lengths = dict(ended)
        self.lanes = deque(Lane(n, at, lengths.get(n)) for n, at in positions(numbers, items, lengths).items())
        self.in_turn = in_turn
        self.ended = tuple(ended)

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
                if lane.length is None:
                    self.ended = (*self.ended, (lane.n, lane.position))
            else:
                supply([lane] if self.in_turn else list(lanes))


def dealt(items: Iterator[Any], shard: Shard, warnings: DeferredWarnings) -> Iterator[Any]:
    """Yield item `shard.index` of each round of `shard.count` items.

    All shards run the same items, so all get the same number. An incomplete last round is dropped with a warning in
    `warnings`.
    """
    while len(found := list(islice(items, shard.count))) == shard.count:
        yield found[shard.index]
    if found:
        warnings.defer(
            "dealt",
            f"the last {counted(len(found), 'scene')} of a repetition cannot be dealt to {shard.count} shards evenly, "
            "and are left out",
            FeedWarning,
        )


class Shuffler:
    """Items shuffled in a buffer; see `kerasfeed.orders.buffered`.

    The numbers of the items in the buffer follow from the position and the seed. So the buffer is filled again from
    the items, and no state holds a scene.

    Attributes:
        first: The first item needed.
    """

    def __init__(self, order: BufferShuffled, seed: int, repetition: int, given: int) -> None:
        """Continue after the first `given` shuffled items of a repetition."""
        self._order, self._seed, self._repetition = order, seed, repetition
        # Whether the stream ends within the buffer is unknown, so start from a full buffer at an earlier position.
        self._filled_at = max(0, given - order.buffer_size)
        self._again = given - self._filled_at  # items to drop, because they were given before
        self._places: dict[int, int] | None = None  # slot of each item of the full buffer; None: slot = number
        if self._filled_at:
            held = order.held(self._filled_at, seed=seed, epoch=repetition).tolist()
            self._places = {number: place for place, number in enumerate(held)}
        self.first = min(self._places) if self._places else 0

    def shuffled(self, items: Iterator[Any]) -> Iterator[Any]:
        """Shuffle `items`, which begin at number `first`.

        An exception is raised after the earlier items.
        """
        return islice(self._shuffled(items), self._again, None)

    def _shuffled(self, items: Iterator[Any]) -> Iterator[Any]:
        buffer: dict[int, Any] = {}  # item by slot
        order, seed, epoch = self._order, self._seed, self._repetition
        raised: list[Exception] = []
        try:
            for number, item in enumerate(islice(items, self._filled_at + order.buffer_size - self.first), self.first):
                place = number if self._places is None else self._places.get(number)
                if place is not None:
                    buffer[place] = own_copy(item)
            for item, place in zip(items, order.places_from(self._filled_at, seed=seed, epoch=epoch), strict=False):
                leaving, buffer[place] = buffer[place], own_copy(item)
                yield leaving
        except Exception as error:  # noqa: BLE001 - raised after the items that came before it
            raised.append(error)
        held = [buffer[place] for place in sorted(buffer)]
        for place in order.rest(len(held), seed=seed, epoch=epoch).tolist():
            yield held[place]
        if raised:
            raise raised.pop()  # pop: the traceback holds this frame, so a reference here would be a cycle


class SourceRun:
    """One repetition of the generators.

    With workers, generator k of a repetition lives in worker `k % workers`. If the worker dies, the generator runs
    again up to the next scene, which only the merge knows. One thread iterates over `items()`; any thread may call
    `leave`.

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
        self._left = False
        self._runs: dict[int, GeneratorRun] = {}  # in the calling thread
        self._pending: dict[int, deque[SlotFuture]] = {}  # futures of the next blocks, in order
        self._kinds: dict[bytes, Kind] = {}  # of scenes from workers
        lanes = [lane for lane in self.merge.lanes if not lane.ended]
        if pool is None:
            self._runs = {lane.n: GeneratorRun(generators, lane.n, repetition, lane.position) for lane in lanes}
        else:
            self._pending = {lane.n: deque() for lane in lanes}
            for lane in lanes * pool.depth:
                self._request(pool, lane)

    def items(self) -> Iterator[Any]:
        """Return an iterator over the scenes.

        The run does not hold it: the cycle would keep the memory of blocks after the feed is closed. The iterator
        raises the exception of a generator, with a note that names the generator and the scene. After `leave` it
        raises a `CancelledError`.
        """
        return self.merge.joined(partial(self._collect_next, self._pool) if self._pool else self._make)

    def leave(self) -> None:
        """End the generators and stop reading ahead; idempotent.

        A thread that waits for `items()` soon gets `CancelledError`.
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
                while not (self._left or item is ENDED or run.position > lane.position):
                    item = run.next(_NO_NOTE)
        except BaseException as error:
            if is_the_programs(error):
                raise
            if not self._left:
                self._fail(lane, named(error, lane.n, self._generators.count, lane.position, self._repetition))
        if self._left:
            raise CancelledError
        if item is not ENDED:
            lane.add([own_copy(item)])
        else:
            self._end(lane, run.position)

    # ---- from workers

    def _collect_next(self, pool: GeneratorPool, lanes: Sequence[Lane]) -> None:
        """Wait for a block of a lane and add its scenes."""
        pending: dict[Future[Any], Lane] = {self._pending[lane.n][0]: lane for lane in lanes}
        done = wait(pending, _TICK_SECONDS, FIRST_COMPLETED).done
        if self._left:
            raise CancelledError
        for future in done:
            self._collect(pool, pending[future])

    def _collect(self, pool: GeneratorPool, lane: Lane) -> None:
        pending = self._pending[lane.n]
        block: Block | BaseException = pending.popleft().result()
        if isinstance(block, BaseException):
            self._fail(lane, block)
        assert block.data is not None
        if block.lost:  # its worker died: run the generator again up to the next scene
            _cancel(pending)
            pending.clear()
        lane.add(scenes_in(block.data, self._kinds))
        if block.ended:
            self._end(lane, block.position)
        if lane.ended:
            _cancel(pending)
        while not lane.ended and len(pending) < pool.depth:
            self._request(pool, lane)

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


def _cancel(pending: deque[SlotFuture]) -> None:
    for future in list(pending):
        future.cancel()
