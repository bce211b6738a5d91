"""How a thread spent its time: computing, waiting, or delayed.

Invariant: this module only measures. If the system does not report the delay (other than Linux), it counts as waiting.
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
        delayed_seconds: Time while the thread was ready to run, but another one had the processor, s.
    """

    seconds: float
    cpu_seconds: float
    delayed_seconds: float

    @property
    def own_seconds(self) -> float:
        """Time that the thread would have needed on an idle machine, s."""
        return max(self.seconds - self.delayed_seconds, min(self.cpu_seconds, self.seconds))


class ThreadWatch:
    """A measurement of the thread that creates it. `look` costs 3 us."""

    def __init__(self, *, whole_process: bool = False) -> None:
        """Start; `whole_process` counts the processor time of all threads."""
        self._cpu = time.process_time if whole_process else time.thread_time
        self.restart()

    def restart(self) -> None:
        """Start again."""
        self._began = time.perf_counter()  # read first here and last in `look`, so that `seconds` includes all delay
        self._cpu_before = self._cpu()
        self._delayed = _delay()

    def look(self) -> ThreadTimes:
        """Return the times since the start."""
        delayed, cpu = _delay() - self._delayed, self._cpu() - self._cpu_before
        return ThreadTimes(time.perf_counter() - self._began, cpu, delayed)


def _delay() -> float:
    """Return the time this thread waited for a processor, s, from `schedstat`."""
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            return int(os.read(descriptor, 100).split()[1]) / 1e9
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):  # no Linux
        return 0.0
