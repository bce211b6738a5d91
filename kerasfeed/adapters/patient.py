"""Calls from TensorFlow into Python that return soon, with or without a batch; see `kerasfeed.patience` for why.

Invariant: whoever lets go of an iterator of TensorFlow waits for none of the batches that it has asked for. Between two
calls TensorFlow looks whether the iterator is still wanted.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kerasfeed.patience import NOT_YET, PATIENCE

_FORGOTTEN = 1.0  # s; TensorFlow asks again at once, and should it not, the batch is loaded anew
# What loops of a graph can carry: for the other dtypes they have no kernel.
_CARRIED = {
    tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.float16, tf.float32,
    tf.float64, tf.bfloat16, tf.complex64, tf.complex128, tf.string,
}  # fmt: skip


def asked_until_there(look: Callable[..., list[Any]], arguments: list[Any], dtypes: list[Any]) -> list[Any]:
    """In a graph: the tensors of `dtypes` that `look` gives in the end.

    Args:
        look: Called with `arguments` until it says that they are there. It returns whether they are, and the arrays;
            with `keep=True` only whether they are, and it is called again for them. It waits for `patience` s, for ever
            where that is None.
        arguments: What it is called with, as tensors.
        dtypes: TensorFlow's.
    """
    carried = all(dtype in _CARRIED for dtype in dtypes)
    kinds = dtypes if carried else []

    def ask(*_: Any) -> list[Any]:
        asking = functools.partial(look, keep=not carried, patience=PATIENCE)
        ready, *tensors = _called(asking, arguments, [tf.bool, *kinds])
        ready.set_shape(())
        return [ready, *tensors]

    shapes = [tf.TensorShape(()), *(tf.TensorShape(None) for _ in kinds)]
    tensors: list[Any]
    ready, *tensors = tf.while_loop(lambda ready, *_: tf.logical_not(ready), ask, ask(), shapes)
    if carried:
        return tensors
    with tf.control_dependencies([ready]):
        return _called(functools.partial(look, keep=False, patience=None), arguments, [tf.bool, *dtypes])[1:]


def _called(function: Callable[..., Any], arguments: list[Any], dtypes: list[Any]) -> list[Any]:
    found = tf.numpy_function(function, arguments, dtypes)
    return list(found) if isinstance(found, list | tuple) else [found]  # one, in tf.data's debug mode


def blanks(dtypes: list[Any]) -> list[Any]:
    """Empty arrays of TensorFlow's `dtypes`, in place of a batch that is not there yet."""
    return [np.zeros(0, "S1" if dtype == tf.string else dtype.as_numpy_dtype) for dtype in dtypes]


@dataclass
class Asked:
    """A batch that TensorFlow asks for.

    Attributes:
        request: What the feed's request log needs when it is there.
        future: The promise of it; None while there is no memory for it.
        moment: When it was asked for last, s of `time.monotonic`.
    """

    request: Any
    future: "Future[Any] | None" = None
    moment: float = 0.0


class AskedBatches:
    """Batches that TensorFlow was told are not there yet, by whatever it asks with.

    It never says that it will not ask again; so a batch that was not asked for in a while is given up. Without a lock,
    which a thread that lets go of an iterator could hold: each line is one step for other threads.
    """

    def __init__(self) -> None:
        self._asked: dict[Any, Asked] = {}
        self._thread: threading.Thread | None = None

    def take(self, place: Any) -> Asked | None:
        """What is known of `place`; nobody else has it until it is kept again."""
        return self._asked.pop(place, None)

    def keep(self, place: Any, asked: Asked) -> None:
        """Keep `asked` until it is asked for again."""
        asked.moment = time.monotonic()
        self._asked[place] = asked
        self._watch()

    def _watch(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # two at once may both start one, which does no harm
            thread = threading.Thread(target=self._forget_what_is_old, name="kerasfeed-asked", daemon=True)
            thread.start()
            self._thread = thread

    def _forget_what_is_old(self) -> None:
        while self._asked:
            time.sleep(_FORGOTTEN / 4)
            before = time.monotonic() - _FORGOTTEN
            for place in list(self._asked):
                self._forget(place, before)
        self._thread = None
        if self._asked:  # kept just now, by one who saw this thread
            self._watch()

    def _forget(self, place: Any, before: float) -> None:
        asked = self._asked.get(place)
        if asked is None or asked.moment >= before or self._asked.pop(place, None) is None:
            return
        if asked.future is not None:
            asked.future.cancel()


def patient_generator(make: Callable[[], Iterator[Any]], signature: Any) -> Any:
    """`Dataset.from_generator` for a generator that may yield `NOT_YET` in place of a batch of `signature`."""
    blank = tf.nest.map_structure(_blank, signature)
    flagged = tf.data.Dataset.from_generator(
        _Flagged(make, blank), output_signature=(tf.TensorSpec((), tf.bool), signature)
    )
    return flagged.filter(lambda ready, _: ready).map(lambda _, batch: batch)


class _Flagged:
    """A generator function: whether there is a batch, and the batch."""

    def __init__(self, make: Callable[[], Iterator[Any]], blank: Any) -> None:
        self._make = make
        self._blank = blank

    def __call__(self) -> Iterator[tuple[bool, Any]]:
        with closing(self._make()) as found:  # type: ignore[type-var]
            for batch in found:
                yield (False, self._blank) if batch is NOT_YET else (True, batch)
                del batch


def _blank(spec: Any) -> Any:
    shape = [size or 0 for size in (spec.shape or ())]
    return np.zeros(shape, "S1" if spec.dtype == tf.string else spec.dtype.as_numpy_dtype)
