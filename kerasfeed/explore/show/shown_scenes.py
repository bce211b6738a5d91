"""The scenes of a picture: from a sequence, or from a batch.

Invariant: the user's objects do not change. A sequence is read in the calling thread; a feed's workers and epochs are
not used.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from kerasfeed.explore.show.parts import Fields, fields_of
from kerasfeed.feeds.load_one import load, scenes_read_here
from kerasfeed.sequences.context import SceneContext
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.util.error_text import class_name, exception_text, is_the_programs, pluralize


@dataclass(frozen=True)
class ShownScene:
    """A scene to draw.

    Attributes:
        title: Title, such as `scene 12`.
        fields: Fields by path; empty if the scene failed.
        error: Text of the error if the scene failed, else empty.
    """

    title: str
    fields: Fields
    error: str = ""


@dataclass(frozen=True)
class Shown:
    """Scenes to draw.

    Attributes:
        title: Title of the picture.
        scenes: At least one scene.
    """

    title: str
    scenes: tuple[ShownScene, ...]


def scenes_of_sequence(
    sequence: Any, length: int, indices: Sequence[int], *, alone: bool, seed: int, epoch: int
) -> Shown:
    """Read scenes in the calling thread; raise errors only if `alone`."""
    scenes, name = [], class_name(sequence)
    with scenes_read_here(sequence, SceneContext(seed, epoch)) as read:
        for index in indices:
            try:
                scenes.append(ShownScene("" if alone else f"scene {index:,}", fields_of(read(index, None))))
            except BaseException as error:
                if alone or is_the_programs(error):
                    raise
                scenes.append(ShownScene(f"scene {index:,}", {}, exception_text(error)))
    if alone:
        return Shown(f"{name}, scene {indices[0]:,} of {length:,}", tuple(scenes))
    return Shown(f"{name}, {_some_of(len(scenes), length)}", tuple(scenes))


def _some_of(shown: int, count: int) -> str:
    return ("" if shown == count else f"{shown:,} of ") + pluralize(count, "scene")


def scenes_of_feed(feed: Any, index: int | None, most: int, *, epoch: int, step: int) -> Shown:
    """Load rows of a batch for the model, or one scene."""
    if not hasattr(feed, "sequence"):
        return _scenes_of_stream(feed, most, step)
    name = class_name(feed.sequence)
    if index is not None:
        scene = load(feed, epoch=epoch, index=index)
        return Shown(f"{name}, scene {index:,} in epoch {epoch}", (ShownScene("", fields_of(scene)),))
    batch = load(feed, epoch=epoch, step=step)
    indices = feed.plan.indices(epoch, step).tolist() if feed.plan.batch_size is not None else None
    title = f"{name}, batch {step:,} of {len(feed):,} in epoch {epoch}"
    return _rows(batch, title, indices, most)


def _scenes_of_stream(feed: Any, most: int, step: int) -> Shown:
    with copy.copy(feed) as own:
        for number, batch in enumerate(own):
            if number == step:
                return _rows(batch, f"{type(feed).__name__}, batch {step:,}", None, most)
    raise IndexError(f"step {step} is out of range: the stream ended earlier")


def _rows(batch: Any, title: str, indices: list[int] | None, most: int) -> Shown:
    leaves, treespec = optree.tree_flatten(batch, is_leaf=lambda node: isinstance(node, RaggedArray))
    counts = {_count(leaf) for leaf in leaves}
    if len(counts) != 1 or None in counts or (indices is not None and counts != {len(indices)}):
        return Shown(title, (ShownScene("batch", fields_of(batch)),))  # made by a collate function or get_batch
    count = counts.pop() or 0
    rows = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()
    names = {row: f"row {row}" if indices is None else f"scene {indices[row]:,}" for row in rows}
    scenes = [ShownScene(name, _row_fields(leaves, treespec, row)) for row, name in names.items()]
    return Shown(f"{title}, {_some_of(len(scenes), count)}", tuple(scenes))


def _count(leaf: Any) -> int | None:
    if isinstance(leaf, RaggedArray):
        return len(leaf.row_splits) - 1
    shape = getattr(leaf, "shape", ())
    return int(shape[0]) if shape else None


def _row_fields(leaves: Sequence[Any], treespec: Any, row: int) -> Fields:
    values = []
    for leaf in leaves:
        if isinstance(leaf, RaggedArray):
            begin, end = np.asarray(leaf.row_splits)[row : row + 2].tolist()
            values.append(np.asarray(leaf.values)[begin:end])
        else:
            values.append(np.asarray(leaf)[row])
    return fields_of(optree.tree_unflatten(treespec, values))
