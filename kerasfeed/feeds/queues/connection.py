"""Messages between processes of one host, by `multiprocessing.connection`.

Invariant: nothing is unpickled that did not come from someone who knows the key, on either side. A connection is used
by one thread at a time; others may call `hang_up`.
"""

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from kerasfeed.util.picklers import TextPickler, pickled_beside

_CREDENTIALS = struct.Struct("iII")  # process, user, group, as Linux tells them
_TIME = struct.Struct("ll")  # seconds, microseconds
_AUTH_SECONDS = 10
_BESIDE = 1 << 14  # bytes from which an array travels beside the pickle, and is copied less
_PIECE = 1 << 18  # bytes sent at once; whoever receives 1 MB at once takes three times as long

Address = str | tuple[str, int]


def packed(value: Any) -> list[memoryview]:
    """An object as parts to `send`.

    Raises:
        Exception: Whatever its classes raise when pickled.
    """
    return pickled_beside(TextPickler, value, _BESIDE)


def send(connection: "Connection[Any, Any]", parts: list[memoryview]) -> None:
    """Send what `packed` made of an object.

    Raises:
        OSError: The other end is gone.
    """
    connection.send_bytes(struct.pack(f"<{len(parts)}Q", *map(len, parts)))
    for part in parts:
        for start in range(0, len(part), _PIECE):
            connection.send_bytes(part, start, min(_PIECE, len(part) - start))


def receive(connection: "Connection[Any, Any]") -> list[bytearray]:
    """What `send` was given; waits. The first part is the pickle, the others are its buffers.

    Raises:
        OSError, EOFError: The other end is gone.
    """
    sizes = connection.recv_bytes()
    parts = [bytearray(size) for size in struct.unpack(f"<{len(sizes) // 8}Q", sizes)]
    for part in parts:
        for start in range(0, len(part), _PIECE):
            connection.recv_bytes_into(part, start)
    return parts


def unpacked(parts: list[bytearray]) -> Any:
    """The object that `packed` was given.

    Raises:
        Exception: Whatever its classes raise when unpickled.
    """
    return pickle.loads(parts[0], buffers=parts[1:])


def listen() -> socket.socket:
    """A socket that other processes of this host can reach at `getsockname()`. It leaves no file behind.

    It is closed in forks of this process.
    """
    is_linux = sys.platform == "linux"
    sock = socket.socket(socket.AF_UNIX if is_linux else socket.AF_INET)
    try:
        sock.bind(f"\0kerasfeed-{os.urandom(16).hex()}" if is_linux else ("127.0.0.1", 0))
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    _OPEN.add(sock)
    return sock


def close_in_forks(connection: "Connection[Any, Any]") -> None:
    """Have forks of this process close the copy that they get: as long as they held it, its end would not be seen."""
    _OPEN.add(connection)


def user_of(connection: "Connection[Any, Any]") -> int | None:
    """Number of the user whose process is at the other end; None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    with _socket_of(connection) as sock:
        user: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return user


def authenticate(connection: "Connection[Any, Any]", key: bytes, *, is_feed: bool) -> None:
    """Show that this end, the feed's or a producer's, knows the key, and see that the other does.

    Raises:
        OSError, EOFError: It does not, does not answer, or is gone.
    """
    steps = [deliver_challenge, answer_challenge]
    with _socket_of(connection) as sock:
        try:
            for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, limit, _TIME.pack(_AUTH_SECONDS, 0))
            for step in steps if is_feed else reversed(steps):
                step(connection, key)
            for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, limit, _TIME.pack(0, 0))
        except (AuthenticationError, AssertionError) as error:
            raise ConnectionError("the other end of the connection does not know the key") from error


def hang_up(connection: "Connection[Any, Any]") -> None:
    """End the connection for both ends and all their copies; a thread that waits here gets an EOFError."""
    with contextlib.suppress(OSError), _socket_of(connection) as sock:  # it has ended already
        sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _socket_of(connection: "Connection[Any, Any]") -> Iterator[socket.socket]:
    sock = socket.socket(fileno=connection.fileno())
    try:
        yield sock
    finally:
        sock.detach()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block is over, so that no message is cut in two."""
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):
        yield
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


_OPEN: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _close_copies() -> None:
    for each in list(_OPEN):
        each.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
