"""Check the sequence of a feed before anything is read.

Invariant: every error states what was needed, what was received and what to write instead.
"""

from typing import Any

from kerasfeed.sequences.optional_methods import check_part

_COLUMN_NAMES = {2: "X, y", 3: "X, y, sample_weight"}


def check_sequence(sequence: Any, caller: str = "Feed()") -> int:
    """Check a sequence that was passed to `caller`; return its length.

    Raises:
        TypeError: The sequence cannot be indexed by integers from 0.
        ValueError: The sequence is empty.
    """
    length = check_part(caller, sequence)
    if length < 1:
        name = type(sequence).__name__
        raise ValueError(f"the sequence is empty: len({name}) is {length}. Check the path or the filter that made it")
    return length


def refuse_other_items(sequence: Any, batch_size: int) -> None:
    """Refuse a sequence of batches, and a list of columns, `[X, y]`.

    Two or three arrays are columns if they have equally many rows, more than there are arrays, and if they could not be
    scenes of one feed or would not fill a batch.

    Raises:
        TypeError: The sequence is a list of columns; the message says what to write.
        ValueError: The sequence is a `keras.utils.PyDataset`.
    """
    bases = {(base.__name__, base.__module__.partition(".")[0]) for base in type(sequence).__mro__}
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
        f"{received} would be {len(sequence)} scenes, one per array. For scenes that hold one row of each array, write "
        f"kf.Zip({_COLUMN_NAMES[len(sequence)]})"
    )
