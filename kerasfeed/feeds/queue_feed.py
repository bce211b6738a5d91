"""`BaseQueueFeed`: a queue that other code fills, and a loader.

Invariant: scenes come in the order in which they were put; none is lost while the feed is open, whenever loops over it
are left.
"""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.queues.producer import Producer
from kerasfeed.feeds.queues.source import QueueSource
from kerasfeed.feeds.stream_base import BaseStream
from kerasfeed.feeds.streams.source import Source
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.validate import check_integer

_NO_STATE = (
    "a QueueFeed cannot be resumed: its scenes are put by other code, and are gone when they have been used. Keep what "
    "was put (kf.write_tfrecords, for example) and feed that, or make the scenes in generators of a kf.StreamFeed"
)


class BaseQueueFeed(BaseStream):
    """Batches of scenes that other code puts, for loops; see `kerasfeed.QueueFeed`."""

    _public = BaseStream._public | {"end_epoch", "fail", "produce", "producer", "producing", "put"}

    def __init__(
        self,
        *,
        batch_size: int | None = None,
        spec: Any = None,
        maxsize: int | None = None,
        copy: bool = True,
        seed: int | None = None,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        workers: int | Literal["auto"] = "auto",
        worker_type: Literal["auto", "process", "thread"] = "auto",
        max_queue_size: int = 10,
        max_memory: int | None = None,
        collate: Any = "stack",
        on_error: Literal["raise", "mask", "skip"] = "raise",
        max_failures: int | float | None = None,
        timeout: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__(FeedOptions.checked(BaseQueueFeed.__init__, locals(), type(self).__name__))
        size = max(16, 2 * self.plan.rows) if maxsize is None else check_integer("maxsize", maxsize, 1)
        self._source = QueueSource(size, spec=self._spec, copy=bool(copy))
        self._hold = _Hold()  # which feeds made by `map` share
        weakref.finalize(self._hold, self._source.close)

    # ---- producers

    def put(self, scene: Any, *, timeout: float | None = None) -> None:
        """Add a scene to the queue; waits while `maxsize` scenes wait there.

        May be called from any thread of this process.

        Args:
            scene: Arrays, numbers and text, nested in tuples and dicts; where the feed has a `map`, any object. NumPy
                arrays are copied, unless the feed was made with `copy=False`. With a `spec`, Python numbers and lists
                of them are converted to its dtypes.
            timeout: Seconds to wait at most; 0 does not wait, None waits for ever.

        Raises:
            SpecError: The scene does not match the `spec`. The queue has not changed.
            QueueFullError: There was no room within `timeout`. It is also a `queue.Full`.
            FeedClosedError: The feed was closed, by a producer or by its consumer, or a producer has failed.
            RuntimeError: This process is a fork of the one that made the feed: use `producer()`.

        Examples:
            >>> with kf.QueueFeed(batch_size=2, workers=0) as feed:
            ...     feed.put((np.zeros(3), 1))
            ...     feed.put((np.ones(3), 2))
            ...     feed.close()
            ...     for x, y in feed:
            ...         print(x.shape, y)
            (2, 3) [1 2]
        """
        self._source.put(scene, timeout=timeout)

    def end_epoch(self, *, timeout: float | None = None) -> None:
        """End the epoch after what was put so far; one call for all producers. The epoch may be empty.

        Waits, as `put` does, while `maxsize` ends of epochs have not been reached by the consumer.

        Args:
            timeout: Seconds to wait at most; 0 does not wait, None waits for ever.

        Raises:
            QueueFullError, FeedClosedError, RuntimeError: As `put`.

        Examples:
            >>> with kf.QueueFeed(batch_size=2, workers=0) as feed:
            ...     feed.put(1.0)
            ...     feed.end_epoch()
            ...     feed.put(2.0)
            ...     feed.close()
            ...     print(list(feed), list(feed))
            [array([1.])] [array([2.])]
        """
        self._source.end_epoch(timeout=timeout)

    def close(self) -> None:
        """Say that no more scenes come. What was put is still delivered. May be called again.

        An epoch that was not ended yet ends there, and every loop after it is empty. To discard what was put, leave the
        `with` block of the feed.

        Examples:
            >>> with kf.QueueFeed(batch_size=2, workers=0) as feed:
            ...     feed.put(1.0)
            ...     feed.close()
            ...     print(list(feed), list(feed))
            [array([1.])] []
        """
        self._source.finish()

    def fail(self, exception: BaseException) -> None:
        """Make the consumer raise `exception` after what was put so far, in this loop and in every later one.

        Args:
            exception: The exception that the consumer gets.

        Examples:
            >>> with kf.QueueFeed(batch_size=2, workers=0) as feed:
            ...     feed.put(1.0)
            ...     feed.fail(OSError("the camera is gone"))
            ...     try:
            ...         list(feed)
            ...     except OSError as error:
            ...         print(error)
            the camera is gone
        """
        self._source.fail(exception)

    def producing(self) -> AbstractContextManager[None]:
        """A context for a producer: an exception in its block also goes to the consumer, as with `fail`.

        If the consumer has stopped, the block ends quietly at its next `put`.

        Examples:
            >>> with kf.QueueFeed(batch_size=2, workers=0) as feed:
            ...     with feed.producing():
            ...         feed.put(1.0)
            ...         feed.put(2.0)
            ...     feed.close()
            ...     print(list(feed))
            [array([1., 2.])]
        """
        return self._source.producing()

    def produce(self, function: Callable[..., Any], *args: Any) -> threading.Thread:
        """Call `function(*args)` in a new thread. An exception that it raises goes to the consumer.

        Args:
            function: A function that calls `put`, `end_epoch` and `close` of this feed.
            *args: Its arguments.

        Returns:
            The thread, already started.

        Raises:
            TypeError: `function` is none, or is a generator function, which would put nothing.

        Examples:
            >>> def receive(feed):
            ...     feed.put(1.0)
            ...     feed.put(2.0)
            ...     feed.close()
            >>> with kf.QueueFeed(batch_size=2) as feed:
            ...     thread = feed.produce(receive, feed)
            ...     print(list(feed))
            [array([1., 2.])]
        """
        return self._source.produce(function, *args)

    def producer(self, on_death: Literal["fail", "warn"] = "fail") -> Producer:
        """A handle for other processes of this host, with `put`, `end_epoch`, `close` and `fail`. It can be pickled.

        Args:
            on_death: What happens if a process that used the handle is killed before it has finished: with "fail" the
                consumer gets a `ProducerDiedError`, with "warn" a `FeedWarning`.

        Returns:
            A [Producer][kerasfeed.feeds.queues.producer.Producer]: pass it to `multiprocessing.Process`, or pickle it.

        Examples:
            >>> with kf.QueueFeed(batch_size=2) as feed:
            ...     with feed.producer() as producer:  # in another process, as a rule
            ...         producer.put(1.0)
            ...         producer.put(2.0)
            ...         producer.close()
            ...     print(list(feed))
            [array([1., 2.])]
        """
        return self._source.producer(on_death)

    # ---- the stream

    def _make_source(self) -> Source:
        return self._source

    def _given_spec(self) -> SceneSpec | None:
        return None if self._functions else super()._given_spec()

    def __exit__(self, *raised: Any) -> None:
        try:
            self._stop()
        finally:
            self._source.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a QueueFeed belongs to its process, where its scenes are put. Give other processes feed.producer(), which "
            "pickles"
        )

    def get_state(self) -> dict[str, Any]:
        """Always raises: scenes that other code puts cannot be asked for again.

        Raises:
            RuntimeError: Always; the message says what to do.
        """
        raise RuntimeError(_NO_STATE)

    def set_state(self, state: Any) -> None:
        """Always raises; see `get_state`.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(_NO_STATE)

    def _facts(self) -> list[tuple[str, str]]:
        queue = [("put so far", f"{self._source.count:,}"), ("maxsize", f"{self._source.maxsize:,}")]
        return [*queue, *super()._facts()]


class _Hold:
    """What is collected with the last of the feeds that share a queue."""


BaseQueueFeed.__init__.__qualname__ = "QueueFeed.__init__"  # what Python's own messages call it
