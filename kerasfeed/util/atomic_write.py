"""Write a file completely or not at all.

Invariant: a path has either the old file or the complete new one, even if another thread, process or host writes it at
the same time.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path


def check_target(out: Path) -> None:
    """Refuse a path that cannot become a regular file.

    Raises:
        OSError: It is a folder, a device or a pipe, or its folder does not exist.
    """
    if out.is_dir():
        raise IsADirectoryError(f"{str(out)!r} is a folder; name a file")
    if out.exists() and not out.is_file():
        raise OSError(f"{str(out)!r} is a device, a pipe or a socket, which is not replaced; name a file")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(out.parent)!r} to write {out.name!r} to; create it first")


def appearing(out: Path, *, overwrite: bool) -> AbstractContextManager[int]:
    """Open a temporary file that becomes `out` at the end.

    The context is its descriptor. The file is synced to the disk and then renamed. After an error or Ctrl-C, the
    temporary file is deleted and `out` is unchanged.

    Args:
        out: The path; if it is a symbolic link, its target is written.
        overwrite: Whether an existing file may be replaced.

    Raises:
        FileExistsError: `out` exists, now or at the end, and `overwrite` is False.
        OSError: The folder does not exist or cannot be written to, or `out` is not a regular file.
    """
    out = Path(os.path.realpath(out))
    if not overwrite and out.exists():
        raise FileExistsError(f"{str(out)!r} exists already; write to another file, or replace it with overwrite=True")
    check_target(out)
    return _part_of(out, overwrite=overwrite, durable=True)


@contextmanager
def _part_of(out: Path, *, overwrite: bool, durable: bool) -> Iterator[int]:
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(fd, "rb+", buffering=0):  # closes the descriptor
            yield fd
            if durable:
                os.fsync(fd)
        _rename(part, out, overwrite=overwrite)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    if durable:
        sync_folder(out.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of `folder`, if the file system can."""
    with suppress(OSError):
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
        os.link(part, out)  # unlike a rename, fails if another program has made the file
    except FileExistsError:
        raise FileExistsError(f"another program has created {str(out)!r} meanwhile; it is unchanged") from None
    except OSError:  # a file system without hard links
        part.rename(out)
    else:
        part.unlink()


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file and replace an existing file or symbolic link.

    Its folder must exist.

    Args:
        path: The file.
        content: The complete content.
        durable: Whether to sync it before the rename, so that a power cut leaves the old or the new file.

    Raises:
        OSError: The disk is full, or the folder is missing or cannot be written; the old file is unchanged.
    """
    with _part_of(path, overwrite=True, durable=durable) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(content)
