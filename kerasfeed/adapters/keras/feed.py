"""`Feed`: the feed that users hold, a `keras.utils.PyDataset`.

Invariant: to Keras it looks ahead by itself, so Keras's own threads and processes stay unused.
"""

import weakref
from typing import TYPE_CHECKING

from kerasfeed.adapters.keras.adapter import KerasAdapter
from kerasfeed.adapters.keras.feed_run import FeedRun
from kerasfeed.adapters.keras.fit_tracker import FitTracker
from kerasfeed.adapters.keras.trainer import KerasCall, TrainerRequest
from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.feeds.feed_cursor import FeedCursor
from kerasfeed.feeds.sharding import refuse_second_sharding
from kerasfeed.loaders.arguments import refuse_skip
from kerasfeed.orders.base import Sequential
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    import tensorflow as tf

_PREDICTED_IN_ORDER = (
    "predict returns its rows in the order of the feed, which is not that of the sequence: row k is for scene "
    "feed.indices()[k]. Predict with a feed without shuffle and order, or put the rows back: "
    "in_order = np.empty_like(rows); in_order[feed.indices()] = rows"
)


class Feed(BaseFeed, KerasAdapter):
    """Batches of a sequence, for `model.fit` on any Keras backend, `tf.data` and plain loops.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene: a `SceneSequence`, a list,
            an ndarray, a map-style dataset, a pandas `Series` or `DataFrame` (rows are dicts of its columns). The same
            structure, dtypes and number of axes for every index.
        batch_size: Scenes in a batch. None where each item is a batch already, as in a `keras.utils.PyDataset`.
        shuffle: Whether each epoch visits the scenes in a new random order; each exactly once.
        order: The order of the scenes, instead of `shuffle`: `kerasfeed.Sequential()`, `kerasfeed.Shuffled()`,
            `kerasfeed.BlockShuffled(block_size)` for scenes that are cheap to read in blocks, such as HDF5 chunks,
            `kerasfeed.Weighted(weights)`, `kerasfeed.Balanced(labels)`, `kerasfeed.Bucketed(lengths, boundaries)`, or a
            function (length, seed, epoch) that returns the indices of an epoch, int64[scenes], as many in each epoch.
        seed: Integer >= 0 behind the order and every scene's `rng`. None draws one, kept in `feed.seed`; shards that
            shuffle need one that they share.
        drop_remainder: Whether to drop the last batch of an epoch when it is not full.
        workers: Concurrent `__getitem__` calls, whatever the batch size. 0 loads in the calling thread. "auto" is the
            number of cores.
        worker_type: "thread", "process" (for scenes that hold the GIL, and for isolation), or "auto": processes,
            except for a list, tuple or ndarray, where there is nothing to compute, where the sequence cannot be
            pickled, and on Windows.
        max_queue_size: Batches kept in flight ahead of the consumer; more where `workers` needs it.
        max_memory: Ceiling of the batch memory, bytes; beyond, batches are copied to ordinary memory, with a warning.
            None is a quarter of the memory of the machine, or of the container.
        collate: How scenes become a batch: "stack" (one shape for all), "pad" or `kerasfeed.Pad(...)`, "ragged" or
            `kerasfeed.Ragged(...)`, or a function from a list of scenes to a batch. The function runs in the worker,
            once a batch, which is then one task; it must pickle (with `cloudpickle`) for worker processes.
        shard_index: Which shard of every global batch (`batch_size * shard_count` scenes) this feed is.
        shard_count: Number of shards. All have the same number of steps, and together they are the unsharded epoch.
        shard: Instead of these two a pair of them, a `tf.distribute.InputContext`, or "auto": what tf.distribute,
            keras.distribution, jax or torch.distributed, where they run, know of this process; `feed.shard` says who
            did. A pickled feed asks again where it is unpickled.
        pad_remainder: Whether short batches are filled up, with scenes of `sample_weight` 0, so that all have one size
            and weighted metrics are exact; every batch is then `(x, y, sample_weight)`, and scenes must be `(x, y)` or
            `(x, y, sample_weight)`.
        on_error: What becomes of a scene that fails: that raises, outlasts `timeout`, or ends its worker process
            `max_failures` times. "raise": whoever asks for the batch gets the error. "replace": another scene, a
            function of (seed, epoch, index), stands in its row. "mask": its row is zeros with `sample_weight` 0; every
            batch is then `(x, y, sample_weight)`, and scenes must be `(x, y)` or `(x, y, sample_weight)`. "skip": its
            row is left out, in plain loops only. With all of these batches are the same whatever the workers.
        max_failures: How often a scene may end its worker process before it has failed, and, where `on_error` is not
            "raise", how many scenes may fail before the feed does. A float is a share of the scenes. None is 3 times,
            and a tenth of the scenes (or 3).
        timeout: Seconds that a scene may take. A worker process that outlasts it is replaced, and its scene tried once
            more; a thread cannot be ended, and the batch fails. None never gives up, but warns after 30 s.
        error_log: Path of a file to which every failure is appended as a line of JSON.

    Raises:
        TypeError: An argument is of the wrong type, unknown, or the sequence cannot be indexed.
        ValueError: An argument is out of range, or the sequence is empty.
    """

    # ---- what Keras adds

    def _init_framework(self, ahead: int) -> None:
        KerasAdapter.__init__(self, ahead)
        self.fit_tracker = FitTracker(self)

    def _consumed_batches(self) -> int:
        return self.fit_tracker.consumed()

    def _resume_at(self, number: int, *, shuffled: bool) -> None:
        self.fit_tracker.resume(number, shuffled=shuffled)

    def _give_up_ahead(self) -> None:
        self.fit_tracker.give_up()

    # ---- frameworks

    def to_tf_dataset(
        self, *, device: str | None = None, epochs: int = 1, deterministic: bool = True
    ) -> "tf.data.Dataset":
        """This feed as a `tf.data.Dataset`; each iteration of it is the feed's next epoch.

        Args:
            device: Where batches are prefetched to, for example "/gpu:0". None is the first GPU if there is one and no
                distribution strategy places the batches itself, else the host.
            epochs: Epochs of the feed in one iteration of the dataset, at least 1.
            deterministic: Whether batches keep the order of steps; False delivers whichever is loaded first.

        Returns:
            A dataset of batches nested as the scenes are (lists become tuples), with static shapes and dtypes and known
            cardinality.

        Raises:
            TypeError: A field has a dtype that TensorFlow lacks.
        """
        from kerasfeed.adapters.keras.dataset import dataset_of  # imports TensorFlow

        refuse_skip(self.job.policy, "to_tf_dataset()")
        refuse_second_sharding(self.shard.count)
        return dataset_of(self, check_integer("epochs", epochs, 1) * len(self), device, in_order=deterministic)

    def _known_batches(self) -> int:
        return len(self)

    def _keras_run(self, call: KerasCall, request: TrainerRequest) -> FeedRun:
        if request.method:
            refuse_skip(self.job.policy, f"{request.method}()")
        has_order = not isinstance(self.plan.order, Sequential)
        self._warn_of_order(request)
        # Keras's shuffling of batches would add nothing to an order, and put the shards of a step out of step.
        shuffled = request.shuffle and not has_order and self.plan.shard_count == 1
        return FeedRun(self, call.iterator, request, shuffled=shuffled)

    def dataset_run(self, batches: int, in_order: bool, call: KerasCall, request: TrainerRequest) -> FeedRun:
        """What one of Keras's iterators takes of a dataset of the feed, of so many batches."""
        self._warn_of_order(request)
        return FeedRun(self, call.iterator, request, shuffled=False, batches=batches, in_order=in_order)

    def _warn_of_order(self, request: TrainerRequest) -> None:
        if request.method == "predict" and not isinstance(self.plan.order, Sequential):
            self._loader.failure_log.deferred_warnings.defer("predict", _PREDICTED_IN_ORDER, FeedWarning)
            self._loader.failure_log.deferred_warnings.issue()

    def _keras_cursor(self) -> FeedCursor:
        first = self.clock.current * len(self)
        return FeedCursor(weakref.ref(self), range(first, first + len(self)), None)

    def _keras_hook(self, *, begins: bool) -> None:
        self.fit_tracker.hooked(begins=begins)
