"""The queue's side of producers in other processes.

Invariant: what a producer asks for is done before it is answered. A connection that ends without a farewell is a death,
and is told.
"""

import contextlib
import os
import secrets
import threading
from collections import Counter
from multiprocessing.connection import Client, Connection
from typing import Any

from kerasfeed.errors import FeedWarning, ProducerDiedError
from kerasfeed.feeds.queues.connection import (
    authenticate,
    close_in_forks,
    hang_up,
    listen,
    packed,
    receive,
    send,
    unpacked,
    user_of,
)
from kerasfeed.feeds.queues.producer import Greeting, Producer, Request
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.resource_errors import naming_descriptors, start_thread
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import TRACEBACK_HEAD, add_note

_JOIN_SECONDS = 5.0
_LOOK_SECONDS = 1.0  # should the wake-up fail


class ProducerServer:
    """Listens for producer processes, and serves each in a thread of its own."""

    def __init__(self, queue: Any) -> None:
        """Begin to listen, for a `QueueSource`, of which producers call the methods that a `Request` names."""
        self._queue = queue
        self._key = secrets.token_bytes(32)
        self._lock = threading.RLock()  # the collector may call `close` while its thread holds it
        self._counts: Counter[bytes] = Counter()  # scenes put, by the producer's name
        self._connections: dict[Connection[Any, Any], threading.Thread] = {}
        self._closed = threading.Event()
        with naming_descriptors("a queue feed with producers in other processes", 2):
            self._socket = listen()
        self._socket.settimeout(_LOOK_SECONDS)
        self._thread = threading.Thread(target=self._accept, name="kerasfeed-producers", daemon=True)
        try:
            start_thread(self._thread, "a queue feed with producers in other processes")
        except BaseException:
            self._socket.close()
            raise

    def handle(self, on_death: str) -> Producer:
        """A handle for producers."""
        return Producer(self._socket.getsockname(), self._key, os.getpid(), on_death)

    def close(self) -> None:
        """Hang up on all producers; idempotent."""
        self._closed.set()
        with contextlib.suppress(OSError):
            Client(self._socket.getsockname()).close()  # wakes who accepts
        self._join(self._thread)
        with self._lock:
            threads = list(self._connections.values())
            for connection in self._connections:
                hang_up(connection)
        for thread in threads:
            self._join(thread)
        self._socket.close()

    @staticmethod
    def _join(thread: threading.Thread) -> None:
        if thread is not threading.current_thread():  # in which the collector may have found the feed
            thread.join(_JOIN_SECONDS)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or no descriptors are left
                self._closed.wait(0.1)
                continue
            sock.settimeout(None)
            connection: Connection[Any, Any] = Connection(sock.detach())
            close_in_forks(connection)
            if self._closed.is_set() or user_of(connection) not in (None, 0, os.geteuid()):
                connection.close()  # nothing is begun for it
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="kerasfeed-producers", daemon=True)
            with self._lock:
                try:
                    thread.start()
                except RuntimeError:  # no more threads are to be had; the producer is told that nobody answers
                    connection.close()
                    continue
                self._connections[connection] = thread

    def _serve(self, connection: "Connection[Any, Any]") -> None:
        try:
            authenticate(connection, self._key, is_feed=True)
            greeting = unpacked(receive(connection))
            assert isinstance(greeting, Greeting)
            self._answer(connection, greeting)
        except (OSError, EOFError):
            pass  # a stranger, or gone before it had put anything
        finally:
            with self._lock:
                connection.close()
                self._connections.pop(connection, None)

    def _answer(self, connection: "Connection[Any, Any]", greeting: Greeting) -> None:
        """Do what a producer asks for until it ends."""
        while True:
            try:
                parts = receive(connection)
            except (OSError, EOFError):
                self._producer_crashed(greeting)
                return
            answer = None
            try:
                request = self._unpacked(parts)
                if request is None:
                    self._counts.pop(greeting.name, None)
                    return
                self._do(request, greeting)
            except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
                answer = Sent.of(error)
            with contextlib.suppress(OSError):  # gone: the next receive tells
                send(connection, packed(answer))

    @staticmethod
    def _unpacked(parts: list[bytearray]) -> Request | None:
        try:
            request: Request | None = unpacked(parts)
        except BaseException as error:  # whatever its classes raise when unpickled
            add_note(
                error,
                f"kerasfeed: process {os.getpid()}, which the scene was sent to, cannot unpickle it. Put arrays, "
                "numbers and text, or classes from a module that both processes can import",
            )
            raise
        return request

    def _do(self, request: Request, greeting: Greeting) -> None:
        arguments = request.arguments
        if request.method == "fail":
            error = arguments["error"].arrived()
            add_note(error, f"kerasfeed: in producer process {greeting.pid}")
            add_note(error, f"{TRACEBACK_HEAD}\n{arguments['traceback']}")
            arguments = {"error": error}
        getattr(self._queue, request.method)(**arguments)
        if request.method == "put":
            with self._lock:
                self._counts[greeting.name] += 1

    def _producer_crashed(self, greeting: Greeting) -> None:
        if self._closed.is_set() or self._queue.is_over:
            return
        count = self._counts[greeting.name]
        told = (
            f"producer process {greeting.pid} ended without closing its producer after it had put "
            f"{counted(count, 'scene')}: it was killed, or crashed, and what it had yet to put is missing"
        )
        if greeting.on_death == "warn":
            self._queue.deferred_warnings.defer(f"death of {greeting.pid}", told, FeedWarning)
            return
        self._queue.fail(
            ProducerDiedError(
                f"{told}. If that is no loss, use feed.producer(on_death='warn'); if it ends by os._exit(), leave its "
                "`with producer:` block before"
            )
        )
