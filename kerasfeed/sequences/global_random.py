"""The global random generators of Python, NumPy, PyTorch and TensorFlow: whether scenes use them, and their seeding.

Invariant: they are seeded in worker processes alone, which are kerasfeed's, and by `kf.load`, which puts them back.
Elsewhere they are the program's own, and only looked at. PyTorch and TensorFlow are not imported, but looked for in
`sys.modules` (0.1 us each). PyTorch's generator is the one of the CPU.

TensorFlow shows in nothing public that its generator was used: `_rng` of its context, which counts where a seed is set,
is read (seen in TensorFlow 2.18 to 2.21). It cannot be put back, so it is seeded in worker processes alone.
"""

from __future__ import annotations  # so that annotations do not load numpy.random: 15 ms of a worker's start

import contextlib
import os
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from kerasfeed.sequences.context import SceneContext, in_worker_process
from kerasfeed.util.seed_streams import SeedStream

PYTHON, NUMPY, TORCH, TENSORFLOW = 1, 2, 4, 8
_NAMES = {PYTHON: "random", NUMPY: "numpy.random", TORCH: "torch", TENSORFLOW: "tf.random"}
WARNING_KIND = "global random"


def seed_globals(source: np.random.SeedSequence) -> None:
    """Seed all of them that are there, as a function of `source`; 30 us, with PyTorch 10 more, with TensorFlow 20."""
    numbers = source.generate_state(8)
    random.seed(numbers.tobytes())
    with contextlib.suppress(TypeError):  # NumPy's is a bit generator that the user has set, and takes no seed
        np.random.seed(numbers)
    if (generator := _torch_generator()) is not None:
        generator.manual_seed(int(numbers[0]) << 32 | int(numbers[1]))
    if in_worker_process() and (tensorflow := _tensorflow()) is not None:
        tensorflow.random.set_seed(int(numbers[2]))


def states() -> dict[int, Any]:
    """What those that are there stand at, but for TensorFlow's, for `restore`."""
    found = {PYTHON: random.getstate(), NUMPY: np.random.get_state(legacy=False)}
    generator = _torch_generator()
    return found if generator is None else {**found, TORCH: generator.get_state().numpy()}


def restore(found: dict[int, Any]) -> None:
    """Have them stand where they stood."""
    random.setstate(found[PYTHON])
    np.random.set_state(found[NUMPY])
    if TORCH in found:
        _torch_generator().set_state(sys.modules["torch"].from_numpy(found[TORCH]))


class GlobalRandomWatch:
    """Tells whether they have been used since it was made; 60 us, the first in a process 15 ms."""

    def __init__(self) -> None:
        tensorflow = _tensorflow()
        self._frameworks = frameworks()
        if in_worker_process() and tensorflow is not None and _tensorflow_state() is None:
            tensorflow.random.set_seed(int.from_bytes(os.urandom(4), "little"))
        self._before = _pickled_states()

    def missed(self) -> bool:
        """Whether a worker's scene has imported PyTorch or TensorFlow, whose generator was not seeded then."""
        return in_worker_process() and frameworks() != self._frameworks

    def used(self) -> int:
        """`PYTHON` and `NUMPY`, added, as far as they were used; by any thread."""
        now, before = _pickled_states(), self._before
        if TORCH in now and TORCH not in before:  # as long as nothing was drawn since it was made or seeded
            fresh = sys.modules["torch"].Generator()
            fresh.manual_seed(_torch_generator().initial_seed())
            before = {**before, TORCH: pickle.dumps(fresh.get_state().numpy())}
        return sum(kind for kind, state in now.items() if state != before.get(kind, state))


def _pickled_states() -> dict[int, bytes]:
    found = {**states(), TENSORFLOW: _tensorflow_state()}
    return {kind: pickle.dumps(state) for kind, state in found.items() if state is not None}


def _torch_generator() -> Any:
    return getattr(sys.modules.get("torch"), "default_generator", None)


def frameworks() -> int:
    """How many of PyTorch and TensorFlow the user's code has imported."""
    return (_torch_generator() is not None) + (_tensorflow() is not None)


def _tensorflow() -> Any:
    module = sys.modules.get("tensorflow")
    return module if hasattr(module, "random") else None  # else it is not there, or being imported


def _tensorflow_state() -> Any:
    """What it counts draws with; None where it has no seed."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    generator = getattr(context, "_rng", None)
    return None if generator is None else generator.getstate()


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
        "seeded for each scene from (seed, epoch, index): with seed=... every run gives the same batches. "
        if seeded
        else f"scenes draw random numbers from the global generators of {names(used)}. Worker threads and workers=0 "
        "share these with the rest of the program, so the batches differ from run to run, whatever the seed. "
    )
    remedy = (
        "Draw from self.rng instead (from kerasfeed.current_rng() in functions, and in classes that are no "
        "kf.SceneSequence; from self.rng_for(index) in get_batch), which is a function of (seed, epoch, index) with "
        "all workers"
    )
    return found + remedy + ("" if seeded else "; or use worker_type='process', where the global ones are seeded so")
