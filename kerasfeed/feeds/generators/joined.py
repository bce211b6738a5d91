"""`JoinedGenerators`: several generators as one source, run in the calling thread or by workers.

Invariant: the items of a repetition are the same, in the same order where that is fixed, wherever the generators run.
One that has raised is over, so it is never tried again by itself; the others go on as far as `on_error` bears it.

With workers a generator lives where it was begun: the k-th one with worker `k % workers`. Where it was lost with its
worker, it is run again up to the scene that is next, which nobody but the consumer knows.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from itertools import islice
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning, TooManyFailuresError
from kerasfeed.feeds.generators.chunks import Chunk, Kind, scenes_in
from kerasfeed.feeds.generators.generators import ENDED, GeneratorRun, Generators, named
from kerasfeed.feeds.generators.worker_side import GO_ON
from kerasfeed.feeds.generators.workers import ChunkFuture, GeneratorWorkers
from kerasfeed.feeds.streams.source import Departure, Source
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.failure_log import FailureLog, FailurePolicy
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.pool.base import CLOSED
from kerasfeed.pool.environment import Environment
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.error_text import add_note, counted, exception_text, is_the_programs, notes_of

_PAUSE_SECONDS = 0.01  # after which it is looked what a worker has so far
_NO_NOTE = [0, 0]  # nobody looks where the thread that takes is


class JoinedGenerator:
    """One generator in one repetition, as the consumer sees it. Not thread-safe: the source guards `pending`.

    Attributes:
        n: Its number.
        run: What runs in the thread that takes; None where a worker runs it.
        pending: Promises of its next chunks, in their order.
        items: Scenes that have come, and are yet to be taken.
        received: Scenes that have come in this repetition.
        start: Where the next chunk that is asked for begins; `GO_ON` where it goes on.
        ended: Whether nothing comes after `items`.
        error: What comes after `items`.
    """

    def __init__(self, n: int, start: int, run: GeneratorRun | None) -> None:
        """Generator `n`, from its scene `start` on."""
        self.n = n
        self.run = run
        self.pending: deque[ChunkFuture] = deque()
        self.items: deque[Any] = deque()
        self.received = self.start = start
        self.ended = False
        self.error: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        """Whether nobody need wait for it: its next scene is there, will not come, or is made by whoever takes it."""
        is_over = self.ended or self.error is not None
        return bool(self.items) or is_over or not self.pending or self.pending[0].done()


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
        self.is_share = len(generators.numbers) < generators.count
        self.deferred_warnings = self.failure_log.deferred_warnings
        self._workers: GeneratorWorkers | None = None
        if workers:
            self._workers = GeneratorWorkers(
                generators, self.failure_log, workers=workers, worker_type=worker_type, max_memory=max_memory,
                environment=environment or Environment.now(),
            )  # fmt: skip
        self._in_turn = deterministic or not workers
        self._ever: set[int] = set()  # that have failed
        self._now: set[int] = set()  # of these, in this repetition
        self._taking = threading.Lock()  # held by whoever takes, or lets go of what is not wanted any more
        self._lock = threading.Lock()  # guards the two flags, and what is pending
        self._gone, self._closed = True, False
        self._repetition = 0
        self._living: deque[JoinedGenerator] = deque()  # that have not left; whose turn it is comes first
        self._departures: list[Departure] = []
        self._joined = 0  # items taken of this repetition
        self._kinds: dict[bytes, Kind] = {}  # of scenes that have come from workers

    @property
    def departures(self) -> Sequence[Departure]:
        """See `Source.departures`."""
        return self._departures

    def failures(self) -> list[FailedScene]:
        """See `Source.failures`."""
        return list(self.failure_log.table())

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`."""
        self._refuse_closed()
        items: list[Any] = []
        try:
            with self._taking:
                while len(items) < limit and self._living and not self._gone and self._join(items):
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

    def begin(self, repetition: int, items: int = 0, departures: Sequence[Departure] = ()) -> None:
        """See `Source.begin`."""
        self.leave()
        with self._taking:
            self._forget()
            with self._lock:
                self._refuse_closed()
                self._repetition, self._gone = repetition, False
                self._departures = [each for each in departures if each.items <= items]
                self._joined = items
                self._now.clear()
                for n, start in _given_before(self.generators.numbers, items, self._departures).items():
                    run = None if self._workers else GeneratorRun(self.generators, n, repetition, start)
                    self._living.append(JoinedGenerator(n, start, run))
                living = list(self._living)
        for _ in range(self._workers.depth if self._workers is not None else 0):
            for generator in living:
                self._ask(generator)

    def leave(self) -> None:
        """See `Source.leave`; generators of this process are ended, by the thread that runs them if one does."""
        with self._lock:
            self._gone = True
            pending = [future for generator in list(self._living) for future in generator.pending]
        for future in pending:
            future.cancel()
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
        living, self._living = self._living, deque()
        for generator in living:
            if generator.run is not None:
                generator.run.end()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FeedClosedError(CLOSED)

    # ---- joining

    def _join(self, items: list[Any]) -> bool:
        """Add the next item; False where that would have to wait, or to raise, and there are items already."""
        if not self._wait_for_turn(waits=not items):
            return False
        generator = self._living[0]
        if not generator.items:
            if items and generator.error is not None:
                return False
            self._supply(generator, len(items))
        if generator.items:
            items.append(generator.items.popleft())
            self._living.rotate(-1)
        return True

    def _wait_for_turn(self, *, waits: bool) -> bool:
        """Wait until the next generator is ready, and make it its turn; False where that `waits` not, or is left.

        The next one is that whose turn it is; where there are no turns, any that is ready.
        """
        while not self._gone:
            awaited = list(islice(self._living, 1 if self._in_turn else None))
            for place, generator in enumerate(awaited):
                if generator.is_ready:
                    self._living.rotate(-place)
                    return True
            if not waits:
                return False
            if not wait([each.pending[0] for each in awaited], _PAUSE_SECONDS, FIRST_COMPLETED).done:
                for generator in awaited:
                    self._take_early(generator)
        return False

    # ---- supplying

    def _supply(self, generator: JoinedGenerator, items: int) -> None:
        """Give a ready generator that has no items left some more, or have it leave, behind so many items of `take`."""
        if generator.error is not None:
            self._fail(generator, generator.error)
        elif generator.ended:
            self._drop(generator, items)
        elif generator.run is not None:
            self._make(generator, generator.run)
        elif self._workers is not None:
            self._collect(generator, self._workers)

    def _make(self, generator: JoinedGenerator, run: GeneratorRun) -> None:
        """Have a generator that runs here make its next item; those that were given before are thrown away."""
        try:
            with run.context:
                item = run.next(_NO_NOTE)
                while item is not ENDED and run.position <= generator.received and not self._gone:
                    item = run.next(_NO_NOTE)
        except BaseException as error:  # whatever it is, the policy decides
            if is_the_programs(error):
                raise
            generator.error = named(error, generator.n, self.generators.count, generator.received, self._repetition)
            return
        if item is ENDED:
            generator.ended = True
            if run.position < generator.received:
                self._tell_shorter(generator.n, run.position, generator.received)
        elif run.position > generator.received:
            generator.items.append(own_copy(item))
            generator.received += 1

    def _collect(self, generator: JoinedGenerator, workers: GeneratorWorkers) -> None:
        """Add the scenes of a chunk that has come of a generator that a worker runs, and ask for others."""
        if not generator.pending:
            self._ask(generator)
            return
        future = generator.pending[0]
        try:
            chunk: Chunk | BaseException = future.result()
        except CancelledError:  # the consumer has gone
            return
        except Exception:  # no generator's fault: the workers were closed, or have failed
            self.leave()
            raise
        finally:
            with self._lock:
                generator.pending.popleft()
        if isinstance(chunk, BaseException):
            generator.error = chunk
        elif chunk.lost:  # with its worker: it is run again, up to the scene that is next
            self._drop_pending(generator)
            generator.start = generator.received
        else:
            known = generator.received - chunk.position  # scenes of it that have come
            if known > 0 and not future.given:  # it was run again, and has nothing more
                self._tell_shorter(generator.n, chunk.position, generator.received)
            self._add(generator, chunk, known if future.given else 0)
            generator.ended = chunk.ended
        if generator.ended or generator.error is not None:
            self._drop_pending(generator)
        while generator.error is None and not generator.ended and len(generator.pending) < workers.depth:
            self._ask(generator)

    def _add(self, generator: JoinedGenerator, chunk: Chunk, known: int) -> None:
        """Add the scenes of a chunk, of which so many have come before."""
        before = len(generator.items)
        generator.items.extend(islice(scenes_in(chunk.data, self._kinds), known, None))
        generator.received += len(generator.items) - before

    def _take_early(self, generator: JoinedGenerator) -> None:
        """Add the scenes that there are of a chunk, where its generator pauses."""
        chunk = generator.pending[0].early(generator.received)
        if chunk is not None:
            self._add(generator, chunk, generator.received - chunk.position)

    def _ask(self, generator: JoinedGenerator) -> None:
        assert self._workers is not None
        start, generator.start = generator.start, GO_ON
        future = self._workers.ask(generator.n, start, self._repetition)
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

    def _fail(self, generator: JoinedGenerator, error: BaseException) -> None:
        """Record that a generator failed with `error`, and go on without it, or end the repetition.

        Raises:
            Exception: `error` itself, or TooManyFailuresError.
        """
        self._drop_pending(generator)
        self._drop(generator, 0)
        try:
            index = generator.received * self.generators.count + generator.n
            self.failure_log.note(index, self._repetition, None, error)
            if self.failure_log.policy.on_error == "raise":
                raise error
            refusal = self._refusal(generator, error)
            if refusal is not None:
                raise refusal from error
        except BaseException:
            self.leave()
            raise

    def _drop(self, generator: JoinedGenerator, items: int) -> None:
        """A generator leaves, when `items` items have been joined for whoever takes."""
        self._departures.append(Departure(generator.n, self._joined + items))
        self._living.remove(generator)

    def _tell_shorter(self, n: int, scenes: int, before: int) -> None:
        """Warn that generator `n`, run again, has ended after so many scenes, of which it had given more `before`."""
        self.deferred_warnings.defer(
            "shorter",
            f"generator {n} was run again, to go on behind its scene {before - 1}, and has ended after "
            f"{counted(scenes, 'scene')}: it does not give what it gave before, so what comes now is not what would "
            "have come. Have it depend on its arguments alone (draw from `rng`, sort its files), and its data stay",
            FeedWarning,
        )

    def _refusal(self, generator: JoinedGenerator, error: BaseException) -> TooManyFailuresError | None:
        """What ends the repetition now that a generator has failed, with `error`; None where it goes on."""
        policy = self.failure_log.policy
        self._ever.add(generator.n)
        self._now.add(generator.n)
        count = len(self.generators.numbers)
        most = policy.most_failed(count)
        is_asked_for = isinstance(policy.max_failures, int)  # a count; the default keeps one generator at least
        if len(self._ever) <= most and (is_asked_for or len(self._now) < count):
            return None
        why = (
            f"{len(self._ever)} of {counted(count, 'generator')} failed and on_error={policy.on_error!r} allows {most}"
            if len(self._ever) > most
            else f"all of {counted(count, 'generator')} failed in repetition {self._repetition}"
        )
        refusal = TooManyFailuresError(
            f"{why}. The last was generator {generator.n}, at its scene {generator.received}: {exception_text(error)}. "
            "feed.failures lists them; repair the generators, or catch in them what may be passed over"
        )
        for note in notes_of(error):
            add_note(refusal, note)
        return refusal


def _given_before(numbers: Sequence[int], items: int, departures: Sequence[Departure]) -> dict[int, int]:
    """How many scenes each generator has given that has not left, when so many `items` have been joined of all.

    Args:
        numbers: All generators.
        items: At least 0.
        departures: Those that have left, in their order, behind at most so many items.

    Returns:
        By number of the generator; the one whose turn it is comes first.
    """
    living, given, at = deque(numbers), dict.fromkeys(numbers, 0), 0
    for departure in (*departures, None):
        stop = items if departure is None else departure.items
        if living:
            rounds, more = divmod(stop - at, len(living))
            for place, n in enumerate(living):
                given[n] += rounds + (place < more)
            living.rotate(-more)
        at = stop
        if departure is not None and departure.n in living:
            living.remove(departure.n)
    return {n: given[n] for n in living}
