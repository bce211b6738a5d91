"""Files written whole or not at all.

Invariant: under its name a file is either what it was or what it is to be, whoever else writes it at the same time, in
this process, in another, or on another host that shares the disk.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def check_place(out: Path) -> None:
    """Refuse a path at which no file can be made.

    Raises:
        OSError: It is a folder, a device or a pipe, or in no folder.
    """
    if out.is_dir():
        raise IsADirectoryError(f"{str(out)!r} is a folder; name a file")
    if out.exists() and not out.is_file():
        raise OSError(f"{str(out)!r} is a device, a pipe or a socket, which is not replaced; name a file")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(out.parent)!r} to write {out.name!r} to; make it first")


@contextlib.contextmanager
def appearing(out: Path, *, overwrite: bool) -> Iterator[tuple[Path, int]]:
    """A temporary file beside `out` (path and descriptor) that takes its name when the block ends without an error.

    It is written through to the disk before it is renamed. After an error, Ctrl-C included, nothing of it is left and
    `out` is what it was.

    Args:
        out: The path; a symbolic link stays one.
        overwrite: Whether what is there may be replaced.

    Raises:
        FileExistsError: `out` exists, now or at the end, and `overwrite` is False.
        OSError: The folder does not exist or cannot be written to, or `out` is no regular file.
    """
    out = Path(os.path.realpath(out))
    if not overwrite and out.exists():
        raise FileExistsError(f"{str(out)!r} exists already; write to another file, or replace it with overwrite=True")
    check_place(out)
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(fd, "rb+", buffering=0):  # closes it
            yield part, fd
            os.fsync(fd)
        _rename(part, out, overwrite=overwrite)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(out.parent)


def sync_folder(folder: Path) -> None:
    """Have what was renamed or removed in `folder` survive a power cut, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _rename(part: Path, out: Path, *, overwrite: bool) -> None:
    if overwrite:
        part.replace(out)
        return
    try:
        os.link(part, out)  # unlike a rename, refuses a name that somebody took meanwhile
    except FileExistsError:
        raise FileExistsError(f"{str(out)!r} was made by somebody else meanwhile; it is left as it is") from None
    except OSError:  # a file system without hard links
        part.rename(out)
    else:
        part.unlink()


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file, in place of what is there, also of a symbolic link; its folder must exist.

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
