"""Arguments of a `FileSequence`, checked before anything is read.

Invariant: every refusal says what was needed, what came and what to write instead.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from kerasfeed.readers.tfrecord.names import expand
from kerasfeed.util.validate import check_integer


def check_paths(paths: Any) -> tuple[Any, ...]:
    """`paths` as a tuple, in their order; of one path, or a glob, the files that it means, in natural order."""
    if isinstance(paths, str | os.PathLike):
        return tuple(map(str, expand(paths)))
    if isinstance(paths, AbstractSet | Mapping) or not isinstance(paths, Iterable):
        raise TypeError(
            f"FileSequence() needs a list of paths, in an order that is the same in every run, received a "
            f"{type(paths).__name__}: write sorted(...)"
        )
    found = tuple(paths)
    if not found:
        raise ValueError("FileSequence() needs at least one file, received no paths. Check the pattern that found none")
    return found


def check_function(read_file: Any) -> Callable[[Any], Any]:
    """`read_file`, if it can be called."""
    if isinstance(read_file, Iterator):
        raise TypeError(
            f"read_file must be a function of a path, received a {type(read_file).__name__}, which is what such a "
            "function returns: pass the function itself, without calling it"
        )
    if not callable(read_file):
        raise TypeError(
            f"read_file must be a function of a path that returns the scenes of that file, received {read_file!r} of "
            f"type {type(read_file).__name__}"
        )
    return read_file  # type: ignore[no-any-return]


def check_cache_files(cache_files: Any, interleave: int) -> int:
    """`cache_files`, if the files that take turns find room."""
    most = check_integer("cache_files", cache_files, 1)
    if most < interleave:
        raise ValueError(
            f"interleave={interleave} lets {interleave} files take turns, and cache_files={most} keeps fewer, so each "
            f"would be read again for every scene: use cache_files={interleave} or more, or a smaller interleave"
        )
    return most
