"""`Feed`, a `keras.utils.PyDataset`, and `FeedRun`, its use by Keras.

Invariant: Keras sees one worker and a queue, so it starts no threads or processes. The batches of an epoch of `fit`
are decided when it begins; loading ahead changes nothing.
"""

import contextvars
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kerasfeed.adapters.keras.adapter import NO_KERAS, KerasAdapter
from kerasfeed.adapters.keras.run import KerasRun
from kerasfeed.adapters.keras.trainer import TrainerRequest, read_by_keras, trainer_position
from kerasfeed.adapters.loops import FrameworkLoops
from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.feeds.cursor import begin_in_thread
from kerasfeed.feeds.epoch_clock import FitPlan
from kerasfeed.feeds.feed_cursor import FeedCursor, claim_batches
from kerasfeed.feeds.sharding import refuse_second_sharding
from kerasfeed.feeds.state import FeedState, state_of
from kerasfeed.loaders.arguments import refuse_skip
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    import tensorflow as tf

_PREDICTED_IN_ORDER = (
    "predict returns its rows in the order of the feed, which is not the order of the sequence: row k is for scene "
    "feed.indices()[k]. Predict with a feed without shuffle and order, or restore the order: "
    "in_order = np.empty_like(rows); in_order[feed.indices()] = rows"
)


class FeedRun(KerasRun):
    """The batches that one of Keras's iterators takes from a `Feed`.

    Args:
        feed: The feed.
        iterator: Keras's iterator.
        request: The purpose of the iterator.
        shuffled: Whether Keras shuffles the steps of each epoch of `fit`.

    Attributes:
        numbers: Numbers of the batches of the present epoch.
        stop: Number after the last batch to load ahead.
        plan: The batches of each epoch of `fit`; None before the first one.
    """

    def __init__(self, feed: Any, iterator: Any, request: TrainerRequest, *, shuffled: bool) -> None:
        super().__init__(feed, iterator, request, len(feed))
        self.shuffled = request.trains and shuffled
        self._batches_ahead: FeedCursor | None = None  # kept between epochs
        self.numbers, self.stop = range(0), 0
        self.plan: FitPlan | None = None
        self._fit_steps = self.steps_per_epoch or int(self.steps)
        self.has_epoch_cursors = not self.steps_per_epoch or self.steps_per_epoch % self.execution > 0
        self.other = not request.method  # a trainer not from Keras
        self._model: Callable[[], Any] = lambda: None  # the model in training
        if request.trains:
            self._prepare()

    def _prepare(self) -> None:
        self.feed.begin_fit(self)
        self.plan = None
        self.feed.clock.begin_fit(self.request.initial_epoch, self._fit_steps, shuffled=self.shuffled)

    def planned(self, epoch: int) -> FitPlan:
        """Return the plan of the `fit`, or one from `epoch` on."""
        plan: FitPlan = self.plan or self.feed.clock.plan_fit(epoch, self._fit_steps)
        return plan

    def reset(self) -> None:
        """See `KerasRun.reset`."""
        super().reset()
        if self.request.trains:
            self._prepare()

    def begin_epoch(self, epoch: int) -> int | None:
        """See `KerasRun.begin_epoch`."""
        feed = self.feed
        clock = feed.clock
        if self.request.trains and self.built:
            position = trainer_position("fit")
            number = last = epoch + self.request.initial_epoch
            if position is not None and position.epoch is not None:
                number, last = position.epoch, max(position.epochs - 1, position.epoch)
                self._model = weakref.ref(position.model)
            if self.plan is None:
                self.plan = clock.begin_fit(number, self._fit_steps, shuffled=self.shuffled)
            self.numbers = self.plan.numbers(number)
            self.stop = self.plan.numbers(last).stop
            clock.begin_fit_epoch(self.numbers, shuffled=self.shuffled)
        elif self.request.trains:
            number = self.request.initial_epoch
            self.numbers = self.planned(number).numbers(number)
            self.stop = self.numbers.start + 1  # the model is built on one batch
        elif self.other and self.built:
            self.numbers = clock.claim_epochs()
            self.stop = self.numbers.stop
        else:
            first, most = clock.current * clock.steps, int(self.steps)
            self.numbers = range(first, first + min(most, self.steps_per_epoch or most))
            self.stop = self.numbers.stop
        if self._batches_ahead is not None:
            self._batches_ahead.extend(self._last, self.stop)
        return len(self.numbers)

    @property
    def _last(self) -> int:
        """Number after the last batch of the present cursor."""
        return self.numbers.stop if self.has_epoch_cursors else self.stop

    def end_epoch(self) -> None:
        """See `KerasRun.end_epoch`."""
        if self.built and (self.request.trains or self.other):
            self.feed.end_fit_epoch(self.numbers.stop)

    def begin_taking(self) -> FeedCursor:
        """See `KerasRun.begin_taking`."""
        cursor = self._batches_ahead
        if cursor is not None and cursor.next == self.numbers.start:
            return cursor
        if cursor is not None:
            cursor.close()
        self._batches_ahead = cursor = FeedCursor(
            self.feed_reference, range(self.numbers.start, self._last), ahead_until=self.stop,
            shuffled=self.shuffled if self.request.trains else None,
        )  # fmt: skip
        return cursor

    def close(self) -> None:
        """See `KerasRun.close`; batches loaded for the next epoch are kept."""
        feed = self.feed_reference()
        if feed is not None and self.was_stopped:
            feed.clock.stop_fit_epoch(self.numbers, self.number(before=False))
        super().close()
        cursor = self._batches_ahead
        if cursor is not None and (self.superseded or not cursor.next == self.numbers.stop < self.stop):
            cursor.close()  # wakes threads that wait for a batch
            self._batches_ahead = None

    @property
    def was_stopped(self) -> bool:
        """Whether a callback has stopped training within the epoch, after an execution."""
        model = self._model()
        return self.is_running and model is not None and bool(model.stop_training)

    def number(self, *, before: bool) -> int:
        """Number of the next batch, `before` or after the running execution."""
        used = max(0, self.used(before=before) - self.seen_at_begin)
        return min(self.numbers.start + used, self.numbers.stop)

    def supersede(self) -> None:
        """See `KerasRun.supersede`."""
        self.superseded = True
        self.close()


