"""What changes a sequence: its own `on_epoch_begin` and `on_epoch_end` (`SequenceHooks`), and `refresh` (`Refreshes`).

Invariant: the hooks are called once an epoch, in the order of epochs, while no scene is loaded, however often Keras
calls the hooks of the feed. A feed plans again between two epochs only; within one it refuses to continue.
"""

import threading
from collections.abc import Callable
from typing import Any, NoReturn

from kerasfeed.sequences.base import optional_method
from kerasfeed.sequences.optional_methods import note_once
from kerasfeed.sequences.view_base import Refreshable, parts_of


class SequenceHooks:
    """Calls a sequence's own `on_epoch_begin` and `on_epoch_end` once an epoch, and shows workers the result.

    Attributes:
        exist: Whether the sequence has either hook.
        switches: How often an epoch has begun or ended so far.
    """

    def __init__(self, sequence: Any, refresh: Callable[[Callable[[], None]], None]) -> None:
        """Look for the hooks of `sequence`; `refresh(change)` runs `change` while no scene is being loaded."""
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
        """Make `epoch` the running one, or none; ends the one before, if it still runs."""
        if not self.exist or self._running == epoch:
            return
        with self._lock:
            if self._running != epoch:
                self._refresh(lambda: self._switch(epoch))

    def leave(self) -> None:
        """End the running epoch, if any."""
        self.enter(None)

    def refuse_others(self, switches: int) -> None:
        """Refuse to continue an epoch after another one has begun or ended, since the scenes may have changed.

        Args:
            switches: How many there were when the epoch began.

        Raises:
            RuntimeError: There are more now.
        """
        if switches != self.switches:
            raise RuntimeError(
                f"{self._name} has on_epoch_begin or on_epoch_end, so only one epoch of it can be loaded at a time. "
                "Another loop, fit or feed.epoch(n) began before this one had ended, which cannot continue. Finish or "
                "close one before the next begins. To look at a batch of the current epoch, use feed[0]"
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
    """How often a sequence, or what a view holds, had been refreshed when batches of it were planned.

    Attributes:
        planned: The generation of each of them when the present batches were planned; nearly always of none.
    """

    planned: tuple[int, ...]

    def __init__(self, sequence: Any) -> None:
        self._sequence = sequence
        self._refreshable = [part for part in parts_of(sequence) if isinstance(part, Refreshable)]
        self.planned = self.present()

    def present(self) -> tuple[int, ...]:
        """The generation of each of them now."""
        return tuple([part.generation for part in self._refreshable])  # nearly always none

    def check_length(self) -> None:
        """See that the length of the sequence, which was refreshed, is that of its scenes now.

        Raises:
            RuntimeError: It is a view, which keeps the length that it was made with.
        """
        if self._sequence not in self._refreshable:
            raise RuntimeError(
                f"a sequence inside the {type(self._sequence).__name__} was refreshed, and a view keeps the length "
                "that it was made with: make the view anew, and the feed"
            )

    def refuse_others(self, generations: tuple[int, ...]) -> None:
        """Refuse to go on with batches that were planned at these generations, if there are others now.

        Raises:
            RuntimeError: There are.
        """
        if self._refreshable and generations != self.present():  # asked twice a batch
            self.refuse()

    def refuse(self) -> NoReturn:
        """Refuse to go on with an epoch.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            f"the {type(self._sequence).__name__} was refreshed in the midst of an epoch, so its batches are others "
            "now: call refresh() between two epochs, when a loop or fit has ended, and make datasets of the feed again"
        )
