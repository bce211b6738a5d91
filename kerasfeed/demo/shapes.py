"""Write an HDF5 file of ten kinds of surface.

Invariant: the file is a function of the arguments. Every scene is centred, apart from noise, and within [-1, 1] on each
axis.
"""

import os
from collections.abc import Callable

import h5py
import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
_Uniform = Callable[..., NDArray[np.float64]]

_NOISE = 0.02  # of the radius; with this, a single point no longer separates a narrow cone from a cylinder


def write_shapes(path: str | os.PathLike[str], scenes: int, *, points: int = 1024, seed: int = 0) -> None:
    """Write `scenes` surfaces of equally frequent classes with random proportions and headings.

    Args:
        path: The file to write: `data` float32[scenes, points, 3] and `label` uint8[scenes], whose attribute
            `names` lists the classes.
        scenes: Number of scenes, at least 1.
        points: Points in each scene, at least 1.
        seed: Integer >= 0; another seed makes other shapes.
    """
    names = list(SHAPES)
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(scenes) % len(names)).astype(np.uint8)
    clouds = np.stack([_scene(SHAPES[names[label]], points, rng) for label in labels])
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=clouds, chunks=(1, points, 3), compression="gzip", shuffle=True)
        file.create_dataset("label", data=labels)
        file["label"].attrs["names"] = names


def _scene(shape: Callable[[_Uniform, int], Points], points: int, rng: np.random.Generator) -> NDArray[np.float32]:
    cloud = shape(rng.uniform, points) * rng.uniform(0.7, 1.3, 3)
    angle = rng.uniform(0, 2 * np.pi)
    cos, sin = np.cos(angle), np.sin(angle)
    cloud = cloud @ np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
    cloud = cloud - cloud.mean(axis=0)
    cloud = cloud / np.linalg.norm(cloud, axis=1).max()
    noisy: NDArray[np.float64] = cloud + rng.normal(0, _NOISE, cloud.shape)
    return noisy.clip(-1, 1).astype(np.float32)


def _around(radius: NDArray[np.float64] | float, angle: NDArray[np.float64], height: NDArray[np.float64]) -> Points:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height * np.ones_like(angle)], axis=1)


def _sphere(uniform: _Uniform, points: int) -> Points:
    height = uniform(-1, 1, points)
    return _around(np.sqrt(1 - height**2), uniform(0, 2 * np.pi, points), height)


def _bowl(uniform: _Uniform, points: int) -> Points:
    height = uniform(-1, 0, points)
    return _around(np.sqrt(1 - height**2), uniform(0, 2 * np.pi, points), height)


def _cylinder(uniform: _Uniform, points: int) -> Points:
    return _around(uniform(0.3, 0.7), uniform(0, 2 * np.pi, points), uniform(-1, 1, points))


def _cone(uniform: _Uniform, points: int) -> Points:
    below = np.sqrt(uniform(0, 1, points))
    return _around(below * uniform(0.4, 0.9), uniform(0, 2 * np.pi, points), 1 - 2 * below)


def _torus(uniform: _Uniform, points: int) -> Points:
    tube, around = uniform(0.15, 0.4), uniform(0, 2 * np.pi, points)
    return _around(1 + tube * np.cos(around), uniform(0, 2 * np.pi, points), tube * np.sin(around))


def _helix(uniform: _Uniform, points: int) -> Points:
    along = uniform(-1, 1, points)
    return _around(uniform(0.4, 0.7), along * np.pi * uniform(2, 4), along)


def _box(uniform: _Uniform, points: int) -> Points:
    cloud = uniform(-1, 1, (points, 3))
    face = uniform(0, 3, points).astype(int)
    cloud[np.arange(points), face] = np.sign(cloud[np.arange(points), face])
    return cloud * [uniform(0.5, 1), uniform(0.5, 1), uniform(0.5, 1)]


def _plane(uniform: _Uniform, points: int) -> Points:
    x, y = uniform(-1, 1, (2, points))
    return np.stack([x, uniform(0.4, 1) * y, uniform(-0.5, 0.5) * x], axis=1)


def _cross(uniform: _Uniform, points: int) -> Points:
    x, z = uniform(-1, 1, (2, points))
    turned = uniform(0, 1, points) < 0.5
    return np.stack([np.where(turned, 0, x), np.where(turned, x, 0), z], axis=1)


def _stairs(uniform: _Uniform, points: int) -> Points:
    steps = int(uniform(3, 7))
    run, across = uniform(0, steps, points), uniform(-0.6, 0.6, points)
    tread = uniform(0, 1, points) < 0.5
    x = np.where(tread, run, np.floor(run))
    z = np.where(tread, np.floor(run), run)
    return np.stack([2 * x / steps - 1, across, 2 * z / steps - 1], axis=1)


SHAPES: dict[str, Callable[[_Uniform, int], Points]] = {
    "sphere": _sphere,
    "bowl": _bowl,
    "cylinder": _cylinder,
    "cone": _cone,
    "torus": _torus,
    "helix": _helix,
    "box": _box,
    "plane": _plane,
    "cross": _cross,
    "stairs": _stairs,
}
