"""Sequences drawn at random, importable in worker processes, and batches compared bit for bit."""

import numpy as np
import optree

import kerasfeed as kf


class Drawn(kf.SceneSequence):
    """Scenes of any nesting, shapes, dtypes and text, each value derived from index and field.

    Args:
        length: Scenes.
        fields: A shape and a dtype name ("text" or "bytes" for these) for every field.
        nesting: "tuple", "dict", "list" or "deep".
        bad: Indices of scenes that raise a ValueError.
        random: Whether noise from `self.rng` is added to floats.
    """

    def __init__(self, length, fields, nesting, bad=(), random=False):
        self.length = length
        self.fields = fields
        self.nesting = nesting
        self.bad = frozenset(bad)
        self.random = random

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"scene {index} is bad")
        leaves = [self._leaf(index, number, *field) for number, field in enumerate(self.fields)]
        match self.nesting:
            case "tuple":
                return tuple(leaves)
            case "dict":
                return {f"field {number}": leaf for number, leaf in enumerate(leaves)}
            case "list":
                return leaves
        return {"first": leaves[0], "rest": (leaves[1:], {"again": leaves[-1]})}

    def _leaf(self, index, number, shape, dtype):
        if dtype == "text":
            return f"scène {index} " * (index % 3)
        if dtype == "bytes":
            return bytes([index % 256, 0, number])
        values = (np.arange(np.prod(shape), dtype=np.int64).reshape(shape) + 7 * index + number) % 113
        array = np.asarray(values).astype(dtype)
        if self.random and array.dtype.kind == "f":
            array = (array + self.rng.normal(size=shape)).astype(dtype)
        return array


def assert_same(one, other):
    """Fail unless two batches have the same nesting, shapes, dtypes and bits."""
    leaves, treespec = optree.tree_flatten(one)
    others, other_treespec = optree.tree_flatten(other)
    assert treespec == other_treespec
    for a, b in zip(leaves, others, strict=True):
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()
        else:
            assert a == b
