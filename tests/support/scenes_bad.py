"""Classes of scenes with one fault each, which shows when scenes are read one after another. For the checks.

Importable in worker processes, like the classes in `scenes_bad_methods` and `scenes_bad_elsewhere`.
"""

import threading
from dataclasses import dataclass

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


class Endless:
    """Not a SceneSequence, so it has no `__iter__`: loops read until IndexError."""

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
    """Reads correctly as long as the index does not decrease."""

    highest = 0

    def scene(self, index):
        self.highest = max(self.highest, index)
        return super().scene(self.highest)


class NumbersLabels(Sound):
    """Numbers its labels in the order of reads."""

    def __init__(self, numbers=None):
        super().__init__()
        self.numbers = {} if numbers is None else numbers

    def scene(self, index):
        return super().scene(index)[0], self.numbers.setdefault(f"room {index % 5}", len(self.numbers))


class CentredOnTheFirst(Sound):
    """Uses the first scene that is read as the centre."""

    centre = None

    def scene(self, index):
        points, label = super().scene(index)
        if self.centre is None:
            self.centre = points
        return points - self.centre, label


class OneOfMany(Sound):
    """Scene 45 of 640 has the `fault`: "shape", "NaN", "error" or "set"."""

    def __init__(self, fault):
        super().__init__(640)
        self.fault = fault

    def scene(self, index):
        points, label = super().scene(index)
        if index != 45:
            return points, label
        if self.fault == "error":
            raise OSError("45.npy is cut off")
        return {"shape": np.zeros(4, np.float32), "NaN": points * np.nan, "set": {1}}[self.fault], label


class Refilled(Sound):
    """Returns the same array each time, one per thread."""

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


class Remembers(Sound):
    def __init__(self):
        super().__init__()
        self.seen = []

    def scene(self, index):
        scene = super().scene(index)
        self.seen.append(scene[0].copy())
        return scene