class Feed(BaseFeed, KerasAdapter, FrameworkLoops):
    """Batches of an indexable sequence, for Keras, `tf.data` and plain loops.

    `for batch in feed` is one epoch, and the next loop is the next epoch. `len(feed)` is the number of batches in an
    epoch. A feed is a `keras.utils.PyDataset`, so it can be passed to `fit`, `evaluate` and `predict`. Batches depend
    only on (sequence, seed, epoch, step), never on the number or type of the workers.

    Use `with kf.Feed(...) as feed:`, or call `close()`, to stop the workers at once; otherwise they stop when the feed
    is garbage collected, or with the program.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene: a `SceneSequence`, a list,
            an ndarray, a map-style dataset. Also a `DataFrame` of pandas or polars (scene i is row i, a dict of its
            columns), or one of its columns; or an array with a `shape` and a `dtype` instead of `__len__`, such as a
            zarr array (scene i is row i along the first axis). Every scene must have the same structure, dtypes and
            number of axes.
        batch_size: Scenes in a batch, at least 1. None if each item of the sequence is already a batch, as in a
            `keras.utils.PyDataset`.
        shuffle: Whether each epoch visits the scenes in a new random order, every scene exactly once.
        order: The order of the scenes; give either this or `shuffle`. One of `kerasfeed.Sequential()`,
            `kerasfeed.Shuffled()`, `kerasfeed.BlockShuffled(block_size)`, `kerasfeed.Weighted(weights)`,
            `kerasfeed.Balanced(labels)`, `kerasfeed.Bucketed(lengths, boundaries)`, or a function
            `(length, seed, epoch)` that returns the indices of an epoch, int64[scenes], the same number in every epoch.
        seed: Integer >= 0 for the order and each scene's `rng`. None draws one, which `feed.seed` returns.
            Shards that shuffle must be given the same seed.
        drop_remainder: Whether to drop the last batch of an epoch if it has fewer than `batch_size` scenes.
        workers: Number of concurrent `__getitem__` calls, for any batch size. 0 loads in the calling thread.
            "auto" is the number of cores, or more if the first scenes wait for most of their time.
        worker_type: "thread"; "process", for scenes that hold the GIL, and for protection from crashes; or "auto".
            "auto" uses processes, with these exceptions: several threads for a list, tuple or ndarray, and for scenes
            that mostly wait if the class sets `thread_safe = True`; one thread for a sequence that cannot be pickled,
            and on Windows. If `workers` is also "auto", one thread with a copy of the sequence loads scenes until the
            worker processes have started. If an epoch takes less than a second, this thread stays the only worker.
            Scenes that take microseconds get no workers. `stats().chosen` gives the choice and the reason.
        max_queue_size: Batches to load ahead of the consumer, at least 1. More are loaded ahead if needed to keep all
            workers busy.
        max_memory: Upper limit of the batch memory, bytes, for all processes together. Beyond this limit, batches are
            copied to ordinary memory, with a warning. None is a quarter of the memory of the machine or container.
        collate: How scenes become a batch: "stack" (all scenes have one shape); "pad" or `kerasfeed.Pad(...)`; "ragged"
            or `kerasfeed.Ragged(...)`; or a function from a list of scenes to a batch. The function is called in the
            worker, once for each batch. For worker processes it must be picklable (with `cloudpickle`).
        shard_index: Number of this shard, in [0, shard_count); needed with `shard_count`. Each global batch of
            `batch_size * shard_count` scenes is divided among the shards.
        shard_count: Number of shards, at least 1. All shards have the same number of steps.
        shard: Instead of `shard_index` and `shard_count`: a pair of them, a `tf.distribute.InputContext`, or "auto",
            which queries tf.distribute, keras.distribution, JAX and torch.distributed. `feed.shard` names the source. A
            pickled feed queries again where it is unpickled.
        pad_remainder: Whether to fill up short batches to `batch_size` with scenes of `sample_weight` 0, so that
            weighted metrics are exact. Scenes must be `(x, y)` or `(x, y, sample_weight)`; every batch is then `(x, y,
            sample_weight)`.
        on_error: What to do if a scene fails, which means that it raises, takes longer than `timeout`, or ends
            its worker process `max_failures` times. "raise": the consumer gets the error. "replace": another scene
            takes its row, chosen by (seed, epoch, index). "mask": its row is zeros with `sample_weight` 0; scenes and
            batches are then as with `pad_remainder`. "skip": its row is left out; for plain loops only. In all cases
            the batches do not depend on the workers.
        max_failures: How often a scene may end its worker process before it counts as failed (None: 3). Also, unless
            `on_error` is "raise", how many scenes may fail before the feed raises a `TooManyFailuresError`: a number,
            or a float for a share of the scenes (None: a tenth of them, at least 3).
        timeout: Seconds that loading one scene may take. A worker process that takes longer is replaced, and its scene
            is tried once more; a thread cannot be ended, and its batch fails. None waits forever, with a warning after
            30 s.
        error_log: Path of a file; each failure appends one line of JSON.
        hosts: Other hosts that load the batches: [kf.RayHosts(...)][kerasfeed.RayHosts]. `workers` is then the number
            of worker processes on each, and "auto" is one for each core. None loads on this machine.
        output_signature: Spec of a scene, as in tf.data: nested as the scenes are, with a `kerasfeed.ArraySpec(shape,
            dtype)` or a `tf.TensorSpec` for each field, and None for an axis that varies. If `batch_size` is None, or
            `collate` a function, it is the spec of a batch. Each scene is checked against it, and no scene is read
            before it is needed. None infers the spec from a few scenes.

    Attributes:
        sequence: The sequence.
        shard: Number and count of shards, and their source: a [Shard][kerasfeed.feeds.sharding.Shard].
        plan: Order, batch size, seed and remainder: the indices of every batch.

    Raises:
        TypeError: An argument has the wrong type or is unknown, or the sequence cannot be indexed.
        ValueError: An argument is out of range, or the sequence is empty.

    Examples:
        >>> points = np.zeros((10, 1024, 3), np.float32)
        >>> labels = np.arange(10)
        >>> with kf.Feed(kf.Zip(points, labels), batch_size=4, shuffle=True, seed=0, workers=0) as feed:
        ...     print(len(feed))
        ...     for x, y in feed:
        ...         print(x.shape, y.shape)
        3
        (4, 1024, 3) (4,)
        (4, 1024, 3) (4,)
        (2, 1024, 3) (2,)
    """

    # ---- what Keras adds

    _is_read_by_framework = staticmethod(read_by_keras)

    def __repr__(self) -> str:
        return super().__repr__() + NO_KERAS

    def _init_framework(self, ahead: int) -> None:
        KerasAdapter.__init__(self, ahead)
        self._hooked: range | None = None  # batches of an epoch that Keras's hooks began

    def _consumed_batches(self) -> int:
        position, run = trainer_position("fit"), self.fit_run
        if position is not None and run is not None and run.serves(position.iterator):
            if position.epoch is None or position.hook in ("on_train_begin", "on_epoch_begin"):
                epoch = position.initial_epoch if position.epoch is None else position.epoch
                first: int = run.planned(epoch).numbers(epoch).start
                return first
            if run.is_running:
                number: int = run.number(before=position.is_before_execution)
                return number
        if position is None and run is not None and run.was_stopped:  # and not closed yet
            run.close()
        return self.clock.check_consumed()

    def _resume_at(self, number: int, *, shuffled: bool, rest: int | None = None) -> None:
        position, run = trainer_position("fit"), self.fit_run
        if position is not None and position.epoch is not None and run is not None and run.serves(position.iterator):
            raise RuntimeError(
                "set_state() was called during a fit on the feed, but Keras continues the epoch that it has begun. "
                "Call it before fit, or in on_train_begin"
            )
        self._give_up_ahead()
        self.clock.resume(number, shuffled=shuffled, rest=rest)

    def _give_up_ahead(self) -> None:
        run = self.fit_run
        if run is not None:
            run.close()

    def resume_fit(self, state: dict[str, Any], behind: int, done: int, steps: int | None) -> bool:
        """Set the position at which the next `fit` resumes.

        Args:
            state: A state of the feed.
            behind: Number of batches between that state and the batch to resume at.
            done: Earlier batches of the epoch of `fit`.
            steps: Batches of each epoch of `fit`; None for a whole epoch of the feed.

        Returns:
            False: the epoch is never over at that point.

        Raises:
            ValueError: The state belongs to other batches.
        """
        target = FeedState.of(state)
        target.check(state_of(self, 0), len(self))
        number = target.epoch * len(self) + target.step + behind
        self._resume_at(number, shuffled=target.shuffled_steps, rest=(steps or len(self)) - done)
        return False

    def end_fit_epoch(self, number: int) -> None:
        """End an epoch of a trainer; batch `number` is next."""
        self.clock.end_fit_epoch(number)
        if number % self.clock.steps == 0:
            self.hooks.leave(number // self.clock.steps - 1)  # start() may have begun the next epoch

    # ---- frameworks

    def to_tf_dataset(
        self, *, device: str | None = None, epochs: int = 1, deterministic: bool = True
    ) -> "tf.data.Dataset":
        """Make a `tf.data.Dataset` whose iterations are the next epochs of the feed.

        Args:
            device: Device to prefetch batches to, for example "/gpu:0". None is the first GPU, if there is one, no
                distribution strategy places the batches itself, and no field is text or ragged; else the host.
            epochs: Epochs of the feed in one iteration of the dataset, at least 1.
            deterministic: Whether batches are in the order of their steps. False returns batches as they are loaded.

        Returns:
            A dataset of batches, nested as the scenes are (lists become tuples), with static shapes and dtypes. Its
            cardinality is known, unless batches are prefetched to a device other than the host. Pass it to `fit` with
            `shuffle=False`. An exception of a scene arrives as a `tf.errors.OpError` with its message, notes and
            traceback. The feed does not know how much of the dataset was consumed.

        Raises:
            ImportError: TensorFlow is not installed.
            TypeError: A field has a dtype that TensorFlow does not have.
            ValueError: `epochs` is below 1, the feed skips scenes, or Keras would shard the dataset again.

        Examples:
            >>> with kf.Feed(np.zeros((10, 3), np.float32), batch_size=4, workers=0) as feed:
            ...     dataset = feed.to_tf_dataset()
            ...     print(dataset.element_spec, int(dataset.cardinality()))
            TensorSpec(shape=(None, 3), dtype=tf.float32, name=None) 3
        """
        from kerasfeed.adapters.tensorflow.dataset import batches_dataset

        refuse_skip(self.job.policy, "to_tf_dataset()")
        refuse_second_sharding(self.shard.count)
        self.follow_sequence()
        count = check_integer("epochs", epochs, 1) * len(self)
        make = partial(claim_batches, count=count, in_order=deterministic, generations=self.refreshes.planned)
        begin = partial(begin_in_thread, self, make, contextvars.copy_context())
        return batches_dataset(begin, self.element_spec, count=count, device=device)

    def _keras_run(self, iterator: Any, request: TrainerRequest) -> FeedRun:
        if request.method:
            refuse_skip(self.job.policy, f"{request.method}()")
        self.follow_sequence()
        has_order = not self.plan.order.is_sequential
        if request.method == "predict" and has_order:
            self._loader.failure_log.deferred_warnings.defer("predict", _PREDICTED_IN_ORDER, FeedWarning)
            self._loader.failure_log.deferred_warnings.issue()
        # If Keras also shuffled batches, an order would gain nothing, and shards would take different steps.
        shuffled = request.shuffle and not has_order and self.plan.shard_count == 1
        return FeedRun(self, iterator, request, shuffled=shuffled)

    def _keras_hook(self, *, begins: bool) -> None:
        position = trainer_position()
        if position is not None and (position.method != "fit" or position.epoch is None):
            return
        began, self._hooked = self._hooked, None
        if begins:
            self._hooked = self.clock.claim_epochs()
        elif began is not None:
            self.request_log.clear()
            self.end_fit_epoch(began.stop)
        else:  # a PyDataset around the feed usually forwards this hook only
            self.clock.resume((self.clock.current + 1) * self.clock.steps)
            self.hooks.leave()
