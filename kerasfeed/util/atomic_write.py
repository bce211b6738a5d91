"""Files written whole or not at all.

Invariant: under its name a file is either what it was or what it is to be, whoever else writes it at the same time, in
this process, in another, or on another host that shares the disk.
"""

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file, in place of what is there; its folder must exist.

    Args:
        path: The file.
        content: All of it.
        durable: Whether it is on the disk before it takes the name, so that a power cut leaves one or the other.

    Raises:
        OSError: The disk is full, or the folder is missing or cannot be written; the file is what it was.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        draft.write_bytes(content)
        if durable:
            with draft.open("rb+") as file:
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
