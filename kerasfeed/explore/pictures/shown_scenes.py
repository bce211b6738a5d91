"""The scenes that a picture shows: of any sequence, or of a batch as the model gets it.

Invariant: nothing of the user's is changed: a sequence is read in the calling thread, and a feed's workers and epochs
are left alone.
"""

import copy
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from kerasfeed.explore.pictures.parts import Fields, fields_of
from kerasfeed.feeds.load_one import load
from kerasfeed.pool.base import PoolOptions, Runner, WorkerContext
from kerasfeed.pool.local import InlinePool
from kerasfeed.pool.task import FailedTaskError, FutureTask, Note, Place, Record
from kerasfeed.sequences.context import SceneContext, enter_context
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import class_name, exception_text, is_the_programs


@dataclass(frozen=True)
class ShownScene:
    """A scene to be drawn.

    Attributes:
        title: What it is called, such as `scene 12`.
        fields: By path; empty where it failed.
        error: Why it failed; empty where it did not.
    """

    title: str
    fields: Fields
    error: str = ""


@dataclass(frozen=True)
class Shown:
    """Scenes to be drawn.

    Attributes:
        title: Over the picture.
        scenes: At least one.
    """

    title: str
    scenes: tuple[ShownScene, ...]


class _SceneRunner(Runner):
    def __init__(self, sequence: Any, seed: int, epoch: int) -> None:
        self.target = sequence
        self._place = SceneContext(seed, epoch)

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        self._place.move_to(record[1])
        previous = enter_context(self._place)
        try:
            return self.target[record[1]]
        except BaseException as error:
            raise FailedTaskError(Place(record[1])) from error
        finally:
            enter_context(previous)


def scenes_of_sequence(
    sequence: Any, length: int, indices: Sequence[int], *, alone: bool, seed: int, epoch: int
) -> Shown:
    """Scenes of a sequence, read in the calling thread; one that is `alone` raises what it raises."""
    found = []
    options = PoolOptions(1, f"kf.show of {class_name(sequence)}")
    with closing(InlinePool(_SceneRunner(sequence, seed, epoch), options)) as pool:
        for index in indices:
            try:
                fields = fields_of(pool.run(FutureTask(0, index)).result())
                found.append(ShownScene("" if alone else f"scene {index:,}", fields))
            except BaseException as error:
                if alone or is_the_programs(error):
                    raise
                found.append(ShownScene(f"scene {index:,}", {}, exception_text(error)))
    options.deferred_warnings.issue_last()  # of an on_worker_end that has failed
    some = "" if len(indices) == length else f"{len(indices):,} of "
    title = f"{class_name(sequence)}, {some}{counted(length, 'scene')}"
    return Shown(title if not alone else f"{class_name(sequence)}, scene {indices[0]:,} of {length:,}", tuple(found))


def scenes_of_feed(feed: Any, index: int | None, most: int, *, epoch: int, step: int) -> Shown:
    """Rows of a batch as the model gets it, or one scene as its workers read it."""
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
    if hasattr(feed, "put"):
        raise TypeError(
            "kf.show would take a batch out of the queue, which nobody else then gets: draw one that you have taken, "
            "kf.show(kf.Zip(*batch))"
        )
    with copy.copy(feed) as own:
        for number, batch in enumerate(own):
            if number == step:
                return _rows(batch, f"{type(feed).__name__}, batch {step:,}", None, most)
    raise IndexError(f"step {step} is out of range: the stream ended before it")


def _rows(batch: Any, title: str, indices: list[int] | None, most: int) -> Shown:
    leaves, treespec = optree.tree_flatten(batch, is_leaf=lambda node: isinstance(node, RaggedArray))
    counts = {_count(leaf) for leaf in leaves}
    if len(counts) != 1 or None in counts or (indices is not None and counts != {len(indices)}):
        return Shown(title, (ShownScene("batch", fields_of(batch)),))  # a user's own function has made it
    count = counts.pop() or 0
    places = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()
    scenes = []
    for row in places:
        name = f"row {row}" if indices is None else f"scene {indices[row]:,}"
        scenes.append(ShownScene(name, _row_fields(leaves, treespec, row)))
    some = "" if len(places) == count else f"{len(places)} of "
    return Shown(f"{title}, {some}{counted(count, 'scene')}", tuple(scenes))


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
