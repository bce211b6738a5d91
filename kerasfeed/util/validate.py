"""Integers and local paths that users give, checked; and classes that they give for instances, refused.

Invariant: what passes for an integer is a Python int of at least `least`. Floats and booleans are refused: where one of
them comes, an argument stands in the wrong place.
"""

import operator
import os
import re
from pathlib import Path
from typing import Any

_URL = re.compile(r"://|^[A-Za-z][\w+.-]+:/")  # a Path of "s3://data" is "s3:/data"


def check_integer(
    name: str, value: Any, least: int, *, most: int | None = None, what: str = "an integer", unit: str = "",
    remedy: str = "",
) -> int:  # fmt: skip
    """`value` as an int of at least `least`, and at most `most`.

    Args:
        name: The argument, for the message.
        value: What came: an int, or anything that is one, such as NumPy's.
        least: Smallest value that is right.
        most: Largest value that is right; None is any.
        what: What it must be, for the message.
        unit: What it counts, with a space before it, for the message.
        remedy: What to give instead of a value that is too small, with what stands before it.

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


def local_path(
    name: str, given: Any, *, what: str = "a file", remedy: str = "write to a disk, and copy it from there"
) -> Path:
    """`given` as the path of a file or folder that is written here.

    Args:
        name: The argument, for the message.
        given: What came.
        what: What it must be, for the message.
        remedy: What to do where it is a URL, which would become a folder of that name.

    Raises:
        TypeError: It is no path.
        ValueError: It is a URL, or empty.
    """
    if not isinstance(given, str | os.PathLike) or not isinstance(text := os.fspath(given), str):
        raise TypeError(f"{name} must be a path, received {given!r} of type {type(given).__name__}")
    if not text or _URL.search(text):
        raise ValueError(f"{name} must be {what} on a disk, received {text!r}: {remedy}")
    return Path(text)


def refuse_class(name: str, given: Any, kinds: Any = object, example: str = "{}(...)") -> None:
    """Refuse a class in the place of an instance of it, or of one of `kinds`.

    Args:
        name: What needs an instance, for the message.
        given: What came.
        kinds: Classes; others are none of its business.
        example: How an instance is made, with `{}` for the class.

    Raises:
        TypeError: `given` is such a class.
    """
    if isinstance(given, type) and issubclass(given, kinds):
        kind = given.__name__
        raise TypeError(f"{name} needs an instance, received the class {kind}: write {example.format(kind)}")
