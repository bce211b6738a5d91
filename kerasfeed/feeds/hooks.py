"""Changes of a sequence by epoch hooks (`SequenceHooks`) and `refresh` (`Refreshes`).

Invariant: each hook is called once when an epoch begins or ends, while no scene is loaded, even if Keras calls the
hooks of the feed more often. A feed adopts a refresh only between epochs; within an epoch it raises an error.
"""

import threading
from collections.abc import Callable
from typing import Any, NoReturn

from kerasfeed.sequences.base import optional_method
from kerasfeed.sequences.optional_methods import note_once
from kerasfeed.sequences.view_base import Refreshable, parts_of


class SequenceHooks:
    """Calls a sequence's epoch hooks once an epoch.

    The hooks are `on_epoch_begin` and `on_epoch_end`. Workers then see the changed sequence.

    Attributes:
        exist: Whether the sequence has either hook.
        switches: How often an epoch has begun or ended so far.
    """

    def __init__(self, sequence: Any, refresh: Callable[[Callable[[], None]], None]) -> None:
        """Look for the hooks of `sequence`.

        `refresh(change)` runs `change` while no scene is being loaded.
        """
        self._begin = _own_hook(sequence, "on_epoch_begin")
        self._end = _own_hook(sequence, "on_epoch_end")
        self.exist = self._begin is not None or self._end is not None
        self.switches = 0
        self._refresh = refresh
        self._name = type(sequence).__name__
        self._running: int | None = None
        self._lock = threading.RLock()

    @property
    def is_running(self) -> bool:
        """Whether an epoch has begun that has not ended."""
        return self._running is not None

    def enter(self, epoch: int | None) -> None:
        """Begin `epoch` (None: no epoch) after ending the running one."""
        if not self.exist or self._running == epoch:
            return
        with self._lock:
            if self._running != epoch:
                self._refresh(lambda: self._switch(epoch))

    def leave(self, epoch: int | None = None) -> None:
        """End the running epoch, if any; with a number, only that epoch."""
        if epoch is None or epoch == self._running:
            self.enter(None)

    def refuse_others(self, switches: int) -> None:
        """Refuse to continue an epoch after another epoch has begun or ended.

        The hooks may have changed the scenes.

        Args:
            switches: Value of the attribute `switches` when the epoch began.

        Raises:
            RuntimeError: The attribute has changed.
        """
        if switches != self.switches:
            raise RuntimeError(
                f"{self._name} has on_epoch_begin or on_epoch_end, so only one epoch of it can be loaded at a time. "
                "Another loop, fit, feed.epoch(n) or feed.start() began before this epoch had ended, so this one "
                "cannot continue. Finish or close one before the next begins; feed[0] returns a batch of the current "
                "epoch"
            )

    def _switch(self, epoch: int | None) -> None:
        self.switches += 1
        if self._running is not None:
            self._running = None
            self._call(self._end)
        if epoch is not None:
            self._call(self._begin)
            self._running = epoch

    def _call(self, hook: Callable[[], Any] | None) -> None:
        try:
            if hook is not None:
                hook()
        except Exception as error:
            name = getattr(hook, "__qualname__", hook)
            note_once(error, f"kerasfeed: in {name}, which a feed calls once an epoch, without arguments")
            raise


def _own_hook(sequence: Any, name: str) -> Callable[[], Any] | None:
    hook = optional_method(sequence, name)
    # The hooks that Keras's base class defines do nothing.
    if hook is None or str(getattr(hook, "__module__", "")).startswith("keras."):
        return None
    return hook  # type: ignore[no-any-return]


class Refreshes:
    """How often a sequence, and the sequences inside it, were refreshed.

    Attributes:
        planned: Generation (number of refreshes) of each refreshable sequence when the current batches were planned.
    """

    planned: tuple[int, ...]

    def __init__(self, sequence: Any) -> None:
        self._sequence = sequence
        self._refreshable = [part for part in parts_of(sequence) if isinstance(part, Refreshable)]
        self.planned = self.present()

    def present(self) -> tuple[int, ...]:
        """Return the current generation of each refreshable sequence."""
        return tuple([part.generation for part in self._refreshable])  # usually empty

    def check_length(self) -> None:
        """Check that a refreshed sequence has updated its length.

        Raises:
            RuntimeError: The sequence is a view, which keeps its original length.
        """
        if self._sequence not in self._refreshable:
            raise RuntimeError(
                f"a sequence inside the {type(self._sequence).__name__} was refreshed, but a view keeps its first "
                "length. Make the view and the feed again"
            )

    def refuse_others(self, generations: tuple[int, ...]) -> None:
        """Refuse batches that were planned before a refresh.

        Args:
            generations: Value of `present` when the batches were planned.

        Raises:
            RuntimeError: The generations have changed.
        """
        if self._refreshable and generations != self.present():  # called twice a batch
            self.refuse()

    def refuse(self) -> NoReturn:
        """Refuse to continue an epoch.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            f"the {type(self._sequence).__name__} was refreshed during an epoch, so its batches have changed. Call "
            "refresh() between two epochs, after a loop or fit, and make datasets of the feed again"
        )
