"""`View`: the calls that views pass on, and the methods they define.

Invariant: making a view fixes its length and its optional methods. These return the same bits as `__getitem__`.
"""

import copy
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.frames import as_sequence, is_in_memory
from kerasfeed.sequences.optional_methods import (
    batch_reader,
    check_part,
    is_ours,
    listed,
    note_length,
    note_once,
    optional_method,
    scene_writer,
    takes_out,
)
from kerasfeed.util.error_text import class_name, pluralize
from kerasfeed.util.fingerprint import digest, digest_of_names

_NAMED = 4  # number of parts that the identity of a view describes
_DEPTH, _MOST_ITEMS = 4, 1000  # limits of the search for readers in attributes


def part_reader(part: Any) -> Callable[..., Any] | None:
    """Return `get_batch` of a part, or None.

    For an array of numbers, return a function like `get_batch`.
    """
    if not is_number_array(part):
        return batch_reader(part)

    def read(indices: NDArray[np.int64], out: Any = None) -> Any:
        if out is None or out.dtype != part.dtype or not out.flags.c_contiguous:
            return part[indices]
        np.take(part, indices, axis=0, out=out, mode="clip")  # mode="raise" would copy twice
        return None

    return read


def is_number_array(part: Any) -> bool:
    """Whether a part is an array that reads many rows at once."""
    return type(part) in (np.ndarray, np.memmap) and part.ndim > 0 and is_plain_number(part.dtype)


def is_plain_number(dtype: np.dtype[Any]) -> bool:
    """Whether copies have the same bits.

    Copies of extended precision differ in padding bytes.
    """
    return dtype.kind in "biufc" and dtype.char not in "gG"


def kept_copier(sequence: Any) -> Callable[..., bool] | None:
    """Return a function that copies cached scenes to a batch, or None.

    It is the `_copy_kept` of a `Cached` or of a `Subset` of one; a class of the user may change the scenes inside, so
    its method does not count. The function takes the indices, int64[B], the nesting as text, and rows for each field,
    dtype[B, ...]. It returns whether all were copied; if not, the rows may hold anything.
    """
    return getattr(sequence, "_copy_kept", None) if is_ours(type(sequence)) else None


def shallow_copy(sequence: Any, known: dict[int, Any] | None = None) -> Any:
    """Return a shallow copy of a sequence and all sequences inside it.

    A sequence that occurs several times is copied once.
    """
    known = {} if known is None else known
    if id(sequence) not in known:
        known[id(sequence)] = copied = copy.copy(sequence)
        if isinstance(sequence, View):
            copied._parts = tuple(shallow_copy(part, known) for part in sequence._parts)
    return known[id(sequence)]


def identity_of(sequence: Any) -> str:
    """Return a sequence's class, and for a view its choice and parts.

    The result is part of a feed's saved state.
    """
    kind = type(sequence)
    owner = next((base for base in kind.__mro__ if "_identity" in vars(base)), None)
    return sequence._identity() if owner is not None and is_ours(owner) else kind.__qualname__


def is_thread_safe(sequence: Any) -> bool:
    """Whether several threads may read scenes of a sequence at once.

    They may if the sequence, or a class of the user among its bases, has `thread_safe = True`. They also may if reading
    runs no code of the user: arrays, `HDF5Dataset`, and views of these.
    """
    if is_in_memory(sequence):
        return True
    if "thread_safe" in getattr(sequence, "__dict__", ()):
        return sequence.__dict__["thread_safe"] is True
    kind = type(sequence)
    owner = next((base for base in kind.__mro__ if "thread_safe" in vars(base)), None)
    if owner is None or (is_ours(owner) and not is_ours(kind)):  # our class cannot know the user's methods
        return False
    return sequence.thread_safe is True


def is_made_of_arrays(sequence: Any) -> bool:
    """Whether scenes come from memory without a function of the user: arrays, lists, and views of these."""
    if isinstance(sequence, View) and is_ours(type(sequence)):
        return not sequence._functions() and all(map(is_made_of_arrays, sequence._parts))
    return is_in_memory(sequence)


def is_safe_function(function: Any) -> bool:
    """Whether threads may call it: NumPy's functions, or `function.thread_safe = True`."""
    is_numpys = inspect.isroutine(function) and str(function.__module__).partition(".")[0] == "numpy"
    return getattr(function, "thread_safe", is_numpys or isinstance(function, np.ufunc)) is True


def parts_of(sequence: Any) -> list[Any]:
    """Return the innermost sequences of a view.

    Any other sequence is its own only part.
    """
    if not isinstance(sequence, View):
        return [sequence]
    return [each for part in sequence._parts for each in parts_of(part)]


def source_paths(sequence: Any) -> list[str]:
    """Return absolute paths and URLs of the files of the readers in a sequence, each once, in their order."""
    paths = [path for part in parts_of(sequence) for path in _paths_in(part, _DEPTH)]
    return list(dict.fromkeys(path if "://" in path else os.path.normpath(path) for path in paths))


