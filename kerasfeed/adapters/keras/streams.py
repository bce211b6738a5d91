"""`StreamFeed`: the public stream, a `keras.utils.PyDataset`, and its use by Keras.

Invariant: the feed loads ahead, so Keras's threads and processes stay unused. Without `steps_per_epoch`, each epoch of
`fit`, and each call of `evaluate` or `predict`, is one repetition of the stream. With `steps_per_epoch` the epochs of
one `fit` take consecutive batches, over several repetitions if needed. Batches that Keras takes to build a model are
delivered again; batches that its backend prefetches past the last step are lost.
"""

import contextvars
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from kerasfeed.adapters.keras.adapter import NO_KERAS, KerasAdapter
from kerasfeed.adapters.keras.run import KerasRun
from kerasfeed.adapters.keras.trainer import TrainerRequest, read_by_keras, trainer_position
from kerasfeed.adapters.loops import FrameworkLoops
from kerasfeed.feeds.cursor import begin_in_thread
from kerasfeed.feeds.sharding import refuse_second_sharding
from kerasfeed.feeds.stream_cursor import StreamCursor
from kerasfeed.feeds.stream_feed import BaseStreamFeed
from kerasfeed.feeds.stream_merge import StreamPosition
from kerasfeed.loaders.arguments import refuse_skip

if TYPE_CHECKING:
    import tensorflow as tf

_KNOWN_POSITIONS = 8  # more batches than Keras and its backends prefetch


class StreamRun(KerasRun):
    """The use of a stream by one iterator of Keras."""

    def __init__(self, feed: Any, iterator: Any, request: TrainerRequest) -> None:
        super().__init__(feed, iterator, request, None)
        self._stream_cursor: StreamCursor | None = None
        self._close_lock = threading.RLock()

    closed = "another fit, or loop, of the stream has begun. A stream is read by one at a time; make a feed for each"

    def begin_epoch(self, epoch: int) -> int | None:
        """See `KerasRun.begin_epoch`; returns the rest of a resumed epoch with `steps_per_epoch`."""
        if not (self.request.trains and self.built):
            return None
        rest: int | None = self.feed.take_rest()
        return rest if self.steps_per_epoch else None

    def end_epoch(self) -> None:
        """See `KerasRun.end_epoch`."""

    def begin_taking(self) -> StreamCursor:
        """See `KerasRun.begin_taking`. Ends a stopped fit first."""
        if not self.request.trains:
            self.feed.end_fit()
        self._stream_cursor = cursor = StreamCursor(
            self.feed_reference, None if self.steps_per_epoch else 1, required=True,
            building=self.request.builds and not self.built, known_positions=_KNOWN_POSITIONS + self.execution,
        )  # fmt: skip
        return cursor

    def close(self) -> None:
        """See `KerasRun.close`; the feed's position is then after the last batch used."""
        with self._close_lock:  # another thread may drop Keras's iterator
            super().close()
            position, feed = self.position(before=False), self.feed_reference()
            cursor, self._stream_cursor = self._stream_cursor, None
            if cursor is not None:
                if position is not None and feed is not None:
                    feed.position = position
                cursor.close()

    def position(self, *, before: bool) -> StreamPosition | None:
        """Return the position of training.

        The position is `before` or after the running execution. Return None before the first batch.
        """
        cursor = self._stream_cursor
        if cursor is None or cursor.building:
            return None
        return cursor.position_after(min(self.used(before=before), cursor.taken))

    def supersede(self) -> None:
        """See `KerasRun.supersede`.

        After a stopped fit, Keras may release the data much later.
        """
        if self._stream_cursor is not None:  # None between two epochs; each epoch begins a new cursor
            self.superseded = True
        self.close()


