"""What an unfinished set of shards is told by: a small file beside it, held locked by whoever writes.

Invariant: shards under their final names are complete, and belong to the set that this file describes, as long as it
exists: it is written before the first shard and removed after the last. One program at a time holds it.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kerasfeed.errors import KerasfeedError
from kerasfeed.readers.tfrecord.spec_file import FORMAT, VERSION, read_json

if sys.platform != "win32":
    import fcntl

_SHOWN = 3


class Claim:
    """The right to write a set of files.

    Attributes:
        path: The file that says so.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def refuse(self, names: Sequence[Path]) -> None:
        """Refuse to write where files are, unless they are of an unfinished set.

        Args:
            names: The files that will be there at the end.

        Raises:
            FileExistsError: There are some.
        """
        existing = [str(name) for name in names if name.exists()]
        if existing and read_json(self.path) is None:
            listed = ", ".join(existing[:_SHOWN]) + (", ..." if len(existing) > _SHOWN else "")
            raise FileExistsError(
                f"{len(existing)} of the files to be written exist already: {listed}. Write elsewhere, or replace "
                "them with overwrite=True"
            )

    def begin(self, fingerprint: dict[str, Any], *, overwrite: bool, discard: Callable[[list[str]], None]) -> None:
        """Begin, or go on, and note what is being written.

        Args:
            fingerprint: What is to be written, as JSON: equal for calls that may go on with each other's work.
            overwrite: Whether to begin anew.
            discard: Removes all of an earlier set; takes names of files that an unfinished one had.

        Raises:
            FileExistsError: There is an unfinished set that was begun in another way.
        """
        begun = read_json(self.path)
        if overwrite:
            os.ftruncate(self._descriptor, 0)  # from here on nothing under these names is taken for complete
            discard([] if begun is None else begun["fingerprint"]["files"])
        elif begun is not None:
            _compare(begun["fingerprint"], fingerprint, self.path)
            return
        value = {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint}
        os.pwrite(self._descriptor, json.dumps(value).encode(), 0)
        os.fsync(self._descriptor)

    def done(self) -> None:
        """The set is complete."""
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[Claim]:
    """Claim a set of files, whose unfinished state `path` tells.

    Raises:
        KerasfeedError: Another program is writing it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor, path)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever had it has just finished
    try:
        yield Claim(path, descriptor)
    finally:
        if os.fstat(descriptor).st_size == 0:  # refused before anything began
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise KerasfeedError(
            f"another program is writing the same files now ({str(path)!r} is locked). Wait for it, or write elsewhere"
        ) from None
    except OSError:
        pass  # some network file systems cannot


def _compare(begun: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    wanted = json.loads(json.dumps(wanted))
    different = [name for name in wanted if begun.get(name) != wanted[name]]
    if different:
        name = different[0]
        raise FileExistsError(
            f"an unfinished write stands in {str(path.parent)!r}, begun with another {name}: "
            f"{_short(begun.get(name))}, now {_short(wanted[name])}. Call it as before to "
            "go on, or begin anew with overwrite=True"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
