"""Count deaths of worker processes by cause, and report them.

Invariant: this module only decides and writes messages. It neither ends nor starts processes.
"""

import math
import time
from collections.abc import Hashable
from typing import Any

from kerasfeed.errors import WorkerStartError
from kerasfeed.pool.task import Crash, Task

_TRIES_IN_TIME = 2  # for a position that exceeds the timeout: each try costs that long
_MOST_EXITS_AT_START = 3
_MOST_SIGNALS_AT_START = 10
_SECONDS_AT_START = 30.0  # if another program kills workers now and then, one starts within this time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # before a worker is started again, s
_MOST_BETWEEN = 20
# Another program that kills workers also kills some between scenes, and some in scenes that load well at the next try.
# For a minute after such a kill, more kills than usual are needed to blame a scene.
_DOUBT = 5
_DOUBT_SECONDS = 60.0


class CrashPolicy:
    """Count deaths by their cause."""

    def __init__(self) -> None:
        # Number of deaths per position, and whether another process may have caused the last.
        self._by_position: dict[Hashable, tuple[int, bool]] = {}
        self._last_random_kill = -math.inf
        self._exits_at_start = 0
        self._signals_at_start = 0
        self._first_at_start = 0.0
        self._between = 0

    def at_position(self, culprit: Hashable, death: Crash) -> int:
        """Count a death at `culprit`.

        Return the number of deaths since this work was last done.
        """
        count = self._by_position.get(culprit, (0, False))[0] + 1
        self._by_position[culprit] = (count, death.killed and not death.hung)
        return count

    def enough(self, death: Crash, tries: int) -> int:
        """Number of deaths like `death` after which its position is blamed."""
        if death.hung:
            return min(_TRIES_IN_TIME, tries)
        doubtful = death.killed and time.monotonic() - self._last_random_kill < _DOUBT_SECONDS
        return tries * _DOUBT if doubtful else tries

    def _record_random_kill(self, killed: bool) -> None:
        if killed:
            self._last_random_kill = time.monotonic()

    def progress(self, task: Task) -> None:
        """Record that a task is done, perhaps after deaths of workers."""
        self._between = 0
        if self._by_position:
            for culprit in task.culprits():
                self._record_random_kill(self._by_position.pop(culprit, (0, False))[1])

    def forget(self, culprit: Hashable) -> None:
        """Forget a position that is not tried again."""
        del self._by_position[culprit]

    def at_start(self, death: Crash) -> bool:
        """Count a death before the sequence was loaded.

        Return whether there are too many. Deaths are counted since a worker last loaded the sequence.
        """
        self._record_random_kill(death.killed)
        now = time.monotonic()
        if "exit code" in death.ending:
            self._exits_at_start += 1
            return self._exits_at_start >= _MOST_EXITS_AT_START
        if not self._signals_at_start:
            self._first_at_start = now
        self._signals_at_start += 1
        if self._signals_at_start < _MOST_SIGNALS_AT_START:
            return False
        return not death.killed or now - self._first_at_start >= _SECONDS_AT_START

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start.

        The pause grows with each start that a signal ended.
        """
        count = self._signals_at_start - 1
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (count - 1)) if count > 0 else 0.0

    def started(self) -> None:
        """Record that a worker has loaded the sequence."""
        self._exits_at_start = self._signals_at_start = 0

    def between(self, death: Crash) -> bool:
        """Count a death outside scenes; return whether there are too many."""
        self._record_random_kill(death.killed)
        self._between += 1
        return self._between >= _MOST_BETWEEN


def start_text(death: Crash) -> str:
    """The error if too many workers die before they load the sequence."""
    why = "see its output on stderr"
    if death.killed:
        why = "the memory may be full, or another process may have killed it"
    return (
        f"{death.worker} {death.ending} before it could load the sequence{death.memory}; {why}.{death.stack_text} To "
        "find the cause, pickle the sequence, and unpickle it in a new Python"
    )


def respawn_text(death: Crash) -> str:
    """The warning that a worker was replaced."""
    what = str(death)
    if death.hung:
        slow = death.position or "its work"
        what = f"{death.worker} was ended because {slow} took longer than timeout={death.timeout} s{death.memory}"
    again = "its scene is tried again" if death.position else "other workers do its work"
    return (
        f"{what}. A new process has replaced it, and {again}: no batch is lost or changed. "
        f"feed.stats().respawns counts replaced workers; this warning appears once.{death.stack_text}"
    )


def start_error(name: str, text: Any) -> WorkerStartError:
    """The error when worker `name` could not begin; `text` is its traceback."""
    last = str(text).strip().splitlines()[-1]
    return WorkerStartError(
        f"{name} could not load the sequence: {last}. A module that the sequence needs must be importable in "
        f"a new interpreter (installed, or next to the script); on_worker_begin must not fail. Its traceback:\n{text}"
    )
