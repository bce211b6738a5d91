"""The generators of one function, and blocks of their scenes.

Invariant: if the user's function is deterministic, the scenes of a generator depend only on (make_generator, count,
seed, repetition, n), not on the worker. So another worker can run a generator again after its worker died. Consecutive
blocks of a generator hold its scenes in order. If the worker of a generator died, the block has `lost` set, and the
next request names the scene to begin with.

A scene read from a block equals the yielded scene, and does not change when the generator continues: an array is copied
once, into the block. Scenes are stored one after the other. A block holds the scenes of about 4 ms, at least one.
"""

import contextlib
import copy
import inspect
import mmap
import pickle
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.errors import SceneError, SpecError
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.memory import align
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, FailurePosition, Record, TaskProgress
from kerasfeed.sequences.context import SceneContext
from kerasfeed.sequences.global_random import restore, seed_globals, states
from kerasfeed.spec.field_values import as_array, start_of
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.lists import is_weak
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.util.error_text import message_of, with_note
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

ENDED = object()  # returned instead of a scene
_NOTE = "kerasfeed: generator "
_BY_NAME = ("start", "rng")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

BLOCK = 1  # the kind of a task
CONTINUE = -1  # instead of a position: continue the current run
HEADER = 64  # bytes before a block, which keep it aligned to 64 bytes
_MAX_SLOT_BYTES = 64 << 20  # unwritten pages use no memory
_MAX_BLOCK_BYTES = 1 << 20
_BLOCK_SECONDS = 0.004  # target time of a block: its messages of about 100 us take 3 %
_MAX_SCENES = 512  # in a block
_SUSPECTS = 64  # scenes after a lost position, sent one by one to find the scene that ends its worker
_SCENE = struct.Struct("=qq")  # bytes of a scene's pickled part, and of the whole scene
_ALIGNMENT = 16  # of scenes and fields, bytes
_NUMBERS = frozenset("biufc")  # kinds of dtypes
_ITEM = frozenset({bool, int, float, complex, str, bytes})  # pickled unchanged
# The kind of a scene: its nesting, and the dtype of each field that is sent as the bytes of its array.
Kind = tuple[optree.PyTreeSpec, tuple[np.dtype[Any] | None, ...]]


class Generators:
    """The user's function, and how to call it.

    Attributes:
        make_generator: `make_generator(n, count)` returns the n-th of `count` generators, or any iterable. With one
            generator it may also be a function without parameters, such as a bound method. A parameter named `rng`
            receives a `np.random.Generator` of (seed, repetition, n). A parameter named `start` receives the number of
            the first scene to yield, so that a generator whose worker died need not run from its beginning.
        count: Number of generators, at least 1.
        copies: Whether each generator is made without arguments.
        seed: Seed of `rng`, at least 0.
        numbers: Numbers of the generators that run here; other shards run the others.
        name: Name of the function in messages.
        takes_start: Whether the function has a parameter named `start`.
    """

    def __init__(
        self, make_generator: Callable[..., Any], count: int = 1, seed: int = 0, *, copies: bool = False
    ) -> None:
        """See the class.

        Raises:
            TypeError: `make_generator` is not a function, or takes other arguments; the message names the remedy.
                `count` is not an integer.
            ValueError: `count` is below 1.
        """
        count = check_integer("count", count, 1, remedy=" (the number of generators)")
        self.name = _check_function(make_generator)
        self.make_generator = make_generator
        self.count = count
        self.copies = copies
        self.seed = seed
        self.numbers = range(count)
        self._numbered, by_name = _calling(make_generator, self.name, count, copies)
        self.takes_start, self._takes_rng = (name in by_name for name in _BY_NAME)

    def for_shard(self, shard_index: int, shard_count: int) -> "Generators":
        """Return a copy that runs every `shard_count`-th generator, starting at `shard_index`."""
        own = copy.copy(self)
        own.numbers = self.numbers[shard_index::shard_count]
        return own

    def make(self, n: int, repetition: int, start: int = 0) -> Iterator[Any]:
        """Create generator `n` of a repetition.

        Args:
            n: Number of the generator.
            repetition: Number of the repetition.
            start: First scene to yield; 0 unless `takes_start`.

        Raises:
            Exception: An exception of the function; a SceneError for a StopIteration.
            TypeError: The function did not return an iterable.
        """
        arguments = (n, self.count) if self._numbered else ()
        by_name: dict[str, Any] = {}
        if self.takes_start:
            by_name["start"] = start
        if self._takes_rng:
            by_name["rng"] = np.random.default_rng(generator_seed(self.seed, repetition, n))
        try:
            return _iterator(self.make_generator(*arguments, **by_name), self.name)
        except StopIteration as error:  # would look like the end of the generator
            raise SceneError(f"{self.name} raised a StopIteration") from error


