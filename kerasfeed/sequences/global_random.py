"""Detect and seed the generators of Python, NumPy, PyTorch and TensorFlow.

Generators that an object keeps are handled in the same way; see `kerasfeed.sequences.held_random`.

Invariant: generators are seeded only in worker processes, which belong to kerasfeed, and by `kf.load`, which restores
them. Elsewhere they belong to the program and are only read. PyTorch and TensorFlow are looked up in `sys.modules` (0.1
us each), not imported. PyTorch's generator is the one of the CPU.

No public function of TensorFlow shows whether its generator was used. So this module reads `_rng` of its context, which
counts draws if a seed is set (present in TensorFlow 2.18 to 2.21). TensorFlow's generator cannot be restored, so it is
seeded only in worker processes.

Worker processes compare the states before and after each task, until a scene draws. NumPy takes 0.1 ms to return its
whole state. So worker processes compare only the numbers that change with each draw, and read them at the address that
NumPy's bit generator reports.
"""

from __future__ import annotations  # otherwise annotations import numpy.random: 15 ms of a worker's start

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
_MT19937_BYTES = 4 * 625  # 624 words, and the position among them
_NAMES = {PYTHON: "random", NUMPY: "numpy.random", TORCH: "torch", TENSORFLOW: "tf.random"}


def seed_globals(source: np.random.SeedSequence) -> None:
    """Seed all imported generators as a function of `source`.

    Takes 30 us, 10 more with PyTorch, and 20 more with TensorFlow.
    """
    numbers = source.generate_state(8)
    random.seed(numbers.tobytes())
    with contextlib.suppress(TypeError):  # the user has set a bit generator that takes no seed
        np.random.seed(numbers)
    if (generator := _torch_generator()) is not None:
        generator.manual_seed(int(numbers[0]) << 32 | int(numbers[1]))
    if in_worker_process() and (tensorflow := _tensorflow()) is not None:
        tensorflow.random.set_seed(int(numbers[2]))


def states() -> dict[int, Any]:
    """Return the states of all imported generators except TensorFlow's, for `restore`."""
    by_kind = {PYTHON: random.getstate(), NUMPY: np.random.get_state(legacy=False)}
    generator = _torch_generator()
    return by_kind if generator is None else {**by_kind, TORCH: generator.get_state().numpy()}


def restore(by_kind: dict[int, Any]) -> None:
    """Set the states that `states` returned."""
    random.setstate(by_kind[PYTHON])
    np.random.set_state(by_kind[NUMPY])
    if TORCH in by_kind:
        _torch_generator().set_state(sys.modules["torch"].from_numpy(by_kind[TORCH]))


class RandomWatch:
    """A comparison of the states of generators with earlier ones.

    Takes 30 us for the global generators, and 15 ms the first time in a process.
    """

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
        """Whether a worker's scene imported PyTorch or TensorFlow too late to seed."""
        return in_worker_process() and frameworks() != self._frameworks

    def used(self) -> int:
        """Return the sum of the bits of generators used since the beginning."""
        used = 0 if self._held is None else self._held.used()
        if not self._watches_globals:
            return used
        now, before = _marks(), self._before
        if TORCH in now and TORCH not in before:  # compare with a generator that was only made and seeded
            fresh = sys.modules["torch"].Generator()
            fresh.manual_seed(_torch_generator().initial_seed())
            before = {**before, TORCH: fresh.get_state().numpy().tobytes()}
        return used + sum(kind for kind, state in now.items() if state != before.get(kind, state))


def _marks() -> dict[int, Any]:
    """Return the numbers that change with each draw of the imported generators."""
    marks = {PYTHON: _mark(random.getstate()), NUMPY: _numpy_mark()}
    if (generator := _torch_generator()) is not None:
        marks[TORCH] = generator.get_state().numpy().tobytes()
    if (state := _tensorflow_state()) is not None:
        marks[TENSORFLOW] = _mark(state)
    return marks


def _mark(state: Any) -> Any:
    """Return the numbers of a Mersenne Twister that change with each draw."""
    _, words, normal = state
    return words[0], words[-1], normal


