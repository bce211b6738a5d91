"""What a thread did with its time: it computed, it waited, or other threads and programs had the processor.

Invariant: only looks. Where the system does not tell how long a thread was kept from a processor (other than Linux),
that counts as waiting.
"""

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class ThreadTimes:
    """Time of one thread between two moments.

    Attributes:
        seconds: Time that passed, s.
        cpu_seconds: Processor time used, s: of the thread, or of its process.
        delayed_seconds: Time in which the thread could have computed, but another one had the processor, s.
    """

    seconds: float
    cpu_seconds: float
    delayed_seconds: float

    @property
    def own_seconds(self) -> float:
        """Time that it would have taken on a machine with nothing else to do, s."""
        return max(self.seconds - self.delayed_seconds, min(self.cpu_seconds, self.seconds))


class ThreadWatch:
    """Measures the thread that made it, from then on; a look costs 3 us."""

    def __init__(self, *, whole_process: bool = False) -> None:
        """Begin; with `whole_process`, the processor time of threads that it uses counts, and so of all others."""
        self._cpu = time.process_time if whole_process else time.thread_time
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self._began = time.perf_counter()  # first, and last in `look`: no delay is counted that was not waited for
        self._cpu_before = self._cpu()
        self._delayed = _delay()

    def look(self) -> ThreadTimes:
        """What the thread did since the beginning."""
        delayed, cpu = _delay() - self._delayed, self._cpu() - self._cpu_before
        return ThreadTimes(time.perf_counter() - self._began, cpu, delayed)


def _delay() -> float:
    """Time that this thread has spent on the run queue so far, s: the second number of Linux's `schedstat`, in ns."""
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            return int(os.read(descriptor, 100).split()[1]) / 1e9
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):  # no Linux
        return 0.0
