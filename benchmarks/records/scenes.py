"""The scenes: points and a label, or an image and a mask, cheap or expensive to make."""

import time
from typing import Any

import numpy as np


class Scenes:
    """Scenes of one kind.

    Args:
        kind: "points", "images" or "tiny"; with a suffix, the milliseconds of pure Python per scene, such as
            "images-0.7".
        length: Number of scenes.
    """

    def __init__(self, kind: str, length: int) -> None:
        self.kind, _, milliseconds = kind.partition("-")
        self.seconds = float(milliseconds or 0) / 1e3
        self.length = length
        rng = np.random.default_rng(0)
        self.points = rng.random((64, 1024, 9), dtype=np.float32)
        waves = 100 + 80 * np.sin(np.arange(256) / 20)[:, None, None] * np.cos(np.arange(256) / 30)[:, None]
        self.image = (waves + rng.integers(0, 12, (64, 256, 256, 3))).astype(np.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        begin = time.thread_time()
        while self.seconds and time.thread_time() - begin < self.seconds:
            sum(range(100))
        if self.kind == "images":
            image = self.image[index % 64]
            return {"image": image, "mask": image[:, :, 0] > 99}, index % 10
        if self.kind == "tiny":
            return self.points[index % 64, :8, 0], index % 10
        return self.points[index % 64], index % 10


LENGTHS = {
    "tiny": 150_000, "points": 6000, "images": 2000, "images-0.7": 2000, "points-4": 1000, "images-4": 1000,
}  # fmt: skip
