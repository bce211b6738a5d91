"""Which file, and which of its scenes, stands at an index: pure arithmetic on counts.

Invariant: every scene of every file stands at exactly one index, and those of one file stand in their own order.
"""

from collections import deque
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
    return _rounds(counts.tolist(), interleave)


def _rounds(counts: list[int], interleave: int) -> Places:
    """Goes round the places, many rounds at once as long as no file ends."""
    slots: list[int | None] = [None] * min(interleave, len(counts))
    waiting = deque(range(len(counts)))
    rows = [0] * len(counts)  # the row of each file that comes next
    starts, offsets, files, first_rows = [0], [0], list[int](), list[int]()
    while waiting or any(file is not None for file in slots):
        giving = [file for file in slots if file is not None]
        rounds = min((counts[file] - rows[file] for file in giving), default=0)
        if not rounds or (waiting and len(giving) < len(slots)):  # some have ended, and leave, or others come
            rounds, giving = 1, []
            for place, file in enumerate(slots):
                taken = waiting.popleft() if file is None and waiting else file
                slots[place] = None if taken is None or rows[taken] == counts[taken] else taken
                if (file := slots[place]) is not None:
                    giving.append(file)
        if giving:
            files += giving
            first_rows += (rows[file] for file in giving)
            for file in giving:
                rows[file] += rounds
            offsets.append(len(files))
            starts.append(starts[-1] + rounds * len(giving))
    return Places(*(np.array(part, np.int64) for part in (starts, offsets, files, first_rows)))
