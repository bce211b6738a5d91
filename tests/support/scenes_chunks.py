"""Scenes in chunks of many; importable in worker processes without any framework."""

import numpy as np

import kerasfeed as kf


class Clouds(kf.SceneSequence):
    """Scenes float32[128, 3] of a file with chunks of 64 scenes; announces the next ones."""

    def __init__(self, path, cache):
        self.file = kf.HDF5File(path, chunk_cache=cache)

    def __len__(self):
        return len(self.file["points"])

    def __getitem__(self, index):
        return self.file["points"][index]


class Direct(Clouds):
    """The same, decoded ahead and into the slot."""

    def read_into(self, index, out):
        self.file["points"].read_into(index, out)

    def read_ahead(self, indices):
        self.file["points"].read_ahead(indices)


class Taken(Direct):
    """The same, many scenes at a time."""

    def get_batch(self, indices, out=None):
        return self.file["points"].take(indices, out=out)


class Labelled(Clouds):
    """The same with a label."""

    def __getitem__(self, index):
        return super().__getitem__(index), np.float32(index)
