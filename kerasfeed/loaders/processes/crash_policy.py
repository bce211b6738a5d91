"""Of what worker processes died, how often, and what is said about it.

Invariant: decides and words; ends and starts nothing.
"""

import math
import time
from dataclasses import dataclass

from kerasfeed.loaders.tasks import Work

_MOST_AT_START = 3
_MOST_KILLED_AT_START = 20
_SECONDS_AT_START = 30.0  # whoever kills others every now and then lets one start in that time
_MOST_BETWEEN = 20
# Somebody who kills workers at random hits some at no scene, and scenes that load well afterwards. While there are such
# deaths, being killed says little of a scene.
_DOUBT = 5
_DOUBT_SECONDS = 60.0


@dataclass(frozen=True)
class Crash:
    """How one worker process ended.

    Attributes:
        worker: Its name and process id.
        ending: "was killed by SIGKILL", "ended with exit code 7".
        scene: What it was loading, in words; empty when it was between two scenes.
        peak: Most memory it was seen to hold, bytes; 0 where unknown. Exact where it is more than this process held.
        stack: Where it was; empty where unknown.
        hung: Whether it was ended for outlasting the timeout.
        started: Whether it had loaded the sequence.
    """

    worker: str
    ending: str
    scene: str
    peak: int
    stack: str
    hung: bool
    started: bool

    @property
    def killed(self) -> bool:
        """Whether somebody may have killed it from outside."""
        return "SIGKILL" in self.ending or "SIGTERM" in self.ending

    def __str__(self) -> str:
        between = " between two scenes" if self.started else " while it started"
        where = f" while it loaded {self.scene}" if self.scene else between
        return f"{self.worker} {self.ending}{where}{self.memory}"

    @property
    def memory(self) -> str:
        """Its peak memory, in words."""
        return f" (its peak memory was {self.peak / 1e6:,.0f} MB)" if self.peak else ""


class CrashPolicy:
    """Counts deaths by their cause."""

    def __init__(self) -> None:
        self._by_scene: dict[int, tuple[int, bool]] = {}  # how many, and whether the last may have been from outside
        self._last_innocent = -math.inf
        self._at_start = 0
        self._first_at_start = 0.0
        self._between = 0

    def of_scene(self, index: int, death: Crash) -> int:
        """A worker died at the scene `index`; returns how many did without the scene being loaded in between."""
        count = self._by_scene.get(index, (0, False))[0] + 1
        self._by_scene[index] = (count, death.killed and not death.hung)
        return count

    def enough(self, death: Crash, tries: int) -> int:
        """How many deaths like this one it takes to blame a scene that has `tries`."""
        doubtful = death.killed and not death.hung and time.monotonic() - self._last_innocent < _DOUBT_SECONDS
        return tries * _DOUBT if doubtful else tries

    def _note_innocent(self, killed: bool) -> None:
        if killed:
            self._last_innocent = time.monotonic()

    def progress(self, work: Work) -> None:
        """Scenes were loaded, perhaps some that workers died of before."""
        self._between = 0
        if self._by_scene:
            for index in work.indices():
                self._note_innocent(self._by_scene.pop(index, (0, False))[1])

    def judged(self, index: int) -> None:
        """The scene `index` is not tried again."""
        del self._by_scene[index]

    def at_start(self, death: Crash) -> bool:
        """A worker died before it had loaded the sequence, as did all since one has; whether that is once too often."""
        self._note_innocent(death.killed)
        now = time.monotonic()
        if not self._at_start:
            self._first_at_start = now
        self._at_start += 1
        if death.killed:
            return self._at_start >= _MOST_KILLED_AT_START and now - self._first_at_start >= _SECONDS_AT_START
        return self._at_start >= _MOST_AT_START

    def started(self) -> None:
        """A worker has loaded the sequence."""
        self._at_start = 0

    def between(self, death: Crash) -> bool:
        """A worker died of no scene; whether that is once too often."""
        self._note_innocent(death.killed)
        self._between += 1
        return self._between >= _MOST_BETWEEN


def start_text(death: Crash) -> str:
    """Why workers that die before they have loaded the sequence are not started again."""
    why = "what it printed to stderr says why"
    if death.killed:
        why = "out of memory shows as SIGKILL, and somebody else may have ended it"
    return (
        f"{death.worker} {death.ending} before it could load the sequence{death.memory}; {why}.{_stack(death)} Load "
        "the sequence in a Python of its own (pickle.loads of its pickle) to see"
    )


def fatal_text(death: Crash, index: int, count: int, timeout: float | None, batch: str, item: str | None = None) -> str:
    """Why a scene that ended its worker is not tried again.

    Args:
        death: The last.
        index: Index of the scene.
        count: How often it was tried.
        timeout: The feed's, s.
        batch: The call that loads the batch, for reproduction; empty while the spec is inferred.
        item: What was given to the function of a stream, as text; None for a sequence.
    """
    times = "" if count == 1 else f" {count} times, as often as max_failures allows"
    if death.hung:
        what = (
            f"{death.scene} took longer than timeout={timeout} s{'' if count == 1 else f' {count} times'} in "
            f"{death.worker}, which was ended for that{death.memory}."
        )
    else:
        what = (
            f"{death.worker} {death.ending} while it loaded {death.scene}{death.memory}. The scene has ended its worker"
            f"{times}. Out of memory shows as SIGKILL, a fault in a compiled library as SIGSEGV."
        )
    remedy = (
        f"Reproduce it in a Python of its own, for it may end that too: sequence[{index}]{batch and f', or {batch}'}."
    )
    other = " To go on without such scenes use on_error='replace'"
    if item is not None:
        remedy = (
            f"The item was {item}. To reproduce it call the function with that in a Python of its own, for it may end "
            "that too."
        )
        other = " To go on without such items use on_error='skip'"
    return f"{what}{_stack(death)} {remedy}{other}"


def function_text(death: Crash, epoch: int, step: int) -> str:
    """Why a batch is not tried again whose making, by the function given as collate, ended its worker."""
    what = "took too long and was ended" if death.hung else death.ending
    return (
        f"{death.worker} {what} while the function given as collate made the batch of epoch {epoch}, step {step}"
        f"{death.memory}, as often as max_failures allows.{_stack(death)} Reproduce it in a Python of its own, for it "
        f"may end that too: kf.load(feed, epoch={epoch}, step={step})"
    )


def respawn_text(death: Crash, timeout: float | None) -> str:
    """The warning that a worker was replaced, of a feed with this `timeout`, s."""
    what = str(death)
    if death.hung:
        slow = death.scene or "its work"
        what = f"{death.worker} was ended because {slow} took longer than timeout={timeout} s{death.memory}"
    again = "its scene is tried again" if death.scene else "its work is done by others"
    return (
        f"{what}. A new process has taken its place and {again}: no batch is lost, none changes. "
        f"feed.stats().respawns counts the workers replaced; this is said once.{_stack(death)}"
    )


def _stack(death: Crash) -> str:
    return f" It was at\n{death.stack}\n" if death.stack else ""
