"""The JSON file that a callback keeps of a training.

Invariant: it is replaced as a whole or not at all, and is on the disk when `write_content` returns.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.error_text import message_of


def write_content(path: Path, kind: str, version: int, content: Mapping[str, Any]) -> None:
    """Replace the file at `path`; `kind` and `version` are written before `content`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"kind": kind, "version": version, **content}, indent=1).encode(), durable=True)
    sync_folder(path.parent)


def read_content(path: Path, kind: str, version: int) -> dict[str, Any] | None:
    """The content of the file at `path`, with its kind and version; None where there is no file.

    Raises:
        ValueError: It is damaged, or of another kind or version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ValueError(refusal(path, f"it is no text ({message_of(error)})")) from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(refusal(path, f"it is no JSON, or was cut short ({message_of(error)})")) from None
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise ValueError(refusal(path, f"it was not written by {kind}"))
    if content.get("version") != version:
        raise ValueError(refusal(path, f"it has version {content.get('version')!r}, and this is {version}"))
    return content


def refusal(path: Path, reason: str) -> str:
    """The message of an error: why the file cannot be used, and what to do."""
    return (
        f"{path} tells nothing of where training stood: {reason}. Restore the file, or delete it, and the saved model "
        "with it, to begin anew"
    )


def sync_folder(folder: Path) -> None:
    """Have what was renamed or removed in `folder` survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
