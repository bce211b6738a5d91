"""Sequences for the tests of frameworks, and a function that runs a script in a new Python."""

import collections
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
from places import ROOT, SUPPORT
from waits import PROGRAM_SECONDS

import kerasfeed as kf

Pair = collections.namedtuple("Pair", ["x", "y"])


class Numbered(kf.SceneSequence):
    """Scenes (float32[1], float32[1]) that hold their own index."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return np.full(1, index, np.float32), np.full(1, index, np.float32)


class Large(kf.SceneSequence):
    """Scenes int32[values] that hold their own index."""

    values = 200_000

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return np.full(self.values, index, np.int32)


class Nesting(kf.SceneSequence):
    """Every kind of nesting that TensorFlow can hold."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {
            "pair": Pair(np.full((2, 3), index, np.float16), np.int32(index)),
            "list": [np.uint8(index), {"deep": np.full(2, index, np.complex64)}],
            "text": f"scene é {index}",
            "raw": bytes([index, 0]),
            "words": np.array(["a" * (index % 3), "b"]),
            "flag": index % 2 == 0,
            "nothing": None,
        }


WORDS = ["zero", "one", "two", "three é", "four", "five", "six"]


class Texts(kf.SceneSequence):
    """A text and its number in a vocabulary; not in a module that imports Keras, so that workers do not import it."""

    def __init__(self, form=str):
        self.form = form

    def __len__(self):
        return len(WORDS)

    def __getitem__(self, index):
        return {"text": self.form(WORDS[index])}, np.full(1, index + 2, np.float32)


class Waiting(kf.SceneSequence):
    """Scenes that wait, as for a disk."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length = length
        self.seconds = seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return np.int64(index)


class Mixed(kf.SceneSequence):
    """Fields of awkward sizes: without alignment they would not start on any boundary."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {
            "b": np.full(7, index, np.uint8),
            "h": np.full(3, index, np.float16),
            "f": np.full((5, 3), index, np.float32),
        }


class Lingering(kf.SceneSequence):
    """Scenes that take a while each, of arrays and text."""

    def __init__(self, length=40, seconds=0.3):
        self.length, self.seconds, self.read = length, seconds, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(index)
        time.sleep(self.seconds)
        return {"x": np.full((index % 3 + 1, 2), index, np.float32), "name": f"scene {index}"}


class Deadly(Numbered):
    """Scenes; one kills its worker while a file exists."""

    def __init__(self, flag):
        super().__init__(24)
        self.flag = flag

    def __getitem__(self, index):
        if index == 13 and self.flag.exists():
            self.flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Fragile(Numbered):
    """Scenes; one raises an error while a file exists, or always."""

    def __init__(self, flag, error):
        super().__init__(24)
        self.flag = flag
        self.error = error

    def __getitem__(self, index):
        if index == 13 and (self.flag is None or self.flag.exists()):
            raise type(self.error)(*self.error.args)
        return super().__getitem__(index)


class Stateful:
    """A Keras-style class of batches; each contains the number of hook calls before it was loaded."""

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.began = 0
        self.ended = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return np.array([[index]], np.float32), np.array([[100 * self.began + self.ended]], np.float32)

    def on_epoch_begin(self):
        self.began += 1

    def on_epoch_end(self):
        self.ended += 1


def run_script(folder: Path, text: str, *, seconds: float = PROGRAM_SECONDS, **environment: str) -> str:
    """Run `text` as a script in a new interpreter that can import these modules; return its output."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment_of(**environment),
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def environment_of(**changes: str) -> dict[str, str]:
    """Environment of a new interpreter that finds kerasfeed and the tests' modules."""
    search = [str(ROOT), str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(search), **changes}


def let_tensorflow_free_memory() -> None:
    """Make TensorFlow release NumPy memory, which it does at its next call from Python, not when a tensor dies."""
    gc.collect()
    if "tensorflow" in sys.modules:
        _ = sys.modules["tensorflow"].zeros(()) + 1