class StreamFeed(BaseStreamFeed, KerasAdapter, FrameworkLoops):
    """Batches of generators, for Keras, `tf.data` and plain loops.

    Use it for data that cannot be indexed, on any Keras backend. If scenes can be indexed, use `kerasfeed.Feed`, which
    shuffles fully and resumes at no cost. One loop over the feed is one repetition: the feed creates all generators
    again and runs them to their end. With infinite generators, break out of the loop, or use `fit(feed,
    steps_per_epoch=...)`, whose epochs continue the same stream. The next `fit` begins the next repetition.

    Args:
        make_generator: Function `(n, count)` that returns generator n of `count`, or any iterable. With `count=1` it
            may take no arguments. It is called for each repetition, in the worker that runs the generator. A parameter
            `rng` receives the `np.random.Generator` for all scenes of this generator. A parameter `start` receives the
            number of the first scene to yield, which is above 0 only after a worker died or the stream was resumed.
            Without `start`, the generator then runs again from its beginning, and the earlier scenes are dropped.
        batch_size: Scenes in a batch, at least 1. None if each item is already a batch, as in Keras's own
            generators.
        count: Number of generators, at least 1.
        copies: Whether to run `count` copies of a generator that is made without arguments. Use it for an infinite
            generator that draws its scenes at random: each copy has different random numbers from `rng` and
            `kerasfeed.current_rng()`, and in worker processes also from `random` and `numpy.random`. With a finite
            generator, each scene comes `count` times.
        shuffle_buffer: Scenes in a shuffle buffer over all generators together, at least 1. Once the buffer is full,
            each new scene replaces a random scene, which is delivered. The order depends only on (seed, repetition) and
            the generators. None does not shuffle. With `map`, the buffer holds the items before the functions are
            applied.
        output_signature: Spec of a scene: nested like the scenes, with a `kerasfeed.ArraySpec(shape, dtype)` or a
            `tf.TensorSpec` for each field, and None for an axis that varies. Each scene is checked against the spec.
            None infers the spec from the first scenes.
        seed: Integer >= 0 that seeds `kerasfeed.current_rng()` in the generators and in the functions of `map`. In
            worker processes it also seeds `random` and `numpy.random`, differently for each generator and repetition.
            None draws a seed, which `feed.seed` returns.
        deterministic: Whether the generators take turns: scene k comes from generator k mod `count`, except that ended
            generators are skipped. False takes scenes from any generator with a scene ready.
        drop_remainder: Whether to drop the last batch of a repetition if it has fewer than `batch_size` scenes.
        pad_remainder: Whether to fill up that batch with scenes of `sample_weight` 0. Scenes must be `(x, y)` or
            `(x, y, sample_weight)`; every batch is then `(x, y, sample_weight)`.
        workers: Number of threads or processes that run the generators; each runs one or more. After `map`, number
            of concurrent calls of the function. 0 runs everything in the calling thread. "auto" is one for each
            generator; after `map`, the number of cores.
        worker_type: "thread"; "process", for work that holds the GIL, and for protection from crashes; or "auto":
            processes, unless `make_generator` or the function cannot be pickled, or the system is Windows.
        max_queue_size: Batches to make ahead of the consumer, at least 1.
        max_memory: Upper limit of the batch memory, bytes. None is a quarter of the memory of the machine or container.
        collate: How scenes become a batch; see `kerasfeed.Feed`.
        shard_index: Number of this shard, in [0, shard_count); needed with `shard_count`. With at least as many
            generators as shards, a shard runs every `shard_count`-th generator. Shards may then have different numbers
            of steps, and a warning names the number at the end of a repetition. With fewer generators, each shard runs
            all generators and takes every `shard_count`-th scene. All shards then have the same number of steps, and
            need the same seed.
        shard_count: Number of shards, at least 1.
        shard: Instead of `shard_index` and `shard_count`: a pair of them, "auto", and more; see `kerasfeed.Feed`.
        on_error: How to handle an item whose function raises, or a scene that no batch can hold. "raise": the consumer
            gets the error, after the earlier scenes, and the repetition ends. "skip": the scene is left out. "mask":
            its row is zeros with `sample_weight` 0. A generator that raises always ends the repetition: inside the
            generator, catch the exceptions that it should ignore.
        max_failures: How often a scene may end its worker process before it counts as failed (None: 3). Also, unless
            `on_error` is "raise", how many scenes may fail in one repetition before the feed raises: a number; or a
            float for a share of the scenes of the repetition so far, at least 3 (None: a tenth).
        timeout: Seconds that one scene may take; see `kerasfeed.Feed`.
        error_log: Path of a file; each failure appends one line of JSON.

    Raises:
        TypeError: An argument has the wrong type or is unknown, or `make_generator` is a generator, not a function.
        ValueError: An argument is out of range.

    Examples:
        Two generators, whose scenes alternate:

        >>> def numbers(n, count):
        ...     yield from np.arange(n, 6, count)
        >>> with kf.StreamFeed(numbers, batch_size=3, count=2, workers=2, worker_type="thread") as feed:
        ...     for batch in feed:
        ...         print(batch)
        [0 1 2]
        [3 4 5]
    """

    # ---- for Keras

    _is_read_by_framework = staticmethod(read_by_keras)
    end_fit = KerasAdapter.end_fit

    def __repr__(self) -> str:
        return super().__repr__() + NO_KERAS

    def _init_framework(self, ahead: int) -> None:
        KerasAdapter.__init__(self, ahead)
        self._rest: int | None = None

    def take_rest(self) -> int | None:
        """Return the remaining batches of a resumed epoch, once.

        Return None without `steps_per_epoch`, or if no epoch was resumed.
        """
        rest, self._rest = self._rest, None
        return rest

    def _consumed(self) -> StreamPosition | None:
        position, run = trainer_position("fit"), self.fit_run
        if run is not None:
            before = position is not None and position.is_before_execution
            training: StreamPosition | None = run.position(before=before)
            if training is not None:
                return training
        return super()._consumed()

    def resume_fit(self, state: dict[str, Any], behind: int, done: int, steps: int | None) -> bool:
        """Continue the next `fit` at `state`; see `kerasfeed.Feed.resume_fit`.

        Args:
            state: A state of the feed.
            behind: 0.
            done: Batches of the epoch of `fit` before `state`.
            steps: Batches of each epoch of `fit`; None if an epoch is a repetition.

        Returns:
            Whether the epoch ends at `state`.

        Raises:
            ValueError: The state belongs to other batches.
        """
        self.set_state(state)
        self._rest = steps - done if steps and done else None
        return bool(done and not steps and self.is_at_end())

    # ---- frameworks

    def to_tf_dataset(self, *, device: str | None = None) -> "tf.data.Dataset":
        """Return a `tf.data.Dataset` of unknown cardinality.

        Each iteration over the dataset is the next repetition.

        Args:
            device: The device to prefetch batches to, for example "/gpu:0". None is the first GPU, if there is one, no
                distribution strategy places the batches itself, and no field is text or ragged; else the host.

        Returns:
            A dataset of batches, nested like the scenes (lists become tuples), with their dtypes, and with static
            sizes of all axes that do not vary.

        Raises:
            ImportError: TensorFlow is not installed.
            TypeError: A field has a dtype that TensorFlow does not have.
            ValueError: The feed skips scenes, or Keras would shard the dataset again.

        Examples:
            >>> def numbers():
            ...     yield from np.arange(6, dtype=np.float32)
            >>> with kf.StreamFeed(numbers, batch_size=3, workers=0) as feed:
            ...     for batch in feed.to_tf_dataset():
            ...         print(batch.numpy())
            [0. 1. 2.]
            [3. 4. 5.]
        """
        from kerasfeed.adapters.tensorflow.dataset import batches_dataset

        refuse_skip(self._options.policy, "to_tf_dataset()", replaceable=False)
        refuse_second_sharding(self.plan.shard_count)
        begin = partial(begin_in_thread, self, _begin_unreported_loop, contextvars.copy_context())
        return batches_dataset(begin, self.element_spec, count=None, device=device)

    def _keras_run(self, iterator: Any, request: TrainerRequest) -> StreamRun:
        if request.method:
            refuse_skip(self._options.policy, f"{request.method}()", replaceable=False)
        run = StreamRun(self, iterator, request)
        if request.trains:
            self.begin_fit(run)
        return run


def _begin_unreported_loop(stream: StreamFeed) -> StreamCursor:
    cursor = stream.begin_loop()
    stream.position = None  # TensorFlow does not report which batches it has received
    return cursor
