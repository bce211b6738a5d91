"""The optional methods and the length of a sequence.

Invariant: `optional_method` alone decides whether a sequence has an optional method. It looks at the class; the
`_offers` of a view decides for the view. Nothing here reads a scene.
"""

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from kerasfeed.util.error_text import add_note, class_name, message_of, notes_of, pluralize
from kerasfeed.util.validate import refuse_class

WRAPPED_FOR = "_kerasfeed_wrapped_for"  # attribute of a wrapper: the class that inherits the method
_READERS = ("get_batch", "read_into")  # methods that a feed calls instead of `__getitem__`
_SHOWN = 8  # number of indices in a note
_BY_NAME = (
    'holds arrays by name: pass one of them, such as file["points"], or several, '
    'kf.Zip(points=file["points"], label=file["label"]), whose scenes are dicts'
)
# Classes whose objects are not sequences of scenes: package and name of a base class, and the remedy.
_OTHER_KINDS = {
    ("kerasfeed", "Members"): _BY_NAME,
    ("kerasfeed", "BaseFeed"): "is a Feed already, which gives batches: pass feed.sequence",
    ("tensorflow", "DatasetV2"): "is a tf.data.Dataset, which fit takes as it is: model.fit(dataset.batch(...), "
    "shuffle=False)",
    ("torch", "DataLoader"): "gives batches: pass loader.dataset, and batch_size, shuffle and workers as arguments",
    ("h5py", "Group"): _BY_NAME.replace("pass", "open it as file = kf.HDF5File(path) and pass"),
    ("zarr", "Group"): _BY_NAME,
    ("pandas", "BaseGroupBy"): "holds groups of rows: pass a list of them, [group.to_numpy() for _, group in groups], "
    "whose items are the scenes",
    ("polars", "LazyFrame"): "has rows once it is run: pass frame.collect()",
    ("pyarrow", "Table"): "is read by column: pass table.to_pandas()",
    ("pyarrow", "ChunkedArray"): "holds values of Arrow: pass column.to_numpy()",
    ("pyarrow", "Dataset"): "holds tables that are not read yet: pass dataset.to_table().to_pandas()",
    ("pyarrow", "RecordBatch"): "is a part of a table: pass batch.to_pandas()",
}


def optional_method(sequence: Any, name: str) -> Any:
    """Return the bound method `name` if the class defines it, else None.

    It is looked up on the class, so that a `__getattr__` that returns columns or delegates is not called. An inherited
    `get_batch` or `read_into` does not count if a subclass overrides `__getitem__`, because it would return other
    scenes. A class of kerasfeed decides itself which methods an object has, by `_offers`.
    """
    kind = type(sequence)
    if getattr(kind, name, None) is None:
        return None
    owner = _depth(kind, name)
    if owner is None or (name in _READERS and owner > (_depth(kind, "__getitem__") or 0)):
        return None
    if is_ours(kind.__mro__[owner]) and hasattr(kind, "_offers") and not sequence._offers(name):
        return None
    return getattr(sequence, name)


def _depth(kind: type, name: str) -> int | None:
    """Return the number of bases before the one that defines `name`.

    None if only the metaclass defines it.
    """
    for depth, base in enumerate(kind.__mro__):
        if name in vars(base) and getattr(vars(base)[name], WRAPPED_FOR, None) is not base:
            return depth
    return None


def is_ours(kind: type) -> bool:
    """Whether a class is part of kerasfeed."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def takes_out(method: Callable[..., Any]) -> bool:
    """Whether `method` has a parameter named `out`, and uses it."""
    if str(getattr(method, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]:
        sequence = getattr(method, "__self__", None)
        if method.__name__ == "get_batch" and hasattr(type(sequence), "_offers"):
            return bool(sequence._offers("out"))  # type: ignore[union-attr]
    return has_parameter(method, "out")


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of that name."""
    plain = getattr(function, "__func__", function)
    if type(plain) is FunctionType and not vars(plain):  # 0.3 us per scene; `signature` takes 20
        code = plain.__code__
        return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a compiled function may have no signature
        return False


def batch_reader(sequence: Any) -> Callable[..., Any] | None:
    """Return the `get_batch` of a SceneSequence, or None."""
    if getattr(type(sequence), "_is_scene_sequence", False):
        return optional_method(sequence, "get_batch")  # type: ignore[no-any-return]
    return None


def scene_writer(sequence: Any) -> Callable[[int, Any], Any] | None:
    """Return the `read_into` of a sequence if it takes `out`, or None."""
    method = optional_method(sequence, "read_into")
    return method if method is not None and takes_out(method) else None


