"""The sidecar: a file that describes a set of shards.

Invariant: it is written when the set is complete, in one step, and lists the names of the shards.
"""

import contextlib
import glob
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasfeed.errors import RecordError
from kerasfeed.readers.remote import find, is_url, last_part, read_whole
from kerasfeed.readers.tfrecord.names import SIDECAR_SUFFIX, FileLocation, expand, missing_shards
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import spec_from_json, spec_to_json
from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.error_text import summary

FORMAT = "kerasfeed records"
VERSION = 1


@dataclass(frozen=True)
class Sidecar:
    """The description of a set of shards for readers.

    Attributes:
        spec: Spec of a scene.
        scenes: Number of scenes of each shard, by the name of its file without the folder.
    """

    spec: SceneSpec
    scenes: dict[str, int]


def write_sidecar(path: Path, spec: SceneSpec, files: list[dict[str, Any]], **how: Any) -> None:
    """Write a sidecar durably, in one step.

    Args:
        path: The file.
        spec: Spec of a scene.
        files: The "name", "scenes" and "bytes" of each shard, in their order.
        **how: How the shards were written, for information.
    """
    value = {
        "format": FORMAT,
        "version": VERSION,
        "scenes": sum(file["scenes"] for file in files),
        "spec": spec_to_json(spec),
        "files": files,
        **how,
    }
    write_whole(path, (json.dumps(value, indent=1) + "\n").encode(), durable=True)


def read_json(path: FileLocation) -> dict[str, Any] | None:
    """Read a sidecar's JSON; None if `path` is not a sidecar.

    Raises:
        RecordError: A later version of kerasfeed wrote it.
    """
    try:
        value = json.loads(read_whole(path))
    except ValueError:
        return None
    except OSError:
        if is_url(path):  # the spec must not depend on whether a store answers
            raise
        return None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    if value.get("version") != VERSION:
        raise RecordError(
            f"{str(path)!r} was written by a later kerasfeed (version {value.get('version')} of the format, here "
            f"{VERSION}): upgrade, or move it away and give spec="
        )
    return value


def read_sidecar(path: FileLocation) -> Sidecar | None:
    """Read the sidecar at `path`; None if there is none.

    Raises:
        RecordError: The sidecar is damaged.
    """
    value = read_json(path)
    if value is None:
        return None
    try:
        scenes = {str(file["name"]): int(file["scenes"]) for file in value["files"]}
        return Sidecar(spec_from_json(value["spec"]), scenes)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{str(path)!r} is damaged: {summary(error)}") from None


def find_sidecars(paths: list[FileLocation], given: Any) -> dict[FileLocation, tuple[SceneSpec, int]]:
    """Return spec and number of scenes of files that a sidecar describes.

    Args:
        paths: The files.
        given: The user's argument that `expand` converted to `paths`.

    Raises:
        OSError: A store cannot be reached.
        RecordError: A shard of a pattern is missing.
    """
    listed: dict[str, tuple[SceneSpec, int]] = {}
    patterns = [given] if isinstance(given, str | os.PathLike) else given
    matched = {name: set(map(str, expand(name))) for name in map(os.fspath, patterns) if "{shard" in name}
    for folder in sorted({str(path).rpartition("/")[0] for path in paths}):
        for each in _sidecars_in(folder):
            sidecar = read_sidecar(each)
            if sidecar is not None:
                described = {f"{folder}/{name}": (sidecar.spec, count) for name, count in sidecar.scenes.items()}
                _refuse_missing(matched, set(described))
                listed.update(described)
    return {path: listed[str(path)] for path in paths if str(path) in listed}


def _refuse_missing(matched: dict[str, set[str]], described: set[str]) -> None:
    """Refuse a pattern that matches some, but not all, files of a set.

    `matched` holds the files of each pattern.
    """
    for pattern, files in matched.items():
        missing = described - files
        if 0 < len(missing) < len(described):
            raise missing_shards(pattern, sorted(map(last_part, missing)), len(described))


def _sidecars_in(folder: str) -> list[FileLocation]:
    if not is_url(folder):
        return sorted(Path(folder or "/").glob(f"*{SIDECAR_SUFFIX}"))
    with contextlib.suppress(FileNotFoundError, PermissionError):  # none, or the folder cannot be listed
        return sorted(find(f"{glob.escape(folder)}/*{SIDECAR_SUFFIX}"))
    return []
