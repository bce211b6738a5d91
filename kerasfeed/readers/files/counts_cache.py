"""The numbers of scenes of files, kept in a small JSON file between runs.

Invariant: a number is believed only as long as size and time of change of its file are what they were. The file is
written under another name and then renamed, and nothing that is not such a file is ever overwritten.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import exception_text
from kerasfeed.util.remote import identity_at, is_url
from kerasfeed.util.validate import local_path

_LOOKS_AT_ONCE = 32
_FORMAT = "kerasfeed counts 1"


class CountsCache:
    """Counts by file. What it holds of other files stays."""

    def __init__(self, path: Any) -> None:
        """Read what is at `path`, if anything.

        Raises:
            TypeError: `path` is no path.
            ValueError: It is a URL, or what is there is something else.
        """
        self._path = local_path("counts_cache", path)
        self._counts = self._read()
        self._identities: dict[str, list[int] | None] = {}  # as they were before anybody counted

    def _read(self) -> dict[str, list[int]]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, IsADirectoryError):
            content = None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(
                f"counts_cache={str(self._path)!r} exists and is no cache of counts, so it will not be overwritten. "
                "Name another file, or delete this one"
            )
        return dict(content["counts"])

    def known(self, paths: Sequence[Any]) -> dict[int, int]:
        """Counts of those of `paths` that have not changed, by number."""
        found = {}
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:  # each at a URL takes as long as a small read
            are_urls = any(isinstance(file_of(path), str) for path in paths)
            identities = list((pool.map if are_urls else map)(_identity, paths))
        for number, (path, identity) in enumerate(zip(paths, identities, strict=True)):
            name = _name(path)
            self._identities[name] = identity
            entry = self._counts.get(name)
            if identity is not None and entry is not None and entry[:2] == identity:
                found[number] = entry[2]
        return found

    def add(self, paths: Sequence[Any], counts: Mapping[int, int]) -> None:
        """Note counts, by number, of files that `known` was asked for; warns where they cannot be written."""
        for number, count in counts.items():
            name = _name(paths[number])
            identity = self._identities[name]
            if identity is not None:
                self._counts[name] = [*identity, count]
        try:
            self._write()
        except OSError as error:
            warn_caller(f"counts_cache={str(self._path)!r} cannot be written: {exception_text(error)}", FeedWarning)

    def _write(self) -> None:
        write_whole(self._path, json.dumps({"format": _FORMAT, "counts": self._counts}, indent=0).encode())


def file_of(path: Any) -> Path | str | None:
    """The file, or URL, that a path, or a tuple that begins with one, names; None for anything else."""
    if isinstance(path, tuple) and path:
        path = path[0]
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        if isinstance(name, str):
            return name if isinstance(path, str) and is_url(path) else Path(name)
    return None


def _name(path: Any) -> str:
    """What identifies a path, or a tuple that begins with one: the file's full name, and the rest."""
    file = file_of(path)
    rest = repr(path[1:]) if isinstance(path, tuple) else ""
    if file is None:
        return ""
    return f"{file if isinstance(file, str) else file.absolute()}{rest}"


def _identity(path: Any) -> list[int] | None:
    """Size and time of change (ns) of a file; None where there is none to look at."""
    file = file_of(path)
    with contextlib.suppress(OSError, ImportError, ValueError):  # also a URL of which only `read_file` knows
        if file is not None:
            return list(identity_at(file)[2:])
    return None
