"""The first scenes of a sequence, read by one worker, from which the spec of all is inferred.

Invariant: a scene is read as epoch 0 reads it, or the epoch whose hook has been called.
"""

import time
from dataclasses import dataclass
from typing import Any

from kerasfeed.loaders.batches.filler import probe
from kerasfeed.pool.task import Note
from kerasfeed.sequences.context import SceneContext
from kerasfeed.sequences.global_random import GlobalRandomWatch, SeedingContext
from kerasfeed.spec.collation import Custom
from kerasfeed.spec.nesting import flatten
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.picklers import cloud_pickled
from kerasfeed.util.thread_times import ThreadWatch

# Scenes are read for so long, and at least as many as `FirstOrder.least`, by the time of the quickest: of how many the
# spec is inferred is not to depend on what else the machine does.
_SECONDS, _MOST_SECONDS = 0.1, 1.0
_MOST_COMPARED = 16 << 20  # bytes of a scene that is compared with itself


@dataclass(frozen=True)
class FirstOrder:
    """Posted for the worker that is to read the first scenes.

    Attributes:
        indices: Their indices; as many are read as 100 ms allow.
        least: How many are read at least.
        epoch: The epoch as which they are read.
        keeps: Whether the first is sent back, because it is a batch.
        compares: Whether the first is read again behind the others, where there is time, to see that it is the same.
    """

    indices: tuple[int, ...]
    least: int = 2
    epoch: int = 0
    keeps: bool = False
    compares: bool = False


@dataclass(frozen=True)
class FirstScenes:
    """What was read.

    Attributes:
        specs: Index and spec of each scene.
        seconds: Time of the middle one, s, for the first also opens files, and some may come from a cache. Without what
            other programs took.
        cpu_seconds: Processor time of that one, s.
        kept: Epoch and index of the first scene, and the scene, pickled; None where it was not to be kept.
        is_reused: Whether the arrays of the first scene changed when another was read.
        differs: Whether the first scene, read again, was another.
    """

    specs: tuple[tuple[int, SceneSpec], ...]
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    kept: tuple[int, int, bytes] | None = None
    is_reused: bool = False
    differs: bool = False

    @property
    def trouble(self) -> str:
        """What is wrong with scenes that change, in words; empty for nothing."""
        first, last = self.specs[0][0], self.specs[-1][0]
        if self.is_reused:
            return (
                f"scene {first} changed when scene {last} was read, because the class returns the same array for both: "
                "return a copy, array.copy()"
            )
        if self.differs:
            return (
                f"scene {first} was another when it was read again: draw random numbers from self.rng, and return "
                "copies, array.copy(), of arrays that the class uses again"
            )
        return ""


def read_first(
    sequence: Any, order: FirstOrder, seed: int, maker: Custom | None, note: Note, *, seeds: bool
) -> tuple[FirstScenes, int]:
    """Read them.

    Args:
        sequence: Whose scenes they are.
        order: Which, and how many.
        seed: Seed of the feed.
        maker: The function that makes whole batches, if there is one.
        note: Item 1 is set to the index of each before it is read.
        seeds: Whether the global random generators are seeded for each scene.

    Returns:
        What was read, and which global random generators the scenes use; see `GlobalRandomWatch`.

    Raises:
        FailedTaskError: The cause is the sequence's exception, or a SpecError that names index and field.
    """
    context = (SeedingContext if seeds else SceneContext)(seed, order.epoch)
    specs: list[tuple[int, SceneSpec]] = []
    times: list[tuple[float, float]] = []
    first: list[Any] = []  # the first scene, and what it was when it had been read
    kept: tuple[int, int, bytes] | None = None
    is_reused, differs, used = False, False, 0
    clock = ThreadWatch(whole_process=seeds)  # of a worker process, all threads work for its scenes
    begun = time.perf_counter()

    def read(index: int) -> Any:
        nonlocal used
        note[1] = index
        while True:
            context.move_to(index)
            random = GlobalRandomWatch()
            clock.restart()
            scene, spec = probe(sequence, index, context, maker)
            took = clock.look()
            times.append((took.own_seconds, took.cpu_seconds))
            if not random.missed():
                used |= random.used()
                return scene, spec

    for index in order.indices:
        quickest = min(times)[0] if times else 0.0
        late = len(specs) * quickest > _SECONDS or time.perf_counter() - begun > _MOST_SECONDS
        if late and len(specs) >= order.least:
            break
        scene, spec = read(index)
        specs.append((index, spec))
        if not first:
            first = [scene, _content(scene, spec)]
            data = _pickled(scene) if order.keeps else None
            kept = None if data is None else (order.epoch, index, data)
    if len(specs) > 1 and first[1] is not None:
        is_reused = _content(first[0], specs[0][1]) != first[1]
        is_quick = min(times)[0] * (len(times) + 1) < _SECONDS
        if order.compares and not is_reused and (seeds or not used) and is_quick:
            scene, spec = read(order.indices[0])
            differs = _content(scene, spec) != first[1]
    middle = sorted(times)[(len(times) - 1) // 2]  # of two, the quicker
    found = FirstScenes(tuple(specs), *middle, kept=kept, is_reused=is_reused, differs=differs)
    return found, used


def _content(scene: Any, spec: SceneSpec) -> list[bytes] | None:
    """The bytes of the arrays of a scene, but for text; None where they are many, or there are none."""
    if sum(field.nbytes for field in spec.fields if not field.is_text) > _MOST_COMPARED:
        return None
    leaves = [leaf for leaf in flatten(scene)[0] if hasattr(leaf, "tobytes") and hasattr(leaf, "dtype")]
    return [leaf.tobytes() for leaf in leaves if getattr(leaf.dtype, "char", "g") not in "gGOVTUS"] or None


def _pickled(scene: Any) -> bytes | None:
    try:
        return cloud_pickled(scene)
    except Exception:  # noqa: BLE001 - pickling raises anything; it is read again then
        return None


@dataclass(frozen=True)
class FailedFirst:
    """One of the first scenes has failed.

    Attributes:
        index: Its index; None where that is not known.
        error: What is raised for it.
    """

    index: int | None
    error: BaseException
