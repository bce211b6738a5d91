"""Openers of libraries that fail in known ways; used by the tests of the fault table."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager

import numpy as np

from benchmarks.peers.job import stack


def _batches(job, steps=None):
    for step in range(job.steps) if steps is None else steps:
        yield stack(job.scenes_of(step))


@contextmanager
def sound(job):
    yield _batches(job)


@contextmanager
def losing(job):
    yield _batches(job, range(1, job.steps))


@contextmanager
def repeating(job):
    yield _batches(job, [0, *range(job.steps)])


@contextmanager
def replacing(job):
    def batches():
        for points, labels in _batches(job):
            if labels[0] == 0:
                points[0], labels[0] = points[1], labels[1]
            yield points, labels

    yield batches()


@contextmanager
def damaging(job):
    def batches():
        for points, labels in _batches(job):
            points[0, 0] += 1
            yield points, labels

    yield batches()


@contextmanager
def overwriting(job):
    def batches():
        slot = tuple(np.zeros_like(field) for field in stack(job.scenes_of(0)))
        for batch in _batches(job):
            for field, values in zip(slot, batch, strict=True):
                field[:] = values
            yield slot[0], batch[1]

    yield batches()


@contextmanager
def hanging(job):
    def batches():
        yield from _batches(job, range(2))
        warnings.warn("no progress at scene 137", stacklevel=1)
        time.sleep(1000)

    yield batches()


@contextmanager
def crashing(job):
    def batches():
        yield from _batches(job, range(2))
        ctypes.string_at(0)

    yield batches()


@contextmanager
def leaving(job):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield _batches(job)


@contextmanager
def staying(job):
    atexit.register(time.sleep, 1000)
    yield _batches(job)


@contextmanager
def unable(job):
    raise TypeError("Feed() got an unexpected keyword argument 'on_error'")
    yield


def _fork(job):
    """A worker process that only loads scene 0, again and again."""
    worker = os.fork()
    if worker == 0:
        while True:
            job.sequence[0]
            time.sleep(0.01)
    return worker


@contextmanager
def respawning(job):
    """A worker process that is replaced when it is killed."""

    def batches():
        worker = _fork(job)
        for batch in _batches(job):
            if os.waitpid(worker, os.WNOHANG)[0]:
                worker = _fork(job)
            yield batch
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)

    yield batches()


@contextmanager
def forking(job):
    """A worker process; raises with its signal when it is killed."""
    worker = _fork(job)

    def batches():
        yield from _batches(job, range(job.steps - 1))
        _, status = os.waitpid(worker, 0)
        raise RuntimeError(f"the worker was killed by signal {os.WTERMSIG(status)}")

    yield batches()
