"""The demo's sequences, and the checks of its files.

Invariant: this module imports no deep-learning framework, so that workers that import it start at once.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kerasfeed as kf
from kerasfeed.util.error_text import cause_message, pluralize


class PointClouds(kf.SceneSequence):
    """Labelled point clouds of an HDF5 file, scaled into the unit sphere.

    A scene is `(points float32[points, 3], label int64)`; the last axis of a point is vertical.

    Args:
        path: A file with `data` float[M, N, 3] and `label` int[M].
        points: Points of a scene, at most N; evenly spaced rows of the stored cloud.
        augment: Whether to take random points instead, rotated about the vertical axis by any angle, stretched by up
            to 20 % along each axis, and displaced by noise of 0.01.
    """

    thread_safe = True

    def __init__(self, path: str | os.PathLike[str], *, points: int, augment: bool = False) -> None:
        self.file = kf.HDF5File(path)
        self.points = points
        self.augment = augment

    def __len__(self) -> int:
        return len(self.file["label"])

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        cloud = self.file["data"][index]
        cloud = cloud - cloud.mean(axis=0)
        cloud /= max(np.linalg.norm(cloud, axis=1).max(), 1e-9)
        if self.augment:
            cloud = self._augmented(cloud)
        else:
            cloud = cloud[np.linspace(0, len(cloud) - 1, self.points).astype(int)]
        return cloud.astype(np.float32), int(self.file["label"][index])

    def read_ahead(self, indices: NDArray[np.int64]) -> None:
        """Begin to decode the chunks of these scenes in the background."""
        self.file["data"].read_ahead(indices)

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self.file.close()

    def _augmented(self, cloud: NDArray[Any]) -> NDArray[Any]:
        rng = self.rng
        cloud = cloud[rng.choice(len(cloud), self.points, replace=False)]
        angle = rng.uniform(0, 2 * np.pi)
        cos, sin = np.cos(angle), np.sin(angle)
        cloud = cloud @ np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
        return cloud * rng.uniform(0.8, 1.2, 3) + rng.normal(0, 0.01, cloud.shape)


class DataError(ValueError):
    """The demo cannot train on a file; the one-line message says why."""


@dataclass(frozen=True)
class Summary:
    """The content of a file of point clouds.

    Attributes:
        path: The file.
        points: Points stored for each scene, at least 1.
        labels: Class of every scene: int64[M], M >= 1, each >= 0.
    """

    path: Path
    points: int
    labels: NDArray[np.int64]

    def __str__(self) -> str:
        return f"{self.path.name}: {len(self.labels):,} scenes of {self.points:,} points"


def summarize(path: str | os.PathLike[str], *, points: int) -> Summary:
    """Check a file and read its labels.

    Args:
        path: The file.
        points: Points needed in each scene, at least 1.

    Raises:
        DataError: The file is missing, is not HDF5, lacks `data` float[M, N, 3] and `label` int[M], or has fewer
            than `points` points per scene.
    """
    where = Path(path)
    if not where.is_file():
        raise DataError(f"there is no file {str(where)!r}")
    try:
        with kf.HDF5File(where) as file:
            summary = _checked(where, file)
    except OSError as error:
        raise DataError(f"{str(where)!r} cannot be read as HDF5 ({cause_message(error)})") from error
    if summary.points < points:
        raise DataError(f"{str(where)!r} has {summary.points} points per scene, fewer than --points {points}")
    return summary


def _checked(where: Path, file: kf.HDF5File) -> Summary:
    for name in ("data", "label"):
        if name not in file:
            found = ", ".join(file.dataset_paths()) or "none"
            raise DataError(f"{str(where)!r} has no dataset {name!r}; its datasets: {found}")
    data, label = file["data"], file["label"]
    if len(data.shape) != 3 or data.shape[2] != 3 or data.dtype.kind not in "fiu":
        raise DataError(f"'data' of {str(where)!r} must be numbers [M, N, 3], received {_described(data)}")
    if label.shape != data.shape[:1] or label.dtype.kind not in "iu":
        raise DataError(f"'label' of {str(where)!r} must be integers [{data.shape[0]}], received {_described(label)}")
    if 0 in data.shape:
        raise DataError(f"'data' of {str(where)!r} is empty: {_described(data)}")
    labels = label[:].astype(np.int64)
    if labels.min() < 0:
        raise DataError(f"'label' of {str(where)!r} must be 0 or more, but the smallest is {labels.min()}")
    return Summary(where, data.shape[1], labels)


def _described(dataset: Any) -> str:
    return f"{dataset.dtype}{list(dataset.shape)}"


def sibling_for_validation(path: str | os.PathLike[str]) -> Path | None:
    """Return the file named with "test" instead of "train", or None."""
    where = Path(path)
    sibling = where.with_name(where.name.replace("train", "test"))
    return sibling if sibling != where and sibling.is_file() else None


def hold_out(clouds: kf.SceneSequence, seed: int) -> tuple[kf.Subset, ...]:
    """Hold out a fifth of the scenes, at least one, at random.

    Raises:
        DataError: There are fewer than 2 scenes.
    """
    count = len(clouds)
    if count < 2:
        are = "is" if count == 1 else "are"
        raise DataError(f"{pluralize(count, 'scene')} {are} too few to hold some out; name a file with --validation")
    share = max(0.2, 1 / count)
    return kf.split(clouds, (1 - share, share), seed)