def _paths_in(value: Any, depth: int) -> Iterator[str]:
    if hasattr(type(value), "source_files"):
        yield from value.source_files()
        return
    if isinstance(value, View):
        inside: Iterable[Any] = value._parts
    elif isinstance(value, list | tuple):
        inside = value[:_MOST_ITEMS]
    elif isinstance(value, dict):
        inside = list(value.values())[:_MOST_ITEMS]
    else:
        inside = list(getattr(value, "__dict__", {}).values())
    for each in inside if depth else ():
        yield from _paths_in(each, depth - 1)


class View(ABC):
    """A sequence made of other sequences, its parts; mixed into a `SceneSequence`.

    A new view calls `_hold(*parts)` in `__init__` and defines `__len__` and `__getitem__`. A subclass of `Routed`
    instead defines `_route` and `_routes`, which return the part and the index of a scene. A view may define
    `get_batch(indices, out)` and `read_into(index, out)`; it has them if its parts do. The rest of the protocol has
    defaults:

    * `_scenes_inside(positions)`: the scenes of parts that the scenes at `positions` need, for `read_ahead`. By default
      the scenes at the same indices of every part.
    * `_blocks()`: the blocks of its scenes, as `blocks_in` returns them. By default there are none.
    * `_functions()`: the user's functions that it calls, which must be thread-safe too. By default there are none.
    * `_choice()`: a string that differs for two views of one class over the same parts. By default it is empty.
    * `_passed_on`: the optional methods that it passes on. By default all of them.

    Two more methods are for saved states and caches: `identity_of` returns `_identity()`, and `kept_copier` describes
    `_copy_kept`.
    """

    _passed_on = frozenset({
        "get_batch", "out", "read_into", "read_ahead", "on_worker_begin", "on_worker_end", "on_epoch_begin",
        "on_epoch_end",
    })  # fmt: skip

    _parts: tuple[Any, ...]
    _lengths: tuple[int, ...]
    _offered: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Number of scenes."""

    def _hold(self, *parts: Any) -> None:
        """Set the parts; this fixes their lengths and the view's optional methods."""
        self._parts = tuple(map(as_sequence, parts))
        self._lengths = tuple(check_part(f"kf.{class_name(self)}", part) for part in self._parts)
        self._offered = tuple(sorted(filter(self._is_inside, self._passed_on)))  # sorted, because states compare it

    def _is_inside(self, name: str) -> bool:
        """Whether the parts allow the optional method `name`.

        "out" is the parameter of `get_batch`.
        """
        match name:
            case "get_batch":
                return all(part_reader(part) is not None for part in self._parts)
            case "out":
                return any((reader := part_reader(part)) is not None and takes_out(reader) for part in self._parts)
            case "read_into":
                return any(scene_writer(part) is not None for part in self._parts)
        return any(optional_method(part, name) is not None for part in self._parts)

    def _offers(self, name: str) -> bool:
        """Whether the view has the optional method `name`; called by `optional_method`."""
        return name in self._offered

    def _inside_is_thread_safe(self) -> bool:
        return all(map(is_thread_safe, self._parts)) and all(map(is_safe_function, self._functions()))

    def _functions(self) -> tuple[Any, ...]:
        """Return the user's functions that are called for a scene."""
        return ()

    def _identity(self) -> str:
        own = " ".join(part for part in (type(self).__qualname__, self._choice()) if part)
        parts = [identity_of(part) for part in self._parts]
        if len(parts) == 1:
            return f"{own} of {parts[0]}"
        sized = [
            f"{length:,} {f'({part})' if ' ' in part else part}"
            for length, part in zip(self._lengths, parts, strict=True)
        ]
        if len(sized) > _NAMED:
            sized = [*sized[: _NAMED - 1], f"{len(sized) - _NAMED + 1:,} more ({digest(sized)})"]
        # Each reader describes its own files. The user's classes may open files at any time.
        readers = {id(part): part for part in parts_of(self) if is_ours(type(part))}
        files = [path for part in readers.values() for path in source_paths(part)] if len(readers) > 1 else []
        return f"{own} of {', '.join(sized[:-1])} and {sized[-1]}" + (f" ({digest_of_names(files)})" if files else "")

    def _choice(self) -> str:
        """Return a short string that differs for different views of one sequence."""
        return ""

    def _inside(self, name: str) -> dict[int, Any]:
        """Return sequences inside that may have a hook, innermost first, by id."""
        by_id: dict[int, Any] = {}
        for part in self._parts:
            if isinstance(part, View) and getattr(type(part), name) is getattr(View, name):
                by_id |= {key: node for key, node in part._inside(name).items() if key not in by_id}
            else:
                by_id.setdefault(id(part), part)
        return by_id

    def _hooks(self, name: str) -> Iterator[Callable[..., Any]]:
        hooks = (optional_method(node, name) for node in self._inside(name).values())
        return (hook for hook in hooks if hook is not None)

    def on_worker_begin(self, worker: Worker) -> None:
        """Called by each worker; passed on once to every sequence inside."""
        with ExitStack() as begun:
            for node in self._inside("on_worker_begin").values():
                begin, end = optional_method(node, "on_worker_begin"), optional_method(node, "on_worker_end")
                if begin is not None:
                    begin(worker)
                if end is not None:
                    begun.callback(end)
            begun.pop_all()

    def on_worker_end(self) -> None:
        """Called by each worker; passed on like `on_worker_begin`, outermost first."""
        with ExitStack() as ends:
            for end in self._hooks("on_worker_end"):
                ends.callback(end)

    def on_epoch_begin(self) -> None:
        """Called once per epoch; passed on like `on_worker_begin`."""
        for begin in self._hooks("on_epoch_begin"):
            begin()

    def on_epoch_end(self) -> None:
        """Called once per epoch; passed on like `on_worker_begin`."""
        for end in self._hooks("on_epoch_end"):
            end()

    def read_ahead(self, indices: NDArray[np.int64]) -> None:
        """Announce to the parts the scenes that will be read soon."""
        for part, inner in self._scenes_inside(np.asarray(indices, np.int64)):
            announce = optional_method(part, "read_ahead")
            if announce is not None:
                announce(inner)

    def _scenes_inside(self, positions: NDArray[np.int64]) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        """Yield each part that some scenes need, with their indices in it."""
        return ((part, positions) for part in self._parts)

    @contextmanager
    def _reading(self, part: int, inner: Any, outer: Any) -> Iterator[None]:
        """Add a note to errors: the part, and the scenes read there."""
        try:
            yield
        except Exception as error:
            self._add_note(error, part, inner, outer)
            raise

    def _add_note(self, error: Exception, part: int, inner: Any, outer: Any) -> None:
        name, source = class_name(self), self._parts[part]
        verb = "is" if len(outer) == 1 else "are"
        which = f" (part {part})" if len(self._parts) > 1 else ""
        note_once(error, f"{listed(outer)} of {name} {verb} {listed(inner)} of {class_name(source)}{which}")
        note_length(error, name, source, self._lengths[part])

    @property
    def block_size(self) -> int:
        """Number of consecutive scenes that are cheap to read together.

        Raises:
            AttributeError: The blocks do not have one size, or there are none.
        """
        blocks = self._blocks()
        if not isinstance(blocks, int):
            raise AttributeError(
                f"{self!r} has no block_size: the sequence inside has none, or its blocks do not stay whole"
            )
        return blocks

    @property
    def block_of(self) -> NDArray[Any]:
        """The block of each scene, int or str[len(self)].

        For `kerasfeed.BlockShuffled`.

        Raises:
            AttributeError: All blocks have one size, or there are none.
        """
        blocks = self._blocks()
        if blocks is None or isinstance(blocks, int):
            raise AttributeError(f"{self!r} has no block_of: its blocks have one size, or a sequence inside has none")
        return blocks

    def _blocks(self) -> int | NDArray[Any] | None:
        """See `blocks_in`."""
        return None


