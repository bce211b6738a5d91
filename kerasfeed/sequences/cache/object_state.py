"""What an object is made of, for `kerasfeed.sequences.cache.key`.

Invariant: pure; reads attributes and bytecode, and runs nothing of an object but what pickle would run.
"""

import dis
import functools
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

_PARTS_OF: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    types.MethodType: ("__self__", "__func__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
}


def state_of(value: Any) -> Iterable[tuple[str, Any]]:
    """Named parts of an object.

    Raises:
        Exception: It has none that could be compared.
    """
    own = getattr(type(value), "_cache_state", None)
    if own is not None:
        return [("state", own(value))]
    parts = next((names for kind, names in _PARTS_OF.items() if isinstance(value, kind)), None)
    if parts is None and "__wrapped__" in getattr(value, "__dict__", ()):  # functools.lru_cache and its like
        parts = ("__wrapped__",)
    if parts is not None:
        return [(name, getattr(value, name)) for name in parts]
    if isinstance(value, np.random.Generator | np.random.RandomState):
        raise TypeError("a generator of random numbers changes with every use")
    reduced = value.__reduce_ex__(4)  # as pickle would, whose parts are then looked at one by one
    if isinstance(reduced, str):
        return [("global", reduced)]
    maker, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    made = [("made by", maker), ("from", arguments), ("items", list(items or ())), ("pairs", list(pairs or ()))]
    if isinstance(state, dict) and all(isinstance(name, str) for name in state):
        return [*made, *sorted(state.items())]  # attributes, in whatever order they were set
    return [*made, ("state", state)]


@functools.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Globals that the code, and the code inside it, looks up."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(names_in(constant))
    return tuple(sorted(names))
