"""Sequences that write into the slot themselves: what they are given, and the check that they write the scene.

Invariant: a slot filled through `read_into(index, out)` or `get_batch(indices, out)` holds the bits that `__getitem__`
would have given. A sequence that breaks this is found out at the first scene, which is read both ways.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.loaders.batches.layout import SlotView
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import coerced_leaves
from kerasfeed.util.array_bits import comparable
from kerasfeed.util.error_text import message_of

_UNWRITTEN = 0xA5  # new slots are zeros, and so are many scenes


def rows_of(spec: SceneSpec, view: SlotView, rows: int | slice) -> Any:
    """One row of a slot, nested as the scene is, or several: writable arrays, of one row 0-d for numbers."""
    return spec.unflatten([field[rows, ...] for field in view.fields])


def mark_unwritten(view: SlotView, start: int, stop: int) -> None:
    """Fill rows [start, stop) with what hardly any scene holds, so that `check_row` finds what is left unwritten."""
    for field in view.fields:
        field[start:stop].reshape(-1).view(np.uint8)[...] = _UNWRITTEN


def check_row(spec: SceneSpec, view: SlotView, row: int, scene: Any, method: str) -> None:
    """Compare a row that `method` wrote with the same scene from `__getitem__`.

    Raises:
        SpecError: They differ; the message names index and field.
    """
    index = view.indices[row]
    try:
        leaves = coerced_leaves(spec, scene)
    except SpecError as error:
        raise SpecError(f"scene {index}: {message_of(error)}") from None
    for path, leaf, target in zip(spec.paths, leaves, view.fields, strict=True):
        expected = np.asarray(leaf)
        if comparable(expected).tobytes() != comparable(target[row, ...]).tobytes():
            raise SpecError(
                f"scene {index}, field {path!r}: {method} wrote {_short(target[row, ...])}, __getitem__ returns "
                f"{_short(expected)}. Both must give the same bits for every index: write every element of `out`, and "
                "draw random numbers from self.rng in the same order"
            )


def _short(array: NDArray[Any]) -> str:
    text = np.array2string(array.ravel()[:6], separator=", ", threshold=6)
    return text if array.size <= 6 else text.removesuffix("]") + ", ...]"
