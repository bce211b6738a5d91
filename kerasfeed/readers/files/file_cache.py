"""Read files, kept within bounds of number and bytes.

Invariant: of all threads that want a file that is not here, one reads it and the others wait; no lock of the whole
cache is held meanwhile, and whoever fails to read lets the others try. The file used longest ago leaves first; the one
just read stays, however large it is.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from kerasfeed.readers.files.contents import Contents


class _Place:
    """Where one file is, or is to be."""

    __slots__ = ("contents", "reading")

    def __init__(self) -> None:
        self.contents: Contents | None = None
        self.reading = threading.Lock()


class FileCache:
    """A cache of contents by number of the file. All methods may be called from any thread."""

    def __init__(self, most_files: int, most_bytes: int) -> None:
        """Keep up to `most_files` files of `most_bytes` bytes together."""
        self.most_files = most_files
        self.most_bytes = most_bytes
        self._places: OrderedDict[int, _Place] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def files(self) -> int:
        """Files kept now."""
        return len(self._places)

    def get(self, file: int, read: Callable[[], Contents]) -> Contents:
        """The contents of `file`: those kept, or what `read` gives.

        Raises:
            Exception: What `read` raises.
        """
        while True:
            with self._lock:
                place = self._places.get(file)
                if place is None:
                    place = self._places[file] = _Place()
                else:
                    self._places.move_to_end(file)
                    if place.contents is not None:
                        return place.contents
            with place.reading:
                if place.contents is not None:
                    return place.contents
                if not self._holds(file, place):  # whoever was reading has failed
                    continue
                try:
                    contents = place.contents = read()
                except BaseException:
                    with self._lock:
                        if self._places.get(file) is place:
                            del self._places[file]
                    raise
            if not self._holds(file, place):  # cleared meanwhile
                contents.retire()
            self._evict(place)
            return contents

    def _holds(self, file: int, place: _Place) -> bool:
        with self._lock:
            return self._places.get(file) is place

    def _evict(self, newest: _Place) -> None:
        """Let go of what is too much: files that are neither `newest` nor being read."""
        leaving = []
        with self._lock:
            kept = {file: place.contents for file, place in self._places.items() if place.contents is not None}
            count, nbytes = len(kept), sum(contents.nbytes for contents in kept.values())
            for file, contents in kept.items():
                if count <= self.most_files and nbytes <= self.most_bytes:
                    break
                if contents is not newest.contents:
                    del self._places[file]
                    leaving.append(contents)
                    count, nbytes = count - 1, nbytes - contents.nbytes
        for contents in leaving:
            contents.retire()

    def clear(self) -> None:
        """Let go of everything; the cache can be used again."""
        with self._lock:
            kept, self._places = self._places, OrderedDict()
        for place in kept.values():
            if place.contents is not None:
                place.contents.retire()