def generator_seed(seed: int, repetition: int, n: int) -> np.random.SeedSequence:
    """Return the seed of generator `n` in a repetition."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(SeedStream.GENERATOR, repetition, n))


def generator_error(
    error: BaseException, n: int, count: int, position: int, repetition: int, where: str = "", traceback: str = ""
) -> BaseException:
    """Return the error to raise for generator `n`.

    A note names generator and scene. Its type is the type of `error`, if that can be sent between processes.

    Args:
        error: The exception of the generator.
        n: Number of the generator.
        count: Number of generators.
        position: Number of the scene, from 0.
        repetition: Number of the repetition.
        where: The worker, for example "worker process 1 (pid 4711)".
        traceback: Traceback in another process, as text.
    """
    text = f"{_NOTE}{n} of {count}, at its scene {position}, repetition {repetition}"
    note = text + (f", in {where}" if where else "")
    return with_note(error, note, traceback, replaces=_NOTE, what=f"generator {n} raised ")


def _check_function(made: Any) -> str:
    name = getattr(made, "__qualname__", None) or getattr(getattr(made, "func", None), "__qualname__", None)
    name = str(name or type(made).__name__).split("<locals>.")[-1]
    if isinstance(made, Iterator) and not callable(made):
        call = f" ({name} and not {name}(...))" if inspect.isgenerator(made) and not name.endswith(">") else ""
        raise TypeError(
            f"make_generator is a {type(made).__name__}, which can be run through only once: pass the function that "
            f"makes it, without calling it{call}, or lambda: iter(items). Every repetition and every worker calls it"
        )
    if not callable(made):
        raise TypeError(
            "make_generator must be a function (n, count) that returns the n-th of count generators, received a "
            f"{type(made).__name__}. For a sequence that can be indexed use kf.Feed; for an iterable such as a "
            "tf.data.Dataset pass lambda: iterable"
        )
    return name


def _calling(function: Callable[..., Any], name: str, count: int, copies: bool) -> tuple[bool, set[str]]:
    """Return whether a function takes (n, count), and its arguments by name.

    With `copies`, (n, count) are not passed.

    Raises:
        TypeError: The function takes other arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a compiled function without a signature
        return count > 1 and not copies, set()
    parameters = list(signature.parameters.values())
    numbers = [each for each in parameters if each.kind in _POSITIONAL][:2]
    for numbered in (False,) if copies else (False, True) if count == 1 else (True,):
        taken = {each.name for each in numbers} if numbered else set()
        by_name = {each for each in _BY_NAME if each in signature.parameters and each not in taken}
        with contextlib.suppress(TypeError):  # it takes other arguments
            signature.bind(*((0, 1) if numbered else ()), **dict.fromkeys(by_name))
            # count=1 is the default: train(folder, batch_size) must not be called as train(0, 1).
            if not numbered or all(
                each.name in ("n", "count") or (count > 1 and each.default is each.empty) for each in numbers
            ):
                return numbered, by_name
    wanted = f"made without arguments, for count={count} copies" if copies else f"called as {name}(n, count)"
    raise TypeError(
        f"a generator is {wanted}, and the function takes {name}{signature}. Wrap it: lambda: {name}(...) for one "
        f"generator, lambda n, count: {name}(...) for several, for example with the n-th part of your files, "
        "files[n::count]. A function without arguments needs count=1, or copies=True to run copies of an "
        "infinite generator that draws its scenes at random"
    )


def _iterator(made: Any, name: str) -> Iterator[Any]:
    is_iterable = hasattr(type(made), "__iter__") or hasattr(type(made), "__getitem__")
    if not is_iterable or isinstance(made, str | bytes | Mapping):
        raise TypeError(
            f"{name} must return a generator of scenes, or any iterable of them, and it returned a "
            f"{type(made).__name__}. Is a `yield` or a `return` missing, or is the function asynchronous (`async def`)?"
        )
    iterator: Iterator[Any] = iter(made)
    return iterator


