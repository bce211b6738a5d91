"""The files of the workloads, made once and kept with the files of `benchmarks.hdf5`."""

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from benchmarks.hdf5.files import DataFile, point_clouds


def images(stored: int) -> list[str]:
    """Paths of JPEG files of 500 x 375 pixels, whose mean colours differ."""
    folder = DataFile(f"real-images-{stored}-1", partial(_write_images, stored)).path()
    return [str(folder / f"{number}.jpg") for number in range(stored)]


def colours(numbers: Any) -> np.ndarray:
    """The mean colour of images, float[..., 3]."""
    numbers = np.asarray(numbers)
    return 60 + 18.0 * np.stack([numbers % 8, numbers // 8 % 8, numbers // 64 % 8], axis=-1)


def _write_images(stored: int, folder: Path) -> None:
    folder.mkdir()
    y, x = np.mgrid[:375, :500]
    for number in range(stored):
        rng = np.random.default_rng(number)
        waves = 25 * np.sin(x / rng.uniform(2, 5)) * np.cos(y / rng.uniform(2, 5))
        pixels = colours(number) + waves[:, :, None] + rng.normal(scale=8, size=(375, 500, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.jpg", quality=90)


def _hdf5(name: str, make: Any, options: dict[str, Any]) -> str:
    """Path of a file with the datasets of the dict that `make` returns."""

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for key, values in make().items():
                file.create_dataset(key, data=values, **options)

    return str(DataFile(f"real-{name}-1.h5", write).path())


def clouds(stored: int) -> np.ndarray:
    """Point clouds float32[stored, 4096, 9]."""
    return np.concatenate([point_clouds(n, n + 64) for n in range(0, stored, 64)])[:stored]


def cloud_file(stored: int, chunk: int) -> str:
    """A file of these clouds, gzip and shuffle, with `chunk` of them per chunk."""
    options = {"chunks": (chunk, 4096, 9), "compression": "gzip", "shuffle": True}
    return _hdf5(f"clouds-{stored}-{chunk}", lambda: {"points": clouds(stored)}, options)


def volumes(count: int, side: int) -> dict[str, np.ndarray]:
    """Scans int16[64, side, side]: smooth tissue, and the noise of a scanner."""
    z, y, x = np.ogrid[:64, :side, :side]
    smooth = 400 * np.sin(z / 9) * np.cos(y / 21) * np.sin(x / 17)
    noises = [np.random.default_rng(number).normal(scale=12, size=smooth.shape) for number in range(count)]
    return {str(number): (smooth + noise).astype(np.int16) for number, noise in enumerate(noises)}


def volume_file(count: int, side: int, compression: str) -> str:
    """A file of these scans in chunks of 32 x 32 x 32."""
    options = {"chunks": (32, 32, 32), "compression": compression}
    return _hdf5(f"volumes-{count}-{side}-{compression}", lambda: volumes(count, side), options)


def series(length: int) -> np.ndarray:
    """Rows float32[length, 16]."""
    return np.random.default_rng(0).normal(size=(length, 16)).astype(np.float32)


def series_file(length: int) -> str:
    """A file of a series in chunks of 1,024 rows, gzip."""
    options = {"chunks": (min(1024, length), 16), "compression": "gzip"}
    return _hdf5(f"series-{length}", lambda: {"rows": series(length)}, options)
