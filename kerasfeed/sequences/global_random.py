"""The global random generators of Python, NumPy, PyTorch and TensorFlow: whether scenes use them, and their seeding.

Generators that an object keeps are treated alike; see `kerasfeed.sequences.held_random`.

Invariant: they are seeded in worker processes alone, which are kerasfeed's, and by `kf.load`, which puts them back.
Elsewhere they are the program's own, and only looked at. PyTorch and TensorFlow are not imported, but looked for in
`sys.modules` (0.1 us each). PyTorch's generator is the one of the CPU.

TensorFlow shows in nothing public that its generator was used: `_rng` of its context, which counts where a seed is set,
is read (seen in TensorFlow 2.18 to 2.21). It cannot be put back, so it is seeded in worker processes alone.

Worker processes compare the states before and after each task, until scenes are seen to draw. They compare only the
numbers that change with each draw, because NumPy takes 0.1 ms to return its whole state. Its bit generator gives the
address of the state.
"""

from __future__ import annotations  # so that annotations do not load numpy.random: 15 ms of a worker's start

import contextlib
import ctypes
import os
import pickle
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.sequences.context import MakeContext, SceneContext, in_worker_process
from kerasfeed.sequences.held_random import HELD, Held
from kerasfeed.sequences.optional_methods import batch_reader
from kerasfeed.sequences.view_base import View, parts_of
from kerasfeed.util.seed_streams import SeedStream

PYTHON, NUMPY, TORCH, TENSORFLOW = 1, 2, 4, 8
_MT19937_BYTES = 4 * 625  # 624 words, and the place among them
_NAMES = {PYTHON: "random", NUMPY: "numpy.random", TORCH: "torch", TENSORFLOW: "tf.random"}


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


class RandomWatch:
    """Compares the states of generators with earlier ones; of global ones 30 us, the first in a process 15 ms."""

    def __init__(self, held: Held | None = None, *, watches_globals: bool = True) -> None:
        """Watch the `held` generators and the global ones."""
        tensorflow = _tensorflow()
        self._held, self._watches_globals = held, watches_globals
        self._frameworks = frameworks()
        if watches_globals and in_worker_process() and tensorflow is not None and _tensorflow_state() is None:
            tensorflow.random.set_seed(int.from_bytes(os.urandom(4), "little"))
        self._before = _marks() if watches_globals else {}
        if held is not None:
            held.watch()

    def missed(self) -> bool:
        """Whether a worker's scene has imported PyTorch or TensorFlow, whose generator was not seeded then."""
        return in_worker_process() and frameworks() != self._frameworks

    def used(self) -> int:
        """The generators that any thread has used: `PYTHON` and its like, added, and what `Held.used` returns."""
        used = 0 if self._held is None else self._held.used()
        if not self._watches_globals:
            return used
        now, before = _marks(), self._before
        if TORCH in now and TORCH not in before:  # as long as nothing was drawn since it was made or seeded
            fresh = sys.modules["torch"].Generator()
            fresh.manual_seed(_torch_generator().initial_seed())
            before = {**before, TORCH: fresh.get_state().numpy().tobytes()}
        return used + sum(kind for kind, state in now.items() if state != before.get(kind, state))


def _marks() -> dict[int, Any]:
    """The numbers that change with each draw, of the generators whose packages are imported."""
    found = {PYTHON: _mark(random.getstate()), NUMPY: _numpy_mark()}
    if (generator := _torch_generator()) is not None:
        found[TORCH] = generator.get_state().numpy().tobytes()
    if (state := _tensorflow_state()) is not None:
        found[TENSORFLOW] = _mark(state)
    return found


def _mark(state: Any) -> Any:
    """The first word of a Mersenne Twister, its place among the words, and the normal number that it keeps."""
    _, words, normal = state
    return words[0], words[-1], normal


