"""The classes that the peers read, as their users write them.

Invariant: a scene is `(x, index)`, or a dict of tokens whose first is the index, so that a batch shows which scenes it
holds. An epoch may be longer than the number of stored scenes, which then repeat.
"""

import os
import time
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

SIDE, ROWS, PACKED = 224, 64, 512
MEAN, STD = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
COLOUR_ERROR = 6.0  # levels between the mean colours of a crop and its image, at most
CACHE_BYTES = 32 << 20  # of chunks, in each process: less than the clouds and the volumes


class Scenes:
    """The common base."""

    thread_safe = True

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def expected(self, indices: np.ndarray) -> Any:
        """The `x` of a batch of these scenes."""
        raise NotImplementedError

    def is_right(self, x: np.ndarray, indices: np.ndarray) -> bool:
        """Whether `x` holds the right values for these scenes."""
        expected = self.expected(indices)
        return x.dtype == expected.dtype and np.array_equal(x, expected)

    def indices_in(self, batch: Any) -> np.ndarray:
        """The indices of the scenes in a batch; ValueError if the values of a scene are wrong."""
        x, indices = (np.asarray(field) for field in batch)
        if not self.is_right(x, indices):
            raise ValueError(f"the batch of scenes {indices[:5]}... holds wrong values")
        return indices


class Images(Scenes):
    """JPEG files: a random crop float32[224, 224, 3], flipped at random and normalised."""

    def __init__(self, stored: int = 512, length: int = 2048) -> None:
        from benchmarks.real import data

        super().__init__(length)
        self.paths, self.colours = data.images(stored), data.colours(np.arange(stored))

    def __getitem__(self, index: int) -> Any:
        return load_image(self.paths[index % len(self.paths)], np.random.default_rng(index)), np.int64(index)

    def is_right(self, x: np.ndarray, indices: np.ndarray) -> bool:
        error = 255 * (x.mean((1, 2)) * STD + MEAN) - self.colours[indices % len(self.paths)]
        return x.shape[1:] == (SIDE, SIDE, 3) and x.dtype == np.float32 and bool(np.abs(error).max() < COLOUR_ERROR)


def load_image(path: str, rng: np.random.Generator) -> np.ndarray:
    """Decode, crop, flip and normalise one image."""
    from PIL import Image

    with Image.open(path) as file:
        left, top = (int(rng.integers(size - SIDE + 1)) for size in file.size)
        pixels = np.asarray(file.convert("RGB").crop((left, top, left + SIDE, top + SIDE)))
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    x: np.ndarray = (pixels.astype(np.float32) / 255 - MEAN) / STD
    return x


