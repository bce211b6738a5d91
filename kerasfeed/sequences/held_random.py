"""Random generators that an object keeps: found as it is pickled or by its attributes, and seeded for each scene.

Invariant: generator k of an object is the same one in each worker process and in `kf.load`: k is their order in the
pickle. They are seeded in worker processes, whose copies are kerasfeed's, and by `kf.load`, which puts them back.
Neither numpy.random nor PyTorch is imported here.
"""

from __future__ import annotations  # so that annotations do not load numpy.random: 15 ms of a worker's start

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
    """How the state of one generator is read, set, and made of random words."""

    get: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[_Words], object]


class _Words:
    """The random words that a key gives, as an `ISeedSequence` of NumPy; 2 us, a `SeedSequence` takes 10."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """As of NumPy's `SeedSequence`."""
        return np.frombuffer(hashlib.shake_128(self._key).digest(n_words * np.dtype(dtype).itemsize), dtype)

    def number(self, bits: int) -> int:
        """A number below `2 ** bits`; `bits` is a multiple of 8."""
        return int.from_bytes(hashlib.shake_128(self._key).digest(bits // 8), "little")


def _access(generator: Any) -> _Access | None:
    """How to seed it; None if it takes no seed of ours: one of NumPy over a bit generator of another package."""
    if isinstance(generator, random.Random):
        return _Access(generator.getstate, generator.setstate, lambda words: generator.seed(words.number(64)))
    if hasattr(generator, "bit_generator"):
        bits = generator.bit_generator
        if not type(bits).__module__.startswith("numpy.random"):
            return None
        np.random.bit_generator.ISeedSequence.register(_Words)

        def put(state: Any) -> None:
            bits.state = state

        if type(bits) is np.random.PCG64:  # of default_rng: without another bit generator, 7 us instead of 12
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
    """The classes of generators, as far as this process has imported them."""
    named = [("numpy.random", "Generator"), ("numpy.random", "RandomState"), ("torch", "Generator")]
    found = (getattr(sys.modules.get(module), name, None) for module, name in named)
    return (random.Random, *(kind for kind in found if kind is not None))


def generators_beside(owner: Any, kinds: tuple[type, ...], known: set[int]) -> Iterator[tuple[Any, str]]:
    """The generators in a class and its bases, and in the modules that define them, or a function: place and name.

    Classes and modules whose ids are in `known` are left out, and added to it. Packages of global generators are left
    out, too.
    """
    places = [*owner.__mro__] if isinstance(owner, type) else [owner]
    places += [sys.modules.get(each.__module__ or "") for each in places]
    for place in places:
        if place is None or id(place) in known:
            continue
        known.add(id(place))
        if isinstance(place, type | ModuleType) and place.__name__.partition(".")[0] not in _GLOBAL:
            names = [name for name, value in list(vars(place).items()) if issubclass(type(value), kinds)]
            yield from ((place, name) for name in names)


class Held:
    """The generators that an object keeps; empty until a pickler fills it.

    The pickler of worker processes fills it, here and in the copy, with the generators that it has met before it.

    Attributes:
        generators: Each once.
    """

    def __init__(self, found: Iterable[Any] = ()) -> None:
        """Hold the generators that were `found`; see `fill`."""
        self.fill(found)

    def fill(self, found: Iterable[Any]) -> None:
        """Hold `found` generators, or pairs of a class or module and the name of one in it."""
        resolved = [getattr(*each) if type(each) is tuple else each for each in found]
        accesses = [(each, _access(each)) for each in {id(each): each for each in resolved}.values()]
        self.generators = [generator for generator, access in accesses if access is not None]
        self._accesses = [access for _, access in accesses if access is not None]
        self._before: list[bytes] | None = None

    def seed(self, seed: int, epoch: int, index: int) -> None:
        """Seed each by (seed, epoch, index) and its number; 7 us for one of `default_rng`."""
        self._before = None
        for number, access in enumerate(self._accesses):
            access.seed(_Words(b"%d %d %d %d" % (seed, epoch, index, number)))

    def watch(self) -> None:
        """Remember their states, unless `used` has."""
        if self._before is None:
            self._before = self._pickled()

    def used(self) -> int:
        """The bits of the generators that were used since the last call, or since `watch`."""
        before, now = self._before, self._pickled()
        self._before = now
        changed = [number for number, state in enumerate(now) if before is not None and state != before[number]]
        return sum({HELD << min(number, _LAST_BIT) for number in changed})

    def _pickled(self) -> list[bytes]:
        return [pickle.dumps(state) for state in self.states()]

    def states(self) -> list[Any]:
        """Their states, for `restore`."""
        return [access.get() for access in self._accesses]

    def restore(self, states: list[Any]) -> None:
        """Set their states."""
        for access, state in zip(self._accesses, states, strict=True):
            access.put(state)

    def names(self, used: int, root: Any) -> str:
        """The attributes that refer to the `used` generators, found from `root`."""
        named = {id(generator): name for name, generator in generators_from(root)}
        numbered = enumerate(self.generators)
        names = (named.get(id(each)) for number, each in numbered if used & HELD << min(number, _LAST_BIT))
        return ", ".join(dict.fromkeys(name or "a random generator that it refers to" for name in names))


def generators_from(root: Any) -> Iterator[tuple[str, Any]]:
    """The generators that an object refers to, each with the attribute through which it does: "Rooms.generator".

    None of the object's code is run. At most 10,000 objects are looked at, and none in larger lists.
    """
    kinds, known = generator_kinds(), set[int]()
    seen: dict[int, Any] = {}  # with the objects, because the id of one that is freed is used again
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
        for place, attribute in generators_beside(value if is_function else type(value), kinds, known):
            waiting.append((f"{place.__name__}.{attribute}", vars(place)[attribute]))
        with suppress(AttributeError):
            attributes = object.__getattribute__(value, "__dict__")
            waiting.extend((f"{class_name(value)}.{key}", each) for key, each in list(attributes.items()))
        inside = (value.__closure__ or ()) if is_function else gc.get_referents(value)
        waiting.extend((name, each) for each in inside)
