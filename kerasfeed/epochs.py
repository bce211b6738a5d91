"""Which epoch a feed is in, and what Keras's hooks say about it.

Invariant: an epoch number is claimed once; numbers only grow. Keras calls `on_epoch_begin` and `on_epoch_end` more
often than epochs pass (to infer a signature, to build the model, around evaluation), so the hooks alone are never
counted: the `fit` that runs is asked which epoch it is in.
"""

import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from types import FrameType
from typing import Any

from kerasfeed.adapters.raised import Raised, watch_trainer
from kerasfeed.loaders.failure import note_causes
from kerasfeed.scene import optional_method


@dataclass(frozen=True)
class TrainerPosition:
    """Where Keras's trainer stands in the calling thread.

    Attributes:
        method: "fit", "evaluate" or "predict".
        epoch: The epoch `fit` is in; None before its first.
        initial_epoch: The epoch `fit` begins with.
        epochs: The epoch `fit` ends before; 0 where it is not known.
    """

    method: str
    epoch: int | None
    initial_epoch: int
    epochs: int

    @property
    def goes_on(self) -> bool:
        """Whether the `fit` that runs plans an epoch after this one."""
        return self.method == "fit" and self.epoch is not None and self.epoch + 1 < self.epochs


def trainer_position() -> TrainerPosition | None:
    """Position of the innermost Keras trainer method that is running in this thread; None outside Keras.

    Read from the method's own local variables, because no hook and no attribute of the model tells it to a
    `PyDataset`: on TensorFlow the hooks come as end, begin, ..., end; on JAX as begin, end, begin, ..., end.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name in ("fit", "evaluate", "predict") and str(frame.f_globals.get("__name__", "")).startswith("keras."):
            variables = frame.f_locals
            position = TrainerPosition(
                name, variables.get("epoch"), variables.get("initial_epoch") or 0, variables.get("epochs") or 0
            )
            known = name != "fit" or "initial_epoch" in variables
            if isinstance(variables, dict):
                # Before Python 3.13 the frame keeps this copy, and with it the last epoch's iterator. Dropped only
                # at the next look, holding the GIL, a TensorFlow iterator stops training for 1 s.
                variables.clear()
            if known:
                return position
        frame = frame.f_back
    return None


def tame_adapter(feed: Any, caller: FrameType, *, ordered: bool) -> None:
    """Make the Keras adapter whose frame `caller` is serve `feed` better than it would by itself.

    It refers to the feed weakly. On TensorFlow an adapter lives until the process ends (`from_generator` registers a
    function that holds it), and every feed that was trained on, with its workers, would live as long. While Keras runs,
    its own argument `x` holds the feed.

    What the sequence raises comes out of the trainer as itself, on TensorFlow too, with the text of its causes in a
    note, because Keras raises it `from None`.

    Its `tf.data` pipeline does not tune itself: there is nothing to tune, and at the end of an epoch the thread that
    tunes is waited for with the GIL held, in every other epoch for 0.2 s and now and then for seconds.

    Args:
        feed: The feed.
        caller: The frame that asks for the number of batches.
        ordered: Whether the feed brings an order of its own, or is a shard. Keras's shuffling of batches, from the
            global `random`, would then add nothing, cost reproducibility, hide the next epoch from the workers, and
            put the shards of a step out of step.
    """
    if caller.f_code.co_name != "num_batches":
        return
    variables = caller.f_locals
    adapter = variables.get("self")
    if isinstance(variables, dict):
        variables.clear()
    if adapter is None or type(adapter).__name__ != "PyDatasetAdapter":
        return
    if adapter.py_dataset is feed and adapter.enqueuer is None:
        raised = Raised()
        returns = watch_trainer(caller, raised)
        adapter.py_dataset = weakref.proxy(feed)
        adapter.get_tf_dataset = partial(_untuned_dataset, weakref.ref(adapter))
        # Weakly: an adapter may live as long as the process, and an exception holds all that its frames hold.
        adapter._get_iterator = partial(_batches, weakref.ref(adapter), weakref.ref(raised) if returns else None)
        if ordered:
            adapter.shuffle = False


def _untuned_dataset(reference: Callable[[], Any]) -> Any:
    from kerasfeed.adapters.tf_data import untuned  # Keras asks on TensorFlow alone

    adapter = reference()
    assert adapter is not None  # it is the one that asks
    try:
        return untuned(type(adapter).get_tf_dataset(adapter))
    except Exception as error:
        note_causes(error)  # of a scene of the first batches, which are read here
        raise


def _batches(reference: Callable[[], Any], raised: Callable[[], Raised | None] | None) -> Iterator[Any]:
    adapter = reference()
    assert adapter is not None
    try:
        yield from type(adapter)._get_iterator(adapter)
    except GeneratorExit:  # abandoned
        raise
    except BaseException as error:
        note_causes(error)
        known = None if raised is None else raised()
        if known is None:
            raise
        raise known.carrier(error) from None


class SequenceHooks:
    """Calls a sequence's own `on_epoch_begin` and `on_epoch_end` once an epoch, and shows workers the result."""

    def __init__(self, sequence: Any, refresh: Callable[[Callable[[], None]], None]) -> None:
        """Look for the hooks of `sequence`; `refresh(change)` runs `change` while no scene is being loaded."""
        self._begin = _own_hook(sequence, "on_epoch_begin")
        self._end = _own_hook(sequence, "on_epoch_end")
        self._refresh = refresh
        self._running: int | None = None
        self._lock = threading.RLock()

    @property
    def exist(self) -> bool:
        """Whether the sequence has either hook."""
        return self._begin is not None or self._end is not None

    def enter(self, epoch: int) -> None:
        """Make `epoch` the running one; ends the one before, if it still runs."""
        if not self.exist or self._running == epoch:
            return
        with self._lock:
            if self._running != epoch:
                self._refresh(lambda: self._switch(epoch))

    def leave(self) -> None:
        """End the running epoch, if any."""
        if not self.exist:
            return
        with self._lock:
            if self._running is not None:
                self._refresh(lambda: self._switch(None))

    def _switch(self, epoch: int | None) -> None:
        if self._running is not None:
            self._running = None
            if self._end is not None:
                self._end()
        if epoch is not None:
            if self._begin is not None:
                self._begin()
            self._running = epoch


