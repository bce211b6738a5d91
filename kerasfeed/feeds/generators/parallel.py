"""N generators run by workers, joined by whoever consumes them.

Invariant: the items of a repetition are those of `LocalGenerators`, in the same order where that is fixed, whatever the
workers. Every worker is a loader of its own, because the workers of one loader share their tasks, and a generator lives
where it was begun: generator `n` with worker `n % workers`. Where it was lost with its worker, it is run again up to
the scene that is next, which nobody but the consumer knows.
"""

import threading
from concurrent.futures import CancelledError
from itertools import chain
from queue import SimpleQueue
from typing import Any

from kerasfeed.errors import FeedClosedError, SpecError, WorkerDiedError, WorkerStartError
from kerasfeed.feeds.generators.chunk_codec import ChunkReader
from kerasfeed.feeds.generators.generators import Generators
from kerasfeed.feeds.generators.lane import Lane, drain, waking
from kerasfeed.feeds.generators.round_robin import FailedGenerators, Rotation, named
from kerasfeed.feeds.generators.spec_agreement import Agreement
from kerasfeed.feeds.generators.worker_side import Ask, Head
from kerasfeed.feeds.generators.workers import Crew, place_of, retold, rewording
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.environment import Surroundings
from kerasfeed.loaders.failures.failure_log import Faults
from kerasfeed.loaders.failures.policy import FaultPolicy
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.util.deferred_warnings import Notices

_DOUBT = 5  # as where a loader counts: somebody else may end workers


