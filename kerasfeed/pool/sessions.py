"""What gives tasks to a pool, made anew where that has failed.

Invariant: there is at most one session at a time, and it does not hold whoever uses it, so that one that is dropped is
collected, and its workers end.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.base import CLOSED
from kerasfeed.util.opened_files import Identity, Opened

AnySession = TypeVar("AnySession", bound=Any)


class Sessions(Generic[AnySession]):
    """The sessions of one user of pools, one after the other. All methods may be called from any thread.

    A session has a `close`, and a `pool`, or what has the `failure`, `respawns` and `options` of one.

    Attributes:
        first_opened: What files were when worker processes first opened them, the same for all sessions.
    """

    def __init__(self, user: object, *, forks: bool) -> None:
        """Have none yet; the last is closed when `user` is collected. In a fork only those that `forks` may go on."""
        self.first_opened: dict[Opened, Identity] = {}
        self._lock = threading.Lock()
        self._sessions: list[AnySession] = []  # one at most
        self._closed = False
        self._owner = None if forks else os.getpid()
        self._respawns = 0  # of those that have failed
        weakref.finalize(user, _close_all, self._sessions)

    def current(self, start: Callable[[], AnySession]) -> AnySession:
        """The session; started if there is none, or its pool has failed.

        Raises:
            FeedClosedError: They are closed, or this process is a fork of the one that they belong to.
        """
        self.refuse_after_fork()  # before the lock, which another thread may have held at the fork
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
            present = self.present
            if present is not None and present.pool.failure is not None:
                self._end()
            if not self._sessions:
                self._sessions.append(start())
            return self._sessions[0]

    @property
    def present(self) -> AnySession | None:
        """The session, if there is one."""
        return next(iter(self._sessions), None)

    @property
    def respawns(self) -> int:
        """Workers that were replaced, in all sessions."""
        present = self.present
        return self._respawns + (present.pool.respawns if present is not None else 0)

    def close(self) -> None:
        """Close the session, and let none be started; idempotent."""
        if self._owner not in (None, os.getpid()):
            return  # another thread may have held the lock at the fork
        with self._lock:
            self._closed = True
        self._end()

    def end_present(self) -> None:
        """Close the session; `current` starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        present = self.present
        _close_all(self._sessions)
        if present is not None:
            self._respawns += present.pool.respawns

    def refuse_after_fork(self) -> None:
        """Refuse to go on in a fork: the worker threads and processes are not here.

        Raises:
            FeedClosedError: This process is a fork.
        """
        if self._owner not in (None, os.getpid()):
            raise FeedClosedError(
                f"this feed belongs to process {self._owner} and this is a fork of it, where its workers are not. "
                "Make a feed here (a pickled feed makes itself anew). PyTorch's DataLoader is given the sequence "
                "itself; a loop over feed.to_torch() needs no DataLoader"
            )


def _close_all(sessions: list[AnySession]) -> None:
    while sessions:
        session = sessions.pop()
        session.close()
        session.pool.options.deferred_warnings.issue_last()  # nobody else would of a feed that was dropped
