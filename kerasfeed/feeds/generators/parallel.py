"""N generators run by workers, joined by whoever consumes them.

Invariant: the items of a repetition are those of `LocalGenerators`, in the same order where that is fixed, whatever the
workers. A generator lives where it was begun: the k-th one with worker `k % workers`. Where it was lost with its
worker, it is run again up to the scene that is next, which nobody but the consumer knows.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any

from kerasfeed.errors import SpecError, WorkerDiedError
from kerasfeed.feeds.generators.chunk_codec import ChunkReader
from kerasfeed.feeds.generators.early import STALE_SECONDS
from kerasfeed.feeds.generators.generators import Generators
from kerasfeed.feeds.generators.joined import JoinedGenerators
from kerasfeed.feeds.generators.remote_generator import RemoteGenerator, drain, waking
from kerasfeed.feeds.generators.round_robin import RoundRobin, named
from kerasfeed.feeds.generators.spec_agreement import Agreement
from kerasfeed.feeds.generators.worker_side import GO_ON, Head
from kerasfeed.feeds.generators.workers import GeneratorWorkers
from kerasfeed.feeds.streams.place import BEGINNING, Start
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.pool.environment import Environment
from kerasfeed.util.counted import counted
from kerasfeed.util.polling import NotYet, result_of

_DOUBT = 5  # as where a pool counts: somebody else may end workers


class ParallelGenerators(JoinedGenerators):
    """Generators in workers."""

    def __init__(
        self,
        generators: Generators,
        *,
        workers: int,
        worker_type: str = "auto",
        deterministic: bool = True,
        max_memory: int = 1 << 30,
        policy: FailurePolicy | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Start the workers, without waiting for them.

        Args:
            generators: What to run.
            workers: How many; never more than there are generators. 0 runs them in the thread that takes.
            worker_type: "process", "thread", or "auto": processes where the generators can be sent there.
            deterministic: Whether turns go round; else items come as they are ready, each generator's in their order.
            max_memory: Ceiling of the memory of chunks, bytes.
            policy: What to do about generators that fail. Without one, what they raise ends the repetition.
            environment: Directory and environment of worker processes; None is those of this moment.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        super().__init__(generators.numbers, generators.count, policy)
        self.generators = generators
        self._workers = GeneratorWorkers(
            generators, workers=workers, worker_type=worker_type, max_memory=max_memory,
            policy=self.failure_log.policy, deferred_warnings=self.failure_log.deferred_warnings,
            environment=environment or Environment.now(),
        )  # fmt: skip
        self._in_turn = deterministic or not workers
        self._ready: SimpleQueue[None] = SimpleQueue()  # something was done, or the consumer has gone
        self._lock = threading.Lock()  # guards their `pending` and the two flags
        self._remotes: dict[int, RemoteGenerator] = {}
        self._reader = ChunkReader()
        self._agreement = Agreement()

    def stats(self) -> LoaderStats:
        """A snapshot of the workers' counters; a batch is a chunk here."""
        return self._workers.stats()

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        self.leave()
        with self._taking, self._lock:
            self._refuse_closed()
            given = self._begin(repetition, start)
            self._remotes = {n: RemoteGenerator(n, given[n]) for n in self._round_robin.living}
            remotes = list(self._remotes.values())
        for ahead in range(self._workers.depth):
            for remote in remotes:
                if len(remote.pending) == ahead:
                    self._ask(remote)

    def _join(self, items: list[Any], limit: int) -> None:
        join = self._join_in_turn if self._in_turn else self._join_as_ready
        while len(items) < limit and self._round_robin.living and not self._gone:
            if not join(items, limit):
                break

    def leave(self) -> None:
        """See `Source.leave`."""
        with self._lock:
            self._gone = True
            pending = [future for remote in self._remotes.values() for future in remote.pending]
        for future in pending:
            future.cancel()
        self._ready.put(None)
        self._forget_if_gone()

    def _forget(self) -> None:
        self._remotes, self._round_robin = {}, RoundRobin(())

    def close(self) -> None:
        """See `Source.close`."""
        with self._lock:
            self._closed = True
        self.leave()
        self._workers.close()

    # ---- joining

    def _join_in_turn(self, items: list[Any], limit: int) -> bool:
        """Add items in turn; False where it would have to wait, or to raise, and there are items already."""
        round_robin, remotes = self._round_robin, self._remotes
        remote = remotes[round_robin.current]
        if not remote.left:
            return self._supply(remote, items)
        if round_robin.turn == 0:
            living = [remotes[n] for n in round_robin.living]
            rounds = min((limit - len(items)) // len(living), *(each.left for each in living))
            if rounds:
                items.extend(chain.from_iterable(zip(*(each.pop(rounds) for each in living), strict=True)))
                return True
        items += remote.pop(1)
        round_robin.advance()
        return True

    def _join_as_ready(self, items: list[Any], limit: int) -> bool:
        """The same with whatever is ready; those that are take turns, so that none waits for a quicker one to end."""
        round_robin = self._round_robin
        remote = self._remotes[round_robin.current]
        if remote.left:
            share = max(1, limit // len(round_robin.living))
            items += remote.pop(min(share, limit - len(items)))
            round_robin.advance()
            return True
        if remote.error is None and not remote.ended and not remote.is_done:
            ready = self._first_ready(wait=not items)
            if ready is None:
                return False
            round_robin.turn = round_robin.living.index(ready.n)
            return True
        if not self._supply(remote, items):
            return False
        goes_on = not remote.left and not remote.ended and remote.error is None
        if round_robin.living and round_robin.current == remote.n and goes_on:
            round_robin.advance()
        return True

    def _first_ready(self, *, wait: bool) -> RemoteGenerator | None:
        living, turn = self._round_robin.living, self._round_robin.turn
        while True:
            drain(self._ready)  # before looking: what is done later puts something in again
            for n in (*living[turn + 1 :], *living[: turn + 1]):
                remote = self._remotes[n]
                if remote.left or remote.ended or remote.error is not None or remote.is_done:
                    return remote
            if not wait or self._gone:
                return None
            try:
                self._ready.get(timeout=STALE_SECONDS)
            except Empty:
                for n in living:
                    self._take_early(self._remotes[n])

    # ---- supplying

    def _supply(self, remote: RemoteGenerator, items: list[Any]) -> bool:
        """Wait for more of a generator that has no items left, or have it leave; see `_join_in_turn`."""
        if remote.error is not None:
            if items:
                return False
            self._fail(remote)
        elif remote.ended:
            self._drop(remote.n, len(items))
        elif items and not remote.is_done:
            return False
        else:
            self._collect(remote)
        return True

    def _collect(self, remote: RemoteGenerator) -> None:
        if not remote.pending:
            self._ask(remote)
        future = remote.pending[0]  # it stays there while this waits, so that `leave` can cancel it
        waits = True
        try:
            while waits:
                try:
                    chunk = result_of(future, STALE_SECONDS)
                    waits = False
                except NotYet:
                    if self._take_early(remote):
                        return
        except CancelledError:  # the consumer has gone
            waits = False
            return
        except Exception:  # no generator's fault: the workers were closed, or have failed
            waits = False
            self.leave()
            raise
        finally:
            del future  # it holds what it raises, whose traceback holds this frame
            if not waits:
                with self._lock:
                    remote.pending.popleft()
        early, remote.early = remote.early, False
        if isinstance(chunk, BaseException):
            remote.error = chunk
            return
        head, groups = self._reader.read(chunk)
        moved = head.position > remote.received if early else head.position != remote.received
        if head.lost or (moved and not head.ended):
            self._find(remote, head)
        else:
            if head.position < remote.received and head.ended and not early:  # it was run again, and has nothing more
                self._tell_shorter(remote.n, head.position, remote.received)
            self._add(remote, groups, remote.received - head.position if early else 0)
            remote.ended = head.ended
        if remote.ended or remote.error is not None:
            self._drop_pending(remote)
        while remote.error is None and not remote.ended and len(remote.pending) < self._workers.depth:
            self._ask(remote)

    def _add(self, remote: RemoteGenerator, groups: Iterable[tuple[bytes, list[Any]]], known: int = 0) -> None:
        """Add the scenes of a chunk, of which so many have come early."""
        try:
            for described, scenes in groups:
                new = scenes[known:]
                known = max(0, known - len(scenes))
                if new:
                    self._agreement.check(described, new[0], remote.n, remote.received)
                    remote.items += new
                    remote.received += len(new)
        except SpecError as error:
            remote.error = error

    def _take_early(self, remote: RemoteGenerator) -> bool:
        """Add the scenes of a chunk whose generator pauses, if there are some; whether there were."""
        with self._lock:
            future = remote.pending[0] if remote.pending and not remote.early and not self._gone else None
        chunk = None if future is None else self._workers.early(future)
        if chunk is None:
            return False
        head, groups = self._reader.read(chunk)
        if head.position != remote.received:
            return False
        remote.early = True
        self._add(remote, groups)
        return True

    def _find(self, remote: RemoteGenerator, head: Head) -> None:
        """Have a generator that was lost with its worker run again, unless it has ended its workers too often."""
        self._drop_pending(remote)
        remote.start = remote.received
        if not head.is_first:
            return
        remote.deaths = remote.deaths + 1 if remote.died_at == remote.received else 1
        remote.died_at = remote.received
        if remote.deaths >= _DOUBT * self.failure_log.policy.tries:
            error = WorkerDiedError(
                f"generator {remote.n} has ended its worker process {counted(remote.deaths, 'time')} at its scene "
                f"{remote.received}, or soon after. To go on without generators that do so use on_error='skip'"
            )
            remote.error = named(error, remote.n, self._count, remote.received, self._repetition)

    def _ask(self, remote: RemoteGenerator) -> None:
        start, remote.start = remote.start, GO_ON
        future = self._workers.ask(remote.n, start, self._repetition)
        if not self._in_turn:
            future.add_done_callback(waking(self._ready))
        with self._lock:
            remote.pending.append(future)
            gone = self._gone
        if gone:
            future.cancel()

    def _drop_pending(self, remote: RemoteGenerator) -> None:
        with self._lock:
            pending = list(remote.pending)
            remote.pending.clear()
        for future in pending:
            future.cancel()

    def _fail(self, remote: RemoteGenerator) -> None:
        self._drop_pending(remote)
        error, remote.error = remote.error, None
        assert error is not None
        try:
            self._bear(remote.n, remote.received, error)
        finally:
            del error  # whose traceback holds this frame: only the collector would free it
