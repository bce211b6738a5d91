"""Calls from TensorFlow into Python that return soon, with or without a batch; see `kerasfeed.patience` for why.

Invariant: an iterator of TensorFlow that is let go of is gone after `PATIENCE`, whatever is loaded for it. Between two
calls TensorFlow looks whether the iterator is still wanted.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kerasfeed.patience import NOT_YET

_FORGOTTEN = 1.0  # s; TensorFlow asks again at once, if it does at all


def asked_until_there(look: Callable[[], tuple[Any, list[Any]]]) -> list[Any]:
    """In a graph: what `look()` gives in the end, a flag whether it is there and tensors."""
    ready, tensors = look()
    shapes = [tf.TensorShape(()), [tf.TensorShape(None)] * len(tensors)]
    return tf.while_loop(lambda ready, _: tf.logical_not(ready), lambda *_: look(), [ready, tensors], shapes)[1]  # type: ignore[no-any-return]


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
        if self._thread is None:  # two that come at once may both start one, which does no harm
            self._thread = threading.Thread(target=self._forget, name="kerasfeed-asked", daemon=True)
            self._thread.start()

    def _forget(self) -> None:
        while self._asked:
            time.sleep(_FORGOTTEN / 4)
            before = time.monotonic() - _FORGOTTEN
            for place, asked in list(self._asked.items()):
                if asked.moment < before and self._asked.pop(place, None) is asked and asked.future is not None:
                    asked.future.cancel()
        self._thread = None
        if self._asked:  # kept just now, by one who saw this thread
            self.keep(*self._asked.popitem())


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
