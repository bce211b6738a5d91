"""`HDF5Scenes`: the scenes of a file that `write_hdf5` wrote."""

import json
import os
from typing import Any

import numpy as np

from kerasfeed.errors import RecordError
from kerasfeed.readers.hdf5.file import HDF5File
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.spec.scene_spec import BYTES, TEXT, ArraySpec
from kerasfeed.spec.spec_json import spec_from_json
from kerasfeed.util.array_bits import object_array

SPEC_ATTRIBUTE = "kerasfeed_spec"


class HDF5Scenes(SceneSequence):
    """The scenes of a file that `kerasfeed.write_hdf5` wrote, with their nesting.

    The file is read through a `kerasfeed.HDF5File`.

    Args:
        path: The file.
        chunk_cache: See `kerasfeed.HDF5File`.

    Raises:
        FileNotFoundError: There is no such file.
        RecordError: The file was not written by `write_hdf5`.

    Examples:
        >>> scenes = kf.Zip(points=np.zeros((10, 8, 3), np.float32), label=np.arange(10))
        >>> path = kf.write_hdf5(scenes, "rooms.h5", workers=0, progress=False)
        >>> copy = kf.HDF5Scenes("rooms.h5")
        >>> len(copy), sorted(copy[3]), int(copy[3]["label"])
        (10, ['label', 'points'], 3)
    """

    thread_safe = True

    def __init__(self, path: str | os.PathLike[str], *, chunk_cache: int | str = "auto") -> None:
        self.file = HDF5File(path, chunk_cache=chunk_cache)
        described = self.file.attrs.get(SPEC_ATTRIBUTE)
        if described is None:
            raise RecordError(
                f"{self.file.path!r} was not written by kf.write_hdf5: read its datasets with kf.HDF5File in your own "
                "kf.SceneSequence"
            )
        self._spec = spec_from_json(json.loads(described))
        self._names = [path.replace(".", "/") for path in self._spec.paths]

    @property
    def spec(self) -> Any:
        """Spec of a scene: an `ArraySpec` per field, nested like the scene."""
        return self._spec.unflatten(self._spec.fields)

    @property
    def block_size(self) -> int:
        """Scenes per chunk of the largest field, for `kerasfeed.BlockShuffled`."""
        sizes = [field.nbytes for field in self._spec.fields]
        rows: int = self.file[self._names[sizes.index(max(sizes))]].block_size
        return rows

    def __len__(self) -> int:
        return len(self.file[self._names[0]])

    def __getitem__(self, index: Any) -> Any:
        """Return scene `index`, nested as it was written.

        Negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            OSError: The file is damaged, missing or has changed.
        """
        index = range(len(self))[index]
        fields = zip(self._names, self._spec.fields, strict=True)
        return self._spec.unflatten([_value(self.file[name][index], field) for name, field in fields])


def _value(stored: Any, field: ArraySpec) -> Any:
    if not field.is_text:
        return stored
    if field.shape == ():
        return _text(stored, field)
    return object_array([_text(each, field) for each in stored.ravel()], stored.shape)


def _text(stored: Any, field: ArraySpec) -> Any:
    if field.dtype == BYTES:
        return np.asarray(stored, np.uint8).tobytes()
    return stored.decode() if field.dtype == TEXT and isinstance(stored, bytes) else stored
