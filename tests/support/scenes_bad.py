"""Classes of scenes with one fault each: a zoo for the checks. Importable in worker processes."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kerasfeed as kf


class Sound(kf.SceneSequence):
    """Scenes (float32[3], int) without a fault."""

    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.scene(index)

    def scene(self, index):
        return np.arange(3, dtype=np.float32) + np.float32(10 * index), index


class Lengthless(Sound):
    def __len__(self):
        raise FileNotFoundError("rooms.h5")


class Shrinking(Sound):
    def __len__(self):
        self.length -= 1
        return self.length


class ClaimsMore(Sound):
    def __len__(self):
        return self.length + 1


class Missing(Sound):
    def scene(self, index):
        if index == 7:
            raise OSError("7.npy is cut off")
        return super().scene(index)


class Hanging(Sound):
    """Scene 3 waits until `release` is set."""

    release = threading.Event()

    def scene(self, index):
        if index == 3:
            Hanging.release.wait()
        return super().scene(index)


@dataclass
class Room:
    points: np.ndarray


class Objects(Sound):
    def scene(self, index):
        return {"room": Room(np.zeros(3)), "label": index}


class OtherDtype(Sound):
    def scene(self, index):
        points, label = super().scene(index)
        return (points.astype(np.float64) if index == 4 else points), label


class OtherStructure(Sound):
    def scene(self, index):
        return super().scene(index)[: 1 if index == 4 else 2]


class OtherShape(Sound):
    def scene(self, index):
        return np.zeros(3 + (index == 4), np.float32), index


class NotANumber(Sound):
    def scene(self, index):
        points, label = super().scene(index)
        points[1] = np.nan if index == 5 else points[1]
        return points, label


class Unbounded(Sound):
    def __getitem__(self, index):
        return self.scene(index)


class UnboundedNegative(Sound):
    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        return self.scene(index)


class Endless:
    """No SceneSequence, and so without an `__iter__`: loops ask until IndexError."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.float32(index % 4)


class Counting(Sound):
    reads = 0

    def scene(self, index):
        self.reads += 1
        points, label = super().scene(index)
        return points, label + self.reads


class AugmentsInPlace(Sound):
    def __init__(self):
        super().__init__()
        self.points = np.zeros((12, 3), np.float32)

    def scene(self, index):
        points = self.points[index]
        points += self.rng.normal(size=3)
        return points.copy(), index


class Forward(Sound):
    """Reads right as long as the index does not go down."""

    highest = 0

    def scene(self, index):
        self.highest = max(self.highest, index)
        return super().scene(self.highest)


class Refilled(Sound):
    """Returns one array again and again, one a thread."""

    def __init__(self):
        super().__init__()
        self.arrays = {}

    def scene(self, index):
        array = self.arrays.setdefault(threading.get_ident(), np.zeros(3, np.float32))
        array[...] = super().scene(index)[0]
        return array, index

    def __getstate__(self):
        return {"length": self.length, "arrays": {}}


class DrawsGlobally(Sound):
    def scene(self, index):
        return super().scene(index)[0] + np.random.normal(size=3).astype(np.float32), index


class SeedsGlobally(Sound):
    def scene(self, index):
        import random

        random.seed(3)
        return super().scene(index)[0] + np.float32(random.random()), index


class NotForThreads(Sound):
    """Keeps the index in the object while it reads."""

    def scene(self, index):
        self.current = index
        time.sleep(1e-4)
        return super().scene(self.current)

    def __getstate__(self):
        return {"length": self.length}


class OfThisThread(Sound):
    """Holds what the thread that made it alone may use, as a connection to SQLite is."""

    def __init__(self):
        super().__init__()
        self.thread = threading.get_ident()

    def scene(self, index):
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        return super().scene(index)

    def __reduce__(self):
        return OfThisThread, ()


class Locked(Sound):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Forgetful(Sound):
    def __init__(self):
        super().__init__()
        self.offset = 5

    def scene(self, index):
        return super().scene(index)[0] + np.float32(self.offset), index

    def __getstate__(self):
        return {"length": self.length, "offset": 0}


class Heavy(Sound):
    def __init__(self):
        super().__init__()
        self.points = np.zeros((12, 9_000_000), np.uint8)


OFFSET = 0


class OfAGlobal(Sound):
    """Uses a global that its constructor sets, in this process alone."""

    def __init__(self):
        global OFFSET
        super().__init__()
        OFFSET = 4

    def scene(self, index):
        return super().scene(index)[0], index + OFFSET


class OfAProcess(Sound):
    def scene(self, index):
        return super().scene(index)[0], index + os.getpid()


class Hashing(Sound):
    def scene(self, index):
        return super().scene(index)[0], hash(f"room {index}") % 100_000


class Relative(Sound):
    """Reads a file, named as seen from where the test is."""

    def scene(self, index):
        return super().scene(index)[0] + np.float32(Path("offset.txt").read_text()), index


class LooksForAFile(Sound):
    def scene(self, index):
        return super().scene(index)[0] + np.float32(Path("offset.txt").exists()), index


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


class Remembers(Sound):
    def __init__(self):
        super().__init__()
        self.seen = []

    def scene(self, index):
        scene = super().scene(index)
        self.seen.append(scene[0].copy())
        return scene


class NeverCloses(Sound):
    def scene(self, index):
        os.open("/dev/null", os.O_RDONLY)
        return super().scene(index)


class DiesElsewhere(Sound):
    """Scene 4 ends every process but the one that made the sequence."""

    def __init__(self):
        super().__init__()
        self.pid = os.getpid()

    def scene(self, index):
        if index == 4 and os.getpid() != self.pid:
            os._exit(3)
        return super().scene(index)


class HangsElsewhere(DiesElsewhere):
    """Scene 4 hangs there."""

    def scene(self, index):
        if index == 4 and os.getpid() != self.pid:
            time.sleep(1000)
        return Sound.scene(self, index)
