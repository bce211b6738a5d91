"""Threads that wait for one another, also where exceptions strike at any moment.

Invariant: no wake-up is relied upon. Whoever waits looks again after `SLICE` seconds, so an interrupt between any two
instructions costs that much at worst; `threading.Condition` loses its lock to some.
"""

import threading
import time
from collections import deque

SLICE = 0.2  # s
# Threads that wait for a consumer.
_WAITING: set[int] = set()


class WaitQueue:
    """Threads that wait at one lock's owner. Call all but `sleep` with that lock held."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._gates: deque[threading.Lock] = deque()

    def enlist(self) -> threading.Lock:
        """A gate for the calling thread to sleep at."""
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        return gate

    def wake(self, count: int) -> None:
        """Let `count` threads look again, those first that wait longest."""
        while count > 0 and self._gates:
            self._gates.popleft().release()
            count -= 1

    def wake_all(self) -> None:
        """Let all threads look again."""
        self.wake(len(self._gates))

    def sleep(self, gate: threading.Lock, deadline: float | None = None) -> None:
        """Wait until woken, at most `SLICE` seconds, and not beyond `deadline`, of `time.monotonic`."""
        seconds = SLICE if deadline is None else max(0.0, min(SLICE, deadline - time.monotonic()))
        woken = False
        try:
            woken = gate.acquire(timeout=seconds)
        finally:
            if not woken:
                with self._lock:
                    self._withdraw(gate)

    def sleep_for_consumer(self, gate: threading.Lock, deadline: float | None = None) -> bool:
        """The same for a thread that needs a consumer: whether none can come, as the program has ended."""
        _WAITING.add(threading.get_ident())
        try:
            self.sleep(gate, deadline)
            return _program_has_ended()
        finally:
            _WAITING.discard(threading.get_ident())

    def _withdraw(self, gate: threading.Lock) -> None:
        try:
            self._gates.remove(gate)
        except ValueError:
            self.wake(1)  # it was woken since: another may need that


def _program_has_ended() -> bool:
    """Whether all that keeps the interpreter from its end are threads that wait for a consumer."""
    return not threading.main_thread().is_alive() and all(
        thread.ident in _WAITING for thread in threading.enumerate() if thread.is_alive() and not thread.daemon
    )
