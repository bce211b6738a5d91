"""Check numbers and paths from users, and refuse classes for instances.

Invariant: an accepted integer is a Python int of at least `least`. Floats and booleans are refused, because they are
usually arguments in the wrong position.
"""

import math
import operator
import os
import re
import sys
from numbers import Real
from pathlib import Path
from typing import Any

_URL = re.compile(r"://|^[A-Za-z][\w+.-]+:/")  # a Path of "s3://data" is "s3:/data"


def check_integer(
    name: str, value: Any, least: int, *, most: int | None = None, what: str = "an integer", unit: str = "",
    remedy: str = "",
) -> int:  # fmt: skip
    """Return `value` as an int in [`least`, `most`].

    Args:
        name: Name of the argument in messages.
        value: The value of the argument: an int or an integer of NumPy, for example.
        least: Smallest valid value.
        most: Largest valid value; None for no limit.
        what: Description of a valid value in messages.
        unit: Unit of the value in messages, with a leading space.
        remedy: The remedy for a value that is too small, with its punctuation.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is too small or too large.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be {what}, received {value!r} of type {type(value).__name__}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}{unit}, received {number}{remedy}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most:,}{unit}, received {number:,}")
    return number


def check_flag(name: str, value: Any, remedy: str = "") -> bool:
    """Return `value` as a bool.

    Raises:
        TypeError: It is neither True nor False. The text "no" and the size of a shuffle buffer would both mean True.
    """
    if type(value).__name__ not in ("bool", "bool_"):  # of Python or NumPy
        raise TypeError(f"{name} must be True or False, received {value!r} of type {type(value).__name__}{remedy}")
    return bool(value)


def check_number(
    name: str, value: Any, what: str, *, least: float | None = None, most: float = sys.float_info.max
) -> float:
    """Return `value` as a float.

    Args:
        name: Name of the argument in messages.
        value: The value of the argument: a number of Python or NumPy.
        what: Description of a valid value in messages.
        least: Smallest valid value; None if any value above 0 is valid.
        most: Largest valid value.

    Raises:
        TypeError: It is not a number.
        ValueError: It is too small, too large, infinite or not a number (NaN).
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {what}, received {value!r} of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # a longer integer
        number = math.inf
    if not (number > 0 if least is None else number >= least) or number > most:
        raise ValueError(f"{name} must be {what}, received {value!r}")
    return number


def local_path(
    name: str, given: Any, *, what: str = "a file", remedy: str = "write to a disk, and copy it from there"
) -> Path:
    """Return `given` as the path of a file or folder to write.

    Args:
        name: Name of the argument in messages.
        given: The value of the argument.
        what: Description of a valid value in messages.
        remedy: The remedy for a URL, which would become a folder of that name.

    Raises:
        TypeError: It is not a path.
        ValueError: It is a URL, or empty.
    """
    if not isinstance(given, str | os.PathLike) or not isinstance(text := os.fspath(given), str):
        raise TypeError(f"{name} must be a path, received {given!r} of type {type(given).__name__}")
    if not text or _URL.search(text):
        raise ValueError(f"{name} must be {what} on a disk, received {text!r}: {remedy}")
    return Path(text)


def refuse_class(name: str, given: Any, kinds: Any = object, example: str = "{}(...)") -> None:
    """Refuse a class passed instead of an instance.

    Args:
        name: Name of the argument in messages.
        given: The value passed.
        kinds: Refuse only subclasses of these.
        example: Code for an instance, with `{}` for the class.

    Raises:
        TypeError: `given` is such a class.
    """
    if isinstance(given, type) and issubclass(given, kinds):
        kind = given.__name__
        raise TypeError(f"{name} needs an instance, received the class {kind}: write {example.format(kind)}")
