"""`Producer`: how another process of this host fills a queue.

Invariant: a call returns when the queue has what it was given, and raises what the same call on the feed would. Pickles
as an address and a key; connects in each process at its first call, and again only where calls of several threads
overlap, so that none waits for another. Loads no framework.
"""

import contextlib
import os
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing import current_process, util
from multiprocessing.connection import Client
from types import TracebackType
from typing import Any

from kerasfeed.errors import ConsumerGoneError
from kerasfeed.feeds.queues.connection import (
    Address,
    authenticate,
    close_in_forks,
    packed,
    receive,
    send,
    uninterrupted,
    unpacked,
    user_of,
)
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.util.error_text import add_note, full_text, shown


@dataclass(frozen=True)
class Greeting:
    """The first message of a producer.

    Attributes:
        pid: Its process.
        name: What all its connections have in common, and nobody else's.
        on_death: "fail" or "warn".
    """

    pid: int
    name: bytes
    on_death: str


@dataclass(frozen=True)
class Request:
    """A call of the queue. After the last one, None is sent as a farewell.

    Attributes:
        method: That of the `QueueSource`: "put", "end_epoch", "finish" or "fail".
        arguments: By name; of "fail" the exception, `Sent`, and its traceback as text.
    """

    method: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def fail(cls, error: BaseException) -> "Request":
        """Have the consumer get `error`."""
        return cls("fail", {"error": Sent.of(error), "traceback": full_text(error)})


