"""Sequences that take new scenes in between two epochs, and where they stand in views."""

from typing import Any

from kerasfeed.sequences.view_base import View


class Refreshable:
    """A sequence with a `refresh()`.

    Attributes:
        generation: How often it was refreshed.
    """

    generation: int = 0


def refreshable_in(sequence: Any) -> tuple[Refreshable, ...]:
    """The sequence itself, or what of it may be refreshed where it is a view."""
    if isinstance(sequence, Refreshable):
        return (sequence,)
    if isinstance(sequence, View):
        return tuple(found for part in sequence._parts for found in refreshable_in(part))
    return ()
