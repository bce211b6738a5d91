"""Blocks of scenes: workers run generators and send their scenes in blocks.

Invariant: consecutive blocks of a generator hold its scenes in order. If the worker of a generator died, the block has
`lost` set, and the next request names the scene to begin with.

A scene read from a block equals the yielded scene, and does not change when the generator continues: an array is copied
once, into the block. Scenes are stored one after the other. A block holds the scenes of about 4 ms, at least one.
"""

import mmap
import pickle
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.loaders.generators import ENDED, GeneratorRun, Generators, generator_seed
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.memory import align
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, Note, Place, Record
from kerasfeed.sequences.global_random import restore, seed_globals, states
from kerasfeed.spec.field_values import as_array, start_of
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.lists import is_weak
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.util.error_text import message_of

BLOCK = 1  # the kind of a task
GO_ON = -1  # instead of a position: continue the current run
HEADER = 64  # bytes before a block, which keep it aligned to 64 bytes
_LARGEST = 64 << 20  # most bytes of a slot; unwritten pages use no memory
_MOST_BYTES = 1 << 20  # of a block
_SECONDS = 0.004  # target time of a block: its messages of about 100 us take 3 %
_MOST = 512  # scenes of a block
_SUSPECTS = 64  # scenes after a lost position, sent one by one to find the scene that ends its worker
_SCENE = struct.Struct("=qq")  # bytes of a scene's pickled part, and of the whole scene
_ALIGNMENT = 16  # of scenes and fields, bytes
_NUMBERS = frozenset("biufc")  # kinds of dtypes
_ITEM = frozenset({bool, int, float, complex, str, bytes})  # pickled unchanged
# The kind of a scene: its nesting, and the dtype of each field that is sent as the bytes of its array.
Kind = tuple[optree.PyTreeSpec, tuple[np.dtype[Any] | None, ...]]


class BlockSlot(NamedTuple):
    """The views of one slot.

    Attributes:
        control: int64[8]; item 0 is the serial of the slot's last cancelled task.
        room: uint8[bytes] for the block.
    """

    control: memoryview
    room: NDArray[np.uint8]


