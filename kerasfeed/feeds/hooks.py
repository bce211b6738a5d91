"""How a sequence changes between epochs, by its own hooks or a refresh, and when the batches of one were asked for.

Invariant: a sequence's hooks are called once an epoch, in the order of epochs, while no scene is loaded, however often
Keras calls the hooks of the feed. Between two epochs the feed makes another plan if its sequence was refreshed.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from kerasfeed.sequences.base import optional_method
from kerasfeed.sequences.optional_methods import note_once
from kerasfeed.sequences.view_base import Refreshable, parts_of

_NOTED = 1 << 16  # batches


class SequenceHooks:
    """Calls a sequence's own `on_epoch_begin` and `on_epoch_end` once an epoch, and shows workers the result.

    Attributes:
        exist: Whether the sequence has either hook.
    """

    def __init__(self, sequence: Any, refresh: Callable[[Callable[[], None]], None]) -> None:
        """Look for the hooks of `sequence`; `refresh(change)` runs `change` while no scene is being loaded."""
        self._begin = _own_hook(sequence, "on_epoch_begin")
        self._end = _own_hook(sequence, "on_epoch_end")
        self.exist = self._begin is not None or self._end is not None
        self._refresh = refresh
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

    def _switch(self, epoch: int | None) -> None:
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


class RequestLog:
    """When each batch of an epoch was asked for, and when it came, by its number in the epoch; of the last 65,536."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """An epoch begins; what is still waited for is noted of the one before."""
        self._begun: dict[int, float] = {}
        self._finished: dict[int, float] = {}

    def timed(self, number: int, take: Callable[[float | None], Any], timeout: float | None) -> Any:
        """What `take(timeout)` gives: batch `number` of the epoch; it may raise `NotYet`, and be asked again."""
        begun, finished = self._begun, self._finished
        begun.setdefault(number, time.perf_counter())
        batch = take(timeout)
        finished[number] = time.perf_counter()
        for moments in (begun, finished):
            moments.pop(number - _NOTED, None)
        return batch

    def begun(self, number: int) -> float | None:
        """Moment at which batch `number` was asked for, s of `time.perf_counter`; None when it has not been."""
        return self._begun.get(number)

    def finished(self, number: int) -> float | None:
        """Moment at which batch `number` came; None when it has not."""
        return self._finished.get(number)
