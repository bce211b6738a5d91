"""Messages about files that cannot be read.

Invariant: a message names the file, the problem as far as a check can tell, and the remedy.
"""

import os
from pathlib import Path
from typing import Any

import h5py

from kerasfeed.util.error_text import add_note, message_of, notes_of, reworded

HDF5_ERRORS = (RuntimeError, OSError, KeyError, ValueError)  # raised by h5py for damaged or missing objects
_NAMES_SHOWN = 20


def missing(path: str) -> FileNotFoundError:
    """Return the error for a file that does not exist."""
    if Path(path).is_dir():
        return FileNotFoundError(f"{path!r} is a folder; HDF5File needs a file in it")
    folder = Path(path).parent
    where = f"in the folder {str(folder)!r}" if folder.is_dir() else f"and no folder {str(folder)!r}"
    return FileNotFoundError(
        f"there is no file {Path(path).name!r} {where}. Check the path; relative ones start at the working directory"
    )


def named(error: OSError, message: str) -> OSError:
    """Return an error of the same type (PermissionError, BlockingIOError) with another message."""
    copy = reworded(error, message)  # returns `error` if its constructor differs, as fsspec's do
    return OSError(message) if copy is error else copy


def note_source(error: Exception, name: str, path: str, what: str = "") -> None:
    """Add dataset and file to the error of a failed read.

    An error that names both already stays unchanged.
    """
    for text in (message_of(error), *notes_of(error)):
        if repr(name) in text and repr(path) in text:
            return
    add_note(error, f"kerasfeed: reading {name!r}{what} of {path!r}")


def cause(path: str, error: OSError) -> str:
    """Return why opening the file at `path` failed."""
    if "unable to lock file" in message_of(error):
        return (
            f"a program that writes the file holds its lock ({message_of(error)}). Wait until it has closed the file, "
            "or set swmr_mode = True in the writer and read with HDF5File(path, swmr=True). If no program writes the "
            "file and its disk does not support locks, pass locking=False, or set HDF5_USE_FILE_LOCKING=FALSE"
        )
    if isinstance(error, PermissionError):
        return message_of(error)
    try:
        size = Path(path).stat().st_size
    except OSError:
        return message_of(error)
    if h5py.is_hdf5(path):
        return f"it is a damaged HDF5 file, or one still being written ({message_of(error)})"
    return f"it is not an HDF5 file ({size:,} bytes, no HDF5 signature). Was it downloaded or written completely?"


def stored_name(name: str) -> str | bytes:
    """A name for h5py; bytes if it is not UTF-8.

    Some old writers produce such names.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def shown_name(name: str | bytes) -> str:
    """A name from h5py as text, which `stored_name` converts back."""
    return os.fsdecode(name)


def link_target(group: Any, stored: bytes) -> str:
    """Target of a link: a path, or file and path.

    `group` is h5py's low-level group.
    """
    value = group.links.get_val(stored)
    return ":".join(map(shown_name, value)) if isinstance(value, tuple) else shown_name(value)


def unfollowed(group: Any, name: str, path: str, links: Any) -> Exception | None:
    """Return the error for a name that HDF5 could not open.

    The link is broken, or the file is damaged. Return None if there is no such name.

    Args:
        group: h5py's low-level group to search.
        name: A path below the group.
        path: Path of the file, for messages.
        links: h5py's link access properties.
    """
    passed = ""
    for part in filter(None, name.split("/")):
        passed = f"{passed}/{part}" if passed else part
        stored, target = os.fsencode(part), ""
        try:
            if not group.links.exists(stored):
                return None
            if group.links.get_info(stored).type != h5py.h5l.TYPE_HARD:
                target = link_target(group, stored)
            group = h5py.h5o.open(group, stored, links)
        except HDF5_ERRORS as error:
            if target:
                return KeyError(f"{passed!r} in {path!r} is a link to {target!r}, which does not exist")
            return OSError(f"cannot open {passed!r} of {path!r}: the file is damaged ({message_of(error)})")
        if not isinstance(group, h5py.h5g.GroupID):
            return None
    return None


def printable(name: str) -> str:
    """Escape characters that some terminals cannot show."""
    return name.encode(errors="backslashreplace").decode()


def listing(names: list[str], *, is_all: bool) -> str:
    """List some names for a message.

    `is_all` is False if `names` is incomplete.
    """
    shown = ", ".join(map(printable, names[:_NAMES_SHOWN])) or "(none)"
    if not is_all:
        return f"{shown} and many more"
    return f"{shown} and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else shown
