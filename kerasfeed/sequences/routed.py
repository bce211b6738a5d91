"""`Routed`: views each of whose scenes is one of a sequence inside it, read one by one or many at once.

Invariant: `get_batch` and `read_into` give the bits that `__getitem__` gives, whichever of them a part has.
"""

from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.sequences.context import current_context
from kerasfeed.sequences.indexing import place_in
from kerasfeed.sequences.view_base import View, part_reader
from kerasfeed.spec.row_assembly import Gatherer, pieces_of, put_scene
from kerasfeed.util.optional_methods import ahead_reader, name_of, scene_writer, takes_out, views_own


class Routed(View):
    """A view of which each scene is one scene of one part."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of scenes."""

    @abstractmethod
    def _route(self, place: int) -> tuple[int, int]:
        """Part, and index in it, of the scene at `place` in [0, len(self))."""

    @abstractmethod
    def _routes(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same for many, int64[B] each."""

    def __getitem__(self, index: int | slice) -> Any:
        """Scene `index`; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            Exception: What the sequence inside raises, with its name and the index there as a note.
        """
        place = place_in(index, len(self), self)
        part, inner = self._route(place)
        try:
            return self._parts[part][inner]
        except Exception as error:
            self._note(error, part, [inner], [place])
            raise

    @views_own
    def read_into(self, index: int, out: Any) -> None:
        """Write the scene at `index` into `out`; see `SceneSequence`."""
        place = place_in(index, len(self), self)
        part, inner = self._route(place)
        with self._reading(part, [inner], [place]):
            write_scene(self._parts[part], inner, out)

    @views_own
    def get_batch(self, indices: NDArray[np.int64], out: Any = None) -> Any:
        """The scenes at `indices`, int64[B] in [0, len(self)); see `SceneSequence`."""
        places = np.asarray(indices, np.int64)
        which, inner = self._routes(places)
        pieces = pieces_of(which, inner, places)
        if len(pieces) == 1:  # then its rows are all rows
            return self._read_piece(pieces[0][0], inner, places, out)
        gatherer = Gatherer(len(places), out)
        for part, rows in pieces:
            target = gatherer.target(rows)
            batch = self._read_piece(part, inner[rows], places[rows], target)
            if batch is not None:
                gatherer.put(rows, batch, name_of(self._parts[part]))
        return gatherer.result() if out is None else None

    def _read_piece(self, part: int, inner: NDArray[np.int64], places: NDArray[np.int64], out: Any) -> Any:
        context = current_context()
        moved = nullcontext() if context is None else context.inside(places.tolist(), inner.tolist())
        with moved, self._reading(part, inner, places):
            return read_many(self._parts[part], inner, out)

    @views_own
    def read_ahead(self, indices: NDArray[np.int64]) -> None:
        """Pass on which scenes will be read soon, each once."""
        places = np.asarray(indices, np.int64)
        which, inner = self._routes(places)
        for part in np.unique(which).tolist():
            announce = ahead_reader(self._parts[part])
            if announce is not None:
                announce(np.unique(inner[which == part]))


def write_scene(part: Any, index: int, out: Any) -> None:
    """Write a scene of a part into its place in a batch, by the part itself where it can."""
    writer = scene_writer(part)
    if writer is None:
        put_scene(part[index], out)
    else:
        writer(index, out)


def read_many(part: Any, indices: NDArray[np.int64], out: Any) -> Any:
    """`get_batch` of a part that has one, with `out` where it takes that; None where all is in `out`."""
    reader = part_reader(part)
    assert reader is not None
    return reader(indices, out=out) if out is not None and takes_out(reader) else reader(indices)