class Fleet(Source):
    """Generators in workers."""

    def __init__(
        self,
        generators: Generators,
        *,
        workers: int,
        worker_type: str = "auto",
        deterministic: bool = True,
        max_memory: int = 1 << 30,
        policy: FaultPolicy | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """Start the workers, without waiting for them.

        Args:
            generators: What to run.
            workers: How many; never more than there are generators. 0 runs them in the thread that takes.
            worker_type: "process", "thread", or "auto": processes where the generators can be sent there.
            deterministic: Whether turns go round; else items come as they are ready, each generator's in their order.
            max_memory: Ceiling of the memory of chunks, bytes.
            policy: What to do about generators that fail. Without one, what they raise ends the repetition.
            surroundings: Directory and environment of worker processes; None is those of this moment.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        policy = policy or FaultPolicy()
        self.generators = generators
        self._failed = FailedGenerators(policy, generators.count)
        self._failed.faults.notices = Notices(rewording(generators.count))
        self._crew = Crew(
            generators, workers=workers, worker_type=worker_type, max_memory=max_memory, policy=policy,
            notices=self._failed.faults.notices, surroundings=surroundings or Surroundings.now(),
        )  # fmt: skip
        self._in_turn = deterministic or not workers
        self._ready: SimpleQueue[None] = SimpleQueue()  # something was done, or the consumer has gone
        self._lock = threading.Lock()  # guards the lanes' `pending` and the two flags
        self._taking = threading.Lock()  # held by whoever takes, or lets go of what is not wanted any more
        self._gone, self._closed = True, False
        self._repetition = 0
        self._rotation = Rotation(0)
        self._lanes: list[Lane] = []
        self._reader = ChunkReader()
        self._agreement = Agreement()

    @property
    def faults(self) -> Faults:
        """The generators that have failed, and warnings that wait for the user."""
        return self._failed.faults

    def stats(self) -> LoaderStats:
        """A snapshot of the workers' counters; a batch is a chunk here."""
        return self._crew.stats()

    def failures(self) -> list[FailedScene]:
        """See `Source.failures`."""
        return list(self.faults.table())

    def tell(self) -> None:
        """See `Source.tell`."""
        self.faults.notices.tell()

    def begin(self, repetition: int) -> None:
        """See `Source.begin`; waits until the workers have started."""
        self.leave()
        lanes = [Lane(n) for n in range(self.generators.count)]
        with self._taking, self._lock:
            self._refuse_closed()
            self._lanes, self._repetition, self._gone = lanes, repetition, False
            self._rotation = Rotation(self.generators.count)
        self._failed.begin()
        for ahead in range(self._crew.depth):
            for lane in lanes:
                if len(lane.pending) == ahead:
                    self._ask(lane)

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`."""
        self._refuse_closed()
        items: list[Any] = []
        join = self._join_in_turn if self._in_turn else self._join_as_ready
        try:
            with self._taking:
                while len(items) < limit and self._rotation.living and not self._gone:
                    if not join(items, limit):
                        break
        finally:
            self._forget_if_gone()
        if not items:
            self._refuse_closed()
        return items

    def leave(self) -> None:
        """See `Source.leave`."""
        with self._lock:
            self._gone = True
            pending = [future for lane in self._lanes for future in lane.pending]
        for future in pending:
            future.cancel()
        self._ready.put(None)
        self._forget_if_gone()

    def _forget_if_gone(self) -> None:
        """Let go of the scenes that nobody will take; whoever takes at the moment does that when it has noticed."""
        if self._gone and self._taking.acquire(blocking=False):
            try:
                if self._gone:
                    self._lanes, self._rotation = [], Rotation(0)
            finally:
                self._taking.release()

    def close(self) -> None:
        """See `Source.close`."""
        with self._lock:
            self._closed = True
        self.leave()
        self._crew.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FeedClosedError("the feed is closed; make a new one")

    # ---- joining

    def _join_in_turn(self, items: list[Any], limit: int) -> bool:
        """Add items in turn; False where it would have to wait, or to raise, and there are items already."""
        rotation, lanes = self._rotation, self._lanes
        lane = lanes[rotation.current]
        if not lane.left:
            return self._supply(lane, items)
        if rotation.turn == 0:
            living = [lanes[n] for n in rotation.living]
            rounds = min((limit - len(items)) // len(living), *(each.left for each in living))
            if rounds:
                items.extend(chain.from_iterable(zip(*(each.pop(rounds) for each in living), strict=True)))
                return True
        items += lane.pop(1)
        rotation.advance()
        return True

    def _join_as_ready(self, items: list[Any], limit: int) -> bool:
        """The same with whatever is ready; those that are take turns, so that none waits for a quicker one to end."""
        rotation = self._rotation
        lane = self._lanes[rotation.current]
        if lane.left:
            share = max(1, limit // len(rotation.living))
            items += lane.pop(min(share, limit - len(items)))
            rotation.advance()
            return True
        if lane.error is None and not lane.ended and not lane.is_done:
            ready = self._first_ready(wait=not items)
            if ready is None:
                return False
            rotation.turn = rotation.living.index(ready.n)
            return True
        if not self._supply(lane, items):
            return False
        if rotation.living and rotation.current == lane.n and not lane.left and not lane.ended and lane.error is None:
            rotation.advance()
        return True

    def _first_ready(self, *, wait: bool) -> Lane | None:
        living, turn = self._rotation.living, self._rotation.turn
        while True:
            drain(self._ready)  # before looking: what is done later puts something in again
            for n in (*living[turn + 1 :], *living[: turn + 1]):
                lane = self._lanes[n]
                if lane.left or lane.ended or lane.error is not None or lane.is_done:
                    return lane
            if not wait or self._gone:
                return None
            self._ready.get()

    # ---- supplying

    def _supply(self, lane: Lane, items: list[Any]) -> bool:
        """Wait for more of a lane that has no items left, or have it leave; see `_join_in_turn`."""
        if lane.error is not None:
            if items:
                return False
            self._fail(lane)
        elif lane.ended:
            self._rotation.drop(lane.n)
        elif items and not lane.is_done:
            return False
        else:
            self._collect(lane)
        return True

    def _collect(self, lane: Lane) -> None:
        if not lane.pending:
            self._ask(lane)
        future = lane.pending[0]  # it stays there while this waits, so that `leave` can cancel it
        try:
            chunk = future.result()
        except CancelledError:  # the consumer has gone
            return
        except (FeedClosedError, WorkerStartError):
            self.leave()
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the policy decides
            where = place_of(error)
            told, is_exact = retold(error, self.generators.count)
            position = lane.received if is_exact else f"{lane.received} or later"
            lane.error = named(told, lane.n, self.generators.count, position, self._repetition, where)
            del told
            return
        finally:
            del future  # it holds what it raises, whose traceback holds this frame
            with self._lock:
                lane.pending.popleft()
        head, groups = self._reader.read(chunk)
        if head.lost or head.position != lane.received:
            self._find(lane, head)
        else:
            try:
                for described, scenes in groups:
                    self._agreement.check(described, scenes[0], lane.n, lane.received)
                    lane.items += scenes
                    lane.received += len(scenes)
            except SpecError as error:
                lane.error = error
            lane.ended = head.ended
        if lane.ended or lane.error is not None:
            self._drop_pending(lane)
        while lane.error is None and not lane.ended and len(lane.pending) < self._crew.depth:
            self._ask(lane)

    def _find(self, lane: Lane, head: Head) -> None:
        """Have a generator that was lost with its worker run again, unless it has ended its workers too often."""
        self._drop_pending(lane)
        lane.start = lane.received
        if not head.is_first:
            return
        lane.deaths = lane.deaths + 1 if lane.died_at == lane.received else 1
        lane.died_at = lane.received
        if lane.deaths >= _DOUBT * self.faults.policy.tries:
            error = WorkerDiedError(
                f"generator {lane.n} has ended its worker process {lane.deaths} times at its scene {lane.received}, or "
                "soon after. To go on without generators that do so use on_error='skip'"
            )
            lane.error = named(error, lane.n, self.generators.count, lane.received, self._repetition)

    def _ask(self, lane: Lane) -> None:
        start, lane.start = lane.start, None
        future = self._crew.ask(Ask(lane.n, start), self._repetition)
        if not self._in_turn:
            future.add_done_callback(waking(self._ready))
        with self._lock:
            lane.pending.append(future)
            gone = self._gone
        if gone:
            future.cancel()

    def _drop_pending(self, lane: Lane) -> None:
        with self._lock:
            pending = list(lane.pending)
            lane.pending.clear()
        for future in pending:
            future.cancel()

    def _fail(self, lane: Lane) -> None:
        self._drop_pending(lane)
        self._rotation.drop(lane.n)
        error, lane.error = lane.error, None
        assert error is not None
        try:
            self._failed.bear(lane.n, lane.received, self._repetition, error)
        except BaseException:
            self.leave()
            raise
        finally:
            del error  # whose traceback holds this frame: only the collector would free it
