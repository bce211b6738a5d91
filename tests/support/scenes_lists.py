"""Scenes with lists of numbers and text, and text that ends in NUL characters. No framework is imported here."""

import numpy as np

import kerasfeed as kf


def lists_at(index):
    """A scene of every kind of list: numbers that are promoted, boxes, text, and a list of arrays, which is nesting."""
    return {
        "tokens": list(range(index % 4)),
        "pair": [index, 2.5] if index % 2 else [index, 1],
        "boxes": [[index, 1, 2, 3]] * (index % 3),
        "words": ["a" * (index % 3), "b\0"],
        "single": [np.float32(index), np.float32(1)],
        "arrays": [np.full(2, index), np.full(3, index, np.float32)],
    }


class Lists(kf.SceneSequence):
    def __init__(self, length=22):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return lists_at(index)


class Even(Lists):
    """Lists of one length, also available in batches."""

    def __getitem__(self, index):
        return [index, 2.5] if index % 2 else [index, 1], [np.float32(index)], ["a\0", "b" * (index % 3)]

    def get_batch(self, indices):
        return tuple([[*part] for part in each] for each in zip(*(self[index] for index in indices), strict=True))


def listed(n=0, count=1, length=22):
    """The scenes of `Lists` one by one, in one reused list."""
    tokens = []
    for index in range(n, length, count):
        tokens[:] = range(index % 4)
        yield {**lists_at(index), "tokens": tokens}


def nul_text(index):
    """Text that ends in NUL characters, in every form that NumPy returns."""
    held = np.empty(2, object)
    held[:] = [np.bytes_(b"obj\0\0"), b"plain\0"]
    words = np.empty(1, object)
    words[:] = [np.str_(f"word {index}\0\0")]
    return {
        "bytes": np.bytes_(b"abc\0\0\0\0\0"),
        "str": np.str_(f"text {index}\0\0"),
        "held": held,
        "words": words,
        "list": [np.bytes_(b"in a list\0"), b"\0"],
    }


class NulText(Lists):
    def __getitem__(self, index):
        return nul_text(index)


def nul_texts(n=0, count=1, length=22):
    for index in range(n, length, count):
        yield nul_text(index)
