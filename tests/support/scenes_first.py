"""Classes whose scenes depend on the reader and on the order of reads; importable in workers without any framework."""

import threading
import time

import numpy as np


class Seeking:
    """Scenes int64[] of a file that is kept open: it does not pickle, and several threads would move its position."""

    def __init__(self, path, length):
        np.arange(length).tofile(path)
        self.file = path.open("rb")
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.file.seek(8 * index)
        time.sleep(1e-5)
        return np.frombuffer(self.file.read(8), np.int64)[0]


class Reusing:
    """Scenes float64[3] that are one array."""

    def __init__(self):
        self.buffer = np.zeros(3)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.buffer[:] = index
        return self.buffer


class Uneven:
    """Batches (float64[rows, 2], int64[rows]); two batches, not read first, have another number of rows."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        rows = {2: 3, 7: 7}.get(index, 4)
        return np.full((rows, 2), float(index)), np.full(rows, index)


class NextScene:
    """Scenes float64[3] of a counter, which ignore their index."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.read += 1
        return np.full(3, float(self.read))


class NextInLine:
    """Batches float64[2] of a counter, which ignore their index."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.read += 1
        return np.full(2, float(self.read))


class LazyOrder:
    """Batches int64[5] of an order that is drawn at first use, as in image libraries."""

    def __init__(self, length=100):
        self.length, self.order = length, None

    def __len__(self):
        return self.length // 5

    def __getitem__(self, index):
        if self.order is None:
            self.order = np.random.permutation(self.length)
        return self.order[5 * index : 5 * index + 5]


class LazyOrderEachEpoch(LazyOrder):
    """The same, with another order in each epoch."""

    def on_epoch_end(self):
        self.order = None


class SlowBatches:
    """Batches that take a while; each appends a line to the file `read`."""

    def __init__(self, read, seconds=0.15):
        self.read, self.seconds = read, seconds

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with self.read.open("a") as file:
            file.write(f"{index}\n")
        time.sleep(self.seconds)
        return np.full((3, 2), index, np.float32)


class Hooked:
    """Scenes `(float32[3], float32[])` of state that `on_epoch_begin` makes; the second is the epoch, from 1."""

    def __len__(self):
        return 20

    def on_epoch_begin(self):
        self.epoch = getattr(self, "epoch", 0) + 1

    def __getitem__(self, index):
        return np.full(3, index, np.float32), np.float32(self.epoch)


class Odd:
    """Scenes int64[3], except one that differs."""

    def __init__(self, bad, other):
        self.bad, self.other = bad, other

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.other if index == self.bad else np.full(3, index)


class Locked:
    """Scenes float64[2] of an object that does not pickle; `most` is the maximum number of threads in its methods."""

    def __init__(self):
        self.lock, self.inside, self.most = threading.Lock(), 0, 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self._stay()
        return np.full(2, float(index))

    def read_ahead(self, indices):
        self._stay()

    def on_epoch_begin(self):
        self._stay()

    def on_worker_begin(self, worker):
        self._stay()

    def _stay(self):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(5e-4)
        with self.lock:
            self.inside -= 1


class Widening:
    """Batches float32[4, 5 + index] that take a while."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(0.11)
        return np.zeros((4, 5 + index), np.float32)


class Reading:
    """Scenes float64[3] that wait, of one array if `reuses`."""

    def __init__(self, reuses):
        self.reuses, self.buffer = reuses, np.zeros(3)

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.003)
        array = self.buffer if self.reuses else np.zeros(3)
        array[:] = index
        return array
