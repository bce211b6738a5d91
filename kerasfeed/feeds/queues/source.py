"""`QueueSource`: a bounded queue of items, cut into epochs by those who fill it.

Invariant: an item that was put is taken once, in the order of the puts, unless the source is closed first. Nobody who
waits here waits for somebody who will not come: `close`, `finish`, `fail` and the end of the program wake everyone.
"""

import contextlib
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, ClassVar, Literal

from kerasfeed.errors import ConsumerGoneError, FeedClosedError, QueueFullError, SpecError
from kerasfeed.feeds.queues.producer import Producer
from kerasfeed.feeds.queues.server import ProducerServer
from kerasfeed.feeds.streams.source import Departure, Source
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.spec.conformance import conform, own_copy
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.counted import counted
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import add_note, can_travel, message_of, shown, summary, wrapped
from kerasfeed.util.polling import wait_for_exit

_JOIN_SECONDS = 5.0
_SLICE = 0.2  # s after which whoever waits looks again
_NO_MORE = "the feed takes no more scenes:"
_WAITING: set[int] = set()  # threads that wait for a consumer


class QueueSource(Source):
    """Items that other code puts, from any number of threads, and from processes through `producer()`.

    Repetition after repetition is one epoch of those that `end_epoch` ended. A repetition that is left goes on in the
    next one, where that has anything left.

    Args:
        maxsize: Items that may wait, at least 1; and so many ends of epochs.
        spec: What an item must be. None takes anything.
        copy: Whether arrays are copied as they are put; without, a producer must not write to them again.

    Attributes:
        maxsize: As it was given.
        count: How many items have been put.
    """

    afresh: ClassVar[bool] = False

    def __init__(self, maxsize: int, *, spec: SceneSpec | None = None, copy: bool = True) -> None:
        self.maxsize = maxsize
        self._spec = spec
        self._copy = copy
        self._pid = os.getpid()
        self.deferred_warnings = DeferredWarnings()
        self._lock = threading.RLock()  # the collector may call `close` while its thread holds it
        self._producers, self._consumers = _Sleepers(), _Sleepers()
        self.count = 0
        self._items: list[Any] = []  # in line
        self._ends: deque[int] = deque()  # how many items had been put when each epoch in line ended
        self._taken = 0  # items
        self._is_begun = False  # items of the present epoch were taken, by any repetition
        self._is_fresh = True  # none were, by the present repetition
        self._at_end = self._has_left = self._is_finished = self._is_closed = False
        self._failure: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._threads: list[threading.Thread] = []
        self._server: ProducerServer | None = None

    # ---- producers, on any thread

    @property
    def is_over(self) -> bool:
        """Whether nothing can be put any more."""
        return self._is_closed or self._is_finished or self._failure is not None

    def put(self, item: Any, *, timeout: float | None = None, copy: bool | None = None) -> None:
        """Add an item; waits while `maxsize` items wait.

        Args:
            item: A scene, or whatever the stream's function makes scenes of. NumPy arrays are copied.
            timeout: Seconds to wait at most; 0 does not wait, None waits for ever.
            copy: In place of the source's own.

        Raises:
            SpecError: It is not as the spec says. The queue is as it was.
            QueueFullError: There was no room within `timeout`; a `queue.Full`.
            FeedClosedError: No more items are wanted.
            RuntimeError: This is another process than the one that made the source.
        """
        self._refuse_other_process()
        copy = self._copy if copy is None else copy
        if self._spec is not None:
            try:
                item = conform(item, self._spec, copy=copy)
            except SpecError as error:
                raise SpecError(f"put() after {counted(self.count, 'scene')}: {message_of(error)}") from None
        elif copy:
            item = own_copy(item)
        self._enter(self._items, lambda: item, timeout, "scene", "scenes")

    def end_epoch(self, *, timeout: float | None = None) -> None:
        """End the epoch after what was put so far; it may be empty. Waits where `maxsize` ends wait to be reached.

        Raises:
            QueueFullError, FeedClosedError, RuntimeError: As `put` does.
        """
        self._refuse_other_process()
        self._enter(self._ends, lambda: self._taken + len(self._items), timeout, "end of an epoch", "ends of epochs")

    def finish(self) -> None:
        """Say that no more comes; idempotent. What was put is still taken, an epoch not yet ended ends there."""
        self._refuse_other_process()
        with self._lock:
            self._is_finished = True
            self._wake_everyone()

    def fail(self, error: BaseException) -> None:
        """Have `take` raise `error` after what was put so far, now and ever after. The first failure counts.

        Raises:
            TypeError: `error` is no exception.
        """
        self._refuse_other_process()
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, for example fail(OSError('...')); received {shown(error)}")
        if not can_travel(error):
            error = wrapped(error, "a producer of the queue ended with ")
        add_note(error, f"kerasfeed: from a producer of the queue, after {counted(self.count, 'scene')} put")
        with self._lock:
            if self._failure is not None or self._is_closed:
                return
            self._failure, self._traceback = error, error.__traceback__
            self._wake_everyone()

    @contextlib.contextmanager
    def producing(self) -> Iterator[None]:
        """A context to put in: an exception in it goes to the consumer too, as by `fail`.

        Where nobody takes any more, the block ends quietly at its next `put`.
        """
        try:
            yield
        except ConsumerGoneError:
            return
        except BaseException as error:
            self.fail(error)
            raise

    def produce(self, function: Callable[..., Any], *args: Any) -> threading.Thread:
        """Call `function(*args)` in a thread, which `close` joins; an exception of it goes to the consumer alone.

        Raises:
            TypeError: `function` is none, or is a generator function, which would put nothing.
        """
        if not callable(function) or inspect.isgeneratorfunction(function):
            what = "a generator function" if callable(function) else f"a {type(function).__name__}"
            raise TypeError(
                f"produce needs a function that puts scenes, received {what}. Pass the function and its arguments, "
                "produce(function, feed), or put what a generator yields: for scene in scenes(): feed.put(scene)"
            )

        def run() -> None:
            with contextlib.suppress(BaseException), self.producing():
                function(*args)

        thread = threading.Thread(target=run, name="kerasfeed-producer", daemon=True)
        with self._lock:
            self._refuse_if_closed()
            self._threads = [each for each in self._threads if each.is_alive()]
            start_thread(thread, "a queue feed that produces")
            self._threads.append(thread)
        return thread

    def producer(self, on_death: Literal["fail", "warn"] = "fail") -> Producer:
        """A handle for other processes of this host; it pickles, and may be given to several.

        Args:
            on_death: What becomes of the stream if a process that has called it is killed before it has ended in order:
                "fail" has the consumer get a `ProducerDiedError`, "warn" goes on without what that process had yet to
                put.

        Raises:
            ValueError: `on_death` is something else.
            FeedClosedError: The source is closed.
        """
        self._refuse_other_process()
        if on_death not in ("fail", "warn"):
            raise ValueError(f'on_death is "fail" or "warn", received {on_death!r}')
        with self._lock:
            self._refuse_if_closed()
            if self._server is None:
                self._server = ProducerServer(self)
            return self._server.handle(on_death)

    # ---- the consumer, on one thread at a time

    def begin(self, repetition: int, items: int = 0, departures: Sequence[Departure] = ()) -> None:
        """Begin the next epoch, or go on with the one that was left."""
        with self._lock:
            self._at_end = self._has_left = False
            self._is_fresh = True

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`. After the end of a repetition, none until `begin`."""
        taken: list[Any] | None = None
        try:
            while True:
                with self._lock:
                    if self._is_closed:
                        raise FeedClosedError("the feed is closed, and so is the queue that it takes scenes from")
                    if self._at_end or self._has_left:
                        return []
                    taken = self._next(limit)
                    if taken is None and self._failure is not None:
                        raise self._failure.with_traceback(self._traceback)
                    if taken is not None or self._is_finished:
                        self._at_end = not taken
                        self._producers.wake(len(taken or ()) or 1)
                        return taken or []
                    self._consumers.enlist()
                self._consumers.sleep()
        except BaseException:
            if taken is not None:  # Ctrl-C, between the removal and the return
                with self._lock:
                    self._give_back(taken, ended=not taken)
                    self._at_end = False
            raise

    def leave(self) -> None:
        """Have a `take` that waits return none; what was not taken stays."""
        with self._lock:
            self._has_left = True
            self._consumers.wake()

    def close(self) -> None:
        """Have every `put` that waits, and every call after, raise FeedClosedError; drop what was not taken."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._is_closed = True
            self._items.clear()
            self._ends.clear()
            self._wake_everyone()
            server, threads = self._server, self._threads
        if server is not None:
            server.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # ---- within

    def _next(self, limit: int) -> list[Any] | None:
        """The next items of the epoch, at most `limit`; none at its end; None where neither is in line.

        The end of an epoch is told once, after its last item; never where an earlier repetition had all of its items.
        """
        while True:
            waiting = self._ends[0] - self._taken if self._ends else len(self._items)
            count = min(limit, waiting)
            if count:
                # No call from here to the return: Ctrl-C strikes after calls, and would lose the items.
                taken = self._items[:count]
                del self._items[:count]
                self._taken += count
                self._is_begun, self._is_fresh = True, False
                return taken
            if not self._ends:
                return None
            del self._ends[0]
            was_left = self._is_begun and self._is_fresh
            self._is_begun = False
            if not was_left:
                return []

    def _give_back(self, items: list[Any], *, ended: bool) -> None:
        """Put items, and the end of their epoch, back to the front of the line."""
        if ended:
            self._ends.appendleft(self._taken)
            self._is_begun = not self._is_fresh  # else its end would not have been reported
        self._items[:0] = items
        self._taken -= len(items)

    def _wake_everyone(self) -> None:
        self._producers.wake()
        self._consumers.wake()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ConsumerGoneError(
                f"{_NO_MORE} its consumer has closed it, after {self.count} were put. End the producer, or put inside "
                "`with feed.producing():`, which ends quietly then"
            )
        if self._failure is not None:
            raise FeedClosedError(
                f"{_NO_MORE} a producer has failed, after {self.count} were put ({summary(self._failure)}). Repair "
                "that, and make a new feed"
            )
        if self._is_finished:
            raise FeedClosedError(
                f"{_NO_MORE} close() has said, after {self.count} were put, that no more come. Call it once, after the "
                "last put() of all producers"
            )

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this queue is filled in process {self._pid}, and this is process {os.getpid()}, which has only a "
                "copy of it. Give the process `feed.producer()` and put to that"
            )

    def _enter(self, line: list[Any] | deque[int], entry: Callable[[], Any], timeout: float | None, *what: str) -> None:
        """Append `entry()` to a line as soon as fewer than `maxsize` are in it, within `timeout`; `what` names them."""
        deadline = _deadline(timeout)
        while True:
            with self._lock:
                self._refuse_if_closed()
                if len(line) < self.maxsize:
                    line.append(entry())
                    self.count = self._taken + len(self._items)
                    self._consumers.wake()
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise QueueFullError(
                        f"the queue was full for {timeout:g} s: {counted(self.maxsize, *what)} not taken yet "
                        f"(maxsize={self.maxsize}). The consumer is slower than the producers: wait longer "
                        "(timeout=None waits for ever), or raise maxsize"
                    )
                self._producers.enlist()
            _WAITING.add(threading.get_ident())
            try:
                self._producers.sleep(deadline)
                has_ended = _program_has_ended()
            finally:
                _WAITING.discard(threading.get_ident())
            if has_ended:
                if threading.current_thread() not in self._threads:  # of those, no error is printed
                    wait_for_exit()
                raise ConsumerGoneError(
                    f"{_NO_MORE} the program has ended, after {self.count} were put, and takes no more"
                )


def _deadline(timeout: float | None) -> float | None:
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is in seconds, at least 0, or None to wait for ever; received {timeout!r}")
    return None if timeout is None else time.monotonic() + timeout


def _program_has_ended() -> bool:
    """Whether all that keeps the interpreter from its end are threads that wait for a consumer."""
    return not threading.main_thread().is_alive() and all(
        thread.ident in _WAITING for thread in threading.enumerate() if thread.is_alive() and not thread.daemon
    )


class _Sleepers:
    """Threads that wait for a change.

    None relies on being woken: an interrupt between any two instructions costs `_SLICE` seconds at worst.
    `threading.Condition` loses its lock to some.
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def enlist(self) -> None:
        """Have the calling thread be woken by what happens from now on; called with the lock held."""
        self._threads.add(threading.get_ident())

    def sleep(self, deadline: float | None = None) -> None:
        """Wait until woken, at most `_SLICE` seconds, and not beyond `deadline`, of `time.monotonic`."""
        try:
            with contextlib.suppress(Empty):
                left = _SLICE if deadline is None else deadline - time.monotonic()
                self._wakes.get(timeout=max(0.0, min(_SLICE, left)))
        finally:
            self._threads.discard(threading.get_ident())

    def wake(self, count: int | None = None) -> None:
        """Let `count` threads look again, all by default; called with the lock held."""
        sleeping = len(self._threads) - self._wakes.qsize()
        for _ in range(sleeping if count is None else min(count, sleeping)):
            self._wakes.put(None)
