"""The page "Messages of other libraries": programs of today give its messages.

Its remedies run as the program of the page, in `test_pages.py`.
"""

import contextlib
import re
import textwrap

import pytest
from forked_scripts import ForkedScripts
from pages import environment_of_pages
from places import ROOT
from waits import PROGRAM_SECONDS

PAGE = ROOT / "docs" / "start" / "messages.md"
HEADINGS = [
    re.sub(r"^(`+) ?(.*?) ?\1$", r"\2", heading)
    for heading in re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
]

# At its end, TensorFlow may wait for ever for an iterator that has raised an exception.
ENDING = """
import os, sys, traceback
sys.excepthook = lambda *error: (traceback.print_exception(*error), sys.stderr.flush(), os._exit(1))
"""

# Programs that end within milliseconds, and need no framework.
LIGHT = {
    "h5py objects cannot be pickled": """
        import pickle
        import h5py

        with h5py.File("pickled.h5", "w") as file:
            pickle.dumps(file)
        """,
    "unable to lock file, errno = 11": """
        import fcntl
        import h5py

        h5py.File("locked.h5", "w").close()
        with open("locked.h5") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # as a program that writes it
            h5py.File("locked.h5", "r")
        """,
    "Indexing elements must be in increasing order": """
        import h5py

        with h5py.File("rows.h5", "w") as file:
            file["points"] = [1, 2, 3]
            file["points"][[2, 0]]
        """,
    "Can't pickle local object": """
        import pickle

        def make():
            class Rooms:
                pass

            return Rooms()

        pickle.dumps(make())
        """,
    "setting an array element with a sequence. The requested array has an inhomogeneous shape": """
        import numpy as np

        np.array([np.zeros(2), np.zeros(3)])
        """,
    "Unable to allocate ... for an array with shape": """
        import numpy as np

        np.zeros((10**9, 10**6))
        """,
}
BATCHES = """
import os, sys, threading, time

import keras
import numpy as np


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, step):
        if os.getpid() != MAIN:
            os.kill(os.getpid(), 9)
        return np.zeros((2, 1)), np.zeros(2)


MAIN = os.getpid()
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(loss="mse")
"""
LOADER = """
import os, signal, sys

import numpy as np
import torch


class Rooms(torch.utils.data.Dataset):
    def __init__(self, load):
        self.load = load

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return self.load(index)


def run(load, **arguments):
    for batch in torch.utils.data.DataLoader(Rooms(load), num_workers=1, **arguments):
        pass
"""
# Programs of their own: they need a framework, processes, signals, or seconds.
HEAVY = {
    "fit() got an unexpected keyword argument 'workers'": """
        import keras

        keras.Sequential().fit([1], workers=4)
        """,
    "object has no attribute 'fit_generator'": """
        import keras

        keras.Sequential().fit_generator([1])
        """,
    "module 'keras.utils' has no attribute 'HDF5Matrix'": """
        import keras

        keras.utils.HDF5Matrix("rooms.h5", "points")
        """,
    "Your `PyDataset` class should call `super().__init__(**kwargs)` in its constructor": """
        import keras
        import numpy as np

        class Batches(keras.utils.PyDataset):
            def __init__(self):
                self.count = 1

            def __len__(self):
                return self.count

            def __getitem__(self, step):
                return np.zeros((2, 1)), np.zeros(2)

        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        model.predict(Batches(), verbose=0)
        """,
    "Unrecognized data type: x=...": """
        import keras

        class Rooms:
            def __len__(self):
                return 1

            def __getitem__(self, index):
                return [0.0], 0.0

        model = keras.Sequential([keras.Input((1,))])
        model.compile(loss="mse")
        model.fit(Rooms())
        """,
    "`generator` yielded an element of shape ... where an element of shape ... was expected": """
        import numpy as np
        import tensorflow as tf

        signature = tf.TensorSpec((3,), tf.float32)
        list(tf.data.Dataset.from_generator(lambda: iter([np.zeros(2)]), output_signature=signature))
        """,
    "Failed to convert a NumPy array to a Tensor (Unsupported object type numpy.ndarray)": """
        import numpy as np
        import tensorflow as tf

        scenes = np.empty(2, object)
        scenes[:] = [np.zeros(2), np.zeros(3)]
        tf.convert_to_tensor(scenes)
        """,
    "Your input ran out of data; interrupting training": """
        import keras
        import numpy as np

        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        model.fit(((np.zeros((2, 1)), np.zeros(2)) for _ in range(3)), steps_per_epoch=2, epochs=2, verbose=0)
        """,
    "Local rendezvous is aborting with status: ...": """
        import tensorflow as tf

        def generate():
            yield 1
            raise ValueError("no such file")

        list(tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((), tf.int64)))
        """,
    "as_list() is not defined on an unknown TensorShape": """
        import keras
        import numpy as np
        import tensorflow as tf

        def load(index):
            return tf.numpy_function(lambda index: (np.zeros(1), 0.0), [index], [tf.float64, tf.float64])

        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse")
        model.fit(tf.data.Dataset.range(4).map(load).batch(2), verbose=0)
        """,
    "Filling up shuffle buffer (this may take a while)": """
        import time
        import tensorflow as tf

        def slow(index):
            time.sleep(1.1)
            return index

        dataset = tf.data.Dataset.range(12).map(lambda index: tf.numpy_function(slow, [index], tf.int64))
        next(iter(dataset.shuffle(1000)))
        """,
    "The calling iterator did not fully read the dataset being cached": """
        import tensorflow as tf

        for index in tf.data.Dataset.range(10).cache().take(2):
            pass
        """,
    "os.fork() was called. os.fork() is incompatible with multithreaded code, and JAX is multithreaded, so this will "
    "likely lead to a deadlock.": """
        import multiprocessing
        import jax

        jax.numpy.zeros(1)
        process = multiprocessing.get_context("fork").Process(target=print)
        process.start()
        process.join()
        """,
    "DataLoader worker (pid ...) is killed by signal": LOADER
    + """
run(lambda index: os.kill(os.getpid(), signal.SIGKILL))
""",
    "Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).": LOADER
    + """
run(lambda index: os.kill(os.getpid(), signal.SIGBUS))  # the signal for a page that /dev/shm has no room for
""",
    "Too many open files": LOADER
    + """
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
kept = list(torch.utils.data.DataLoader(Rooms(lambda index: np.zeros(8)), num_workers=1))
""",
    "stack expects each tensor to be equal size": LOADER
    + """
run(lambda index: torch.zeros(index), batch_size=2)
""",
    "Can't get attribute 'Rooms' on <module '__main__'": """
        import multiprocessing
        import sys

        class Rooms:
            pass

        del sys.modules["__main__"].__file__  # as in a notebook
        process = multiprocessing.get_context("spawn").Process(target=print, args=(Rooms(),))
        process.start()
        process.join()
        """,
    "An attempt has been made to start a new process before the current process has finished its bootstrapping "
    "phase.": """
        import multiprocessing

        process = multiprocessing.get_context("spawn").Process(target=print)
        process.start()
        process.join()
        """,
    "`fit` never returns": BATCHES
    + """
def report():
    time.sleep(8)
    print("`fit` never returns", flush=True)
    os._exit(1)


threading.Thread(target=report, daemon=True).start()
model.fit(Batches(workers=1, use_multiprocessing=True), verbose=0)
""",
    "The memory of the workers grows": LOADER
    + """
import psutil

names = [str(number) for number in range(1_000_000)]


def load(index):
    for number in range(5000 * index, 5000 * (index + 1)):
        names[number]
    return psutil.Process().memory_full_info().uss


grown = [int(uss) for uss in torch.utils.data.DataLoader(Rooms(load), num_workers=1)]
if grown[-1] > grown[0] + 2e7:
    print("The memory of the workers grows")
""",
}


