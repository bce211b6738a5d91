"""Sequences to make views of, importable in worker processes; each kind of optional method, with the same scenes."""

import numpy as np

import kerasfeed as kf


class Noisy(kf.SceneSequence):
    """Scenes (float32[2, 3], int) with noise from `self.rng`; read one by one.

    Args:
        length: Scenes.
        base: Added to every value, so that sequences differ.
    """

    def __init__(self, length=11, base=0):
        self.length = length
        self.base = base
        self.calls = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        assert type(index) is int
        assert 0 <= index < self.length
        return self._scene(index, self.rng)

    def _scene(self, index, rng):
        noise = rng.normal(size=(2, 3)).astype(np.float32)
        return noise + np.float32(1000 * (self.base + index)), self.base + index


class NoisyBatches(Noisy):
    """The same with `get_batch`, which accepts no index twice."""

    def get_batch(self, indices):
        assert len(set(indices.tolist())) == len(indices)
        scenes = [self._scene(index, self.rng_for(index)) for index in indices.tolist()]
        return np.stack([scene[0] for scene in scenes]), np.array([scene[1] for scene in scenes])


class NoisyBatchesInto(NoisyBatches):
    """The same, written into the slot if possible."""

    def get_batch(self, indices, out=None):
        points, labels = super().get_batch(indices)
        if out is None:
            return points, labels
        out[0][...] = points
        return out[0], labels


class NoisyInto(Noisy):
    """The same with `read_into`, and `read_ahead`."""

    def read_into(self, index, out):
        points, label = self._scene(index, self.rng)
        out[0][...] = points
        out[1][...] = label

    def read_ahead(self, indices):
        assert indices.dtype == np.int64
        assert ((indices >= 0) & (indices < self.length)).all()


class Hooked(Noisy):
    """Logs every hook call in a list."""

    def __init__(self, length=11, base=0):
        super().__init__(length, base)
        self.hook_calls = []

    def on_worker_begin(self, worker):
        self.hook_calls.append("begin")

    def on_worker_end(self):
        self.hook_calls.append("end")

    def on_epoch_begin(self):
        self.hook_calls.append("epoch begins")

    def on_epoch_end(self):
        self.hook_calls.append("epoch ends")


class Squares(kf.SceneSequence):
    """Scenes without noise, of every kind of field; counts the reads.

    Args:
        length: Scenes.
        factor: Factor of every value.
        log: A file to which every read appends a line.
    """

    def __init__(self, length=7, factor=1, log=None):
        self.length = length
        self.factor = factor
        self.log = log

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.tell(index)
        return {
            "x": (np.full((2, 3), index * self.factor, np.float16), np.array([index, -index], ">i4")),
            "flag": index % 2 == 0,
            "name": f"scène {index}",
            "raw": bytes([0, index % 256, 0]),
            "z": np.complex64(index + 1j),
            "n": [index, index / 3, complex(index, 1)],
            "words": np.array(["a" * (index % 4), "b"]),
            "objects": np.array([f"é{index}", ""], object),
            "empty": np.empty((0, 2), np.int16),
        }

    def tell(self, index):
        if self.log is not None:
            with open(str(self.log()), "a") as file:  # noqa: PTH123
                file.write(f"{index}\n")


class Log:
    """A file name that is not part of a sequence's state; counts the lines of the file."""

    def __init__(self, path):
        self.path = path

    def __call__(self):
        return self.path

    def lines(self):
        return self.path.read_text().split() if self.path.exists() else []


def in_dict(scene):
    return {"noise": scene[0]}


def tripled(scene):
    """A function for Map."""
    return scene[0] * 3, scene[1]


def jittered(scene, rng):
    """A function for Map that draws random numbers."""
    return scene[0] + rng.normal(size=scene[0].shape).astype(np.float32), scene[1]
