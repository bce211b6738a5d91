"""Who writes: workers of a loader, as asked for, or the calling thread where that is as soon done.

Invariant: workers that were asked for are started, once.
"""

import io
import pickle
from typing import Any

from kerasfeed.loaders.arguments import check_sequence, check_workers
from kerasfeed.loaders.base import Job, Loader
from kerasfeed.loaders.loader import make_loader, worker_type_for
from kerasfeed.orders.plan import Plan
from kerasfeed.util.error_text import message_of
from kerasfeed.util.exact_text import TextCloudPickler
from kerasfeed.util.frames import as_sequence
from kerasfeed.util.validate import check_integer
from kerasfeed.writers.shard_task import ShardSequence

_MEMORY = 1 << 26  # of numbers alone


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
        chooses: Whether the calling thread may write by itself, where that takes no longer.

    Raises:
        TypeError, ValueError: An argument is wrong: a feed, or no sequence, or an empty one.
    """

    def __init__(self, sequence: Any, workers: Any, worker_type: str, seed: Any) -> None:
        self.sequence = as_sequence(sequence)
        self.length = _checked(self.sequence)
        self.seed = check_integer("seed", seed, 0)
        self.count = check_workers(workers, worker_type)
        self._type = worker_type_for(self.sequence, worker_type)
        self.chooses = workers == "auto" and self._type == "auto"

    def loader(self, sequence: ShardSequence, most: int) -> Loader:
        """A loader of a sequence whose items keep `most` of the workers busy."""
        count = min(self.count, most)
        return make_loader(Job(sequence, Plan(len(sequence), None), count, _MEMORY, 2 * count or 1), self._type)


def copied(item: ShardSequence) -> ShardSequence | None:
    """A copy as a worker would get it, its large arrays shared; None where it cannot be pickled."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        file = io.BytesIO()
        TextCloudPickler(file, protocol=5, buffer_callback=buffers.append).dump(item)
        copy: ShardSequence = pickle.loads(file.getvalue(), buffers=buffers)
    except Exception:  # noqa: BLE001 - told where it is to be sent to processes
        return None
    return copy


def _checked(sequence: Any) -> int:
    """The length of a sequence that is to be written."""
    if hasattr(sequence, "plan") and hasattr(sequence, "sequence"):
        raise TypeError("the sequence is a Feed, whose items are batches: pass its `sequence`")
    try:
        return check_sequence(sequence)
    except TypeError as error:
        raise TypeError(message_of(error).replace("Feed() needs", "writing needs")) from None
