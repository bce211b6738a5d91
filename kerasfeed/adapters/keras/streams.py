"""`StreamFeed` and `QueueFeed`: the streams that users hold, each a `keras.utils.PyDataset`.

Invariant: to Keras they look ahead by themselves, so Keras's own threads and processes stay unused.
"""

import contextvars
import weakref
from functools import partial
from typing import TYPE_CHECKING

from kerasfeed.adapters.keras.adapter import KerasAdapter
from kerasfeed.adapters.keras.run import RunningFit
from kerasfeed.adapters.keras.stream_run import StreamRun
from kerasfeed.adapters.keras.trainer import KerasCall, TrainerRequest
from kerasfeed.feeds.cursor import Cursor
from kerasfeed.feeds.queue_feed import BaseQueueFeed
from kerasfeed.feeds.stream_base import BaseStream
from kerasfeed.feeds.stream_cursor import RepetitionCursor, StreamCursor
from kerasfeed.feeds.stream_feed import BaseStreamFeed
from kerasfeed.loaders.arguments import refuse_skip

if TYPE_CHECKING:
    import tensorflow as tf


class KerasStream(BaseStream, KerasAdapter):
    """What Keras adds to a stream."""

    def _init_framework(self, ahead: int) -> None:
        KerasAdapter.__init__(self, ahead)

    def _reset_state(self) -> None:
        super()._reset_state()
        self._init_keras()
        self._running_fit = RunningFit()

    def end_fit(self) -> None:
        """See `BaseStream.end_fit`."""
        self._running_fit.end_fit()

    # ---- frameworks

    def to_tf_dataset(self, *, device: str | None = None) -> "tf.data.Dataset":
        """This feed as a `tf.data.Dataset` of unknown cardinality; each iteration of it is the next repetition.

        Args:
            device: Where batches are prefetched to, for example "/gpu:0". None is the first GPU if there is one and no
                distribution strategy places the batches itself, else the host.

        Returns:
            A dataset of batches nested as the scenes are (lists become tuples), with static shapes as far as they are
            known, and dtypes.

        Raises:
            TypeError: A field has a dtype that TensorFlow lacks.
        """
        from kerasfeed.adapters.keras.dataset import dataset_for_keras  # imports TensorFlow

        refuse_skip(self._options.policy, "to_tf_dataset()", replaceable=False)
        begin = partial(_begin_cursor, self)
        return dataset_for_keras(begin, self, count=None, device=device, loops=None, run_of=self._keras_run)

    def _known_batches(self) -> None:
        return None

    def _keras_run(self, call: KerasCall, request: TrainerRequest) -> StreamRun:
        if request.method:
            refuse_skip(self._options.policy, f"{request.method}()", replaceable=False)
        run = StreamRun(self, call.iterator, request)
        if request.trains:
            self._running_fit.begin_run(run)
        return run

    def _keras_cursor(self) -> StreamCursor:
        return StreamCursor(weakref.proxy(self), endless=False, afresh=True)

    def _keras_hook(self, *, begins: bool) -> None:
        self.request_log.clear()


def _begin_cursor(feed: BaseStream, context: contextvars.Context) -> Cursor:
    return feed.cursors.begin(partial(RepetitionCursor, weakref.ref(feed)), context)


