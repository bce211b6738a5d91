"""Iterators of TensorFlow that the garbage collector finds are let go of by a thread that nobody waits for.

Invariant: no thread but the main one, and this one, ends an iterator because the collector happens to run in it.

Whoever ends an iterator waits until none of its calls into Python runs any more, and until its generators are closed.
The collector runs in whichever thread makes objects: in one that loads the batch which such a call waits for, in one
that holds a lock which the call needs, or in the very call. It would wait for ever.
"""

import gc
import queue
import threading
from typing import Any

import tensorflow as tf

_classes: set[type] = set()  # of iterators
_found: dict[int, list[Any]] = {}  # by thread: the iterators of the generations that are being collected
_dropped: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()


def start() -> None:
    """Look after all eager iterators from now on; idempotent. A session of TensorFlow 1 keeps those of its graph."""
    if _collecting in gc.callbacks:
        return
    with tf.init_scope():
        if not tf.executing_eagerly():
            return
        _classes.add(type(iter(tf.data.Dataset.range(0))))
    gc.callbacks.append(_collecting)
    threading.Thread(target=_drop, name="kerasfeed-janitor", daemon=True).start()


def _collecting(phase: str, info: dict[str, int]) -> None:
    ident = threading.get_ident()
    if phase == "stop":
        found = _found.pop(ident, None)
        if found:
            _dropped.put(found)  # by what this list alone still refers to, the thread that takes it is held up
    elif ident != threading.main_thread().ident:
        classes: set[type] = _classes.union(*(known.__subclasses__() for known in _classes))
        _found[ident] = [
            each
            for generation in range(info["generation"] + 1)
            for each in gc.get_objects(generation)
            if type(each) in classes
        ]


def _drop() -> None:
    while True:
        _dropped.get()
