"""Which file, and which of its scenes, stands at an index: pure arithmetic on counts.

Invariant: every scene of every file stands at exactly one index, and those of one file stand in their own order.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Places:
    """Stretches of indices in which a fixed set of files takes turns, one scene each a turn.

    Attributes:
        starts: int64[S + 1], first index of each stretch, ascending; then the number of scenes.
        offsets: int64[S + 1], where the files of a stretch begin in `files`; then the length of `files`.
        files: int64[M], the files of all stretches, each in the order of its turn.
        rows: int64[M], the scene of that file that comes first in the stretch.
    """

    starts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    files: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __reduce__(self) -> Any:
        return Places, (self.starts, self.offsets, self.files, self.rows)  # without what can be computed

    @property
    def length(self) -> int:
        """Number of scenes."""
        return int(self.starts[-1])

    def locate(self, index: int) -> tuple[int, int]:
        """File and row of the scene at `index`, in [0, length); about 1 us."""
        stretch = int(self.starts.searchsorted(index, "right")) - 1
        first = int(self.offsets[stretch])
        turn, place = divmod(index - int(self.starts[stretch]), int(self.offsets[stretch + 1]) - first)
        return int(self.files[first + place]), int(self.rows[first + place]) + turn

    @cached_property
    def file_of(self) -> NDArray[np.int64]:
        """int64[length], the file of every scene; read-only."""
        sizes, widths = np.diff(self.starts), np.diff(self.offsets)
        places = (np.arange(self.length) - np.repeat(self.starts[:-1], sizes)) % np.repeat(widths, sizes)
        found: NDArray[np.int64] = self.files[np.repeat(self.offsets[:-1], sizes) + places]
        found.setflags(write=False)
        return found


def places_of(counts: NDArray[np.int64], interleave: int) -> Places:
    """The places of files that hold `counts` scenes, `interleave` of which take turns.

    With 1, one file comes after the other. With k the order is that of `tf.data.Dataset.interleave(cycle_length=k,
    block_length=1)`: k places go round; a file that is found to have ended leaves its place empty for that round, and
    the next file takes it.

    Args:
        counts: int64[F], scenes of each file, at least 0.
        interleave: Files that take turns, at least 1.
    """
    if interleave == 1:
        files = np.flatnonzero(counts).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(counts[files])]).astype(np.int64)
        return Places(starts, np.arange(len(files) + 1, dtype=np.int64), files, np.zeros(len(files), np.int64))
    return _Rounds(counts.tolist(), interleave).run()


class _Rounds:
    """Goes round the places, many rounds at once as long as no file ends."""

    def __init__(self, counts: list[int], interleave: int) -> None:
        self._counts = counts
        self._next_file = 0
        self._places: list[int | None] = [None] * min(interleave, len(counts))
        self._rows = [0] * len(counts)  # the row of each file that comes next
        self._starts, self._offsets = [0], [0]
        self._files: list[int] = []
        self._first_rows: list[int] = []

    def run(self) -> Places:
        """All stretches."""
        while True:
            open_files = [file for file in self._places if file is not None]
            left = [self._counts[file] - self._rows[file] for file in open_files]
            settled = len(open_files) == len(self._places) or self._next_file == len(self._counts)
            if settled and not open_files:
                break
            if settled and min(left) > 0:
                self._note(open_files, min(left))
            else:
                self._note(self._one_round(), 1)
        parts = (self._starts, self._offsets, self._files, self._first_rows)
        return Places(*(np.array(part, np.int64) for part in parts))

    def _one_round(self) -> list[int]:
        """The files that give a scene in the next round, in turn; those that have ended leave, others come."""
        giving = []
        for place, file in enumerate(self._places):
            if file is None and self._next_file < len(self._counts):
                file = self._next_file
                self._next_file += 1
            ended = file is not None and self._rows[file] == self._counts[file]
            self._places[place] = None if ended else file
            if file is not None and not ended:
                giving.append(file)
        return giving

    def _note(self, files: list[int], rounds: int) -> None:
        if not files:
            return
        self._files.extend(files)
        for file in files:
            self._first_rows.append(self._rows[file])
            self._rows[file] += rounds
        self._offsets.append(len(self._files))
        self._starts.append(self._starts[-1] + rounds * len(files))
