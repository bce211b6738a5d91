"""Iterators of TensorFlow that the garbage collector finds are let go of by a thread that nobody waits for.

Invariant: no other thread ends an iterator because the collector happens to run in it. Whoever collects in the main
thread finds the iterators ended, as a rule: it waits for that, for a while.

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
_dropped: queue.SimpleQueue[tuple[list[Any], threading.Event]] = queue.SimpleQueue()
_WAIT = 0.5  # s, of the main thread


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
    if phase == "start":
        classes: set[type] = _classes.union(*(known.__subclasses__() for known in _classes))
        _found[ident] = [
            each
            for generation in range(info["generation"] + 1)
            for each in gc.get_objects(generation)
            if type(each) in classes
        ]
    elif _found.get(ident):
        ended = threading.Event()
        _dropped.put((_found.pop(ident), ended))
        if ident == threading.main_thread().ident:
            ended.wait(_WAIT)


def _drop() -> None:
    while True:
        found, ended = _dropped.get()
        del found
        ended.set()
