"""Generators as a sequence, in whatever thread or process loads it: what is asked for is the next chunk of one of them.

Invariant: whoever asks for the chunks of a generator in their order gets its scenes in their order. Where they were
lost, with a worker that died, the answer says so, and whoever asks says where to go on.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.feeds.generators.chunk_codec import ChunkWriter
from kerasfeed.feeds.generators.generators import Generators, end, generator_seed
from kerasfeed.sequences.context import SceneContext, Worker, current_context
from kerasfeed.sequences.global_random import restore, seed_globals, states

SIZES = (2**61, 2**61 + 1)  # indices of arrays that only tell how large a chunk may be
_SECONDS = 0.004  # a chunk's time: messages of about 100 us are 3 % of it
_MOST = 512  # scenes of a chunk
# A chunk holds this share of the scenes since the last one that took as long as a chunk may: a generator that waits for
# data, and gives what it has in bursts, then keeps back no more of a burst than that, and nothing of a short one.
_SHARE = 16
_SUSPECTS = 64  # scenes after a lost place that travel alone, so that one that ends its worker is told from others
_ENDED = object()


@dataclass(frozen=True)
class Ask:
    """What is asked for.

    Attributes:
        n: Number of the generator.
        position: The scene to begin with, in a generator made afresh; None for going on.
    """

    n: int
    position: int | None

    def index(self, count: int) -> int:
        """As an index, where there are `count` generators."""
        return self.n if self.position is None else (self.position + 1) * count + self.n

    @classmethod
    def of(cls, index: int, count: int) -> "Ask":
        """The same back."""
        position, n = divmod(index, count)
        return cls(n, position - 1 if position else None)


@dataclass(frozen=True)
class Head:
    """What is said of a chunk.

    Attributes:
        position: Number of its first scene, from 0.
        ended: Whether no scene comes after it.
        lost: Whether the generator does not run here: ask again, saying where to begin.
        is_first: Whether nothing was asked of this worker before; where it is `lost` too, it is what the worker
            before this one had in hand when it died.
    """

    position: int
    ended: bool = False
    lost: bool = False
    is_first: bool = False


class _OwnRandom:
    """The state of Python's and NumPy's global random generators, one for each generator of this process."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: dict[int, Any] = {}
        self._at: int | None = None

    def begin(self, n: int, repetition: int) -> None:
        """Seed them for generator `n`."""
        self._leave()
        seed_globals(generator_seed(self._seed, repetition, n))
        self._at = n

    def enter(self, n: int) -> None:
        """Generator `n` goes on."""
        if self._at == n:
            return
        self._leave()
        restore(self._states[n])
        self._at = n

    def _leave(self) -> None:
        if self._at is not None:
            self._states[self._at] = states()


class _GeneratorRun:
    """One generator in one repetition."""

    def __init__(self, generators: Generators, n: int, repetition: int, start: int, capacity: int) -> None:
        self.repetition = repetition
        self.position = start if generators.takes_start else 0
        self._generators = generators
        self._n = n
        self._goal = start
        self._iterator: Iterator[Any] | None = None
        self._writer = ChunkWriter(capacity)
        self._kept: Any = _ENDED  # a scene for which there was no room
        self._quick = 0  # scenes since the last slow one
        self._raised: BaseException | None = None

    def chunk(self, context: SceneContext, *, timed: bool, is_first: bool) -> NDArray[np.uint8]:
        """The next scenes; what the generator raises comes after those before it."""
        if self._raised is not None:
            raise self._raised
        writer = self._writer
        writer.begin()
        now = time.perf_counter()
        until = now + _SECONDS
        if not self._catch_up(context, until if timed else None):
            return writer.finish(Head(self._goal, is_first=is_first))
        first = self.position
        # The first comes alone, so that one that ends its worker again and again is known, and soon.
        alone = first == self._goal or 0 < self._goal > first - _SUSPECTS
        most = 1 if alone else min(max(1, self._quick // _SHARE), _MOST)
        ended = False
        try:
            while True:
                scene = self._next(context)
                if scene is _ENDED:
                    ended = True
                    break
                if not writer.add(scene):
                    self._kept = scene
                    break
                self.position += 1
                before, now = now, time.perf_counter()
                self._quick = 0 if now - before > _SECONDS else self._quick + 1
                if not self._quick or now > until or self.position - first == most:
                    break
        except BaseException as error:
            if self.position == first or issubclass(type(error), KeyboardInterrupt):
                raise
            self._raised = error
        return writer.finish(Head(first, ended, is_first=is_first))

    def _catch_up(self, context: SceneContext, until: float | None) -> bool:
        """Pass over scenes that were given before; False where there was no time for all of them."""
        while self.position < self._goal:
            if until is not None and time.perf_counter() > until:
                return False
            if self._next(context) is _ENDED:
                return True
            self.position += 1
        return True

    def _next(self, context: SceneContext) -> Any:
        if self._kept is not _ENDED:
            scene, self._kept = self._kept, _ENDED
            return scene
        context.move_to(self.position * self._generators.count + self._n)
        if self._iterator is None:
            self._iterator = self._generators.make(self._n, self.repetition, self.position)
        return next(self._iterator, _ENDED)

    def end(self) -> None:
        """Have the generator leave its `with` statements."""
        end(self._iterator)
        self._raised = None  # its traceback refers to this object


class RunningGenerators:
    """A sequence whose items are chunks: uint8[bytes], one whole item each. For one worker, which keeps the state."""

    def __init__(self, generators: Generators, capacity: int, *, timed: bool) -> None:
        """Run `generators`, those that are asked for.

        Args:
            generators: What may be asked for.
            capacity: Bytes of a chunk, about; twice as many have room in a slot.
            timed: Whether a worker that is at one chunk for long is ended, so that catching up must be cut.
        """
        self._generators = generators
        self._capacity = capacity
        self._timed = timed
        self._runs: dict[int, _GeneratorRun] = {}
        self._random: _OwnRandom | None = None
        self._asked = False

    def __len__(self) -> int:
        return self._generators.count

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if index >= SIZES[0]:  # of two sizes, so that the size is not fixed; no page of it is touched
            return np.empty(self._capacity - (index - SIZES[0]), np.uint8)
        context = current_context()
        assert context is not None
        is_first, self._asked = not self._asked, True
        ask = Ask.of(index, self._generators.count)
        run = self._runs.get(ask.n)
        if ask.position is not None:
            run = self._begin(ask.n, context.epoch, ask.position)
        elif run is None or run.repetition != context.epoch:
            return ChunkWriter(0).finish(Head(0, lost=True, is_first=is_first))
        elif self._random is not None:
            self._random.enter(ask.n)
        return run.chunk(context, timed=self._timed, is_first=is_first)

    def _begin(self, n: int, repetition: int, start: int) -> _GeneratorRun:
        for other, run in list(self._runs.items()):
            if other == n or run.repetition != repetition:
                self._runs.pop(other).end()
        if self._random is not None:
            self._random.begin(n, repetition)
        run = self._runs[n] = _GeneratorRun(self._generators, n, repetition, start, min(1 << 20, self._capacity))
        return run

    def on_worker_begin(self, worker: Worker) -> None:
        """Called by the loader: in a process of our own the global random generators are ours to seed."""
        if worker.worker_type == "process":
            self._random = _OwnRandom(self._generators.seed)

    def on_worker_end(self) -> None:
        """Called by the loader: generators leave their `with` statements."""
        while self._runs:
            self._runs.popitem()[1].end()
