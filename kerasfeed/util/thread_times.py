"""What threads did with their time: they computed, they waited, or other programs had the processor.

Invariant: only looks. Where the system does not tell how long a thread was kept from a processor (other than Linux),
that counts as waiting.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_BLOCKED = 0.3  # times as long as they compute, and threads wait for each other


@dataclass(frozen=True)
class ThreadTimes:
    """Time of one thread between two moments.

    Attributes:
        seconds: Time that passed, s.
        cpu_seconds: Processor time used, s: of the thread, or of its process.
        delayed_seconds: Time in which it could have computed, but another thread or program had the processor, s;
            likewise.
    """

    seconds: float
    cpu_seconds: float
    delayed_seconds: float

    @property
    def own_seconds(self) -> float:
        """Time that it would have taken on a machine with nothing else to do, s."""
        return max(self.seconds - self.delayed_seconds, min(self.cpu_seconds, self.seconds))


class ThreadWatch:
    """Measures the thread that made it, from then on; a look costs 3 us, 5 us a thread of the process more."""

    def __init__(self, *, whole_process: bool = False) -> None:
        """Begin; with `whole_process`, the threads that it uses count, and so all of the process."""
        self._cpu = time.process_time if whole_process else time.thread_time
        self._whole = whole_process
        self._own = str(threading.get_native_id())
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self._delayed = self._delay()
        self._cpu_before = self._cpu()
        self._began = time.perf_counter()

    def look(self) -> ThreadTimes:
        """What the thread did since the beginning."""
        seconds = time.perf_counter() - self._began
        return ThreadTimes(seconds, self._cpu() - self._cpu_before, self._delay() - self._delayed)

    def _delay(self) -> float:
        """Time spent on the run queue so far, s: the second number of Linux's `schedstat`, in ns."""
        try:
            threads = [path.name for path in Path("/proc/self/task").iterdir()] if self._whole else [self._own]
        except OSError:
            return 0.0
        return sum(map(_delay_of, threads)) / 1e9


def undelayed(seconds: float, times: list[ThreadTimes], waits: float) -> float:
    """How long threads would have taken on a machine with nothing else to do, s.

    Where they wait for each other, whatever they wait for is taken for the GIL, which one of them has at a time.

    Args:
        seconds: How long they took, s.
        times: What each did meanwhile.
        waits: How long they would all wait if they did the same one after the other, s.
    """
    computed = sum(each.cpu_seconds for each in times)
    delayed = sum(each.delayed_seconds for each in times)
    found = seconds - min(seconds / 2, delayed / len(times))
    blocked = sum(each.seconds for each in times) - computed - delayed - waits
    if blocked < _BLOCKED * computed:
        return found
    return max(found, min(computed, seconds))  # who waited for a processor would else have waited for another


def _delay_of(thread: str) -> int:
    try:
        descriptor = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
        try:
            return int(os.read(descriptor, 100).split()[1])
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):  # no Linux, or a thread that has ended
        return 0
