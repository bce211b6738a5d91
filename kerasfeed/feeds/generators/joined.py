"""`JoinedGenerators`: several generators as one source, run in the calling thread or by workers.

Invariant: the items of a repetition are the same, in the same order where that is fixed, wherever the generators run.
One that has raised is over, so it is never tried again by itself; the others go on as far as `on_error` bears it.

With workers a generator lives where it was begun: the k-th one with worker `k % workers`. Where it was lost with its
worker, it is run again up to the scene that is next, which nobody but the consumer knows.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedClosedError, FeedWarning, SpecError, TooManyFailuresError, WorkerDiedError
from kerasfeed.feeds.generators.chunks import Agreement, Chunk, ChunkReader
from kerasfeed.feeds.generators.generators import ENDED, GeneratorRun, Generators
from kerasfeed.feeds.generators.round_robin import JoinedGenerator, RoundRobin, begun_at, length_of, named
from kerasfeed.feeds.generators.worker_side import GO_ON
from kerasfeed.feeds.generators.workers import GeneratorWorkers
from kerasfeed.feeds.streams.place import BEGINNING, Departure, Start
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.pool.base import CLOSED
from kerasfeed.pool.environment import Environment
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import add_note, exception_text, is_the_programs, notes_of
from kerasfeed.util.polling import NotYet, result_of

_DOUBT = 5  # as where a pool counts: somebody else may end workers
_PAUSE_SECONDS = 0.01  # after which it is looked what a worker has so far
_NO_NOTE = [0, 0]  # nobody looks where the thread that takes is


class JoinedGenerators(Source):
    """Generators that take turns.

    Attributes:
        generators: What runs.
        failure_log: The record of failures: `index` is `position * count + n`, the scene's number in the repetition as
            long as no generator has ended; `epoch` is the repetition. Its warnings wait for the user.
    """

    def __init__(
        self,
        generators: Generators,
        policy: FailurePolicy | None = None,
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
            policy: What to do about generators that fail. Without one, what they raise ends the repetition.
            workers: How many; never more than there are generators. 0 runs them in the thread that takes, where items
                may be of any kind.
            worker_type: "process", "thread", or "auto": processes where the generators can be sent there.
            deterministic: Whether turns go round; else items come as they are ready, each generator's in their order.
            max_memory: Ceiling of the memory of chunks, bytes.
            environment: Directory and environment of worker processes; None is those of this moment.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        self.generators = generators
        self.failure_log = FailureLog(policy or FailurePolicy(), generators.count)
        self._workers: GeneratorWorkers | None = None
        if workers:
            self._workers = GeneratorWorkers(
                generators, workers=workers, worker_type=worker_type, max_memory=max_memory,
                policy=self.failure_log.policy, deferred_warnings=self.failure_log.deferred_warnings,
                environment=environment or Environment.now(),
            )  # fmt: skip
        self._in_turn = deterministic or not workers
        self._ever: set[int] = set()  # that have failed
        self._now: set[int] = set()  # of these, in this repetition
        self._taking = threading.Lock()  # held by whoever takes, or lets go of what is not wanted any more
        self._lock = threading.Lock()  # guards the two flags, and what is pending
        self._gone, self._closed = True, False
        self._repetition = 0
        self._round_robin = RoundRobin(())
        self._running: dict[int, JoinedGenerator] = {}
        self._departures: list[Departure] = []
        self._joined = 0  # items taken of this repetition
        self._ready: SimpleQueue[None] = SimpleQueue()  # something was done, or the consumer has gone
        self._reader = ChunkReader()
        self._agreement = Agreement()

    @property
    def departures(self) -> Sequence[Departure]:
        """See `Source.departures`."""
        return self._departures

    def length(self, departures: Sequence[Departure]) -> int | None:
        """See `Source.length`."""
        return length_of(self.generators.numbers, departures)

    def failures(self) -> list[FailedScene]:
        """See `Source.failures`."""
        return list(self.failure_log.table())

    def issue_warnings(self) -> None:
        """See `Source.issue_warnings`."""
        self.failure_log.deferred_warnings.issue()

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`."""
        self._refuse_closed()
        items: list[Any] = []
        try:
            with self._taking:
                join = self._join_in_turn if self._in_turn else self._join_as_ready
                while len(items) < limit and self._round_robin.living and not self._gone and join(items, limit):
                    pass
                self._joined += len(items)
        finally:
            self._forget_if_gone()
        if not items:
            self._refuse_closed()
        return items

    def stats(self) -> LoaderStats | None:
        """A snapshot of the workers' counters, if there are any; a batch is a chunk here."""
        return None if self._workers is None else self._workers.stats()

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        self.leave()
        with self._taking:
            self._forget()
            with self._lock:
                self._refuse_closed()
                self._repetition, self._gone = repetition, False
                self._round_robin, given = begun_at(self.generators.numbers, start)
                self._departures = [each for each in start.departures if each.items <= start.items]
                self._joined = start.items
                self._now.clear()
                self._running = {n: self._begun(n, given[n]) for n in self._round_robin.living}
                running = list(self._running.values())
        for ahead in range(self._workers.depth if self._workers is not None else 0):
            for generator in running:
                if len(generator.pending) == ahead:
                    self._ask(generator)

    def _begun(self, n: int, start: int) -> JoinedGenerator:
        here = self._workers is None
        return JoinedGenerator(n, start, GeneratorRun(self.generators, n, self._repetition, start) if here else None)

    def leave(self) -> None:
        """See `Source.leave`; generators of this process are ended, by the thread that runs them if one does."""
        with self._lock:
            self._gone = True
            pending = [future for generator in list(self._running.values()) for future in generator.pending]
        for future in pending:
            future.cancel()
        self._ready.put(None)
        self._forget_if_gone()

    def close(self) -> None:
        """See `Source.close`."""
        with self._lock:
            self._closed = True
        self.leave()
        if self._workers is not None:
            self._workers.close()

    def _forget_if_gone(self) -> None:
        """Let go of what nobody will take; whoever takes at the moment does that when it has noticed."""
        if self._gone and self._taking.acquire(blocking=False):
            try:
                if self._gone:
                    self._forget()
            finally:
                self._taking.release()

    def _forget(self) -> None:
        """Let go of what nobody will take."""
        running, self._running, self._round_robin = self._running, {}, RoundRobin(())
        for generator in running.values():
            if generator.run is not None:
                generator.run.end()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FeedClosedError(CLOSED)

    # ---- joining

    def _join_in_turn(self, items: list[Any], limit: int) -> bool:
        """Add items in turn; False where it would have to wait, or to raise, and there are items already."""
        round_robin, running = self._round_robin, self._running
        generator = running[round_robin.current]
        if not generator.left:
            goes_on = self._supply(generator, items)
            if not goes_on or not generator.left:
                return goes_on
        if round_robin.turn == 0:
            living = [running[n] for n in round_robin.living]
            rounds = min((limit - len(items)) // len(living), *(each.left for each in living))
            if rounds:
                items.extend(chain.from_iterable(zip(*(each.pop(rounds) for each in living), strict=True)))
                return True
        items += generator.pop(1)
        round_robin.advance()
        return True

    def _join_as_ready(self, items: list[Any], limit: int) -> bool:
        """The same with whatever is ready; those that are take turns, so that none waits for a quicker one to end."""
        round_robin = self._round_robin
        generator = self._running[round_robin.current]
        if generator.left:
            share = max(1, limit // len(round_robin.living))
            items += generator.pop(min(share, limit - len(items)))
            round_robin.advance()
            return True
        if generator.error is None and not generator.ended and not generator.is_done:
            ready = self._first_ready(wait=not items)
            if ready is None:
                return False
            round_robin.turn = round_robin.living.index(ready.n)
            return True
        if not self._supply(generator, items):
            return False
        goes_on = not generator.left and not generator.ended and generator.error is None
        if round_robin.living and round_robin.current == generator.n and goes_on:
            round_robin.advance()
        return True

    def _first_ready(self, *, wait: bool) -> JoinedGenerator | None:
        living, turn = self._round_robin.living, self._round_robin.turn
        while True:
            _drain(self._ready)  # before looking: what is done later puts something in again
            for n in (*living[turn + 1 :], *living[: turn + 1]):
                generator = self._running[n]
                if generator.left or generator.ended or generator.error is not None or generator.is_done:
                    return generator
            if not wait or self._gone:
                return None
            try:
                self._ready.get(timeout=_PAUSE_SECONDS)
            except Empty:
                for n in living:
                    self._take_early(self._running[n])

    # ---- supplying

    def _supply(self, generator: JoinedGenerator, items: list[Any]) -> bool:
        """Wait for more of a generator that has no items left, or have it leave; see `_join_in_turn`."""
        if generator.error is not None:
            if items:
                return False
            self._fail(generator)
        elif generator.ended:
            self._drop(generator.n, len(items))
        elif items and not generator.is_done:
            return False
        elif generator.run is not None:
            self._make(generator, generator.run)
        elif self._workers is not None:
            self._collect(generator, self._workers)
        return True

    def _make(self, generator: JoinedGenerator, run: GeneratorRun) -> None:
        """The next item of a generator that runs here; where it cannot begin with it, those before are thrown away."""
        item: Any = None
        try:
            with run.context:
                while run.position < generator.received and item is not ENDED and not self._gone:
                    item = run.next(_NO_NOTE)
                if run.position < generator.received:
                    generator.ended = True
                    if item is ENDED:
                        self._tell_shorter(generator.n, run.position, generator.received)
                    return
                item = run.next(_NO_NOTE)
        except BaseException as error:  # whatever it is, the policy decides
            if is_the_programs(error):
                raise
            generator.error = named(error, generator.n, self.generators.count, generator.received, self._repetition)
            return
        if item is ENDED:
            generator.ended = True
        else:
            generator.items.append(own_copy(item))
            generator.received += 1

    def _collect(self, generator: JoinedGenerator, workers: GeneratorWorkers) -> None:
        """Wait for the next scenes of a generator that a worker runs."""
        if not generator.pending:
            self._ask(generator)
        future = generator.pending[0]  # it stays there while this waits, so that `leave` can cancel it
        waits = True
        try:
            while waits:
                try:
                    chunk: Chunk | BaseException = result_of(future, _PAUSE_SECONDS)
                    waits = False
                except NotYet:
                    if self._take_early(generator):
                        return
        except CancelledError:  # the consumer has gone
            waits = False
            return
        except Exception:  # no generator's fault: the workers were closed, or have failed
            waits = False
            self.leave()
            raise
        finally:
            if not waits:
                with self._lock:
                    generator.pending.popleft()
        early, generator.looked, generator.early = generator.early, 0, 0
        if isinstance(chunk, BaseException):
            generator.error = chunk
            return
        known = generator.received - chunk.position  # scenes of it that have come
        if chunk.lost or ((known < 0 if early else known != 0) and not chunk.ended):
            self._find(generator, chunk)
        else:
            if known > 0 and not early:  # it was run again, and has nothing more
                self._tell_shorter(generator.n, chunk.position, generator.received)
            self._add(generator, chunk.data, known if early else 0)
            generator.ended = chunk.ended
        if generator.ended or generator.error is not None:
            self._drop_pending(generator)
        while generator.error is None and not generator.ended and len(generator.pending) < workers.depth:
            self._ask(generator)

    def _add(self, generator: JoinedGenerator, data: NDArray[np.uint8], known: int) -> None:
        """Add the scenes of a chunk, of which so many have come before."""
        try:
            for described, scene in islice(self._reader.read(data), known, None):
                self._agreement.check(described, scene, generator.n, generator.received)
                generator.items.append(scene)
                generator.received += 1
        except SpecError as error:
            generator.error = error

    def _take_early(self, generator: JoinedGenerator) -> bool:
        """Add the scenes that there are of a chunk whose generator pauses; whether there were some."""
        with self._lock:
            future = generator.pending[0] if generator.pending and not self._gone else None
        if future is None or self._workers is None:
            return False
        looked, generator.looked = generator.looked, self._workers.made(future)
        if generator.looked != looked or looked <= generator.early:  # it goes on
            return False
        chunk = self._workers.early(future, looked)
        if chunk is None or (not generator.early and chunk.position != generator.received):
            return False
        generator.early = len(chunk.data)
        self._add(generator, chunk.data, generator.received - chunk.position)
        return True

    def _find(self, generator: JoinedGenerator, chunk: Chunk) -> None:
        """Have a generator that was lost with its worker run again, unless it has ended its workers too often."""
        self._drop_pending(generator)
        generator.start = generator.received
        if not chunk.is_first:
            return
        generator.deaths = generator.deaths + 1 if generator.died_at == generator.received else 1
        generator.died_at = generator.received
        if generator.deaths >= _DOUBT * self.failure_log.policy.tries:
            error = WorkerDiedError(
                f"generator {generator.n} has ended its worker process {counted(generator.deaths, 'time')} at its "
                f"scene {generator.received}, or soon after. To go on without generators that do so use on_error='skip'"
            )
            generator.error = named(error, generator.n, self.generators.count, generator.received, self._repetition)

    def _ask(self, generator: JoinedGenerator) -> None:
        assert self._workers is not None
        start, generator.start = generator.start, GO_ON
        future = self._workers.ask(generator.n, start, self._repetition)
        if not self._in_turn:
            future.add_done_callback(_waking(self._ready))
        with self._lock:
            generator.pending.append(future)
            gone = self._gone
        if gone:
            future.cancel()

    def _drop_pending(self, generator: JoinedGenerator) -> None:
        with self._lock:
            pending = list(generator.pending)
            generator.pending.clear()
        for future in pending:
            future.cancel()

    # ---- failing

    def _fail(self, generator: JoinedGenerator) -> None:
        self._drop_pending(generator)
        assert generator.error is not None
        self._bear(generator.n, generator.received, generator.error)

    def _drop(self, n: int, items: int) -> None:
        """Generator `n` leaves, when `items` items have been joined for whoever takes."""
        self._departures.append(Departure(n, self._joined + items))
        self._round_robin.drop(n)

    def _tell_shorter(self, n: int, scenes: int, before: int) -> None:
        """Warn that generator `n`, run again, has ended after so many scenes, of which it had given more `before`."""
        self.failure_log.deferred_warnings.defer(
            "shorter",
            f"generator {n} was run again, to go on behind its scene {before - 1}, and has ended after "
            f"{counted(scenes, 'scene')}: it does not give what it gave before, so what comes now is not what would "
            "have come. Have it depend on its arguments alone (draw from `rng`, sort its files), and its data stay",
            FeedWarning,
        )

    def _bear(self, n: int, position: int, error: BaseException) -> None:
        """Record that generator `n` failed at its scene `position`, and go on without it, or end the repetition.

        Raises:
            Exception: `error` itself, or TooManyFailuresError.
        """
        self._drop(n, 0)
        try:
            self.failure_log.note(position * self.generators.count + n, self._repetition, None, error)
            ending = self._ending(n, position, error)
            if ending is error:
                raise error
            if ending is not None:
                raise ending from error
        except BaseException:
            self.leave()
            raise

    def _ending(self, n: int, position: int, error: BaseException) -> BaseException | None:
        """What ends the repetition now that generator `n` has failed with `error`; None where it goes on."""
        policy = self.failure_log.policy
        if policy.on_error == "raise":
            return error
        self._ever.add(n)
        self._now.add(n)
        count = len(self.generators.numbers)
        most = policy.most_failed(count)
        if len(self._ever) <= most and len(self._now) < count:
            return None
        why = (
            f"{len(self._ever)} of {counted(count, 'generator')} failed and on_error={policy.on_error!r} allows {most}"
            if len(self._ever) > most
            else f"all of {counted(count, 'generator')} failed in repetition {self._repetition}"
        )
        refusal = TooManyFailuresError(
            f"{why}. The last was generator {n}, at its scene {position}: {exception_text(error)}. feed.failures lists "
            "them; repair the generators, or catch in them what may be passed over"
        )
        for note in notes_of(error):
            add_note(refusal, note)
        return refusal


def _drain(queue: "SimpleQueue[None]") -> None:
    """Take out all that is in it now."""
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass


def _waking(queue: "SimpleQueue[None]") -> Callable[[Any], None]:
    """A callback that puts something into the queue; it holds nothing else, for futures live long."""
    return lambda _: queue.put(None)
