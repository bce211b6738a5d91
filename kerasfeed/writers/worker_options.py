"""Who writes: the workers of a pool, as asked for.

Invariant: workers that were asked for are started, once.
"""

from typing import Any

from kerasfeed.loaders.arguments import check_workers
from kerasfeed.loaders.loader import worker_type_for
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.pool.base import Pool, PoolOptions
from kerasfeed.pool.factory import make_pool
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name, message_of
from kerasfeed.util.frames import as_sequence
from kerasfeed.util.validate import check_integer
from kerasfeed.writers.shard_task import ShardRunner


class WorkerOptions:
    """What is written by whom: a sequence, and number and type of workers, checked.

    Args:
        sequence: Whose scenes are written; what a `Feed` takes.
        workers: As in `Feed`.
        worker_type: As in `Feed`.
        seed: Behind each scene's `rng`.

    Attributes:
        sequence: The sequence.
        length: Its length.
        seed: As given.
        count: Number of workers.

    Raises:
        TypeError, ValueError: An argument is wrong: a feed, or no sequence, or an empty one.
    """

    def __init__(self, sequence: Any, workers: Any, worker_type: str, seed: Any) -> None:
        self.sequence = as_sequence(sequence)
        self.length = _checked(self.sequence)
        self.seed = check_integer("seed", seed, 0)
        self.count = check_workers(workers, worker_type)
        self._type = worker_type_for(self.sequence, worker_type)

    def pool(self, runner: ShardRunner, most: int, deferred_warnings: DeferredWarnings) -> Pool:
        """A pool that holds `runner`, `most` of whose workers have something to do; for 0 the calling thread."""
        count = min(self.count, most)
        who = f"the writing of {class_name(runner.target)}"
        options = PoolOptions(max(1, count), who, deferred_warnings=deferred_warnings)
        return make_pool(runner, options, self._type if count else "inline")


def _checked(sequence: Any) -> int:
    """The length of a sequence that is to be written."""
    if hasattr(sequence, "plan") and hasattr(sequence, "sequence"):
        raise TypeError("the sequence is a Feed, whose items are batches: pass its `sequence`")
    try:
        return check_sequence(sequence)
    except TypeError as error:
        raise TypeError(message_of(error).replace("Feed() needs", "writing needs")) from None