class Stored(Scenes):
    """Scenes read with h5py: one handle per process, with a larger chunk cache than h5py's default."""

    def __init__(self, path: str, length: int, cache: int = CACHE_BYTES, datasets: int = 1) -> None:
        super().__init__(length)
        self.path, self.cache, self.datasets = path, cache, datasets
        self._opened: tuple[int, Any] = (0, None)

    def data(self, name: str) -> Any:
        """The h5py dataset `name`, opened in this process: a fork must not use the handles of its parent."""
        if self._opened[0] != os.getpid():
            import h5py

            # h5py has a cache for each dataset
            file = h5py.File(self.path, "r", rdcc_nbytes=self.cache // self.datasets, rdcc_nslots=100_003)
            self._opened = (os.getpid(), {name: file[name] for name in file})
        return self._opened[1][name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": (0, None)}


@cache
def whole(path: str, name: str) -> np.ndarray:
    """A dataset in memory, for comparison; `whole.cache_clear()` frees it."""
    import h5py

    with h5py.File(path, "r") as file:
        values: np.ndarray = file[name][:]
        return values


class Clouds(Stored):
    """Point clouds float32[4096, 9], gzip and shuffle, one or several a chunk."""

    def __init__(self, chunk: int = 1, stored: int = 768, length: int = 6144, cache: int = CACHE_BYTES) -> None:
        from benchmarks.real import data

        super().__init__(data.cloud_file(stored, chunk), length, cache)
        self.stored, self.window = stored, 4 * chunk

    def __getitem__(self, index: int) -> Any:
        return self.data("points")[index % self.stored], np.int64(index)

    def expected(self, indices: np.ndarray) -> Any:
        return whole(self.path, "points")[indices % self.stored]


class VolumePatches(Stored):
    """Patches int16[32, 32, 32] at every 16th voxel of volumes in chunks of 32 x 32 x 32."""

    def __init__(self, compression: str, volumes: int = 8, side: int = 256) -> None:
        from benchmarks.real import data

        self.grid = (3, side // 16 - 1, side // 16 - 1)
        length = volumes * int(np.prod(self.grid))
        super().__init__(data.volume_file(volumes, side, compression), length, datasets=volumes)

    def _place(self, index: int) -> tuple[str, tuple[slice, ...]]:
        volume, *corner = np.unravel_index(index, (len(self), *self.grid))
        return str(volume), tuple(slice(16 * c, 16 * c + 32) for c in corner)

    def __getitem__(self, index: int) -> Any:
        volume, place = self._place(index)
        return self.data(volume)[place], np.int64(index)

    def expected(self, indices: np.ndarray) -> Any:
        return np.stack([whole(self.path, volume)[place] for volume, place in map(self._place, indices)])


class Windows(Scenes):
    """Windows float32[64, 16] of a series in memory."""

    def __init__(self, length: int = 131_072) -> None:
        from benchmarks.real import data

        super().__init__(length)
        self.rows = data.series(length + ROWS - 1)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index : index + ROWS], np.int64(index)

    def expected(self, indices: np.ndarray) -> Any:
        return windows_of(self.rows, indices)


def windows_of(rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The windows that begin at these rows."""
    return sliding_window_view(rows, ROWS, axis=0)[indices].transpose(0, 2, 1)


class StoredWindows(Stored):
    """The same for a series in a file, in chunks of 1,024 rows, gzip."""

    def __init__(self, length: int = 32_768) -> None:
        from benchmarks.real import data

        super().__init__(data.series_file(length + ROWS - 1), length)

    def __getitem__(self, index: int) -> Any:
        return self.data("rows")[index : index + ROWS], np.int64(index)

    def expected(self, indices: np.ndarray) -> Any:
        return windows_of(whole(self.path, "rows"), indices)


class Tokens(Scenes):
    """Lists of tokens int32[5 to 60] in memory."""

    def __init__(self, length: int = 131_072, shortest: int = 5, longest: int = 60) -> None:
        super().__init__(length)
        sizes = np.random.default_rng(0).integers(shortest, longest + 1, length)
        ends = np.cumsum(sizes)
        positions = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
        self.texts = np.split(token(np.repeat(np.arange(length), sizes), positions), ends[:-1])

    def __getitem__(self, index: int) -> Any:
        return self.texts[index], np.int64(index)

    def expected(self, indices: np.ndarray) -> Any:
        return pad([self[index] for index in indices])[0]


def token(index: Any, position: np.ndarray) -> np.ndarray:
    """The token at a position of a text, int32; the first one is the index of the text."""
    return np.where(position == 0, index, (31 * index + position) % 30_000 + 1).astype(np.int32)


def pad(scenes: list[Any]) -> Any:
    """A batch of lists, padded with zeros to the longest."""
    batch = np.zeros((len(scenes), max(len(tokens) for tokens, _ in scenes)), np.int32)
    for row, (tokens, _) in enumerate(scenes):
        batch[row, : len(tokens)] = tokens
    return batch, np.array([index for _, index in scenes])


def pad_torch(scenes: list[Any]) -> Any:
    """The same with PyTorch's `pad_sequence`."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    batch = pad_sequence([torch.from_numpy(tokens) for tokens, _ in scenes], batch_first=True)
    return batch, torch.tensor([int(index) for _, index in scenes])


class Texts(Tokens):
    """Dicts of tokens int32[10 to 200], to be packed into rows of 512."""

    packed_length = PACKED

    def __init__(self, length: int = 65_536) -> None:
        super().__init__(length, 10, 200)

    def __getitem__(self, index: int) -> Any:
        return {"tokens": self.texts[index]}

    def indices_in(self, batch: Any) -> np.ndarray:
        tokens, segments, positions = (_packed(batch, name).ravel() for name in ("tokens", "segment_ids", "positions"))
        starts = (segments > 0) & (positions == 0)
        indices = tokens[starts]
        text = np.cumsum(starts) - 1  # for each position, the number of its text in `indices`
        counts = np.bincount(text[segments > 0])
        expected = np.where(segments > 0, token(indices[text], positions), 0)
        if not np.array_equal(tokens, expected) or counts.tolist() != [len(self.texts[index]) for index in indices]:
            raise ValueError(f"the batch of texts {indices[:5]}... holds wrong values")
        return indices


def _packed(batch: Any, name: str) -> np.ndarray:
    """A field of a packed batch; Grain names some after the tokens."""
    return np.asarray(batch[name] if name in batch else batch[f"tokens_{name}"])


def texts_in(batch: Any) -> int:
    """The number of texts in a packed batch."""
    return int(_packed(batch, "segment_ids").max(axis=1).sum())


class Counting(Scenes):
    """About 3 ms of pure Python, float32[256]."""

    def __init__(self, length: int = 1024, turns: int = 39_000) -> None:
        super().__init__(length)
        self.turns = turns

    def __getitem__(self, index: int) -> Any:
        state = 0
        for turn in range(self.turns):
            state = (state * 31 + turn) & 0xFFFF
        return np.full(256, index, np.float32), np.int64(index)

    def expected(self, indices: np.ndarray) -> Any:
        return np.repeat(indices[:, None], 256, axis=1).astype(np.float32)


class Waiting(Counting):
    """A wait of 20 ms, as for a disk or a server, float32[256]."""

    def __init__(self, length: int = 2048, seconds: float = 0.020) -> None:
        super().__init__(length, turns=0)
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Rows(Scenes):
    """Rows of a table in memory, float32[32]."""

    def __init__(self, length: int = 524_288) -> None:
        super().__init__(length)
        self.x, self.indices = np.random.default_rng(0).random((length, 32), np.float32), np.arange(length)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.indices[index]

    def expected(self, indices: np.ndarray) -> Any:
        return self.x[indices]


class RowsAtOnce(Rows):
    """The same; PyTorch reads a batch by `__getitems__`."""

    def __getitems__(self, indices: Any) -> Any:
        return self.x[indices], self.indices[indices]
