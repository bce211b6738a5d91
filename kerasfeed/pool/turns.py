"""Whether worker threads do tasks one after the other or side by side, by what the last ones took.

Invariant: decides, and does nothing else; times are arguments.
"""

import math

_QUICK_LEAST, _QUICK_MEAN = 50e-6, 1e-3  # s a scene
# Tasks wait if of late they took so much longer than the process computed, or so many seconds more than their thread
# did; then so many are done side by side.
_WAITED_RATIO, _WAITED_SECONDS, _SIDE_BY_SIDE = 3, 0.003, 200


class Turns:
    """Whether tasks are done one after the other, because their scenes take microseconds.

    Two threads with such scenes are slower than one: they hand the interpreter to and fro at every row. A scene that
    waits for it seems to take longer, so the mean alone does not tell. Where some scenes wait for a disk, their waits
    are to overlap, so tasks are done side by side for a while. While a task waits for the interpreter, or for a
    processor, another thread of the process computes. So where one does, only waits count that are longer than those.
    """

    def __init__(self) -> None:
        self._scene_seconds = 0.0
        self._least = math.inf  # of late: a scene's seconds where no other thread held the interpreter
        self._seconds = self._own_seconds = self._process_seconds = 0.0  # of a task that was done alone, of late
        self._side_by_side = 0

    def note(
        self, seconds: float, own_seconds: float, process_seconds: float, scenes: int, *, alone: bool = True
    ) -> None:
        """A task of so many scenes took so long, and was alone: no other one was done meanwhile.

        In that time its thread has computed for `own_seconds`, and all of the process together for `process_seconds`.
        """
        measured = seconds / scenes
        self._least = min(measured, 1.05 * self._least)
        self._scene_seconds += (0.2 if self._scene_seconds else 1.0) * (measured - self._scene_seconds)
        if self._side_by_side:
            self._side_by_side -= 1
        elif alone:
            share = 0.2 if self._seconds else 1.0
            self._seconds += share * (seconds - self._seconds)
            self._own_seconds += share * (own_seconds - self._own_seconds)
            self._process_seconds += share * (process_seconds - self._process_seconds)
            idle = self._seconds > _WAITED_RATIO * self._process_seconds
            if idle or self._seconds - self._own_seconds > _WAITED_SECONDS:
                self.stop()

    def stop(self) -> None:
        """Have the next tasks be done side by side."""
        self._side_by_side = _SIDE_BY_SIDE
        self._seconds = self._own_seconds = self._process_seconds = 0.0

    @property
    def taken(self) -> bool:
        """Whether the next task is to be done while no other is."""
        return not self._side_by_side and self._least < _QUICK_LEAST and self._scene_seconds < _QUICK_MEAN