class Producer:
    """Puts scenes into a `QueueFeed` from another process, or from this one; made by `feed.producer()`.

    Pass it to `multiprocessing.Process` (spawned or forked) or to a pool, or pickle it into a file or a pipe. Its
    methods may be called from several threads. As a context, `with producer:`, it passes an exception in its block on
    to the consumer, and ends quietly if the consumer has stopped. A process that returns, or ends with an exception,
    counts as one that has left such a block. A process that is killed, or ends by `os._exit`, makes the feed fail or
    warn, as `on_death` of `feed.producer` says.
    """

    def __init__(self, address: Address, key: bytes, pid: int, on_death: str) -> None:
        self._address, self._key, self._pid, self._on_death = address, key, pid, on_death
        self._calls: _Calls | None = None
        util.register_after_fork(self, Producer._note_fork)

    def put(self, scene: Any, *, timeout: float | None = None) -> None:
        """Add a scene, as `QueueFeed.put` does. The scene must be picklable.

        Args:
            scene: What `QueueFeed.put` takes.
            timeout: Seconds to wait at most; 0 does not wait, None waits for ever.

        Raises:
            SpecError: The scene does not match the `spec` of the feed.
            QueueFullError: There was no room within `timeout`.
            FeedClosedError: No more scenes are wanted, or the feed's process has ended.
            Exception: What pickling raised, with a note.
        """
        self.calls().ask(Request("put", {"item": scene, "timeout": timeout, "copy": False}))

    def end_epoch(self, *, timeout: float | None = None) -> None:
        """End the epoch, as `QueueFeed.end_epoch` does; one producer calls it, for all.

        Args:
            timeout: Seconds to wait at most; 0 does not wait, None waits for ever.
        """
        self.calls().ask(Request("end_epoch", {"timeout": timeout}))

    def close(self) -> None:
        """Say that no more scenes come from any producer, as `QueueFeed.close` does.

        To end this producer only, leave its `with` block, or let its process end.
        """
        self.calls().ask(Request("finish"))

    def fail(self, error: BaseException) -> None:
        """Make the consumer raise `error`, with its traceback as a note, after what was put so far.

        Args:
            error: The exception that the consumer gets.

        Raises:
            TypeError: `error` is not an exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, for example fail(OSError('...')); received {shown(error)}")
        self.calls().ask(Request.fail(error))

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        gone = isinstance(error, ConsumerGoneError)
        try:
            if error is not None and not gone:
                with contextlib.suppress(ConsumerGoneError):
                    self.fail(error)
        finally:
            calls, self._calls = self._calls, None
            if calls is not None and calls.pid == os.getpid():
                calls.end()
        return gone

    def __reduce__(self) -> Any:
        return _restored, (self._address, self._key, self._pid, self._on_death)

    def __repr__(self) -> str:
        return f"<Producer for the feed of process {self._pid}>"

    def _note_fork(self) -> None:
        process = current_process()
        given = (*getattr(process, "_args", ()), *getattr(process, "_kwargs", {}).values())
        if any(each is self for each in given):
            self.calls()

    def calls(self) -> "_Calls":
        """What this process asks through; from now on an exception that ends it goes to the consumer."""
        calls = self._calls
        if calls is None or calls.pid != os.getpid():
            with _CONNECTING:
                calls = self._calls
                if calls is None or calls.pid != os.getpid():
                    calls = _Calls(self._address, self._key, self._pid, self._on_death)
                    calls.at_end = util.Finalize(self, _say_farewell, args=(calls,), exitpriority=10)
                    self._calls = calls
        return calls


def _restored(address: Address, key: bytes, pid: int, on_death: str) -> Producer:
    producer = Producer(address, key, pid, on_death)
    if pid != os.getpid():
        producer.calls()
    return producer


class _Calls:
    """The connections of a producer in one process, each for one call at a time."""

    def __init__(self, address: Address, key: bytes, feed_pid: int, on_death: str) -> None:
        self.pid = os.getpid()
        self.at_end: Any = None
        self._address, self._key, self._feed_pid = address, key, feed_pid
        self._greeting = Greeting(self.pid, os.urandom(8), on_death)
        self._all: list[_Call] = []
        self._free: list[_Call] = []

    def ask(self, request: Request) -> None:
        """Make a call, and raise what it raises."""
        call = self._take(waits=request.method in ("put", "end_epoch"))
        try:
            call.ask(request)
        finally:
            self._free.append(call)

    def _take(self, *, waits: bool) -> "_Call":
        """A connection that no other thread uses; unless `waits`, none on which a call that was cut short goes on."""
        for call in reversed(self._free.copy()):
            if waits or not call.is_unanswered:
                with contextlib.suppress(ValueError):  # another thread has it now
                    self._free.remove(call)
                    return call
        with uninterrupted():  # one that is not known here would end without a farewell
            call = _Call(self._address, self._key, self._feed_pid, self._greeting)
            self._all.append(call)
        return call

    def end(self) -> None:
        """Say farewell, and close; idempotent."""
        if self.at_end is not None:
            self.at_end.cancel()
        for call in self._all:
            call.end()


class _Call:
    """One connection, on which one call after the other is made."""

    def __init__(self, address: Address, key: bytes, feed_pid: int, greeting: Greeting) -> None:
        self._feed_pid = feed_pid
        self.is_unanswered = False
        try:
            self.connection = Client(address)
        except OSError as error:
            raise self._gone() from error
        if (user := user_of(self.connection)) is not None and os.geteuid() not in (0, user):
            self.connection.close()
            raise PermissionError(
                f"the feed's process, {feed_pid}, is user {user}'s and takes scenes from that user alone, and this "
                f"process is user {os.geteuid()}'s: start both as one user"
            )
        close_in_forks(self.connection)
        try:
            authenticate(self.connection, key, is_feed=False)
            send(self.connection, packed(greeting))
        except (OSError, EOFError) as error:
            self.connection.close()
            raise self._gone() from error

    def ask(self, request: Request) -> None:
        """Make a call, and raise what it raises."""
        try:
            parts = packed(request)
        except Exception as error:
            add_note(error, "kerasfeed: what a producer puts goes to another process, and must pickle")
            raise
        try:
            if self.is_unanswered:  # Ctrl-C has ended the call before this one
                self._answer()
            with uninterrupted():
                send(self.connection, parts)
                self.is_unanswered = True
            answer = self._answer()
        except (OSError, EOFError) as error:
            raise self._gone() from error
        if answer is not None:
            raise answer.arrived()

    def end(self) -> None:
        """Say farewell, and close; idempotent."""
        with contextlib.suppress(OSError):
            send(self.connection, packed(None))
        self.connection.close()

    def _answer(self) -> Sent | None:
        self.connection.poll(None)  # Ctrl-C strikes here, and takes nothing from the connection
        with uninterrupted():
            answer: Sent | None = unpacked(receive(self.connection))
            self.is_unanswered = False
        return answer

    def _gone(self) -> ConsumerGoneError:
        return ConsumerGoneError(
            f"the feed takes no more scenes: its process, {self._feed_pid}, has closed it or has ended. End the "
            "producer, or put inside `with producer:`, which ends quietly then"
        )


def _say_farewell(calls: _Calls) -> None:
    error = _ending() if util.is_exiting() else None
    if error is not None and not (isinstance(error, SystemExit) and not getattr(error, "code", None)):
        with contextlib.suppress(Exception):  # the feed may be gone
            calls.ask(Request.fail(error))
    calls.end()


def _ending() -> BaseException | None:
    """What ends this process: not what a session has told before, nor what its parent dealt with as it forked."""
    error = sys.exc_info()[1] or (None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    return None if id(error) == _INHERITED else error


_CONNECTING = threading.Lock()
_INHERITED = 0


def _after_fork() -> None:
    global _CONNECTING, _INHERITED
    _CONNECTING = threading.Lock()
    _INHERITED = id(sys.exc_info()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
