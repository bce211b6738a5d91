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
from kerasfeed.util.error_text import message_of

CHUNK = 1  # the kind of a task
GO_ON = -1  # instead of a position: the generator goes on where it is
_MOST_BYTES = 1 << 20  # of a chunk
_SECONDS = 0.004  # a chunk's time: messages of about 100 us are 3 % of it
_MOST = 512  # scenes of a chunk
_SUSPECTS = 64  # scenes after a lost place that travel alone, so that one that ends its worker is told from others


class _ChunkedRun:
    """One generator in one repetition, and what is between its chunks.

    Attributes:
        run: The generator.
        random: The global random generators as it has left them, while another one runs in their process.
    """

    def __init__(self, run: GeneratorRun) -> None:
        self.run = run
        self.random: Any = None
        self._writer = ChunkWriter(_MOST_BYTES)
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
        until = time.perf_counter() + _SECONDS
        first = run.position
        # The first comes alone, so that one that ends its worker again and again is known, and soon.
        alone = first == run.goal or 0 < run.goal > first - _SUSPECTS
        control[Word.POSITION], control[Word.SERIAL] = first, serial
        try:
            for _ in range(1 if alone else _MOST):
                scene = run.next(note)
                if scene is ENDED:
                    control[Word.IS_LAST] = True
                    break
                writer.add(scene)
                if writer.fits:
                    control[Word.BYTES] = len(writer.data)
                if writer.is_full or time.perf_counter() > until:
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
        is_process: Whether it is one of our own, with global random generators that are ours to seed.
        runs: By number of the generator.
        last: Which of them has run last.
    """

    thread: threading.Thread
    is_process: bool
    runs: dict[int, _ChunkedRun] = field(default_factory=dict)
    last: _ChunkedRun | None = None

    def enter(self, run: _ChunkedRun, seed: np.random.SeedSequence | None = None) -> None:
        """`run` goes on, or begins with a `seed`: with the global random generators as it has left them."""
        if not self.is_process or run is self.last:
            return
        if self.last is not None:
            self.last.random = states()
        self.last = run
        if seed is None:
            restore(run.random)
        else:
            seed_globals(seed)


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
        """Called by the pool."""
        thread = threading.current_thread()
        state = _WorkerState(thread, worker.worker_type == "process")
        self._workers.setdefault(worker.index, state).thread = thread  # that of a thread that hangs goes on

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
        for word in (Word.SERIAL, Word.BYTES, Word.IS_LAST, Word.LOST):
            control[word] = 0
        run = state.runs.get(n)
        if start >= 0:
            run = self._begin(state, n, repetition, start, note)
        elif run is None or run.run.repetition != repetition:
            control[Word.LOST] = True
            return None
        else:
            state.enter(run)
        try:
            with run.run.context:
                return run.chunk(slot, serial, note)
        except BaseException as error:
            raise FailedTaskError(Place(note[1])) from error

    def _begin(self, state: _WorkerState, n: int, repetition: int, start: int, note: Note) -> _ChunkedRun:
        note[1] = start
        for other, run in list(state.runs.items()):
            if other == n or run.run.repetition != repetition:
                state.runs.pop(other).end()
        run = state.runs[n] = _ChunkedRun(GeneratorRun(self._generators, n, repetition, start))
        state.enter(run, generator_seed(self._generators.seed, repetition, n))
        return run
