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
        """Add a scene to the epoch; waits while `maxsize` scenes wait. From any thread of this process.

        Args:
            scene: Arrays, numbers and text in tuples and dicts; before `map`, anything. NumPy arrays are copied, unless
                the feed was made with `copy=False`. With a `spec`, Python numbers and lists of them take its dtypes.
            timeout: Seconds to wait at most; 0 does not wait, None waits for ever.

        Raises:
            SpecError: It is not as the spec says. The queue is as it was.
            queue.Full: There was no room within `timeout`.
            FeedClosedError: The feed was closed, by a producer or by its consumer, or a producer has failed.
            RuntimeError: This is a forked process, which has a copy of the feed: use `producer()`.
        """
        self._source.put(scene, timeout=timeout)

    def end_epoch(self, *, timeout: float | None = None) -> None:
        """End the epoch after what was put so far, once for all producers. It may be empty.

        Waits, like `put`, where `maxsize` ends of epochs wait to be reached.
        """
        self._source.end_epoch(timeout=timeout)

    def close(self) -> None:
        """Say that no more comes; idempotent. What was put is still delivered, and an epoch not ended yet ends there.

        Every loop after that is empty. To stop a feed whose scenes are not wanted any more, leave its `with` block.
        """
        self._source.finish()

    def fail(self, exception: BaseException) -> None:
        """Have the consumer get `exception`, after what was put so far, in this loop and every one after."""
        self._source.fail(exception)

    def producing(self) -> AbstractContextManager[None]:
        """A context for producers: an exception in its block goes to the consumer too, as by `fail`.

        Where the consumer has gone, the block ends quietly at its next `put`.
        """
        return self._source.producing()

    def produce(self, function: Callable[..., Any], *args: Any) -> threading.Thread:
        """Call `function(*args)`, which puts, in a thread of its own; an exception of it goes to the consumer."""
        return self._source.produce(function, *args)

    def producer(self, on_death: Literal["fail", "warn"] = "fail") -> Producer:
        """A handle with `put`, `end_epoch`, `close` and `fail` for other processes of this host. It pickles.

        Args:
            on_death: What becomes of the feed if a process that has called it is killed before it has ended in
                order: "fail" has the consumer get a `ProducerDiedError`, "warn" a `FeedWarning`.
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

    def _facts(self) -> list[tuple[str, str]]:
        queue = [("put so far", f"{self._source.count:,}"), ("maxsize", f"{self._source.maxsize:,}")]
        return [*queue, *super()._facts()]


class _Hold:
    """What is collected with the last of the feeds that share a queue."""


BaseQueueFeed.__init__.__qualname__ = "QueueFeed.__init__"  # what Python's own messages call it
