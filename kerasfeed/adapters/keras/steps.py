"""What a feed tells Keras of the length of an epoch: numbers that are asked again before every execution.

Keras's iterator keeps what `DataAdapter.num_batches` returned, and before each execution of the training function looks
whether it has seen as many. These numbers answer then, so an epoch may be shorter than the one before, may end where a
stream does, and a scene that failed raises its own exception, in the thread of the user.

Invariant: to everybody but that loop they are what is known of the length; for a stream before its first end, 0, which
progress bars show as unknown.
"""

import sys
from typing import Any, Protocol

from kerasfeed.adapters.keras.trainer import asked_by_the_loop
from kerasfeed.util.error_text import short_tracebacks


class Epochs(Protocol):
    """Who knows when an epoch is over."""

    def is_over(self, seen: int) -> bool:
        """Whether no further execution is part of the epoch, `seen` batches of the data having been given."""


class EpochSteps(int):
    """Batches of an epoch, at most; plain integer arithmetic but for the question of Keras's loop."""

    _epochs: Epochs

    def __new__(cls, most: int, epochs: Epochs) -> "EpochSteps":
        """`most`: batches of the longest epoch."""
        made = super().__new__(cls, most)
        made._epochs = epochs
        return made

    def __le__(self, seen: int) -> bool:
        if asked_by_the_loop():  # seen >= self
            with short_tracebacks:
                return self._epochs.is_over(seen)
        return int(self) <= seen

    def __reduce__(self) -> Any:
        return int, (int(self),)


class UnknownSteps(list):  # type: ignore[type-arg]
    """Batches of an epoch that ends where its data do.

    To JSON it is a list, [] or [known]: Keras puts it into `history.params`, which people write as JSON, and of what
    JSON takes a list alone leaves all questions of numbers (`__bool__`, `__index__`, `__float__`) to its class.
    """

    def __init__(self, epochs: Epochs) -> None:
        super().__init__()
        self._epochs = epochs

    @property
    def known(self) -> int:
        """Batches of the last epoch that is over; 0 before."""
        return self[0] if len(self) else 0

    @known.setter
    def known(self, batches: int) -> None:
        self[:] = [batches]

    def __bool__(self) -> bool:
        return asked_by_the_loop() or self.known > 0

    def __index__(self) -> int:
        return sys.maxsize if asked_by_the_loop() else self.known

    def __float__(self) -> float:
        return float(self.known)

    def __gt__(self, other: float) -> bool:  # type: ignore[override]
        return asked_by_the_loop() or self.known > other

    def __le__(self, seen: int) -> bool:  # type: ignore[override]
        if asked_by_the_loop():  # seen >= self
            with short_tracebacks:
                return self._epochs.is_over(seen)
        return self.known <= seen

    def __ge__(self, other: float) -> bool:  # type: ignore[override]
        return self.known >= other

    def __lt__(self, other: float) -> bool:  # type: ignore[override]
        return self.known < other

    def __eq__(self, other: object) -> bool:
        return self is other or self.known == other

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __sub__(self, other: float) -> float:
        return self.known - other

    def __rtruediv__(self, other: float) -> float:
        return other / max(1, self.known)

    def __repr__(self) -> str:
        return str(self.known or "unknown")

    def __reduce__(self) -> Any:
        return int, (self.known,)
