"""Numbers of scenes in files, of which those that are as they were are not counted again.

Invariant: a number is taken over from before only for a file whose identity is the same.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed.readers.files.counts import check_count, count_files, given_counts
from kerasfeed.readers.files.counts_cache import CountsCache, file_of
from kerasfeed.util.opened_files import identity_of


def known_counts(
    paths: tuple[Any, ...],
    count: Any,
    before: dict[Any, tuple[Any, int]],
    count_read: Callable[[Any], int],
    counts_cache: str | os.PathLike[str] | None,
    *,
    skip: bool,
    several: bool,
) -> tuple[Any, ...]:
    """The files that could be counted, int64[F] counts, those left out, and what is known of each.

    Args:
        paths: The files.
        count: What the user gave: numbers, a function of a path, or None.
        before: Identity and count of those that were counted before, by what stands for a file.
        count_read: From a path to the number of scenes in it, for which it reads the file.
        counts_cache: Path of a file that keeps numbers.
        skip: Whether files that cannot be counted are left out.
        several: Whether several threads may count.

    Raises:
        Exception: What `count` or `count_read` raises, where `skip` is not set.
    """
    given = given_counts(count, len(paths))
    if given is not None:
        return paths, np.array(given, np.int64), (), {}
    identities = [_identity(path) for path in paths]

    def count_one(file: int) -> int:
        path = paths[file]
        identity, known = before.get(repr(path), (None, 0))
        if identity is not None and identity == identities[file]:
            return known
        if count is not None:
            return check_count(count(path), f"what count({path!r}) returned")
        return count_read(path)

    cache = None if counts_cache is None else CountsCache(counts_cache)
    kept, counts, skipped = count_files(paths, count_one, cache, skip=skip, several=several)
    known = {repr(paths[file]): (identities[file], int(n)) for file, n in zip(kept, counts, strict=True)}
    return tuple(paths[file] for file in kept), counts, skipped, known


def _identity(path: Any) -> Any:
    """What a file is now; None where there is none to look at."""
    where = file_of(path)
    return identity_of(where) if isinstance(where, Path) and where.is_file() else None
