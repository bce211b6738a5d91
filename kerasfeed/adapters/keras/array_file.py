"""The file of a callback that holds arrays of a training, with a header.

Invariant: a file that was cut short or is damaged is never taken for one: it ends with its table of contents, and each
array has a checksum.
"""

import contextlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed.util.error_text import message_of

_HEADER = "header.json"


class DamagedFileError(ValueError):
    """A file of arrays is not whole."""


def write_arrays(path: Path, header: Mapping[str, Any], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write arrays one after the other, and what is told of them; all is on the disk when this returns.

    Args:
        path: The file, which is not replaced at once.
        header: For JSON.
        arrays: Of any dtypes but objects, those of `ml_dtypes` among them.
    """
    dtypes = {}
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays:
                if array.dtype.isbuiltin == 2:  # of ml_dtypes, which files of NumPy do not know
                    dtypes[name] = array.dtype.name
                    array = array.view(f"u{array.dtype.itemsize}")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(_HEADER, json.dumps({**header, "dtypes": dtypes}))
        file.flush()
        os.fsync(file.fileno())


class ArrayFile:
    """What `write_arrays` has written.

    Attributes:
        header: What was told of the arrays.
        names: Of the arrays.

    Raises:
        DamagedFileError: It is not whole; by any method.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._archive() as archive:
            self.header: dict[str, Any] = json.loads(archive.read(_HEADER))
            self.names = [name.removesuffix(".npy") for name in archive.namelist() if name != _HEADER]

    def read(self, names: Iterable[str]) -> Iterable[tuple[str, np.ndarray]]:
        """The arrays of these names, one after the other."""
        with self._archive() as archive:
            for name in names:
                content = archive.read(f"{name}.npy")  # which compares the checksum
                array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
                dtype = self.header["dtypes"].get(name)
                yield name, array if dtype is None else array.view(dtype)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DamagedFileError(
                f"{self._path} is damaged ({message_of(error)}): delete the folder to begin anew"
            ) from None
