"""The workers that run generators: loaders of one worker each.

Invariant: a generator is always asked for at the same worker, and a worker serves in the order in which it is asked.
"""

import re
import threading
from concurrent.futures import Future
from itertools import count
from typing import Any

import numpy as np

from kerasfeed.errors import SceneTimeoutError, WorkerDiedError
from kerasfeed.feeds.generators.generators import Generators
from kerasfeed.feeds.generators.worker_side import SIZES, Ask, RunningGenerators
from kerasfeed.feeds.streams.plan import StreamPlan
from kerasfeed.loaders.base import Job, Loader, LoaderStats
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.loaders.loader import make_loader
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.file_identities import FirstOpened
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import cause_message, message_of, notes_of

_LARGEST = 32 << 20  # bytes of a chunk for which there is room, at most; pages that are not written cost nothing
_PLACE = re.compile(r"scene (\d+) \(epoch (\d+), step \d+\)")
_SOME = "a scene"
_WORKER = re.compile(r"^kerasfeed: scenes? .*, in (.+)$", re.MULTILINE)


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
        self._steps = count()
        self._plans: list[StreamPlan] = []
        self._loaders: list[Loader] = []
        self._first_opened = FirstOpened()  # one for all: generators of several workers may read one file
        size = min(workers, generators.count) or 1
        most = -(-generators.count // size)  # generators of one worker
        self.depth = 0 if not workers else 3 if most <= 4 else 2
        share = max_memory // size
        flying = most * max(1, self.depth) + 1
        slots = 2 * flying + 3 * most + 4  # what has arrived waits for its turn, and scenes of other chunks are held
        capacity = max(4096, min(_LARGEST, share // (2 * slots)) // 64 * 64)
        try:
            for _ in range(size):
                sequence = RunningGenerators(generators, capacity, timed=policy.timeout is not None)
                plan = StreamPlan(batch_size=None, seed=generators.seed, readable=list(SIZES))
                job = Job(
                    sequence, plan, min(workers, 1), share, flying, _workers_policy(policy), environment=environment,
                    first_opened=self._first_opened,
                    watches_random=False,  # they are each generator's own there
                )  # fmt: skip
                loader = make_loader(job, worker_type)
                if loader.stats().worker_type == "thread":
                    worker_type = "thread"  # for those that follow
                loader.failure_log.deferred_warnings = deferred_warnings
                deferred_warnings.mute("copied")  # the consumer here is another loader, which tells of its own
                self._plans.append(plan)
                self._loaders.append(loader)
        except BaseException:
            self.close()
            raise

    def _reword_unpicklable(self, error: TypeError) -> TypeError:
        return TypeError(
            f"make_generator ({self._generators.name}) cannot be sent to worker processes: "
            f"{cause_message(error)}. "
            "It is pickled with all that it refers to: open files and start generators (which do not pickle) inside "
            "it, leave locks out of the state of its object, or use worker_type='thread'"
        )

    def ask(self, ask: Ask, repetition: int) -> Future[Any]:
        """Promise the next chunk of a generator; for anybody who waits for it `Loader.submit` says what holds."""
        number = ask.n % len(self._loaders)
        plan, step = self._plans[number], next(self._steps)
        plan.announce(repetition, step, np.array([ask.index(self._generators.count)]))
        try:
            return self._loaders[number].submit(repetition, step)
        finally:
            plan.forget(repetition, step)

    def stats(self) -> LoaderStats:
        """Of all workers together; a batch is a chunk here."""
        each = [loader.stats() for loader in self._loaders]
        return LoaderStats(
            each[0].worker_type,
            len(each),
            sum(stats.batches for stats in each),
            sum(stats.copied for stats in each),
            sum(stats.slots for stats in each),
            each[0].slot_bytes,
            tuple(pid for stats in each for pid in stats.pids),
            sum(stats.respawns for stats in each),
        )

    def close(self) -> None:
        """End them all at once: each may be given some time to end by itself. Idempotent."""
        others = [threading.Thread(target=loader.close, name="kerasfeed-close") for loader in self._loaders[1:]]
        for thread in others:
            thread.start()
        for loader in self._loaders[:1]:
            loader.close()
        for thread in others:
            thread.join()
        self._first_opened.close()


def _workers_policy(policy: FailurePolicy) -> FailurePolicy:
    # Failures are dealt with by whoever joins the generators; of the workers it is only wanted that they are replaced.
    # A chunk is tried twice at least: which of its scenes ended the worker is known when the generator runs again.
    tries = max(2, policy.max_failures) if isinstance(policy.max_failures, int) else None
    return FailurePolicy(max_failures=tries, timeout=policy.timeout)


def reworded(count: int, text: str) -> str:
    """A text of a loader, which then speaks of generators, of which there are `count`."""

    def place(found: re.Match[str]) -> str:
        ask = Ask.of(int(found[1]), count)
        scene = _SOME if ask.position is None else f"scene {ask.position}"
        return f"{scene} of generator {ask.n} (repetition {found[2]})"

    return _PLACE.sub(place, text)


def place_of(error: BaseException) -> str:
    """Which worker met an error, as its loader has noted; empty where it has not."""
    for note in notes_of(error):
        if found := _WORKER.search(note):
            return found[1]
    return ""


def retold(error: BaseException, count: int) -> tuple[BaseException, bool]:
    """An error that a loader made, in words that fit generators, and whether it is that of one known scene.

    Those of the user's own are as they were, and of the scene that was next.
    """
    if not issubclass(type(error), WorkerDiedError | SceneTimeoutError):
        return error, True
    told, cut, _ = reworded(count, message_of(error)).partition(" Reproduce it in a Python of its own")
    if cut:
        told = told.replace(", as often as max_failures allows", "")
        told += " To go on without generators that do so use on_error='skip'"
    return type(error)(told), _SOME not in told
