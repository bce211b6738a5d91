"""Classes of scenes with one fault each in a method that they may have beside `__getitem__`. For the checks."""

import os
import time

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


class BatchesDrawnOtherwise(Sound):
    def scene(self, index):
        return np.float32(self.rng.normal()), index

    def get_batch(self, indices):
        return np.array([self.rng.normal() for _ in indices], np.float32), indices


class HalfAnOut(Sound):
    """Writes into `out` what it should, but for the labels."""

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


class SlowAhead(Sound):
    def read_ahead(self, indices):
        time.sleep(0.2)


class DrawsAhead(Sound):
    def read_ahead(self, indices):
        self.rng.normal()


class WithoutWorker(Sound):
    def on_worker_begin(self):
        pass


class LeavesOpen(Sound):
    def on_worker_begin(self, worker):
        os.open("/dev/null", os.O_RDONLY)


class ClosesForAll(Sound):
    """Whoever ends first closes what all worker threads read."""

    is_open = False

    def on_worker_begin(self, worker):
        self.is_open = True

    def on_worker_end(self):
        self.is_open = False

    def scene(self, index):
        if not self.is_open:
            raise ValueError("read of a closed file")
        return super().scene(index)


class EndsOnce(Sound):
    def on_worker_begin(self, worker):
        self.table = {}

    def on_worker_end(self):
        del self.table


class GrowsByEpochs(Sound):
    def on_epoch_end(self):
        self.length += 1


class LoopsOverLabels(Sound):
    def __iter__(self):
        return iter(range(self.length))