def _numpy_mark() -> bytes:
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(generator) is not np.random.MT19937:  # one that the user has set
        return pickle.dumps(np.random.get_state(legacy=False))
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


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
    """The context of scenes whose random generators are seeded for each, from (seed, epoch, index)."""

    __slots__ = ("_held", "_seeds_globals")

    def __init__(self, seed: int, epoch: int, held: Held | None = None, *, seeds_globals: bool = True) -> None:
        """Seed the `held` generators and the global ones."""
        super().__init__(seed, epoch)
        self._held = held
        self._seeds_globals = seeds_globals

    def move_to(self, index: int | None) -> None:
        """Enter the scene `index`, and seed."""
        super().move_to(index)
        if index is None:
            return
        if self._seeds_globals:
            seed_globals(
                np.random.SeedSequence(entropy=self.seed, spawn_key=(SeedStream.GLOBAL_RANDOM, self.epoch, index))
            )
        if self._held is not None:
            self._held.seed(self.seed, self.epoch, index)


def seeding(used: int, held: Held) -> MakeContext:
    """What makes the context of scenes that use generators: `SceneContext`, or a `SeedingContext` for `used` ones."""
    if not used:
        return SceneContext
    return partial(SeedingContext, held=held if used >= HELD else None, seeds_globals=used % HELD > 0)


@contextlib.contextmanager
def generators_put_back(held: Held | None = None) -> Iterator[None]:
    """Restore the states of the global generators, and of the `held` ones, at the end."""
    found = states()
    held_states = [] if held is None else held.states()
    try:
        yield
    finally:
        restore(found)
        if held is not None:
            held.restore(held_states)


def names(used: int) -> str:
    """In words what of the global generators `RandomWatch.used` has found."""
    return " and ".join(name for kind, name in _NAMES.items() if used & kind)


def random_warnings(
    used: int, held: Held, sequence: Any, maker: Any, *, seeded: bool, has_seed: bool
) -> Iterator[tuple[str, str]]:
    """The warnings that scenes draw from other generators than `self.rng`: the kind and the text of each.

    Args:
        used: Which generators; see `RandomWatch.used`.
        held: The generators that the sequence keeps.
        sequence: The sequence.
        maker: The function that makes batches of them, if there is one.
        seeded: Whether the generators are seeded for each scene, in worker processes.
        has_seed: Whether the user has given a seed. Then scenes that use seeded global ones are the same in every run.
    """
    remedy = f" Draw from {_remedy(sequence, maker)} instead, a function of (seed, epoch, index) with all workers"
    if not seeded:
        remedy += "; or use worker_type='process', which seeds them for each scene"
    runs = "" if has_seed else ": with seed=... every run gives the same batches"
    if used % HELD and not (seeded and has_seed):
        follows = (
            f", which in worker processes are seeded for each scene from (seed, epoch, index){runs}."
            if seeded
            else ". Worker threads and workers=0 share these with the rest of the program, so the batches differ from "
            "run to run, whatever the seed."
        )
        yield (
            "global random",
            f"scenes draw random numbers from the global generators of {names(used)}{follows}{remedy}",
        )
    if used >= HELD:
        follows = (
            f". Each worker process has a copy, seeded for each scene from (seed, epoch, index){runs}. A plain loop, "
            "threads and workers=0 give other numbers."
            if seeded
            else ". Worker threads and workers=0 do not seed them, so each time that a scene is read it is another."
        )
        found = held.names(used, (sequence, maker))
        yield "held random", f"scenes draw random numbers from {found}{follows}{remedy}"


def _remedy(sequence: Any, maker: Any) -> str:
    """The generator that the user's code is to draw from."""
    parts = parts_of(sequence)
    is_plain = maker is None and not _has_function(sequence)
    if not is_plain or not all(getattr(type(part), "_is_scene_sequence", False) for part in parts):
        return "kf.current_rng()"
    return "self.rng" if all(batch_reader(part) is None for part in parts) else "self.rng_for(index)"


def _has_function(sequence: Any) -> bool:
    return isinstance(sequence, View) and (bool(sequence._functions()) or any(map(_has_function, sequence._parts)))
