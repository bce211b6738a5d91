"""The sequence of a feed, checked before anything is read.

Invariant: every refusal says what was needed, what came and what to write instead.
"""

import operator
from collections.abc import Mapping
from typing import Any

from kerasfeed.util.optional_methods import is_read_forward, refuse_other_kinds, remedy_without_methods
from kerasfeed.util.validate import refuse_class

_COLUMN_NAMES = {2: "X, y", 3: "X, y, sample_weight"}


def check_sequence(sequence: Any, caller: str = "Feed()") -> int:
    """The length of a sequence, which `caller` was given.

    Raises:
        TypeError: It cannot be indexed by integers from 0.
        ValueError: It is empty.
    """
    name = type(sequence).__name__
    refuse_class(caller, sequence)
    if is_read_forward(sequence):
        raise TypeError(
            f"{caller} needs a sequence that can be indexed, received a {name}, which can only be read forward. "
            "kf.StreamFeed(function, batch_size) takes a function that makes it anew for each epoch. Or write a class "
            "with __len__ and __getitem__(index) that makes one scene, or pass list(...) if it fits in memory"
        )
    refuse_other_kinds(caller, sequence)
    if isinstance(sequence, Mapping | str | bytes):
        raise TypeError(
            f"{caller} needs a sequence of scenes indexed by 0, 1, 2, ..., received a {name}. For a dict of arrays "
            "pass kf.Zip(**arrays), whose scenes are dicts"
        )
    missing = [method for method in ("__len__", "__getitem__") if not hasattr(type(sequence), method)]
    if missing and not (missing == ["__len__"] and hasattr(type(sequence), "num_batches")):
        raise TypeError(
            f"{caller} needs an object with __len__ and __getitem__(index), received a {name} without "
            f"{' and '.join(missing)}. {remedy_without_methods(sequence)}"
        )
    if hasattr(sequence, "toarray") and hasattr(sequence, "nnz"):
        raise TypeError(
            f"{caller} needs dense scenes, received a sparse {name}. Pass matrix.toarray(), or where that does not fit "
            "in memory kf.Map(range(matrix.shape[0]), lambda row: matrix[[row]].toarray()[0])"
        )
    length = length_of(sequence)
    if length is None:
        raise TypeError(f"{caller} needs a finite sequence, and {name} has no length. Give it a __len__")
    if length < 1:
        raise ValueError(f"the sequence is empty: len({name}) is {length}. Check the path or the filter that made it")
    return length


def refuse_other_items(sequence: Any, batch_size: int) -> None:
    """Refuse a sequence whose items are batches, and a list of arrays that are columns of scenes, `[X, y]`.

    Arrays are columns where they are two or three, have one row a scene each, and could not be scenes of one feed, or
    would not fill a batch.

    Raises:
        TypeError: It is a feed, or a list of columns; the message says what to write.
        ValueError: It is a `keras.utils.PyDataset`.
    """
    bases = {(base.__name__, base.__module__.partition(".")[0]) for base in type(sequence).__mro__}
    if ("Feed", "kerasfeed") in bases:
        raise TypeError("the sequence is a Feed already; pass its `sequence`")
    if ("PyDataset", "keras") in bases:
        raise ValueError(
            f"each item of {type(sequence).__name__}, a keras.utils.PyDataset, is a batch already: use batch_size=None"
        )
    if not isinstance(sequence, list | tuple) or len(sequence) not in _COLUMN_NAMES:
        return
    shapes = [tuple(getattr(column, "shape", None) or ()) for column in sequence]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1 or shapes[0][0] <= len(sequence):
        return
    kinds = {(len(shape), str(getattr(column, "dtype", ""))) for shape, column in zip(shapes, sequence, strict=True)}
    if len(kinds) == 1 and batch_size <= len(sequence):
        return
    received = ", ".join(map(str, shapes))
    raise TypeError(
        f"Feed() needs a sequence of scenes, and this {type(sequence).__name__} of {len(sequence)} arrays of shapes "
        f"{received} would be {len(sequence)} scenes, the arrays themselves. For scenes that hold a row of each, write "
        f"kf.Zip({_COLUMN_NAMES[len(sequence)]})"
    )


def length_of(sequence: Any) -> int | None:
    """The length of a sequence; of a Keras PyDataset it may be called `num_batches`. None where that has no end."""
    if hasattr(type(sequence), "__len__"):
        return len(sequence)
    try:
        batches = sequence.num_batches
    except NotImplementedError:
        return None
    return None if batches is None else operator.index(batches)
