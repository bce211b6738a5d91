"""Batches loaded ahead of a consumer whose order of steps is known.

Invariant: `take(step)` returns the batch (epoch, step) whatever was loaded ahead; a wrong guess costs time, never data.
Whoever stops early closes the window, and the scenes not yet begun are skipped.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any

Submit = Callable[[int, int], "Future[Any]"]


class Window:
    """Some consecutive batches of an epoch in flight, and perhaps the first ones of the next epoch."""

    def __init__(
        self, submit: Submit, epoch: int, steps: Sequence[int], ahead: int, following: int | None = None
    ) -> None:
        """Look ahead along `steps`, with up to `ahead` batches in flight, from the first `take` on.

        Args:
            submit: From epoch and step to a promise of the batch.
            epoch: The epoch of the steps.
            steps: The steps in their order.
            ahead: Most batches in flight, at least 1.
            following: The epoch that will follow in the same order, if that is known: workers go on with it while the
                consumer is still busy with the end of this one.
        """
        self._submit = submit
        self.epoch = epoch
        self.steps = steps
        self._ahead = ahead
        self._next = 0
        self._pending: deque[tuple[int, Future[Any]]] = deque()
        self._following = None if following is None else Window(submit, following, steps, ahead)

    def expects(self, step: int) -> bool:
        """Whether `step` is the next one in order."""
        if self._pending:
            return self._pending[0][0] == step
        return self._next < len(self.steps) and self.steps[self._next] == step

    def take(self, step: int) -> Any:
        """The batch of `step`; waits for it.

        Raises:
            Exception: What the sequence raised.
        """
        if not self.expects(step):
            return self._submit(self.epoch, step).result()
        self._fill(self._ahead)
        if self._following is not None and self._next == len(self.steps):
            self._following._fill(self._ahead - len(self._pending))
        try:
            future = self._pending.popleft()[1]
        except IndexError:  # closed by another thread, just now
            future = self._submit(self.epoch, step)
        return future.result()

    def _fill(self, count: int) -> None:
        while self._next < len(self.steps) and len(self._pending) < count:
            step = self.steps[self._next]
            self._pending.append((step, self._submit(self.epoch, step)))
            self._next += 1

    def skip_to(self, step: int) -> None:
        """Begin at `step`, which is one of the steps, instead of at the first."""
        self._next = self.steps.index(step)

    def inherit(self, before: "Window") -> None:
        """Take over what `before` loaded ahead, if it is this epoch in this order."""
        ahead = before._following
        if ahead is not None and ahead.epoch == self.epoch and ahead.steps == self.steps:
            self._pending, ahead._pending = ahead._pending, deque()
            self._next = len(self._pending)

    def close(self) -> None:
        """Give up what is in flight; idempotent."""
        while self._pending:
            self._pending.popleft()[1].cancel()
        if self._following is not None:
            self._following.close()


class KerasWindows:
    """Look-ahead for Keras's own generator of steps.

    With `workers=1`, Keras shuffles the steps of an epoch and then asks for `feed[step]` one after the other, from one
    generator. That generator's local variable holds the order, so the loader can run ahead of it, with none of the
    threads, queues and waits at the end of each epoch that Keras needs for look-ahead of its own (`workers > 1`). Where
    the variable is not found, every `feed[step]` is still right.
    """

    def __init__(self) -> None:
        # One window an adapter: Keras uses one generator of it at a time, and drops it with the adapter.
        self._windows: weakref.WeakKeyDictionary[Any, Window] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Give up what is in flight: TensorFlow keeps adapters for ever, and so what an interrupted `fit` left."""
        for window in list(self._windows.values()):
            window.close()
        self._windows.clear()

    @staticmethod
    def supported() -> bool:
        """Whether the installed Keras has the generator that `find` knows."""
        module = sys.modules.get("keras.src.trainers.data_adapters.py_dataset_adapter")
        adapter = getattr(module, "PyDatasetAdapter", None)
        generator = getattr(adapter, "_finite_generator", None)
        return "indices" in getattr(getattr(generator, "__code__", None), "co_varnames", ())

    def find(
        self, caller: FrameType, step: int, submit: Submit, epoch: int, ahead: int, following: int | None
    ) -> Window | None:
        """The window of the Keras generator whose frame `caller` is, about to take `step`; None for other callers."""
        if caller.f_code.co_name != "_finite_generator":
            return None
        variables = caller.f_locals
        adapter, steps = variables.get("self"), variables.get("indices")
        if isinstance(variables, dict):
            variables.clear()  # before Python 3.13 the frame keeps this copy, and what it refers to
        if adapter is None or not isinstance(steps, list | range):
            return None
        window = self._windows.get(adapter)
        if window is None or window.steps is not steps or not window.expects(step):
            before = window
            # Only where Keras does not shuffle them, the steps of the next epoch are those of this one.
            window = Window(submit, epoch, steps, ahead, following if isinstance(steps, range) else None)
            if before is not None:
                window.inherit(before)
                before.close()
            if not window.expects(step):
                window.close()
                window = Window(submit, epoch, steps, ahead)
                window.skip_to(step)
            self._windows[adapter] = window
        return window