class StreamFeed(BaseStreamFeed, KerasStream):
    """Batches of what generators yield, for `model.fit` on any Keras backend, `tf.data` and plain loops.

    For sources that cannot be indexed; what can be is better fed by a `kerasfeed.Feed`, which shuffles and resumes. A
    loop is one repetition of the generators, which begin afresh with each; infinite generators need a loop that ends
    by itself, or `fit(feed, steps_per_epoch=...)`, whose epochs follow each other without a break.

    Args:
        make_generator: Function `(n, count)` that returns the n-th of `count` generators, or any iterable; with
            `count=1` a function of no arguments will do, such as the method `generate_data` of a class. It is called
            anew for every repetition, in the worker that runs the generator. Where it has a parameter `start`, that is
            the number of the scene to begin with, not 0 where a worker that died is replaced (else its generator is
            run again up to there).
        batch_size: Scenes in a batch. None where each item is a batch already, as Keras's own generators yield them.
        count: Number of generators, at least 1.
        spec: Spec of a scene, nested as the scenes are: `kerasfeed.ArraySpec(shape, dtype)` for each field, None for
            an axis that varies. None infers it from the first scenes.
        seed: Integer >= 0 behind `kerasfeed.current_rng()` in the generators and in the functions given to `map`; in
            worker processes also behind `random` and `numpy.random`, which differ from generator to generator and from
            repetition to repetition. None draws one, kept in `feed.seed`.
        deterministic: Whether scene k comes from generator k mod `count`, those that have ended left out; else from
            whichever has one ready.
        drop_remainder: Whether to drop the last batch of a repetition when it is not full.
        pad_remainder: Whether to fill it up, with scenes of `sample_weight` 0; every batch is then
            `(x, y, sample_weight)`, and scenes must be `(x, y)` or `(x, y, sample_weight)`.
        workers: Threads or processes that run the generators, each one or more of them; after `map`, concurrent calls
            of the function. 0 runs all in the calling thread. "auto" is one for each generator; after `map`, the number
            of cores.
        worker_type: "thread", "process" (for work that holds the GIL, and for isolation), or "auto": processes, except
            where `make_generator` or the function cannot be pickled, and on Windows.
        max_queue_size: Batches made ahead of the consumer.
        max_memory: Ceiling of the batch memory, bytes. None is a quarter of the memory of the machine or container.
        collate: How scenes become a batch; see `kerasfeed.Feed`.
        on_error: What becomes of a generator that raises, or of an item whose function does. "raise": the consumer
            gets the error, behind the scenes that came before it, and the repetition is over. "skip": the item is left
            out; of the generator nothing more comes in this repetition. "mask": an item's row is zeros with
            `sample_weight` 0; a generator is dealt with as in "skip".
        max_failures: How often a scene may end its worker process before it has failed, and, where `on_error` is not
            "raise", how many may fail in one repetition before the feed does: a count, or a share of its scenes so
            far. None is 3 times, and a tenth (or 3).
        timeout: Seconds that a scene may take; see `kerasfeed.Feed`.
        error_log: Path of a file to which every failure is appended as a line of JSON.

    Raises:
        TypeError: An argument is of the wrong type or unknown; `make_generator` is a generator and not a function.
        ValueError: An argument is out of range.
    """


class QueueFeed(BaseQueueFeed, KerasStream):
    """Batches of scenes that other code puts: threads, callbacks of a library, other processes through `producer()`.

    A loop, or an epoch of `fit`, is one epoch of the producers, up to `end_epoch()`; the next loop is the next one, as
    often as there are any. A loop that is left in the middle of an epoch loses nothing: the next one goes on there.

    A producer puts, ends epochs, and closes the feed after the last scene. The consumer stops it by the end of its
    `with feed:` block: whoever waits in `put` then gets a `FeedClosedError`, and so it does where the feed is
    collected, or where nothing but such threads keeps the program from its end.

    Args:
        batch_size: Scenes in a batch. None where each scene that is put is a batch already.
        spec: Spec of what is put, nested as that is: `kerasfeed.ArraySpec(shape, dtype)` for each field, None for an
            axis that varies. `put` then refuses everything else, in the producer. None takes anything, and infers the
            spec from the first batch.
        maxsize: Scenes that wait, at least 1, beside the `max_queue_size` batches made ahead: `put` waits while there
            are so many. None is two batches, at least 16.
        copy: Whether `put` copies arrays, so that a producer may use its memory again.
        seed: Integer >= 0 behind `kerasfeed.current_rng()` in the functions given to `map`. None draws one.
        drop_remainder: Whether to drop the last batch of an epoch when it is not full.
        pad_remainder: Whether to fill it up, with scenes of `sample_weight` 0; see `kerasfeed.StreamFeed`.
        workers: Concurrent calls of the functions given to `map`; "auto" is the number of cores. With 0 nothing is
            made ahead.
        worker_type: "thread", "process", or "auto": processes, where the function can be pickled.
        max_queue_size: Batches made ahead of the consumer.
        max_memory: Ceiling of the batch memory, bytes. None is a quarter of the memory of the machine or container.
        collate: How scenes become a batch; see `kerasfeed.Feed`.
        on_error: What becomes of a scene whose function raises; see `kerasfeed.StreamFeed`.
        max_failures: How many may; see `kerasfeed.StreamFeed`.
        timeout: Seconds that a function may take; see `kerasfeed.Feed`.
        error_log: Path of a file to which every failure is appended as a line of JSON.

    Raises:
        TypeError: An argument is of the wrong type or unknown.
        ValueError: An argument is out of range.
    """
