"""Names of shards: patterns, and the files that match them.

Invariant: the files of a pattern are ordered by number, and none is missing.
"""

import glob
import os
import re
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kerasfeed.errors import RecordError
from kerasfeed.readers.remote import find, is_url, last_part
from kerasfeed.util.fingerprint import digest

FileLocation = Path | str  # a file: an absolute path, or a URL
SIDECAR_SUFFIX = ".spec.json"
_SHARD_PART = re.compile(r"[-_.]?\{shard[^{}]*\}(?:[-_.]?(?:of[-_.]?)?\{count[^{}]*\})?")
_SHOWN = 5


def digest_of_names(paths: Iterable[Any]) -> str:
    """Digest of the names of files, in this order, without the folder that all are in."""
    names = list(map(str, paths))
    common = os.path.commonprefix(names)  # noqa: RUF071 - works for URLs, too
    folder = common.rfind("/") + 1  # files such as train-0 and train-1 keep the name that they share
    return digest([name[folder:] for name in names])


def shard_paths(pattern: str, count: int) -> list[Path]:
    """Return the files that `pattern` names.

    Args:
        pattern: A path with `{shard}`, and perhaps `{count}`, in its last part; format specs as in `str.format`.
        count: Number of shards.

    Raises:
        ValueError: The pattern gives two shards the same name.
    """
    folder, name = Path(pattern).absolute().parent, Path(pattern).name
    used = _used(pattern)
    if "shard" not in used and count > 1:
        stem, dot, suffix = name.partition(".")
        raise ValueError(
            f"the pattern {pattern!r} gives all {count} shards the same name: put {{shard}} into it, such as "
            f"'{stem}-{{shard:05d}}-of-{{count:05d}}{dot}{suffix}'"
        )
    if _used(str(folder)):
        raise ValueError(f"{{shard}} and {{count}} belong in the file's name, not in its folder ({str(folder)!r})")
    names = [name.format(shard=shard, count=count) for shard in range(count)]
    if len(set(names)) < count or any("/" in each for each in names):
        raise ValueError(f"the pattern {pattern!r} gives two shards the name {names[0]!r}")
    return [folder / each for each in names]


def _used(pattern: str) -> set[str]:
    try:
        used = {field for _, field, _, _ in string.Formatter().parse(pattern) if field is not None}
        pattern.format(shard=0, count=1)
    except (ValueError, KeyError, IndexError, AttributeError):
        raise ValueError(
            f"the pattern {pattern!r} may hold {{shard}} and {{count}}, with format specs such as {{shard:05d}}, and "
            "no other braces"
        ) from None
    return used


def sidecar_path(pattern: str) -> Path:
    """Return the path of the sidecar that describes a pattern's shards."""
    path = Path(pattern).absolute()
    name = _SHARD_PART.sub("", path.name, count=1)
    name = re.sub(r"[-_.]?\{[^{}]*\}", "", name).lstrip(".-_") or "records"
    return path.with_name(name + SIDECAR_SUFFIX)


def expand(paths: Any) -> list[FileLocation]:
    """Return the files that `paths` match, in order.

    Args:
        paths: A path, a glob, a pattern with `{shard}`, any of these as a URL, or a list of them. Files of a glob are
            in natural order (2 before 10); paths of a list stay in the order of the list.

    Raises:
        TypeError: `paths` holds something other than paths.
        FileNotFoundError: There is no such file.
        RecordError: A shard of a pattern is missing.
    """
    if isinstance(paths, str | os.PathLike):
        return _expand_one(paths)
    if not isinstance(paths, Iterable):
        raise TypeError(f"paths must be a path, a glob, a pattern or a list of these, received {paths!r}")
    found: list[FileLocation] = []
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"paths must be paths, received {path!r} of type {type(path).__name__} among them")
        found += _expand_one(path)
    if not found:
        raise FileNotFoundError("the list of paths is empty: name at least one file")
    return found


def _expand_one(given: str | os.PathLike[str]) -> list[FileLocation]:
    path = os.fspath(given)
    if is_url(given):
        if "{shard" in path:
            _used(path)
            folder, _, name = path.rpartition("/")
            globbed = re.sub(r"\{[^{}]*\}", "*", name)
            return _shards(path, name, {last_part(url): url for url in find(f"{glob.escape(folder)}/{globbed}")})
        hidden = not last_part(path).startswith(".")  # as in a local glob
        return _sorted(url for url in find(path) if not (hidden and last_part(url).startswith(".")))
    literal = Path(path).absolute()
    if literal.is_file():
        return [literal]
    if literal.is_dir():
        raise IsADirectoryError(
            f"{path!r} is a folder: name its files, for example {path.rstrip('/') + '/*.tfrecord'!r}"
        )
    if "{shard" in path:
        _used(path)
        named: dict[str, FileLocation] = {}
        if literal.parent.is_dir():
            named = {each.name: each for each in literal.parent.iterdir()}
        return _shards(str(literal), literal.name, named)
    found: list[FileLocation] = [Path(each).absolute() for each in glob.glob(path) if Path(each).is_file()]  # noqa: PTH207
    if not found:
        what = "no file matches" if glob.has_magic(path) else "there is no file"
        raise FileNotFoundError(f"{what} {str(literal)!r}")
    return _sorted(found)


def _sorted(found: Iterable[FileLocation]) -> list[FileLocation]:
    return sorted(found, key=lambda each: _natural(last_part(each)))


def _natural(name: str) -> list[Any]:
    return [(int(part), part) if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _shards(pattern: str, name: str, named: dict[str, FileLocation]) -> list[FileLocation]:
    """Return all shards of a pattern, or raise an error.

    Args:
        pattern: The whole pattern, for messages.
        name: Its last part.
        named: Files that may be shards, by name.
    """
    expression, seen = "", set()
    for text, field, _, _ in string.Formatter().parse(name):
        expression += re.escape(text)
        if field is not None:
            expression += f"(?P={field})" if field in seen else rf"(?P<{field}>\d+)"
            seen.add(field)
    found: dict[int, FileLocation] = {}
    counts = set()
    for each, path in named.items():
        match = re.fullmatch(expression, each)
        if match is None:
            continue
        counts.add(int(match["count"]) if "count" in seen else None)
        found[int(match["shard"])] = path
    if not found:
        raise FileNotFoundError(f"no file matches the pattern {pattern!r}")
    if len(counts) > 1:
        listed = " and ".join(sorted(map(str, counts)))
        raise RecordError(f"the pattern {pattern!r} matches sets of {listed} shards: replace {{count}} by a number")
    (expected,) = counts
    count = max(found) + 1 if expected is None else expected
    missing = [shard for shard in range(count) if shard not in found]
    if missing:
        raise missing_shards(pattern, missing, count)
    return [found[shard] for shard in range(count)]


def missing_shards(pattern: str, missing: Sequence[int | str], count: int) -> RecordError:
    """Return the error for a pattern without some of its `count` shards."""
    listed = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
    return RecordError(f"{len(missing)} of {count} shards of {pattern!r} are missing: {listed}")
