"""Sequences whose scenes differ in shape, the batches that plain NumPy makes of them, and feeds of every kind."""

import numpy as np
import optree

import kerasfeed as kf

# Threads show results that come out of order. One process is enough for results of processes, which take long to start.
KINDS = {"inline": (0, "auto"), "thread": (3, "thread"), "process": (1, "process")}


class Drawn(kf.SceneSequence):
    """Scenes ({"points": dtype[n, ...], "image": int16[a, b], "name"}, index) of given shapes.

    Args:
        points: Shape of `points` of every scene.
        images: Shape of `image` of every scene.
        dtype: Dtype of `points`.
    """

    def __init__(self, points, images, dtype="float32"):
        self.points, self.images, self.dtype = points, images, np.dtype(dtype)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        shape = self.points[index]
        points = (np.arange(np.prod(shape, dtype=int)) % 50 + index + 1).astype(self.dtype).reshape(shape)
        return {"points": points, "image": np.full(self.images[index], index + 1, np.int16), "name": f"é{index}"}, index


class Lengths(kf.SceneSequence):
    """Scenes (float32[n, 3], int) whose n is given."""

    def __init__(self, lengths):
        self.lengths = list(lengths)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return np.arange(3 * self.lengths[index], dtype=np.float32).reshape(-1, 3) + 100 * int(index) + 1, index


class Broken(Lengths):
    """Lengths whose scenes `bad` raise."""

    def __init__(self, lengths, bad):
        super().__init__(lengths)
        self.bad = bad

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"scene {index} is broken")
        return super().__getitem__(index)


def padded(arrays, value=0, multiple=1, length=None):
    """The result of padding to the longest, and the mask."""
    sizes = [-(-max(each) // multiple) * multiple for each in zip(*(array.shape for array in arrays), strict=True)]
    if length is not None:
        sizes[0] = length
    out = np.full((len(arrays), *sizes), value, arrays[0].dtype)
    mask = np.zeros(out.shape, bool)
    for row, array in enumerate(arrays):
        place = (row, *(slice(size) for size in array.shape))
        out[place], mask[place] = array, True
    return out, mask


def bits(batches):
    """Bytes, shapes and dtypes of every array, and the text, of some batches."""
    return [
        [
            (leaf.dtype.str, leaf.shape, leaf.tolist() if leaf.dtype == object else leaf.tobytes())
            for leaf in map(np.asarray, optree.tree_leaves(batch))
        ]
        for batch in batches
    ]
