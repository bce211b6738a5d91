"""What to tell a user whose file cannot be read.

Invariant: a message names the file, what is wrong with it as far as a look at it tells, and what to do.
"""

import os
from pathlib import Path
from typing import Any

import h5py

from kerasfeed.util.error_text import add_note, message_of, notes_of, reworded

HDF5_ERRORS = (RuntimeError, OSError, KeyError, ValueError)  # what h5py raises of what is damaged or not there
_NAMES_SHOWN = 20


def missing(path: str) -> FileNotFoundError:
    """There is no such file."""
    if Path(path).is_dir():
        return FileNotFoundError(f"{path!r} is a folder; HDF5File needs a file in it")
    folder = Path(path).parent
    where = f"in the folder {str(folder)!r}" if folder.is_dir() else f"and no folder {str(folder)!r}"
    return FileNotFoundError(
        f"there is no file {Path(path).name!r} {where}. Check the path; relative ones start at the working directory"
    )


def named(error: OSError, message: str) -> OSError:
    """An error of the same type (PermissionError, BlockingIOError) with another message."""
    found = reworded(error, message)  # which a type with a constructor of its own may refuse, as fsspec's
    return OSError(message) if found is error else found


def note_source(error: Exception, name: str, path: str, what: str = "") -> None:
    """Note dataset and file of a failed read, where neither the message nor a note names both."""
    for text in (message_of(error), *notes_of(error)):
        if repr(name) in text and repr(path) in text:
            return
    add_note(error, f"kerasfeed: reading {name!r}{what} of {path!r}")


def cause(path: str, error: OSError) -> str:
    """Why opening the file at `path` failed."""
    if "unable to lock file" in message_of(error):
        return (
            f"a program that writes the file holds its lock ({message_of(error)}). Wait until it has closed the file; "
            "or set swmr_mode = True in the writer, and read with HDF5File(path, swmr=True). If nothing "
            "writes the file and its disk knows no locks, pass locking=False, or set HDF5_USE_FILE_LOCKING=FALSE "
            "before Python starts"
        )
    if isinstance(error, PermissionError):
        return message_of(error)
    try:
        size = Path(path).stat().st_size
    except OSError:
        return message_of(error)
    if h5py.is_hdf5(path):
        return f"it is a damaged HDF5 file, or one still being written ({message_of(error)})"
    return f"it is not an HDF5 file ({size:,} bytes, no HDF5 signature). Was it downloaded or written to the end?"


def stored_name(name: str) -> str | bytes:
    """A name as h5py takes it: names that are no UTF-8 (old writers use other encodings) are bytes there."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def shown_name(name: str | bytes) -> str:
    """A name that h5py gave, as text that `stored_name` takes back."""
    return os.fsdecode(name)


def link_target(group: Any, stored: bytes) -> str:
    """Where a soft or external link of h5py's low-level `group` leads: a path, or file and path."""
    value = group.links.get_val(stored)
    return ":".join(map(shown_name, value)) if isinstance(value, tuple) else shown_name(value)


def unfollowed(group: Any, name: str, path: str, links: Any) -> Exception | None:
    """The error of a name that HDF5 could not open: a link that leads nowhere, or damage; None where there is no such.

    Args:
        group: h5py's low-level group in which to look.
        name: A path below it.
        path: Of the file, for the message.
        links: How links are followed.
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
                return KeyError(f"{passed!r} in {path!r} is a link to {target!r}, where nothing is")
            return OSError(f"cannot open {passed!r} of {path!r}: the file is damaged ({message_of(error)})")
        if not isinstance(group, h5py.h5g.GroupID):
            return None
    return None


def printable(name: str) -> str:
    """A name that every terminal can show."""
    return name.encode(errors="backslashreplace").decode()


def listing(names: list[str], *, is_all: bool = True) -> str:
    """Some names for a message; `is_all`: whether there are no others than `names`."""
    shown = ", ".join(map(printable, names[:_NAMES_SHOWN])) or "(none)"
    if not is_all:
        return f"{shown} and many more"
    return f"{shown} and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else shown
