"""The session of Ray in this process.

Invariant: one that was begun here is ended with the last feed that uses it, and no other one ever is.
"""

import logging
import threading
from typing import Any

from kerasfeed.errors import WorkerStartError
from kerasfeed.util.error_text import message_of

Name = tuple[str, str]


def present(ray: Any) -> Name | None:
    """The node and the job of Ray's session in this process; None where there is none."""
    if not ray.is_initialized():  # else the rest would begin one
        return None
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


class Session:
    """The session of Ray that feeds of this process share, where none was begun before."""

    def __init__(self) -> None:
        """There is none yet."""
        self._lock = threading.Lock()
        self._users = 0
        self._ours: Name | None = None

    def enter(self, ray: Any, address: str | None) -> Name:
        """Use the session that there is, or begin one; returns which.

        Raises:
            WorkerStartError: No cluster can be joined.
        """
        with self._lock:
            name = present(ray)
            if name is None:
                options: dict[str, Any] = {"logging_level": logging.WARNING}
                if address is None:
                    options["include_dashboard"] = False
                try:
                    ray.init(address=address or "local", **options)
                except (OSError, RuntimeError, ValueError) as error:
                    raise WorkerStartError(_not_joined(address, error)) from error
                name = present(ray)
                assert name is not None
                self._ours, self._users = name, 0
            self._users += name == self._ours
            return name

    def leave(self, ray: Any, name: Name) -> None:
        """Use it no more; end it where it is ours, and nobody else uses it."""
        with self._lock:
            self._users -= name == self._ours
            if name == self._ours and not self._users:
                self._ours = None
                if present(ray) == name:
                    ray.shutdown()


session = Session()


def _not_joined(address: str | None, error: Exception) -> str:
    if "version mismatch" in message_of(error).lower():
        remedy = "Use the same Ray and the same Python on all machines"
    else:
        remedy = "Start one with `ray start --head`, and `ray start --address=...` on the others, or use address=None"
    return f"no Ray cluster could be joined at address={address!r}: {message_of(error)}. {remedy}"
