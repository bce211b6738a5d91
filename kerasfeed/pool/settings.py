"""Attributes that the program sets after workers have received the user's objects.

Invariant: only numbers and text are compared, and no code of the user runs.
"""

from collections.abc import Iterator
from functools import partial
from types import MethodType
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.sequences.optional_methods import is_ours
from kerasfeed.sequences.view_base import View
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name

_KIND = "settings"  # of the warning


class Settings:
    """The attributes of the user's objects when workers received them."""

    def __init__(self, *objects: Any) -> None:
        """Read the attributes of sequences and functions.

        The objects inside views and methods count too.
        """
        values = {id(each): each for value in objects for each in _inside(value)}
        self._received = [(each, _attributes(each)) for each in values.values()]

    def warn_of_changes(self, warnings: DeferredWarnings, remedy: str) -> None:
        """Warn once of a public number or text that differs now."""
        if warnings.is_known(_KIND):
            return
        for value, received in self._received:
            for name, present in _attributes(value).items():
                previous = received[name] if name in received else _class_attribute(value, name)
                if previous is present or not (_is_plain(previous) and _is_plain(present)) or previous == present:
                    continue
                is_text = str in (type(previous), type(present))  # which may be a password
                values = "differs" if is_text else f"is {present} here and {previous}"
                warnings.defer(
                    _KIND,
                    f"{class_name(value)}.{name} {values} in the workers, which received the object before it was set. "
                    f"{remedy}",
                    FeedWarning,
                )
                return


def _attributes(value: Any) -> dict[str, Any]:
    """Return the public attributes of an object, without its class.

    Values other than numbers and text are None.
    """
    try:
        attributes = list(object.__getattribute__(value, "__dict__").items())
    except AttributeError:  # it has none, or slots
        return {}
    public = [(name, item) for name, item in attributes if type(name) is str and not name.startswith("_")]
    return {name: item if _is_plain(item) else None for name, item in public}  # holds no large object


def _class_attribute(value: Any, name: str) -> Any:
    """Return an attribute of the class, without calling descriptors."""
    return next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)


def _is_plain(value: Any) -> bool:
    return type(value) in (bool, int, float, str)


def _inside(value: Any) -> Iterator[Any]:
    """Yield the user's objects inside views, partial functions and methods."""
    while isinstance(value, partial):
        value = value.func
    is_own = is_ours(type(value))
    if isinstance(value, View) or (is_own and hasattr(value, "_functions")):
        for each in (*value._parts, *value._functions()):
            yield from _inside(each)
    if isinstance(value, MethodType):
        yield value.__self__
    elif not is_own:
        yield value
