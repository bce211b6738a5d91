"""A worker of `SubprocessPool`, and its messages: pickles after their length."""

import os
import pickle
import struct
import time

import cloudpickle

from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, FailurePosition
from kerasfeed.pool.worker_hooks import begin_worker, end_worker
from kerasfeed.sequences.context import Worker
from kerasfeed.util.error_text import full_text

_LENGTH = struct.Struct("=q")


def frame(message):
    """Encode a message."""
    data = cloudpickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


def unframe(data):
    """The complete messages at the front of a bytearray, which are removed."""
    while len(data) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        if len(data) < end:
            break
        message = pickle.loads(data[_LENGTH.size : end])
        del data[:end]
        yield message


class _Progress(list):
    """Reports each position to the pool."""

    def __init__(self, tell):
        super().__init__([0, 0])
        self._tell = tell

    def __setitem__(self, position, value):
        super().__setitem__(position, value)
        self._tell("progress", value)


class _Context:
    used_random = 0

    def __init__(self, tell, worker):
        self.worker = worker
        self.record_random = lambda used: tell("random", used)
        self.value = None

    def posted(self):
        return self.value


def serve():
    """Body of a worker."""
    tasks, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of scenes must not mix with messages

    def tell(*message):
        results.write(frame(message))

    number, count, name = _read(tasks)
    context = _Context(tell, Worker(number, count, "process"))
    progress = _Progress(tell)
    runner = None
    trouble = None
    while (message := _read(tasks)) is not None:
        kind, value = message
        if kind == "posted":
            context.value = pickle.loads(value)
        elif kind == "task":
            tell(*_outcome(runner, trouble, value, progress, context))
        else:
            previous = runner
            if runner is not None and trouble is None:
                tell("ended", end_worker(runner.target, name))
            try:
                runner = pickle.loads(value)
                if previous is not None:
                    runner.follow(previous)
                trouble = begin_worker(runner.target, context.worker, name)
            except Exception as error:
                trouble = error
            tell("started", "" if trouble is None else full_text(trouble))
    if runner is not None and trouble is None:
        tell("ended", end_worker(runner.target, name))


def _read(stream):
    head = stream.read(_LENGTH.size)
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0])) if head else None


def _outcome(runner, trouble, record, progress, context):
    started = time.perf_counter()
    try:
        if trouble is not None:
            raise FailedTaskError(FailurePosition(method="on_worker_begin")) from trouble
        return "done", runner.run(record, progress, context), time.perf_counter() - started
    except CancelledTaskError:
        return "cancelled", None
    except FailedTaskError as carrier:
        error = carrier.error
        return "failed", (carrier.position, Sent.of(error), full_text(error))
