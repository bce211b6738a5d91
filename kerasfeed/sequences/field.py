"""One field of every scene of a sequence, as a sequence of its own.

Invariant: loads no framework, for workers load it.
"""

from typing import Any

import numpy as np

from kerasfeed.orders.groups import Portable
from kerasfeed.sequences.view_base import HookForwarder, is_safe_function, is_thread_safe
from kerasfeed.spec.nesting import field_paths, flatten


class FieldOf(HookForwarder):
    """The sequence of one field of another sequence's scenes.

    Args:
        sequence: The other.
        length: Number of scenes in it.
        place: Dotted path of the field, or a function from a scene to a value.
    """

    def __init__(self, sequence: Any, length: int, place: str | Portable) -> None:
        self.sequence = sequence
        self.length = length
        self.place = place

    def __len__(self) -> int:
        return self.length

    @property
    def thread_safe(self) -> bool:
        """See `kerasfeed.sequences.view_base.is_thread_safe`."""
        function = self.place.function if isinstance(self.place, Portable) else None
        return is_thread_safe(self.sequence) and (function is None or is_safe_function(function))

    def __getitem__(self, index: int) -> Any:
        scene = self.sequence[index]
        if isinstance(self.place, Portable):
            value = self.place.function(scene)
        else:
            leaves, treespec = flatten(scene)
            paths = field_paths(treespec)
            if self.place not in paths:
                raise ValueError(
                    f"a scene has no field {self.place!r}: it has {', '.join(map(repr, paths))}. Name one of these, or "
                    "give a function of the scene"
                )
            value = leaves[paths.index(self.place)]
        array = np.asarray(value)
        if array.size != 1:
            raise ValueError(
                f"field {self.place!s} of a scene must be a single value, received shape {array.shape}: give a "
                "function that makes it one, for example lambda scene: scene[1].max()"
            )
        return value if isinstance(value, str | bytes) else array.reshape(())[()]
