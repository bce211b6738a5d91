"""Messages between processes of one host: whole objects over a socket, large arrays beside the pickle.

Invariant: nothing is unpickled that did not come from someone who knows the key, on either side. Not thread-safe.
"""

import contextlib
import hmac
import io
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pickle import PickleBuffer
from typing import Any

from kerasfeed.util.picklers import TextPickler

_HEAD = struct.Struct("<QI")  # bytes of the pickle, number of buffers beside it
_CREDENTIALS = struct.Struct("iII")  # process, user, group, as Linux tells them
_NONCE = 32  # bytes, as many as a proof has
_BESIDE = 1 << 14  # bytes from which an array travels beside: below, a system call costs more than two copies
_AUTH_SECONDS = 10.0

Address = str | tuple[str, int]


class Connection:
    """One end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def wait(self) -> None:
        """Wait until there is something to receive, or the other end is gone."""
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll()
        else:
            select.select([self._socket], [], [])

    def send(self, parts: list[Any]) -> None:
        """Send what `packed` made of an object.

        Raises:
            OSError: The other end is gone.
        """
        for part in parts:
            self._socket.sendall(part)

    def receive(self) -> Any:
        """The next object; waits.

        Raises:
            EOFError: The other end is gone.
            Exception: What unpickling raises; the connection can be used further.
        """
        head_bytes, count = _HEAD.unpack(self._read(_HEAD.size))
        lengths = struct.unpack(f"<{count}Q", self._read(8 * count)) if count else ()
        data = self._read(head_bytes)
        buffers = [self._read(length) for length in lengths]
        return pickle.loads(data, buffers=buffers)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._socket.recv_into(view)
            except ConnectionError:
                count = 0
            if not count:
                raise EOFError("the other end of the connection is gone")
            view = view[count:]
        return data

    def prove(self, key: bytes, own: bytes, other: bytes) -> None:
        """Show that this end, called `own`, knows the key, and see that the other does.

        Raises:
            ConnectionError, EOFError: It does not, or is gone.
        """
        self._socket.settimeout(_AUTH_SECONDS)
        mine = os.urandom(_NONCE)
        self._socket.sendall(mine)
        theirs = bytes(self._read(_NONCE))
        self._socket.sendall(hmac.digest(key, own + mine + theirs, "sha256"))
        if not hmac.compare_digest(self._read(_NONCE), hmac.digest(key, other + theirs + mine, "sha256")):
            raise ConnectionError("the other end of the connection does not know the key")
        self._socket.settimeout(None)

    def hang_up(self) -> None:
        """End the connection for both ends and all their copies; a thread that waits here gets EOFError."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this copy of the connection; idempotent."""
        self._socket.close()


def packed(value: Any) -> list[Any]:
    """An object as parts to send one after the other.

    Raises:
        Exception: Whatever its classes raise when pickled.
    """
    beside: list[memoryview] = []

    def place(buffer: PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _BESIDE:
            return True
        beside.append(raw)
        return False

    file = io.BytesIO()
    TextPickler(file, protocol=5, buffer_callback=place).dump(value)
    data = file.getvalue()
    lengths = struct.pack(f"<{len(beside)}Q", *(raw.nbytes for raw in beside))
    return [b"".join((_HEAD.pack(len(data), len(beside)), lengths, data)), *beside]


def listen() -> tuple[socket.socket, Address]:
    """A socket that other processes of this host can reach, and its address. It leaves no file behind."""
    if sys.platform == "linux":
        address: Address = f"\0kerasfeed-{os.urandom(16).hex()}"
        sock = socket.socket(socket.AF_UNIX)
    else:
        address, sock = ("127.0.0.1", 0), socket.socket(socket.AF_INET)
    try:
        sock.bind(address)
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    return sock, sock.getsockname() if isinstance(address, tuple) else address


def connect(address: Address) -> socket.socket:
    """A connection to `listen`'s address.

    Raises:
        OSError: Nobody listens there.
    """
    sock = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def user_of(sock: socket.socket) -> int | None:
    """Number of the user whose process is at the other end; None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    user: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return user


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