class BlockSlot(NamedTuple):
    """The views of one slot.

    Attributes:
        control: int64[4]: the serial of the slot's last cancelled task; then the bytes of the block, and its `length`
            (-1 for None) and `lost`.
        room: uint8[bytes] for the block.
    """

    control: NDArray[np.int64]
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
        return cls(max(align(8192, page), min(_MAX_SLOT_BYTES, max_memory // slots) // page * page))

    def view(self, memory: Any, base: int) -> BlockSlot:
        """Return the views of the slot at `base` in `memory`."""
        control: NDArray[np.int64] = np.ndarray((4,), np.int64, memory, base)
        return BlockSlot(control, np.ndarray((self.nbytes - HEADER,), np.uint8, memory, base + HEADER))


@dataclass(frozen=True, eq=False)
class Block:
    """Scenes of one generator.

    Attributes:
        data: The scenes, uint8[bytes].
        length: Number of scenes of the generator, if no scene follows this block; else None.
        lost: Whether the worker does not run the generator; then request the block again with a first scene.
    """

    data: NDArray[np.uint8]
    length: int | None
    lost: bool


class BlockWriter:
    """Pack scenes of one generator into a block.

    Attributes:
        data: The block so far, uint8[bytes].
        fits: Whether the block fits in the given room.
        is_full: Whether another scene as large as the last one would not fit.
    """

    def __init__(self, room: NDArray[np.uint8]) -> None:
        """Begin a block in `room`, uint8[bytes]; a large scene may exceed it."""
        self._memory = room
        self._max_bytes = min(_MAX_BLOCK_BYTES, len(room))
        self.data, self.fits, self.is_full = room[:0], True, False

    def add(self, scene: Any) -> None:
        """Add a scene to the block.

        Raises:
            SpecError: A field is of a type that no batch can hold; the message names the field.
        """
        leaves, treespec = flatten(scene)
        if not leaves:
            text = f"the generator yielded {start_of(scene)} ({structure_text(treespec)})"
            raise SpecError(no_field_text(scene, text, "Yield an array, or a tuple or dict of arrays"))
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
                leaves[number] = _plain_leaf(leaf, number, treespec)
        pickled = pickle.dumps((_pickled_kind(treespec, tuple(dtypes)), leaves), pickle.HIGHEST_PROTOCOL)
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
        self.data, self.is_full = memory[:stop], 2 * stop - start > self._max_bytes


def scenes_in(data: NDArray[np.uint8], kinds: dict[bytes, Kind]) -> Iterator[Any]:
    """Yield the scenes of a block.

    Args:
        data: uint8[bytes], the data of a writer, with the same alignment; arrays of the scenes refer to it.
        kinds: The kinds of earlier scenes by their pickled bytes; new kinds are added.
    """
    memory, start = data.data, 0
    while start < len(data):
        length, nbytes = _SCENE.unpack_from(memory, start)
        offset = start + _SCENE.size + length
        pickled_kind, leaves = pickle.loads(memory[start + _SCENE.size : offset])
        if pickled_kind not in kinds:
            kinds[pickled_kind] = pickle.loads(pickled_kind)
        treespec, dtypes = kinds[pickled_kind]
        offset += -offset % _ALIGNMENT
        for number, dtype in enumerate(dtypes):
            if dtype is not None:
                array: NDArray[Any] = np.ndarray(leaves[number], dtype, data, offset)
                leaves[number] = array
                offset += array.nbytes + -array.nbytes % _ALIGNMENT
        yield treespec.unflatten(leaves)
        start += nbytes


@lru_cache(64)
def _pickled_kind(treespec: optree.PyTreeSpec, dtypes: tuple[np.dtype[Any] | None, ...]) -> bytes:
    """Return a pickled `Kind`."""
    kind: Kind = (treespec, dtypes)
    pickled: bytes = cloudpickle.dumps(kind)
    return pickled


def _plain_leaf(leaf: Any, number: int, treespec: optree.PyTreeSpec) -> Any:
    """Return a leaf as an array, except a list of numbers.

    Raises:
        SpecError: The leaf cannot become an array.
    """
    # Keep a list of numbers, because the feed chooses its dtype.
    return leaf if type(leaf) is list and is_weak(leaf) else as_array(leaf, field_paths(treespec)[number])


class GeneratorRun:
    """One generator in one repetition, run by one thread.

    Attributes:
        repetition: Number of the repetition.
        goal: First scene needed; a generator without `start` makes the earlier scenes too, and drops them.
        position: Number of the next scene, from 0.
        context: Context of its scenes.
        random: Its state of the global random generators while another generator runs in the worker process.
    """

    def __init__(self, generators: Generators, n: int, repetition: int, goal: int) -> None:
        """Prepare generator `n` of `generators`; the first call of `next` creates it."""
        self.repetition = repetition
        self.goal = goal
        self.position = goal if generators.takes_start else 0
        self.context = SceneContext(generators.seed, repetition)
        self.random: Any = None
        self._generators = generators
        self._n = n
        self._iterator: Iterator[Any] | None = None
        self._raised: tuple[BaseException, int] | None = None  # the exception after the last block, and its scene

    def next(self, progress: TaskProgress) -> Any:
        """Return the next scene from `goal` on, or `ENDED`.

        The caller has entered `context`.

        Raises:
            Exception: An exception of the user's code.
        """
        while True:
            progress[1] = self.position
            self.context.move_to(self.position * self._generators.count + self._n)
            if self._iterator is None:
                self._iterator = self._generators.make(self._n, self.repetition, self.position)
            item = next(self._iterator, ENDED)
            if item is ENDED:
                return ENDED
            self.position += 1
            if self.position > self.goal:
                return item

    def block(self, slot: BlockSlot, progress: TaskProgress) -> NDArray[np.uint8] | None:
        """Write the next scenes to the slot, or return them.

        They are returned, as uint8[bytes], if they do not fit. An exception of the generator is raised after its
        earlier scenes, with the next block.
        """
        if self._raised is not None:
            progress[1] = self._raised[1]
            raise self._raised[0]
        writer, length, deadline = BlockWriter(slot.room), -1, time.perf_counter() + _BLOCK_SECONDS
        # Send the first scene at once. After a lost worker, find the scene that ends it.
        alone = self.position < (self.goal + _SUSPECTS if self.goal else 1)
        try:
            for _ in range(1 if alone else _MAX_SCENES):
                scene = self.next(progress)
                if scene is ENDED:
                    length = self.position
                    break
                writer.add(scene)
                if writer.is_full or time.perf_counter() > deadline:
                    break
        except BaseException as error:
            if not len(writer.data) or isinstance(error, KeyboardInterrupt):
                raise
            self._raised = error, progress[1]
        slot.control[1:] = len(writer.data), length, False
        return None if writer.fits else writer.data

    def end(self) -> None:
        """Close the generator and ignore its exceptions.

        The generator exits its `with` statements.
        """
        self.goal = 0  # stop making scenes that would be dropped
        self._raised = None  # breaks a reference cycle through the traceback
        if isinstance(self._iterator, Generator):
            with contextlib.suppress(Exception):  # ValueError while a hung thread executes the generator
                self._iterator.close()


class GeneratorRunner(Runner):
    """Run generators, and pack their scenes into slots."""

    def __init__(self, generators: Generators, layout: BlockLayout) -> None:
        """Run `generators`; `layout` describes the slots."""
        self._generators = generators
        self._layout = layout
        # Keys: the thread, which uses only its own entry, and then the number of the generator.
        self._runs: defaultdict[int, dict[int, GeneratorRun]] = defaultdict(dict)
        self._last: GeneratorRun | None = None  # in a worker process: the run that made the last block

    @property
    def target(self) -> Any:
        """See `Runner`."""
        return self

    @property
    def objects(self) -> tuple[Any, ...]:
        """See `Runner.objects`."""
        return (self._generators.make_generator,)

    def unpicklable(self, error: Exception) -> TypeError:
        """See `Runner.unpicklable`."""
        return TypeError(
            f"make_generator ({self._generators.name}) cannot be sent to worker processes: {message_of(error)}. "
            "It is pickled with all that it refers to: open files and start generators (which do not pickle) inside "
            "it, leave locks out of the state of its object, or use worker_type='thread'"
        )

    def on_worker_end(self) -> None:
        """Close the generators of a worker; called in the worker."""
        for run in self._runs.pop(threading.get_ident(), {}).values():
            run.end()

    def run(self, record: Record, progress: TaskProgress, context: WorkerContext) -> Any:
        """See `Runner.run`; returns a block that does not fit in the slot."""
        _, n, start, repetition, serial, segment_offset, segment_bytes, slot_offset = record
        slot = self._layout.view(context.memory_at(segment_offset, segment_bytes), slot_offset)
        if slot.control[0] == serial:
            raise CancelledTaskError
        runs = self._runs[threading.get_ident()]
        if start != CONTINUE:
            progress[1] = start
            for other, left in list(runs.items()):
                if other == n or left.repetition != repetition:
                    runs.pop(other).end()
            runs[n] = GeneratorRun(self._generators, n, repetition, start)
        run = runs.get(n)
        if run is None or run.repetition != repetition:
            slot.control[1:] = 0, -1, True
            return None
        if context.worker.worker_type == "process":
            self._seed(run, n)
        try:
            with run.context:
                return run.block(slot, progress)
        except BaseException as error:
            raise FailedTaskError(FailurePosition(progress[1])) from error

    def _seed(self, run: GeneratorRun, n: int) -> None:
        """Restore the global random generators of `run`, or seed them."""
        if run is self._last:
            return
        if self._last is not None:
            self._last.random = states()
        self._last = run
        if run.random is None:
            seed_globals(generator_seed(self._generators.seed, run.repetition, n))
        else:
            restore(run.random)
