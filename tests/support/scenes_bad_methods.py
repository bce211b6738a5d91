"""Classes of scenes with one fault each in a method other than `__getitem__`. For the checks."""

import numpy as np
from scenes_bad import Sound


class SortedBatches(Sound):
    def get_batch(self, indices):
        points, labels = zip(*(self.scene(int(index)) for index in np.sort(indices)), strict=True)
        return np.stack(points), np.array(labels)


class ShortBatches(Sound):
    def get_batch(self, indices):
        points, labels = zip(*(self.scene(int(index)) for index in indices), strict=True)
        return np.stack(points)[:-1], np.array(labels)


class BatchesDrawDifferently(Sound):
    def scene(self, index):
        return np.float32(self.rng.normal()), index

    def get_batch(self, indices):
        return np.array([self.rng.normal() for _ in indices], np.float32), indices


class HalfOfOut(Sound):
    """Writes everything into `out` except the labels."""

    def get_batch(self, indices, out=None):
        points, labels = zip(*(self.scene(int(index)) for index in indices), strict=True)
        if out is None:
            return np.stack(points), np.array(labels)
        out[0][...] = np.stack(points)
        return None


class BatchesOfNoSequence:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        if not 0 <= index < 3:
            raise IndexError(index)
        return np.float32(index)

    def get_batch(self, indices):
        return indices.astype(np.float32)


class HalfWritten(Sound):
    def read_into(self, index, out):
        out[0][...] = self.scene(index)[0]


class WritesNothingAt(Sound):
    def read_into(self, index, out):
        points, label = self.scene(index)
        out[0][:2] = points[:2]
        out[1][...] = label


class NeverCalled(Sound):
    def read_into(self, index, target):
        target[...] = 0
