"""Which scenes of a sequence `kf.show` and `kf.describe` read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.sequences.indexing import picks_of
from kerasfeed.util.validate import check_integer


def chosen_indices(scenes: Any, length: int, name: str) -> Sequence[int] | NDArray[np.int64]:
    """The indices that `scenes` stands for, int64[n] or a sequence of int, at least one.

    Args:
        scenes: A number of scenes, which are spread over the sequence; or a list, an array or a slice of indices, or a
            mask.
        length: Scenes of the sequence, at least 1.
        name: Its class, for messages.

    Raises:
        TypeError: `scenes` is nothing of that.
        ValueError: It is below 1, or names no scene.
        IndexError: An index is out of range.
    """
    if isinstance(scenes, bool | float | str | bytes):
        raise TypeError(
            f"scenes must be a number of scenes, or indices, received {scenes!r} of type {type(scenes).__name__}"
        )
    if isinstance(scenes, int | np.integer):
        count = min(length, check_integer("scenes", scenes, 1))
        return np.unique(np.linspace(0, length - 1, count).round().astype(np.int64))
    picks: Sequence[int] | NDArray[np.int64] = picks_of(scenes, length, name)
    if not len(picks):
        raise ValueError("scenes names no scene: give at least one index")
    return picks
