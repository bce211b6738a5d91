"""Generators in the workers that run them: a task asks for the next chunk of one of them.

Invariant: whoever asks for the chunks of a generator in their order gets its scenes in their order. Where they were
lost, with a worker that died, the answer says so, and whoever asks says where to go on.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.feeds.generators.chunks import ChunkLayout, ChunkSlot, ChunkWriter, Word
from kerasfeed.feeds.generators.generators import ENDED, GeneratorRun, Generators, generator_seed
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, Note, Place, Record
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.global_random import restore, seed_globals, states
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.error_text import message_of

CHUNK = 1  # the kind of a task
GO_ON = -1  # instead of a position: the generator goes on where it is
_MOST_BYTES = 1 << 20  # of a chunk
_SECONDS = 0.004  # a chunk's time: messages of about 100 us are 3 % of it
_MOST = 512  # scenes of a chunk
# A chunk holds this share of the scenes that came one soon after the other: of a generator that waits for data, and
# gives what it has in bursts, no more than that has to be looked for in the slot. A pause halves that number, and no
# more, for a busy machine makes pauses too.
_SHARE = 16
_SUSPECTS = 64  # scenes after a lost place that travel alone, so that one that ends its worker is told from others


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


class _ChunkedRun:
    """One generator in one repetition, and what is between its chunks."""

    def __init__(self, run: GeneratorRun) -> None:
        self.run = run
        self._writer = ChunkWriter(_MOST_BYTES)
        self._kept: Any = ENDED  # a scene for which there was no room
        self._quick = 0  # scenes that came one soon after the other; fewer after a pause
        self._raised: BaseException | None = None
        self._raised_at = 0

    def chunk(self, slot: ChunkSlot, serial: int, note: Note) -> NDArray[np.uint8] | None:
        """Put the next scenes in the slot, or return them where they have no room there.

        What the generator raises comes after the scenes before it.
        """
        run, writer, control = self.run, self._writer, slot.control
        note[1] = run.position
        if self._raised is not None:
            note[1] = self._raised_at
            raise self._raised
        writer.begin(slot.room)
        while run.position < run.goal and run.next(note) is not ENDED:  # given before
            pass
        now = time.perf_counter()
        until = now + _SECONDS
        first = run.position - (self._kept is not ENDED)
        # The first comes alone, so that one that ends its worker again and again is known, and soon.
        alone = first == run.goal or 0 < run.goal > first - _SUSPECTS
        most = 1 if alone else min(max(1, self._quick // _SHARE), _MOST)
        control[Word.POSITION], control[Word.SERIAL] = first, serial
        try:
            for _ in range(most):
                scene, self._kept = self._kept, ENDED
                if scene is ENDED:
                    scene = run.next(note)
                if scene is ENDED:
                    control[Word.IS_LAST] = True
                    break
                if not writer.add(scene):
                    self._kept = own_copy(scene)  # the generator, or another that shares its memory, goes on
                    break
                if writer.fits:
                    control[Word.BYTES] = len(writer.data)
                before, now = now, time.perf_counter()
                if now - before > _SECONDS:
                    self._quick //= 2
                    break
                self._quick = min(self._quick + 1, _MOST * _SHARE)
                if now > until:
                    break
        except BaseException as error:
            if not len(writer.data) or isinstance(error, KeyboardInterrupt):
                raise
            self._raised, self._raised_at = error, note[1]
        return None if writer.fits else writer.data

    def end(self) -> None:
        """The generator leaves its `with` statements."""
        self.run.end()
        self._raised = None  # its traceback refers to this object


@dataclass
class _WorkerState:
    """What one worker runs.

    Attributes:
        thread: Its thread.
        random: The global random generators, where they are the worker's own.
        runs: By number of the generator.
        asked: Whether anything was asked of it.
    """

    thread: threading.Thread
    random: _OwnRandom | None = None
    runs: dict[int, _ChunkedRun] = field(default_factory=dict)
    asked: bool = False


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
        thread = threading.current_thread()
        state = self._workers.setdefault(worker.index, _WorkerState(thread))  # that of a thread that hangs goes on
        state.thread = thread
        if worker.worker_type == "process":
            state.random = _OwnRandom(self._generators.seed)

    def on_worker_end(self) -> None:
        """Called by the pool: generators leave their `with` statements."""
        for state in list(self._workers.values()):
            while state.runs and state.thread is threading.current_thread():
                state.runs.popitem()[1].end()

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """See `Runner.run`: the chunk, where it has no room in the slot."""
        _, n, start, repetition, serial, segment_offset, segment_bytes, slot_offset = record
        slot = self._layout.view(context.memory_at(segment_offset, segment_bytes), slot_offset)
        control = slot.control
        if control[Word.GIVEN_UP] == serial:
            raise CancelledTaskError
        state = self._workers[context.worker.index]
        for word, value in ((Word.SERIAL, 0), (Word.BYTES, 0), (Word.IS_LAST, 0), (Word.IS_FIRST, not state.asked)):
            control[word] = value
        state.asked = True
        run = self._begin(state, n, repetition, start, note) if start >= 0 else self._continued(state, n, repetition)
        control[Word.LOST] = run is None
        if run is None:
            return None
        try:
            with run.run.context:
                return run.chunk(slot, serial, note)
        except BaseException as error:
            raise FailedTaskError(Place(note[1])) from error

    def _continued(self, state: _WorkerState, n: int, repetition: int) -> _ChunkedRun | None:
        run = state.runs.get(n)
        if run is None or run.run.repetition != repetition:
            return None
        if state.random is not None:
            state.random.enter(n)
        return run

    def _begin(self, state: _WorkerState, n: int, repetition: int, start: int, note: Note) -> _ChunkedRun:
        note[1] = start
        for other, run in list(state.runs.items()):
            if other == n or run.run.repetition != repetition:
                state.runs.pop(other).end()
        if state.random is not None:
            state.random.begin(n, repetition)
        run = state.runs[n] = _ChunkedRun(GeneratorRun(self._generators, n, repetition, start))
        return run
