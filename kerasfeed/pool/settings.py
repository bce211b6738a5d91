"""Attributes that the program sets after workers have received the user's objects.

Invariant: only numbers and text are compared, which takes about 1 us per object and runs no code of the user.
"""

from collections.abc import Iterator
from types import MethodType
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.sequences.view_base import View
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name, shown


class Settings:
    """The settings of the user's objects when workers received them.

    Settings are public attributes that are numbers or text.
    """

    def __init__(self, *objects: Any) -> None:
        """Read the settings of sequences and functions, and of all that views hold."""
        self._received = [(each, _settings(each)) for value in objects for each in _inside(value)]

    def warn_of_changes(self, warnings: DeferredWarnings, remedy: str) -> None:
        """Warn once of a setting that has changed since."""
        for value, received in self._received:
            for name, present in _settings(value).items():
                previous = received.get(name, getattr(type(value), name, None))
                if _is_plain(previous) and previous is not present and previous != present:
                    attribute = f"{class_name(value)}.{name}"
                    warnings.defer(
                        "settings",
                        f"{attribute} was set to {shown(present)} after the workers received the object, and they "
                        f"still have {shown(previous)}. {remedy}",
                        FeedWarning,
                    )


def _settings(value: Any) -> dict[str, Any]:
    try:
        attributes = list(object.__getattribute__(value, "__dict__").items())  # calls no method of the user
    except AttributeError:  # it has no attributes, or slots
        return {}
    return {name: item for name, item in attributes if _is_plain(item) and name[:1] != "_"}


def _is_plain(value: Any) -> bool:
    return type(value) in (bool, int, float, str)


def _inside(value: Any) -> Iterator[Any]:
    """Yield the innermost sequences and the functions of views, and the objects of methods."""
    if isinstance(value, View):
        for each in (*value._parts, *value._functions()):
            yield from _inside(each)
    else:
        yield value.__self__ if isinstance(value, MethodType) else value
