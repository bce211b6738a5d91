"""`HDF5Scenes`: what `write_hdf5` wrote, as the scenes they were."""

import json
import os
from typing import Any

import numpy as np

from kerasfeed.errors import RecordError
from kerasfeed.readers.hdf5.file import HDF5File
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.spec.scene_spec import BYTES, TEXT, ArraySpec
from kerasfeed.spec.spec_json import spec_from_json

SPEC_ATTRIBUTE = "kerasfeed_spec"


class HDF5Scenes(SceneSequence):
    """The scenes of a file that `kf.write_hdf5` wrote, nested as they were, read through a `kf.HDF5File`.

    Args:
        path: The file.
        chunk_cache: See `kf.HDF5File`.

    Raises:
        FileNotFoundError: There is no such file.
        RecordError: `write_hdf5` did not write it.
    """

    def __init__(self, path: str | os.PathLike[str], *, chunk_cache: int | str = "auto") -> None:
        self.file = HDF5File(path, chunk_cache=chunk_cache)
        described = self.file.attrs.get(SPEC_ATTRIBUTE)
        if described is None:
            raise RecordError(
                f"{self.file.path!r} was not written by kf.write_hdf5: read its datasets with kf.HDF5File in a "
                "kf.SceneSequence of your own"
            )
        self._spec = spec_from_json(json.loads(described))
        self._names = [path.replace(".", "/") for path in self._spec.paths]

    @property
    def spec(self) -> Any:
        """The nesting of a scene, with a `kf.ArraySpec` for each field."""
        return self._spec.unflatten(self._spec.fields)

    @property
    def block_size(self) -> int:
        """Scenes of a chunk, of the field with the largest scenes; for `kf.BlockShuffled`."""
        sizes = [field.nbytes for field in self._spec.fields]
        found: int = self.file[self._names[sizes.index(max(sizes))]].block_size
        return found

    def __len__(self) -> int:
        return len(self.file[self._names[0]])

    def __getitem__(self, index: Any) -> Any:
        """The scene at `index`; negative indices count from the end."""
        index = range(len(self))[index]
        fields = zip(self._names, self._spec.fields, strict=True)
        return self._spec.unflatten([_value(self.file[name][index], field) for name, field in fields])


def _value(stored: Any, field: ArraySpec) -> Any:
    if not field.is_text:
        return stored
    if field.shape == ():
        return _text(stored, field)
    values = np.empty(stored.size, object)
    values[:] = [_text(each, field) for each in stored.ravel()]
    return values.reshape(stored.shape)


def _text(stored: Any, field: ArraySpec) -> Any:
    if field.dtype == BYTES:
        return np.asarray(stored, np.uint8).tobytes()
    return stored.decode() if field.dtype == TEXT and isinstance(stored, bytes) else stored
