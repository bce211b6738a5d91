"""Parts of orders made from arrays: groups, cached tables, checks.

Invariant: `Groups` are read-only and take 4 bytes per scene below 2**31 scenes, otherwise 8, and 8 per group.
"""

import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kerasfeed.util.array_bits import frozen
from kerasfeed.util.error_text import add_note, message_of, pluralize
from kerasfeed.util.fingerprint import digest, name_of
from kerasfeed.util.lru import Lru

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Groups:
    """The scenes of a sequence divided into groups.

    Each scene is in exactly one.

    Attributes:
        members: int32 or int64[length], the indices of the first group in ascending order, then of the next.
        offsets: int64[groups + 1]; group g holds `members[offsets[g]:offsets[g + 1]]`. A group may be empty.
    """

    members: NDArray[np.integer[Any]]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.integer[Any]], count: int) -> "Groups":
        """Return `count` groups; scene `index` is in group `numbers[index]`, in [0, count)."""
        sorted_scenes = np.argsort(numbers, kind="stable")
        members: NDArray[np.integer[Any]] = sorted_scenes
        if len(numbers) < 2**31:
            members = sorted_scenes.astype(np.int32)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(numbers, minlength=count), out=offsets[1:])
        return cls(frozen(members), frozen(offsets))

    @property
    def length(self) -> int:
        """Number of scenes."""
        return len(self.members)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Scenes of each group, int64[groups]."""
        return np.diff(self.offsets)

    def numbers(self) -> NDArray[np.int64]:
        """Group number of each scene, int64[length]."""
        numbers = np.empty(self.length, np.int64)
        numbers[self.members] = np.repeat(np.arange(self.count), self.sizes)
        return numbers

    def positions(self) -> NDArray[np.int64]:
        """The position of each scene in `members`, int64[length]."""
        positions = np.empty(self.length, np.int64)
        positions[self.members] = np.arange(self.length)
        return positions

    def digest(self) -> str:
        """Return a string that differs for different groupings."""
        return digest(self.members, self.offsets)


EPOCHS_KEPT = 3  # results of a user's function: for the current epoch, the epoch loaded ahead, and epoch 0


class Kept(Lru[Hashable, Value]):
    """A cache of the last few values, by key.

    Copies and pickles are empty.
    """

    def __reduce__(self) -> Any:
        return Kept, (self.limit,)


class Identified:
    """Base class of orders, and parts of orders, that compare by `identity`."""

    _identity: str

    def identity(self) -> str:
        """See `kerasfeed.orders.base.Order.identity`."""
        return self._identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identified) and other.identity() == self.identity()

    def __hash__(self) -> int:
        return hash(self._identity)


@dataclass(frozen=True, eq=False)
class Portable:
    """A user's function that can be pickled, even a lambda.

    Attributes:
        function: The callable.
    """

    function: Callable[..., Any]

    def __str__(self) -> str:
        return name_of(self.function)

    def identity(self) -> str:
        """Return a string that differs if code or enclosed values differ."""
        return f"{getattr(self.function, '__module__', '')}.{self} {digest(self.function)}"

    def call(self, what: str, *arguments: int) -> Any:
        """Call the function, which was passed as the argument `what`.

        Raises:
            Exception: The function raised it; a note has the arguments.
        """
        try:
            return self.function(*arguments)
        except Exception as error:
            add_note(error, f"{what}={self} raised it when called with ({', '.join(map(str, arguments))})")
            raise

    def __reduce__(self) -> Any:
        from kerasfeed.util.picklers import cloud_pickled  # imports cloudpickle, which most orders do not need

        return _unpickled, (cloud_pickled(self.function),)


def _unpickled(data: bytes) -> Portable:
    return Portable(pickle.loads(data))


def check_names(what: str, values: Any, example: str) -> NDArray[Any]:
    """Return labels or block names as an array, one per scene.

    Args:
        what: Name of the argument in messages.
        values: The values to check.
        example: A way to make valid values; part of messages.

    Raises:
        TypeError: The values are neither integers, booleans, `str` nor `bytes`.
        ValueError: There is not one value per scene, or there are none.
    """
    array = _one_a_scene(what, values, "name per scene, int or str[number of scenes]", f": {example}")
    if array.dtype.kind not in "iubUS":
        bad = next((f" ({value!r} at index {k})" for k, value in enumerate(array) if not isinstance(value, str)), "")
        raise TypeError(f"{what} must be integers, booleans or strings, received {array.dtype}{bad}: {example}")
    return array


def check_numbers(what: str, values: Any, *, whole: bool, below: int | None = None) -> NDArray[Any]:
    """Return weights, lengths or indices as a new array, one per scene.

    Args:
        what: Name of the argument in messages.
        values: The values to check: finite numbers of at least 0.
        whole: Whether they must be integers; the result is then int64, otherwise float64.
        below: Exclusive upper limit; None for no limit.

    Raises:
        TypeError: The values are not numbers, or not integers although `whole` is set.
        ValueError: There is not one value per scene, there are none, or one is out of range or not finite.
    """
    array = _one_a_scene(what, values, "number per scene, shape [number of scenes]")
    if array.dtype.kind not in ("iu" if whole else "iubf"):
        kind = "integers" if whole else "numbers"
        remedy = ". Convert a mask to indices with np.flatnonzero(mask)" if array.dtype.kind == "b" else ""
        raise TypeError(f"{what} must be {kind}, received {array.dtype} ({array[0]!r} at index 0){remedy}")
    numbers = array.astype(np.int64 if whole else np.float64)
    fits = np.isfinite(array) & (array >= 0) & (numbers >= 0)  # uint64 may overflow int64
    bad = np.flatnonzero(~fits if below is None else ~fits | (numbers >= below))
    if bad.size:
        more = f", and {bad.size - 1:,} more" if bad.size > 1 else ""
        need = "at least 0 and below 2**63" if whole else "finite and at least 0"
        need = need if below is None else f"in [0, {below:,})"
        raise ValueError(f"{what} must be {need}, received {array[bad[0]]} at index {bad[0]}{more}")
    return numbers


def _one_a_scene(what: str, values: Any, need: str, remedy: str = "") -> NDArray[Any]:
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and len(set(map(type, array.flat))) == 1:  # text, or nullable numbers of pandas 2
            array = np.array(array.tolist())
    except ValueError as error:  # rows of unequal length
        raise ValueError(f"{what} must be an array with one value per scene: {message_of(error)}") from None
    if array.ndim != 1 or not len(array):
        received = f"shape {array.shape}" if array.ndim else f"a {type(values).__name__}"
        raise ValueError(f"{what} must be one {need}, received {received}{remedy}")
    return array


def check_length(what: str, made_for: int, length: int) -> None:
    """Refuse a sequence of another length than the order's arrays have.

    Raises:
        ValueError: The lengths differ.
    """
    if made_for != length:
        raise ValueError(
            f"{what} has {pluralize(made_for, 'entry', 'entries')}, but the sequence has {pluralize(length, 'scene')}: "
            "pass one entry for each scene, in the order of their indices"
        )
