"""Sequences of scenes that are written to files, and the content of these files."""

import os
import signal
import time
from collections import namedtuple
from pathlib import Path

import ml_dtypes
import numpy as np
import optree

import kerasfeed as kf

DTYPES = [
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "complex64", "complex128", "bfloat16",
]  # fmt: skip
Pair = namedtuple("Pair", "number half")


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Everything(kf.SceneSequence):
    """Every dtype, as an array, with an axis that varies, without axes and without items; text; every nesting."""

    def __init__(self, length=10, *, varying=True, names=tuple(DTYPES)):
        self.length, self.varying, self.names = length, varying, names

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        fields = {}
        rng = np.random.default_rng(index)
        for name in self.names:
            dtype = dtype_of(name)
            raw = rng.integers(0, 2 if name == "bool" else 256, (3, 4, dtype.itemsize), np.uint8)
            array = np.ascontiguousarray(raw).view(dtype).reshape(3, 4)
            fields |= {name: array, f"{name}_single": array[0, 0], f"{name}_none": array[:0]}
            if self.varying:
                fields[f"{name}_rows"] = array[: index % 4]
        fields |= {"text": f"é {index}", "bytes": b"\0\xff%d" % index, "texts": np.array(["x" * index, "y"])}
        if self.varying:
            fields["words"] = np.array(["ö"] * (index % 3), "U1")
        return fields, Pair(index, 1.5 * index), [np.array([True]), np.array([-index, 1])]


class Small(kf.SceneSequence):
    """A number from the scene's rng, and the index."""

    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.rng.random((8, 3), dtype=np.float32), index


class Slow(Small):
    """Scenes of 5 ms; each appends its index to a log.

    If a file `held` exists, they wait once the log has the number of lines in it.
    """

    def __init__(self, length, log, seconds=0.005, held=None):
        super().__init__(length)
        self.log, self.seconds, self.held = str(log), seconds, held

    def __getitem__(self, index):
        time.sleep(self.seconds)
        while self._waits():
            time.sleep(0.005)
        with Path(self.log).open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)

    def _waits(self):
        try:
            return self.held is not None and int(Path(self.held).read_text()) <= Path(self.log).read_text().count("\n")
        except FileNotFoundError:
            return False


class FailsAt(Small):
    """One scene raises, or ends its process, while a file exists."""

    def __init__(self, length, bad, flag, *, kills=False):
        super().__init__(length)
        self.bad, self.flag, self.kills = bad, str(flag), kills

    def __getitem__(self, index):
        if index == self.bad and Path(self.flag).exists():
            if self.kills:
                if self.kills == "once":
                    Path(self.flag).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no such scene")
        return super().__getitem__(index)


def assert_same(found, wanted):
    """Fail unless two scenes have the same bits, for any types of scalars."""
    ours, theirs = optree.tree_leaves(found), optree.tree_leaves(wanted)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        if one.dtype.kind in "OUS":
            assert one.tolist() == other.tolist()
        else:
            assert one.dtype == other.dtype
            assert one.tobytes() == other.tobytes()


def listing(folder):
    """Names of all files of a folder, including hidden ones."""
    return sorted(path.name for path in Path(folder).iterdir())
