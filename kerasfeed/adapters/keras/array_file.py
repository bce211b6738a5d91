"""A file of arrays with a header, which stores a training.

Invariant: a file that was cut short or is damaged is always detected: its table of contents is at the end, and each
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
    """A file of arrays is damaged or cut short."""


def write_arrays(path: Path, header: Mapping[str, Any], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write the arrays and a JSON header, then fsync.

    Args:
        path: The file; it is not replaced atomically.
        header: For JSON.
        arrays: Arrays of any dtypes but objects, also of `ml_dtypes`.
    """
    dtypes = {}
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays:
                if array.dtype.isbuiltin == 2:  # of ml_dtypes, which NumPy's files do not support
                    dtypes[name] = array.dtype.name
                    array = array.view(f"u{array.dtype.itemsize}")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(_HEADER, json.dumps({**header, "dtypes": dtypes}))
        file.flush()
        os.fsync(file.fileno())


class ArrayFile:
    """A file written by `write_arrays`.

    Attributes:
        header: The header.
        names: Names of the arrays.

    Raises:
        DamagedFileError: The file is damaged; raised by any method.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._archive() as archive:
            self.header: dict[str, Any] = json.loads(archive.read(_HEADER))
            self.names = [name.removesuffix(".npy") for name in archive.namelist() if name != _HEADER]

    def read(self, names: Iterable[str]) -> Iterable[tuple[str, np.ndarray]]:
        """Yield the arrays with these names."""
        with self._archive() as archive:
            for name in names:
                content = archive.read(f"{name}.npy")  # compares the checksum
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
                f"{self._path} is damaged ({message_of(error)}): delete the folder to start over"
            ) from None
