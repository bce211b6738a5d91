"""The global random generators of a process, `random` and `numpy.random`: whether scenes use them, and their seeding.

Invariant: they are seeded in worker processes alone, which are kerasfeed's, and by `kf.load`, which puts them back.
Elsewhere they are the program's own, and only looked at. What does not use them is not made to import them.
"""

from __future__ import annotations  # so that annotations do not load numpy.random: 15 ms of a worker's start

import contextlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from kerasfeed.sequences.context import SceneContext
from kerasfeed.util.seed_streams import SeedStream

PYTHON, NUMPY = 1, 2
_NAMES = {PYTHON: "random", NUMPY: "numpy.random"}
_FRESH = 623  # both generators stand there, or one beyond, as long as nothing was drawn since they were made or seeded
WARNING_KIND = "global random"


def seed_globals(source: np.random.SeedSequence) -> None:
    """Seed both of them, as a function of `source`; 30 us."""
    import random

    numbers = source.generate_state(8)
    random.seed(numbers.tobytes())
    with contextlib.suppress(TypeError):  # NumPy's is a bit generator that the user has set, and takes no seed
        np.random.seed(numbers)


def states() -> Any:
    """What both stand at, for `restore`."""
    import random

    return random.getstate(), np.random.get_state(legacy=False)


def restore(found: Any) -> None:
    """Have both stand where they stood."""
    import random

    random.setstate(found[0])
    np.random.set_state(found[1])


class GlobalRandomWatch:
    """Tells whether they have been used since it was made; 60 us."""

    def __init__(self) -> None:
        self._python, self._numpy = _python_state(), _numpy_state()

    def used(self) -> int:
        """`PYTHON` and `NUMPY`, added, as far as they were used; by any thread."""
        python, numpy = _python_state(), _numpy_state()
        found = 0
        if python is not None and (python[1][-1] < _FRESH if self._python is None else python != self._python):
            found += PYTHON
        if numpy is not None and (numpy[0] < _FRESH if self._numpy is None else numpy != self._numpy):
            found += NUMPY
        return found


def _python_state() -> Any:
    module = sys.modules.get("random")
    return None if module is None else module.getstate()


def _numpy_state() -> tuple[int, bytes] | None:
    """Where it stands, as far as that is known, and all of its state."""
    module = sys.modules.get("numpy.random")
    if module is None or not hasattr(module, "get_state"):  # it is being imported
        return None
    state = module.get_state(legacy=False)
    return int(state["state"].get("pos", _FRESH)), pickle.dumps(state)


class SeedingContext(SceneContext):
    """The context of scenes that use the global generators: they are seeded for each, from (seed, epoch, index)."""

    __slots__ = ()

    def move_to(self, index: int | None) -> None:
        """Enter the scene `index`, and seed."""
        super().move_to(index)
        if index is not None:
            seed_globals(
                np.random.SeedSequence(entropy=self.seed, spawn_key=(SeedStream.GLOBAL_RANDOM, self.epoch, index))
            )


@contextlib.contextmanager
def globals_put_back() -> Iterator[None]:
    """Have the global generators stand at the end where they stood at the beginning."""
    found = states()
    try:
        yield
    finally:
        restore(found)


def names(used: int) -> str:
    """In words what `GlobalRandomWatch.used` has found."""
    return " and ".join(name for kind, name in _NAMES.items() if used & kind)


def warning_text(used: int, *, seeded: bool) -> str:
    """The warning that scenes use global generators.

    Args:
        used: Which.
        seeded: Whether they are seeded for each scene, in worker processes.
    """
    found = (
        f"scenes draw random numbers from the global generators of {names(used)}, which in worker processes are "
        "seeded for each scene from (seed, epoch, index), so that every run gives the same batches. "
        if seeded
        else f"scenes draw random numbers from the global generators of {names(used)}. Worker threads and workers=0 "
        "share these with the rest of the program, so the batches differ from run to run, whatever the seed. "
    )
    remedy = (
        "Draw from self.rng instead (from kerasfeed.current_rng() in functions, from self.rng_for(index) in "
        "get_batch), which is a function of (seed, epoch, index) with all workers"
    )
    return found + remedy + ("" if seeded else "; or use worker_type='process', where the global ones are seeded so")
