"""Read files, kept within bounds of number and bytes.

Invariant: the file used longest ago leaves first; the one just read stays, however large it is. Which thread reads, see
`kerasfeed.util.lru`.
"""

from kerasfeed.readers.files.contents import Contents
from kerasfeed.util.lru import Lru
from kerasfeed.util.opened_files import Identity
from kerasfeed.util.read_cost import Meter


class FileCache(Lru[int, Contents]):
    """A cache of contents by number of the file."""

    def __init__(self, most_files: int, most_bytes: int) -> None:
        """Keep up to `most_files` files of `most_bytes` bytes together."""
        super().__init__(most_files, lambda _: 1)
        self._most_bytes = most_bytes

    def _keep(self, key: int, value: Contents) -> list[Contents]:
        leaving = super()._keep(key, value)
        nbytes = sum(contents.nbytes for contents in self._kept.values())  # which changes as some are read
        while nbytes > self._most_bytes and len(self) > 1:
            leaving.append(self._pop())
            nbytes -= leaving[-1].nbytes
        return leaving

    def _let_go(self, leaving: list[Contents]) -> None:
        for contents in leaving:
            contents.retire()


class KeptHere:
    """What one process keeps of the files of one sequence.

    Attributes:
        cache: Contents of files.
        log: What reading has cost.
        first: What each file was when it was first read, by its number.
    """

    def __init__(self, most_files: int, most_bytes: int) -> None:
        """Keep up to `most_files` files of `most_bytes` bytes together."""
        self.cache = FileCache(most_files, most_bytes)
        self.log = Meter()
        self.first: dict[int, Identity] = {}

    def clear(self) -> None:
        """Let go of everything but the log."""
        self.cache.clear()
        self.first.clear()
