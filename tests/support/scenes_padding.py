"""Scenes (x, y) and (x, y, sample_weight) that contain their index; importable without any framework."""

import numpy as np
import scenes

import kerasfeed as kf


class Labelled(scenes.Augmented):
    """Clouds with noise, and their index as a label."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0], index


class LabelledBatches(scenes.Clouds):
    """The same without noise, read many at a time."""

    def get_batch(self, indices):
        chosen = [self[int(index)] for index in indices]
        return np.stack([points for points, _ in chosen]), np.array([label for _, label in chosen])


class Pointwise(scenes.Sized):
    """Scenes (x, y, sample_weight), three of a length per batch, with a dict of weights, one for each value of x."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        values = np.full(index // 3 + 2, index, np.float32)
        return values, index, {"each": values * 0 + 0.5, "all": np.int16(3)}


class Regression(kf.SceneSequence):
    """Scenes (float32[3], float32[1]), with a weight if requested; no value is a round number."""

    def __init__(self, length, *, weighted=False):
        rng = np.random.default_rng(7)
        self.x = rng.normal(size=(length, 3)).astype(np.float32)
        self.y = rng.normal(size=(length, 1)).astype(np.float32) ** 2
        self.weights = rng.uniform(0.1, 2, size=length).astype(np.float32) if weighted else None

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        scene = self.x[index], self.y[index]
        return scene if self.weights is None else (*scene, self.weights[index])
