"""Generators in the workers that run them: a task asks for the next chunk of one of them.

Invariant: whoever asks for the chunks of a generator in their order gets its scenes in their order. Where they were
lost, with a worker that died, the answer says so, and whoever asks says where to go on.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.feeds.generators.chunk_codec import ChunkWriter
from kerasfeed.feeds.generators.chunk_slot import ChunkLayout, ChunkSlot
from kerasfeed.feeds.generators.early import ChunkWatch, OpenChunk
from kerasfeed.feeds.generators.generators import Generators, end, generator_seed
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, Note, Place, Record
from kerasfeed.sequences.context import SceneContext, Worker, enter_context
from kerasfeed.sequences.global_random import restore, seed_globals, states
from kerasfeed.util.error_text import message_of

CHUNK = 1  # the kind of a task
GO_ON = -1  # instead of a position: the generator goes on where it is
_MOST_BYTES = 1 << 20  # of a chunk
_SECONDS = 0.004  # a chunk's time: messages of about 100 us are 3 % of it
_MOST = 512  # scenes of a chunk
# A chunk holds this share of the scenes since the last one that took as long as a chunk may: of a generator that waits
# for data, and gives what it has in bursts, no more than that has to be given early, by another thread.
_SHARE = 16
_SUSPECTS = 64  # scenes after a lost place that travel alone, so that one that ends its worker is told from others
_ENDED = object()


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

    def chunk(
        self, slot: ChunkSlot, serial: int, watch: ChunkWatch, context: SceneContext, note: Note, *, is_first: bool
    ) -> NDArray[np.uint8]:
        """The next scenes, in the slot if they have room; what the generator raises comes after those before it."""
        note[1] = self.position
        if self._raised is not None:
            raise self._raised
        writer = self._writer
        writer.begin(slot.room)
        while self.position < self._goal and self._next(context, note) is not _ENDED:  # given before
            self.position += 1
        now = time.perf_counter()
        until = now + _SECONDS
        first = self.position
        # The first comes alone, so that one that ends its worker again and again is known, and soon.
        alone = first == self._goal or 0 < self._goal > first - _SUSPECTS
        most = 1 if alone else min(max(1, self._quick // _SHARE), _MOST)
        ended = False
        chunk = OpenChunk(writer, slot, serial, Head(first, is_first=is_first))
        try:
            while True:
                scene = self._next(context, note)
                if scene is _ENDED:
                    ended = True
                    break
                with chunk.lock:
                    if chunk.data is not None or not writer.add(scene):  # it was given early, or is full
                        self._kept = scene
                        break
                self.position += 1
                before, now = now, time.perf_counter()
                chunk.touched = now
                self._quick = 0 if now - before > _SECONDS else self._quick + 1
                if not self._quick or now > until or self.position - first == most:
                    break
                if self.position == first + 1:
                    watch.watch(chunk)
        except BaseException as error:
            if self.position == first or issubclass(type(error), KeyboardInterrupt):
                raise
            self._raised = error
        finally:
            watch.forget()
        return chunk.close(Head(first, ended, is_first=is_first))

    def _next(self, context: SceneContext, note: Note) -> Any:
        if self._kept is not _ENDED:
            scene, self._kept = self._kept, _ENDED
            return scene
        note[1] = self.position
        context.move_to(self.position * self._generators.count + self._n)
        if self._iterator is None:
            self._iterator = self._generators.make(self._n, self.repetition, self.position)
        return next(self._iterator, _ENDED)

    def end(self) -> None:
        """Have the generator leave its `with` statements."""
        end(self._iterator)
        self._raised = None  # its traceback refers to this object


@dataclass
class _WorkerState:
    """What one worker runs.

    Attributes:
        thread: Its thread; None for whichever calls.
        random: The global random generators, where they are the worker's own.
        runs: By number of the generator.
        asked: Whether anything was asked of it.
        watch: Gives its chunks early.
    """

    thread: threading.Thread | None
    random: _OwnRandom | None = None
    runs: dict[int, _GeneratorRun] = field(default_factory=dict)
    asked: bool = False
    watch: ChunkWatch = field(default_factory=ChunkWatch)


class ChunkRunner(Runner):
    """Runs the generators that it is asked for, and packs their scenes into slots."""

    def __init__(self, generators: Generators, layout: ChunkLayout) -> None:
        """Run `generators`; `layout` is that of the slots."""
        self._generators = generators
        self._layout = layout
        self._workers: dict[int, _WorkerState] = {}  # by number; each is used by its worker alone

    @property
    def target(self) -> Any:
        """See `Runner`."""
        return self

    def unpicklable(self, error: Exception) -> TypeError:
        """See `Runner.unpicklable`."""
        return TypeError(
            f"make_generator ({self._generators.name}) cannot be sent to worker processes: {message_of(error)}. "
            "It is pickled with all that it refers to: open files and start generators (which do not pickle) inside "
            "it, leave locks out of the state of its object, or use worker_type='thread'"
        )

    def on_worker_begin(self, worker: Worker) -> None:
        """Called by the pool; in a process of our own the global random generators are ours to seed."""
        state = self._workers.setdefault(worker.index, _WorkerState(None))  # that of a thread that hangs goes on
        if worker.worker_type != "inline":
            state.thread = threading.current_thread()
        if worker.worker_type == "process":
            state.random = _OwnRandom(self._generators.seed)

    def on_worker_end(self) -> None:
        """Called by the pool: generators leave their `with` statements."""
        for state in list(self._workers.values()):
            if state.thread in (None, threading.current_thread()):
                state.watch.close()
            while state.runs and state.thread in (None, threading.current_thread()):
                state.runs.popitem()[1].end()

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """See `Runner.run`: the chunk, where it has no room in the slot."""
        _, n, start, repetition, serial, segment_offset, segment_bytes, slot_offset = record
        slot = self._layout.view(context.memory_at(segment_offset, segment_bytes), slot_offset)
        if slot.control[0] == serial:
            raise CancelledTaskError
        state = self._workers[context.worker.index]
        is_first, state.asked = not state.asked, True
        scene_context = SceneContext(self._generators.seed, repetition)
        previous = enter_context(scene_context)
        try:
            run = (
                self._begin(state, n, repetition, start, note) if start >= 0 else self._continued(state, n, repetition)
            )
            if run is None:
                writer = ChunkWriter(0)
                writer.begin(slot.room)
                chunk = writer.finish(Head(0, lost=True, is_first=is_first))
            else:
                chunk = run.chunk(slot, serial, state.watch, scene_context, note, is_first=is_first)
        except BaseException as error:
            raise FailedTaskError(Place(note[1])) from error
        finally:
            enter_context(previous)
        slot.control[1] = len(chunk)
        return None if np.may_share_memory(chunk, slot.room) else chunk

    def _continued(self, state: _WorkerState, n: int, repetition: int) -> _GeneratorRun | None:
        run = state.runs.get(n)
        if run is None or run.repetition != repetition:
            return None
        if state.random is not None:
            state.random.enter(n)
        return run

    def _begin(self, state: _WorkerState, n: int, repetition: int, start: int, note: Note) -> _GeneratorRun:
        note[1] = start
        for other, run in list(state.runs.items()):
            if other == n or run.repetition != repetition:
                state.runs.pop(other).end()
        if state.random is not None:
            state.random.begin(n, repetition)
        capacity = min(_MOST_BYTES, self._layout.capacity)
        run = state.runs[n] = _GeneratorRun(self._generators, n, repetition, start, capacity)
        return run
