"""The workers that run generators: one pool, and the memory in which chunks of scenes come from them.

Invariant: a generator is always asked for at the same worker, and a worker serves in the order in which it is asked. A
pool that has failed stays failed; the next chunk that is asked for starts another.
"""

from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.feeds.generators.chunk_session import ChunkSession
from kerasfeed.feeds.generators.chunk_slot import ChunkLayout
from kerasfeed.feeds.generators.generators import Generators
from kerasfeed.feeds.generators.worker_side import ChunkRunner
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.batches.slots import SlotPool
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.sessions import Sessions
from kerasfeed.util.deferred_warnings import DeferredWarnings


class GeneratorWorkers:
    """Workers of one kind.

    Attributes:
        depth: Chunks of each generator that are worth asking for ahead; 0 where `ask` itself does the work.
    """

    def __init__(
        self,
        generators: Generators,
        *,
        workers: int,
        worker_type: str,
        max_memory: int,
        policy: FailurePolicy,
        deferred_warnings: DeferredWarnings,
        environment: Environment,
    ) -> None:
        """Start them, without waiting; see `ParallelGenerators` for the arguments.

        Raises:
            TypeError: The generators cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        self._generators = generators
        count = len(generators.numbers)
        size = max(1, min(workers, count))
        self.depth = 0 if not workers else 3 if count <= 4 * size else 2
        self._most = count * max(1, self.depth) + size  # chunks in flight
        self._max_memory = max_memory
        # What has arrived waits for its turn, and scenes of other chunks are held.
        self._layout = ChunkLayout.sharing(max_memory, 2 * self._most + 3 * count + 4 * size)
        self._runner = ChunkRunner(generators, self._layout)
        self._sessions: Sessions[ChunkSession] = Sessions(self, forks=not workers)
        self._options = PoolOptions(
            workers=size, who=f"the feed of {generators.name}", seed=generators.seed, timeout=policy.timeout,
            # Failures are dealt with by whoever joins the generators; of the workers it is only wanted that they are
            # replaced. A chunk is tried twice at least: the scenes before the one that ended the worker come then.
            tries=max(2, policy.tries), tries_in_time=2,
            addressed=True, environment=environment, first_opened=self._sessions.first_opened,
            deferred_warnings=deferred_warnings,
        )  # fmt: skip
        self._worker_type = worker_type if workers else "inline"
        try:
            self._sessions.current(self._start)
        except BaseException:
            self.close()
            raise

    def _start(self) -> ChunkSession:
        pool = make_pool(self._runner, self._options, self._worker_type)
        try:
            self._worker_type = pool.worker_type
            slots = SlotPool(self._layout, pool.memory, max_memory=self._max_memory, in_flight=self._most)
        except BaseException:
            pool.close()
            raise
        return ChunkSession(pool, slots, self._generators)

    def ask(self, n: int, start: int, repetition: int) -> Future[Any]:
        """Promise the next chunk of a generator, uint8[bytes], or what it has raised, as the result.

        Args:
            n: Number of the generator.
            start: The scene to begin with; `GO_ON` for going on.
            repetition: Number of the repetition.

        Raises:
            FeedClosedError: The workers were closed.
            WorkerDiedError: They have failed.
        """
        return self._sessions.current(self._start).submit(n, start, repetition)

    def early(self, future: Future[Any]) -> NDArray[np.uint8] | None:
        """What there is already of a chunk that was asked for, and whose generator pauses, uint8[bytes]."""
        session = self._sessions.present
        return session.early(future) if session else None

    def stats(self) -> LoaderStats:
        """Counters; a batch is a chunk here."""
        session = self._sessions.present
        return LoaderStats(
            self._worker_type,
            self._options.workers,
            session.chunks if session else 0,
            session.copied if session else 0,
            session.slots.total if session else 0,
            self._layout.nbytes,
            session.pool.pids() if session else (),
            self._sessions.respawns,
        )

    def close(self) -> None:
        """End them; idempotent."""
        self._sessions.close()