def _own_hook(sequence: Any, name: str) -> Callable[[], Any] | None:
    hook = optional_method(sequence, name)
    # The hooks that Keras's base class defines do nothing.
    if hook is None or str(getattr(hook, "__module__", "")).startswith("keras."):
        return None
    return hook  # type: ignore[no-any-return]


class EpochClock:
    """The epoch of `feed[step]`, and the next one that nobody has claimed."""

    def __init__(self) -> None:
        self.current = 0
        self._next = 0
        self._lock = threading.Lock()

    def claim(self) -> int:
        """Take the next epoch, and make it the current one."""
        with self._lock:
            self.current = self._next
            self._next += 1
            return self.current

    def prepare(self, epoch: int) -> None:
        """A `fit` is about to begin with `epoch`: go there, or to the first unclaimed epoch if that is later."""
        with self._lock:
            self.current = self._next = max(self._next, epoch)

    def begin(self, epoch: int) -> None:
        """A `fit` begins `epoch`: claim it, or the first unclaimed epoch if that is later."""
        with self._lock:
            self.current = max(self._next, epoch)
            self._next = self.current + 1

    def end(self) -> None:
        """The current epoch is over, claimed or not."""
        with self._lock:
            self.current = self._next = max(self._next, self.current + 1)


class RequestLog:
    """When each batch asked for since the last `clear` was asked for and finished, by its number in the epoch."""

    def __init__(self) -> None:
        self._moments = (array("d"), array("d"))
        self._lock = threading.Lock()

    def begin(self, number: int | None = None) -> tuple[Any, int]:
        """Note a request made now; returns what `finish` needs.

        Args:
            number: Which batch of the epoch it is for, from 0; None is the one after the last that was asked for.
        """
        with self._lock:
            begun, finished = self._moments
            number = len(begun) if number is None else number
            missing = array("d", [nan]) * (number + 1 - len(begun))
            begun.extend(missing)
            finished.extend(missing)
            begun[number] = time.perf_counter()
            return finished, number

    @staticmethod
    def finish(request: tuple[Any, int], moment: float) -> None:
        """Note that a request was answered at `moment`, s of `time.perf_counter`."""
        times, number = request
        times[number] = moment

    def begun(self, number: int) -> float | None:
        """Moment at which request `number` was made; None when it has not been."""
        return _moment(self._moments[0], number)

    def finished(self, number: int) -> float | None:
        """Moment at which request `number` was answered; None when it has not been."""
        return _moment(self._moments[1], number)

    def clear(self) -> None:
        """Count from 0 again."""
        self._moments = (array("d"), array("d"))


def _moment(times: Any, number: int) -> float | None:
    return None if number >= len(times) or isnan(times[number]) else times[number]
