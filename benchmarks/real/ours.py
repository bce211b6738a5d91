"""The same scenes for kerasfeed: a sequence, and more arguments of `kf.Feed`."""

import sys
from typing import Any

import numpy as np

import kerasfeed as kf
from benchmarks.real.scenes import PACKED, ROWS, load_image

Ours = tuple[Any, dict[str, Any]]
SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 0}


class Images(kf.SceneSequence):
    thread_safe = True

    def __init__(self, paths: list[str], length: int) -> None:
        self.paths, self.length = paths, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return load_image(self.paths[index % len(self.paths)], self.rng), index


class Clouds(kf.SceneSequence):
    thread_safe = True

    def __init__(self, path: str, cache: int, stored: int, length: int) -> None:
        self.points = kf.HDF5File(path, chunk_cache=cache)["points"]
        self.stored, self.length = stored, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.points[index % self.stored], index


class RowsAtOnce(kf.SceneSequence):
    thread_safe = True

    def __init__(self, x: np.ndarray, indices: np.ndarray) -> None:
        self.x, self.indices = x, indices

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.indices[index]

    def get_batch(self, indices: np.ndarray) -> Any:
        return self.x[indices], self.indices[indices]


class Without:
    """Makes imports of a module fail, here and in each process that unpickles this object."""

    def __init__(self, module: str) -> None:
        self.module = module
        sys.modules[module] = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Without, (self.module,)


def as_they_are(scenes: Any) -> Ours:
    """The class of the peers."""
    return scenes, SHUFFLED


def images(scenes: Any) -> Ours:
    """A class that draws from the generator of the scene."""
    return Images(scenes.paths, len(scenes)), SHUFFLED


def clouds(scenes: Any) -> Ours:
    """`kf.HDF5File`; blocks are the chunks, if these hold several clouds."""
    sequence = Clouds(scenes.path, scenes.cache, scenes.stored, len(scenes))
    block = sequence.points.block_size
    return sequence, {"order": kf.BlockShuffled(block), "seed": 0} if block > 1 else SHUFFLED


def patches(scenes: Any) -> Ours:
    """`kf.Patches` of each volume, in the order of their chunks."""
    file = kf.HDF5File(scenes.path, chunk_cache=scenes.cache)
    joined = kf.Concat([kf.Patches(file[name], (32, 32, 32), stride=16) for name in file])
    return kf.Zip(joined, np.arange(len(joined))), {"order": kf.BlockShuffled(joined), "seed": 0}


def patches_without_extra(scenes: Any) -> Ours:
    """The same without the package that decodes lzf, which comes with the extra `hdf5`."""
    sequence, options = patches(scenes)
    sequence.without = Without("imagecodecs")
    return sequence, options


def stored_windows(scenes: Any) -> Ours:
    """`kf.Windows` of a dataset."""
    return _windows(kf.HDF5File(scenes.path)["rows"])


def windows(scenes: Any) -> Ours:
    """`kf.Windows` of an array."""
    return _windows(scenes.rows)


def _windows(rows: Any) -> Ours:
    return kf.Windows(rows, ROWS, targets=np.arange(len(rows))), SHUFFLED


def rows_at_once(scenes: Any) -> Ours:
    """A class whose `get_batch` a feed calls; it does not call that of a class that is no `kf.SceneSequence`."""
    return RowsAtOnce(scenes.x, scenes.indices), SHUFFLED


def padded(scenes: Any) -> Ours:
    """The class of the peers, padded in the batch."""
    return scenes, {**SHUFFLED, "collate": "pad"}


def packed(scenes: Any) -> Ours:
    """`kf.Packed`."""
    return kf.Packed(scenes, PACKED, lengths=[len(text) for text in scenes.texts]), SHUFFLED