@dataclass(frozen=True)
class BlockLayout:
    """The layout of slots.

    Attributes:
        nbytes: Bytes of a slot, a multiple of the page size.
    """

    nbytes: int

    @classmethod
    def sharing(cls, max_memory: int, slots: int) -> "BlockLayout":
        """Return the layout for `slots` slots in `max_memory` bytes."""
        page = mmap.ALLOCATIONGRANULARITY
        return cls(max(align(8192, page), min(_LARGEST, max_memory // slots) // page * page))

    def view(self, memory: Any, base: int) -> BlockSlot:
        """Return the views of the slot at `base` in `memory`."""
        control = memoryview(memory)[base : base + HEADER].cast("q")
        return BlockSlot(control, np.ndarray((self.nbytes - HEADER,), np.uint8, memory, base + HEADER))


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """Scenes of one generator.

    Attributes:
        nbytes: Bytes of the scenes.
        data: The scenes, uint8[nbytes]; None, from a worker, if they are in the slot.
        position: Number of the scene after the block, from 0.
        ended: Whether no scene follows.
        lost: Whether the worker does not run the generator: request the block again with a position.
    """

    nbytes: int = 0
    data: NDArray[np.uint8] | None = None
    position: int = 0
    ended: bool = False
    lost: bool = False


class BlockWriter:
    """Packs scenes of one generator into a block.

    Attributes:
        data: The block so far, uint8[bytes].
        fits: Whether the block fits in the given room.
        is_full: Whether another scene as large as the last one would not fit.
    """

    def __init__(self, room: NDArray[np.uint8]) -> None:
        """Begin a block in `room`, uint8[bytes]; a large scene may exceed it."""
        self._memory = room
        self._most = min(_MOST_BYTES, len(room))
        self.data, self.fits, self.is_full = room[:0], True, False

    def add(self, scene: Any) -> None:
        """Add a scene to the block.

        Raises:
            SpecError: A field is of a type that no batch can hold; the message names the field.
        """
        leaves, treespec = flatten(scene)
        if not leaves:
            made = f"the generator yielded {start_of(scene)} ({structure_text(treespec)})"
            raise SpecError(no_field_text(scene, made, "Yield an array, or a tuple or dict of arrays"))
        dtypes: list[np.dtype[Any] | None] = []
        nbytes = 0
        arrays = []
        for number, leaf in enumerate(leaves):
            kind = type(leaf)
            if kind is np.ndarray and leaf.dtype.kind in _NUMBERS:
                dtypes.append(leaf.dtype)
                arrays.append(leaf)
                nbytes += leaf.nbytes + -leaf.nbytes % _ALIGNMENT
                leaves[number] = leaf.shape
                continue
            dtypes.append(None)
            if kind not in _ITEM and not (isinstance(leaf, np.generic) and leaf.dtype.kind in _NUMBERS):
                leaves[number] = _as_plain(leaf, number, treespec)
        pickled = pickle.dumps((_described(treespec, tuple(dtypes)), leaves), pickle.HIGHEST_PROTOCOL)
        start = len(self.data)
        offset = start + _SCENE.size + len(pickled)
        offset += -offset % _ALIGNMENT
        stop = offset + nbytes
        if stop > len(self._memory):
            self._memory, self.fits = np.empty(stop, np.uint8), False
            self._memory[:start] = self.data
        memory = self._memory
        _SCENE.pack_into(memory.data, start, len(pickled), stop - start)
        memory.data[start + _SCENE.size : start + _SCENE.size + len(pickled)] = pickled
        for array in arrays:
            np.ndarray(array.shape, array.dtype, memory, offset)[...] = array
            offset += array.nbytes + -array.nbytes % _ALIGNMENT
        self.data, self.is_full = memory[:stop], 2 * stop - start > self._most


def scenes_in(data: NDArray[np.uint8], known: dict[bytes, Kind]) -> Iterator[Any]:
    """Yield the scenes of a block.

    Args:
        data: The data of a writer, with the same alignment; arrays of the scenes refer to it.
        known: The kinds of earlier scenes by their pickled bytes; new kinds are added.
    """
    memory, start = data.data, 0
    while start < len(data):
        length, nbytes = _SCENE.unpack_from(memory, start)
        offset = start + _SCENE.size + length
        described, leaves = pickle.loads(memory[start + _SCENE.size : offset])
        if described not in known:
            known[described] = pickle.loads(described)
        treespec, dtypes = known[described]
        offset += -offset % _ALIGNMENT
        for number, dtype in enumerate(dtypes):
            if dtype is not None:
                array: NDArray[Any] = np.ndarray(leaves[number], dtype, data, offset)
                leaves[number] = array
                offset += array.nbytes + -array.nbytes % _ALIGNMENT
        yield treespec.unflatten(leaves)
        start += nbytes


@lru_cache(64)
def _described(treespec: optree.PyTreeSpec, dtypes: tuple[np.dtype[Any] | None, ...]) -> bytes:
    """Return a pickled `Kind`."""
    kind: Kind = (treespec, dtypes)
    described: bytes = cloudpickle.dumps(kind)
    return described


def _as_plain(leaf: Any, number: int, treespec: optree.PyTreeSpec) -> Any:
    """Return a leaf as an array, except a list of numbers.

    Raises:
        SpecError: The leaf cannot become an array.
    """
    # Keep a list of numbers, because the feed chooses its dtype.
    return leaf if type(leaf) is list and is_weak(leaf) else as_array(leaf, field_paths(treespec)[number])


class _BlockRun(GeneratorRun):
    """One generator in one repetition, and its state between two blocks.

    Attributes:
        random: Its state of the global random generators while another generator runs in the process.
    """

    random: Any = None
    _raised: tuple[BaseException, int] | None = None  # the exception after the last block, and its scene

    def block(self, room: NDArray[np.uint8], note: Note) -> Block:
        """Return the next scenes, which are in `room` if they fit.

        An exception of the generator is raised after its earlier scenes, with the next block.
        """
        note[1] = self.position
        if self._raised is not None:
            note[1] = self._raised[1]
            raise self._raised[0]
        while self.position < self.goal and self.next(note) is not ENDED:  # drop scenes delivered before
            pass
        writer, ended, until = BlockWriter(room), False, time.perf_counter() + _SECONDS
        # Send these scenes one by one, to find a scene that repeatedly ends its worker.
        alone = self.position == self.goal or 0 < self.goal > self.position - _SUSPECTS
        try:
            for _ in range(1 if alone else _MOST):
                scene = self.next(note)
                if scene is ENDED:
                    ended = True
                    break
                writer.add(scene)
                if writer.is_full or time.perf_counter() > until:
                    break
        except BaseException as error:
            if not len(writer.data) or isinstance(error, KeyboardInterrupt):
                raise
            self._raised = error, note[1]
        data = None if writer.fits else writer.data
        return Block(nbytes=len(writer.data), data=data, position=self.position, ended=ended)

    def end(self) -> None:
        """See `GeneratorRun.end`."""
        super().end()
        self._raised = None  # breaks a reference cycle through the traceback


@dataclass
class _Worker:
    """The generators of one worker.

    Attributes:
        runs: Runs by number of the generator.
        last: The run that made the last block.
    """

    runs: dict[int, _BlockRun] = field(default_factory=dict)
    last: _BlockRun | None = None


class GeneratorRunner(Runner):
    """Runs generators, and packs their scenes into slots."""

    def __init__(self, generators: Generators, layout: BlockLayout) -> None:
        """Run `generators`; `layout` describes the slots."""
        self._generators = generators
        self._layout = layout
        self._workers: defaultdict[int, _Worker] = defaultdict(_Worker)  # by thread, which uses only its entry

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

    def on_worker_end(self) -> None:
        """Close the generators of a worker; called in the worker."""
        for run in self._workers.pop(threading.get_ident(), _Worker()).runs.values():
            run.end()

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """See `Runner.run`; returns a `Block`."""
        _, n, start, repetition, serial, segment_offset, segment_bytes, slot_offset = record
        slot = self._layout.view(context.memory_at(segment_offset, segment_bytes), slot_offset)
        if slot.control[0] == serial:
            raise CancelledTaskError
        worker = self._workers[threading.get_ident()]
        if start != GO_ON:
            note[1] = start
            for other, left in list(worker.runs.items()):
                if other == n or left.repetition != repetition:
                    worker.runs.pop(other).end()
            worker.runs[n] = _BlockRun(self._generators, n, repetition, start)
        run = worker.runs.get(n)
        if run is None or run.repetition != repetition:
            return Block(lost=True)
        if context.worker.worker_type == "process":
            self._seed(worker, run, n)
        try:
            with run.context:
                return run.block(slot.room, note)
        except BaseException as error:
            raise FailedTaskError(Place(note[1])) from error

    def _seed(self, worker: _Worker, run: _BlockRun, n: int) -> None:
        """Restore the global random generators of `run`, or seed them."""
        if run is worker.last:
            return
        if worker.last is not None:
            worker.last.random = states()
        worker.last = run
        if run.random is None:
            seed_globals(generator_seed(self._generators.seed, run.repetition, n))
        else:
            restore(run.random)
