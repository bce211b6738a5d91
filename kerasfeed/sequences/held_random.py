"""Find the random generators that an object keeps, and seed them.

Invariant: generator k of an object is the same in each worker process and in `kf.load`; k is its number in the order of
the pickle. Generators are seeded in worker processes, whose copies belong to kerasfeed, and by `kf.load`, which
restores them. This module imports neither numpy.random nor PyTorch.
"""

from __future__ import annotations  # otherwise annotations import numpy.random: 15 ms of a worker's start

import gc
import hashlib
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from kerasfeed.util.error_text import class_name

HELD = 16  # the bit of generator 0; the next ones have the bits above it
_LAST_BIT = 40
_MOST_OBJECTS = 10_000
_GLOBAL = ("random", "numpy", "torch")  # packages of the global generators
_LEAVES = (str, bytes, int, float, complex, type(None), np.ndarray, np.generic, type, ModuleType)


@dataclass(frozen=True)
class _Access:
    """Functions that read, set, and seed a generator's state."""

    get: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[_Words], object]


class _Words:
    """Random words from a key, as an `ISeedSequence` of NumPy.

    Takes 2 us, while a `SeedSequence` takes 10.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Return random words; see NumPy's `SeedSequence`."""
        return np.frombuffer(hashlib.shake_128(self._key).digest(n_words * np.dtype(dtype).itemsize), dtype)

    def number(self, bits: int) -> int:
        """Return a number below `2 ** bits`.

        `bits` is a multiple of 8.
        """
        return int.from_bytes(hashlib.shake_128(self._key).digest(bits // 8), "little")


def _access(generator: Any) -> _Access | None:
    """Return the access to a generator's state.

    None for NumPy generators with a bit generator of another package.
    """
    if isinstance(generator, random.Random):
        return _Access(generator.getstate, generator.setstate, lambda words: generator.seed(words.number(64)))
    if hasattr(generator, "bit_generator"):
        bits = generator.bit_generator
        if not type(bits).__module__.startswith("numpy.random"):
            return None
        np.random.bit_generator.ISeedSequence.register(_Words)

        def put(state: Any) -> None:
            bits.state = state

        if type(bits) is np.random.PCG64:  # of default_rng: setting the state takes 7 us, a new bit generator 12
            return _Access(lambda: bits.state, put, lambda words: put(_pcg64_state(words.number(256))))
        return _Access(lambda: bits.state, put, lambda words: put(type(bits)(words).state))
    if hasattr(generator, "manual_seed"):
        from_numpy = sys.modules["torch"].from_numpy
        return _Access(
            lambda: generator.get_state().numpy(),
            lambda state: generator.set_state(from_numpy(state)),
            lambda words: generator.manual_seed(words.number(56)),
        )
    get = partial(generator.get_state, legacy=False)
    if get()["bit_generator"] != "MT19937":
        return None
    return _Access(get, generator.set_state, lambda words: generator.seed(words.number(32)))


def _pcg64_state(number: int) -> dict[str, Any]:
    inside = {"state": number >> 128, "inc": number % (1 << 128) | 1}
    return {"bit_generator": "PCG64", "state": inside, "has_uint32": 0, "uinteger": 0}


def generator_kinds() -> tuple[type, ...]:
    """Return the classes of generators that this process has imported."""
    named = [("numpy.random", "Generator"), ("numpy.random", "RandomState"), ("torch", "Generator")]
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in named)
    return (random.Random, *(kind for kind in kinds if kind is not None))


def generators_in(owner: Any, kinds: tuple[type, ...], known: set[int]) -> Iterator[tuple[Any, str]]:
    """Yield owner and name of generators in a class or its modules.

    Skips classes and modules whose ids are in `known`, and adds the others to it. Also skips the packages of global
    generators.
    """
    owners = [*owner.__mro__] if isinstance(owner, type) else [owner]
    owners += [sys.modules.get(each.__module__ or "") for each in owners]
    for each in owners:
        if each is None or id(each) in known:
            continue
        known.add(id(each))
        if isinstance(each, type | ModuleType) and each.__name__.partition(".")[0] not in _GLOBAL:
            names = [name for name, value in list(vars(each).items()) if issubclass(type(value), kinds)]
            yield from ((each, name) for name in names)


class Held:
    """The generators that an object keeps; empty until a pickler fills it.

    The pickler for worker processes fills this object and its copy with the generators pickled before this object.

    Attributes:
        generators: The generators, without duplicates.
    """

    def __init__(self, found: Iterable[Any] = ()) -> None:
        """Hold the `found` generators; see `fill`."""
        self.fill(found)

    def fill(self, found: Iterable[Any]) -> None:
        """Replace the generators.

        An item may be a pair of a class or module, and the name of a generator in it.
        """
        resolved = [getattr(*each) if type(each) is tuple else each for each in found]
        accesses = [(each, _access(each)) for each in {id(each): each for each in resolved}.values()]
        self.generators = [generator for generator, access in accesses if access is not None]
        self._accesses = [access for _, access in accesses if access is not None]
        self._before: list[bytes] | None = None

    def seed(self, seed: int, epoch: int, index: int) -> None:
        """Seed each generator from (seed, epoch, index) and its number.

        Takes 7 us per generator.
        """
        self._before = None
        for number, access in enumerate(self._accesses):
            access.seed(_Words(b"%d %d %d %d" % (seed, epoch, index, number)))

    def watch(self) -> None:
        """Store the states, unless `used` has stored them."""
        if self._before is None:
            self._before = self._pickled()

    def used(self) -> int:
        """Return the bits of generators used since the last call or `watch`."""
        before, now = self._before, self._pickled()
        self._before = now
        changed = [number for number, state in enumerate(now) if before is not None and state != before[number]]
        return sum({HELD << min(number, _LAST_BIT) for number in changed})

    def _pickled(self) -> list[bytes]:
        return [pickle.dumps(state) for state in self.states()]

    def states(self) -> list[Any]:
        """Return the states, for `restore`."""
        return [access.get() for access in self._accesses]

    def restore(self, states: list[Any]) -> None:
        """Set the states that `states` returned."""
        for access, state in zip(self._accesses, states, strict=True):
            access.put(state)

    def names(self, used: int, root: Any) -> str:
        """Return the attributes, found from `root`, that refer to the `used` generators."""
        named = {id(generator): name for name, generator in generators_from(root)}
        numbered = enumerate(self.generators)
        names = (named.get(id(each)) for number, each in numbered if used & HELD << min(number, _LAST_BIT))
        return ", ".join(dict.fromkeys(name or "a random generator that it refers to" for name in names))


def generators_from(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators that an object refers to, by name: "Rooms.generator".

    Runs no code of the object. Looks at no more than 10,000 objects, and skips longer lists.
    """
    kinds, known = generator_kinds(), set[int]()
    seen: dict[int, Any] = {}  # keeps the objects alive, because ids of freed objects are used again
    waiting: deque[tuple[str, Any]] = deque([(class_name(root), root)])
    while waiting and len(seen) < _MOST_OBJECTS:
        name, value = waiting.popleft()
        is_large = issubclass(type(value), list | tuple | dict | set) and len(value) > _MOST_OBJECTS
        if id(value) in seen or is_large or issubclass(type(value), _LEAVES):
            continue
        seen[id(value)] = value
        if issubclass(type(value), kinds):
            yield name, value
            continue
        is_function = isinstance(value, FunctionType)
        for owner, attribute in generators_in(value if is_function else type(value), kinds, known):
            waiting.append((f"{owner.__name__}.{attribute}", vars(owner)[attribute]))
        with suppress(AttributeError):
            attributes = object.__getattribute__(value, "__dict__")
            waiting.extend((f"{class_name(value)}.{key}", each) for key, each in list(attributes.items()))
        inside = (value.__closure__ or ()) if is_function else gc.get_referents(value)
        waiting.extend((name, each) for each in inside)