def blocks_in(sequence: Any) -> int | NDArray[Any] | None:
    """Return a sequence's `block_size`, each scene's block, or None.

    Like `BlockShuffled`, it takes a `block_of` that is an array, or a function from an index.
    """
    if isinstance(sequence, View) and all(
        getattr(type(sequence), name) is getattr(View, name) for name in ("block_of", "block_size")
    ):
        return sequence._blocks()  # directly, because both properties would call it
    blocks = getattr(sequence, "block_of", None)
    if blocks is None:
        size = getattr(sequence, "block_size", None)
        return None if size is None else int(size)
    return np.array([blocks(index) for index in range(len(sequence))]) if callable(blocks) else np.asarray(blocks)


class OfOne(View):
    """A view of one sequence."""

    @property
    def sequence(self) -> Any:
        """The sequence inside this view."""
        return self._parts[0]


class SceneByScene(OfOne):
    """A view that makes scene k from scene k of one sequence."""

    def __len__(self) -> int:
        return self._lengths[0]

    def _blocks(self) -> int | NDArray[Any] | None:
        return blocks_in(self.sequence)


class OfSeveral(View):
    """A view of several sequences."""

    @property
    def sequences(self) -> tuple[Any, ...]:
        """The sequences inside this view."""
        return self._parts

    def __repr__(self) -> str:
        names = [class_name(part) for part in self._parts]
        if len(names) > 4:
            inside = f"{len(names)} sequences ({', '.join(names[:3])}, ...)"
        else:
            inside = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        return f"{class_name(self)} of {inside}, {pluralize(len(self), 'scene')}"


class Refreshable:
    """A sequence with a `refresh()`.

    Attributes:
        generation: Number of refreshes.
    """

    generation: int = 0