def check_part(caller: str, sequence: Any) -> int:
    """Check a sequence passed to `caller`, and return its length.

    Raises:
        TypeError: It cannot be indexed by integers from 0, holds arrays by name, or is another kind of input for a
            model. The message has the remedy.
        ValueError: Its length is more than 2**63 - 1.
    """
    name = class_name(sequence)
    refuse_class(caller, sequence)
    missing = [method for method in ("__len__", "__getitem__") if not hasattr(type(sequence), method)]
    if isinstance(sequence, Iterator) and missing:  # Keras's iterators of images can be indexed, too
        raise TypeError(
            f"{caller} needs a sequence that can be indexed, received a {name}, which can only be read forward. "
            "kf.StreamFeed(function, batch_size) takes a function that makes one for each epoch. Or write a class "
            "with __len__ and __getitem__(index) that returns one scene, or pass list(...) if it fits in memory"
        )
    for kind in type(sequence).__mro__:
        if advice := _OTHER_KINDS.get((kind.__module__.partition(".")[0], kind.__name__)):
            raise TypeError(f"{caller} needs a sequence of scenes indexed by 0, 1, 2, ..., but the {name} {advice}")
    yields = inspect.isgeneratorfunction(sequence)
    if yields or inspect.isroutine(sequence):
        called = getattr(sequence, "__name__", name)
        remedy = "call it if it makes one. kf.StreamFeed takes a function that returns a generator"
        if yields:
            remedy = f"kf.StreamFeed({called}, batch_size) makes batches of the scenes that it yields"
        raise TypeError(
            f"{caller} needs a sequence that can be indexed, received the {'generator ' * yields}function {called}: "
            f"{remedy}"
        )
    if getattr(sequence, "requires_grad", False) is True:
        raise TypeError(f"{caller} needs data, received a {name} that requires grad: pass tensor.detach()")
    if isinstance(sequence, Mapping | str | bytes):
        remedy = "For a dict of arrays pass kf.Zip(**arrays), whose scenes are dicts"
        if not isinstance(sequence, Mapping):
            remedy = "Open a file first: kf.HDF5File(path), or write a class that reads it"
        raise TypeError(f"{caller} needs a sequence of scenes indexed by 0, 1, 2, ..., received a {name}. {remedy}")
    if missing and not (missing == ["__len__"] and hasattr(type(sequence), "num_batches")):
        stream = ", or pass a function that returns an iterable: kf.StreamFeed(lambda: data, batch_size)"
        raise TypeError(
            f"{caller} needs an object with __len__ and __getitem__(index), received a {name} without "
            f"{' and '.join(missing)}. Subclass kerasfeed.SceneSequence{stream * hasattr(type(sequence), '__iter__')}"
        )
    if hasattr(sequence, "toarray") and hasattr(sequence, "nnz"):
        raise TypeError(
            f"{caller} needs dense scenes, received a sparse {name}. Pass matrix.toarray(); if that does not fit in "
            "memory, pass kf.Map(range(matrix.shape[0]), lambda row: matrix[[row]].toarray()[0])"
        )
    length = length_of(sequence)
    if length is None:
        raise TypeError(f"{caller} needs a finite sequence, but {name} has no length. Give it a __len__")
    return length


def length_of(sequence: Any) -> int | None:
    """Return a sequence's length or `num_batches`; None if it is endless.

    Raises:
        ValueError: The length is more than 2**63 - 1.
    """
    if hasattr(type(sequence), "__len__"):
        try:
            return len(sequence)
        except OverflowError as error:
            raise ValueError(f"len({class_name(sequence)}) must be at most 2**63 - 1: {message_of(error)}") from error
    try:
        batches = sequence.num_batches
    except NotImplementedError:
        return None
    return None if batches is None else operator.index(batches)


def listed(indices: Any) -> str:
    """Return indices as text for a message."""
    numbers = [str(int(index)) for index in indices[:_SHOWN]]
    return ("scene " if len(indices) == 1 else "scenes ") + ", ".join(numbers) + (", ..." * (len(indices) > _SHOWN))


def note_once(error: BaseException, note: str) -> None:
    """Add a note, unless the exception has it from an earlier raise."""
    if note not in notes_of(error):
        add_note(error, note)


def note_length(error: BaseException, view: str, sequence: Any, expected: int) -> None:
    """Add a note to `error` if a sequence has another length now."""
    with contextlib.suppress(Exception):
        if (found := len(sequence)) != expected:
            note_once(
                error,
                f"{class_name(sequence)} had {pluralize(expected, 'scene')} when {view} was made, and has {found} now: "
                "make the view again when the sequence has grown or shrunk",
            )