def pattern(heading):
    """A message as it is written in a heading, as a regular expression: `...` stands for anything in a line."""
    return ".*".join(re.escape(part) for part in heading.split("..."))


def test_each_message_of_the_page_has_a_program():
    assert sorted(HEADINGS) == sorted([*LIGHT, *HEAVY])


@pytest.mark.parametrize("heading", LIGHT)
def test_a_short_program_gives_the_message(heading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = textwrap.dedent(LIGHT[heading])
    with pytest.raises(Exception, match=pattern(heading)):
        exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def scripts():
    """Runs scripts with Keras and TensorFlow imported already, whose logs are not suppressed."""
    environment = {**environment_of_pages(), "TF_CPP_MIN_LOG_LEVEL": "0", "KERAS_BACKEND": "tensorflow"}
    with contextlib.closing(ForkedScripts(environment)) as forked:
        yield forked


@pytest.mark.heavy
@pytest.mark.parametrize("heading", HEAVY)
def test_a_program_gives_the_message(heading, scripts, tmp_path):
    code = HEAVY[heading]
    for package in ("torch", "jax"):
        if f"import {package}\n" in code:
            pytest.importorskip(package)
    script = tmp_path / "program.py"
    script.write_text(ENDING + textwrap.dedent(code))
    ended = scripts.run(script, tmp_path, seconds=PROGRAM_SECONDS)
    said = " ".join((ended.stdout + ended.stderr).split())
    assert re.search(pattern(heading), said), said[-4000:]