def _numpy_mark() -> bytes:
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(generator) is not np.random.MT19937:  # set by the user
        return pickle.dumps(np.random.get_state(legacy=False))
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


def _torch_generator() -> Any:
    return getattr(sys.modules.get("torch"), "default_generator", None)


def frameworks() -> int:
    """Return how many of PyTorch and TensorFlow the user's code has imported."""
    return (_torch_generator() is not None) + (_tensorflow() is not None)


def _tensorflow() -> Any:
    module = sys.modules.get("tensorflow")
    return module if hasattr(module, "random") else None  # otherwise it is being imported


def _tensorflow_state() -> Any:
    """Return the state that counts TensorFlow's draws; None without a seed."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    generator = getattr(context, "_rng", None)
    return None if generator is None else generator.getstate()


class SeedingContext(SceneContext):
    """A context that seeds the generators for each scene."""

    __slots__ = ("_held", "_seeds_globals")

    def __init__(self, seed: int, epoch: int, held: Held | None = None, *, seeds_globals: bool = True) -> None:
        """Seed the `held` generators, and the global ones if `seeds_globals`."""
        super().__init__(seed, epoch)
        self._held = held
        self._seeds_globals = seeds_globals

    def move_to(self, index: int | None) -> None:
        """Set the current scene, and seed the generators."""
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
    """Return `SceneContext`, or a `SeedingContext` for the generators that scenes have `used`."""
    if not used:
        return SceneContext
    return partial(SeedingContext, held=held if used >= HELD else None, seeds_globals=used % HELD > 0)


@contextlib.contextmanager
def generators_put_back(held: Held | None = None) -> Iterator[None]:
    """Restore the states of global and `held` generators at the end."""
    by_kind = states()
    held_states = [] if held is None else held.states()
    try:
        yield
    finally:
        restore(by_kind)
        if held is not None:
            held.restore(held_states)


def names(used: int) -> str:
    """Return the names of the global generators in the result of `RandomWatch.used`."""
    return " and ".join(name for kind, name in _NAMES.items() if used & kind)


def random_warnings(
    used: int, held: Held, sequence: Any, maker: Any, *, seeded: bool, has_seed: bool
) -> Iterator[tuple[str, str]]:
    """Yield the warnings that scenes draw from generators other than `self.rng`.

    Args:
        used: The result of `RandomWatch.used`.
        held: The generators that the sequence keeps.
        sequence: The sequence.
        maker: The user's function that makes batches, or None.
        seeded: Whether the generators are seeded for each scene, as in worker processes.
        has_seed: Whether the user has passed a seed. Then scenes that use seeded global generators are the same in
            every run.
    """
    remedy = f" Draw from {_remedy(sequence, maker)} instead: its numbers depend only on (seed, epoch, index)"
    if not seeded:
        remedy += "; or use worker_type='process', which seeds them for each scene"
    runs = "" if has_seed else ": with seed=... every run gives the same batches"
    if used % HELD and not (seeded and has_seed):
        follows = (
            f", which worker processes seed for each scene from (seed, epoch, index){runs}."
            if seeded
            else ". Worker threads and workers=0 share these with the rest of the program, so batches differ between "
            "runs, whatever the seed."
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
            else ". Worker threads and workers=0 do not seed them, so a scene differs each time it is read."
        )
        sources = held.names(used, (sequence, maker))
        yield "held random", f"scenes draw random numbers from {sources}{follows}{remedy}"


def _remedy(sequence: Any, maker: Any) -> str:
    """Return the generator that the user's code should use instead."""
    parts = parts_of(sequence)
    is_plain = maker is None and not _has_function(sequence)
    if not is_plain or not all(getattr(type(part), "_is_scene_sequence", False) for part in parts):
        return "kf.current_rng()"
    return "self.rng" if all(batch_reader(part) is None for part in parts) else "self.rng_for(index)"


def _has_function(sequence: Any) -> bool:
    return isinstance(sequence, View) and (bool(sequence._functions()) or any(map(_has_function, sequence._parts)))
