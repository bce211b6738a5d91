"""A user's own order: a function `(length, seed, epoch) -> indices`.

Invariant: what the function returns is checked before any of it is used, and has the same number of scenes in every
epoch; it is called once for each epoch that is asked for, a few of which are kept.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order
from kerasfeed.orders.groups import EPOCHS_KEPT, Identified, Kept, Portable, check_numbers


class CustomOrder(Identified, Order):
    """Indices as a function gives them; each epoch's take 8 bytes a scene while they are kept.

    Args:
        function: Takes (length, seed, epoch), returns the indices of the epoch: integers in [0, length), as many in
            every epoch, at least 1; may repeat some and leave others out.
        seed: The feed's seed, with which epoch 0 is asked for to know how many scenes an epoch has.
    """

    def __init__(self, function: Callable[[int, int, int], Any], seed: int = 0) -> None:
        self._function = Portable(function)
        self._seed = seed
        self._identity = f"CustomOrder({self._function.identity()})"
        self._epochs: Kept[NDArray[np.int64]] = Kept(EPOCHS_KEPT)

    def __str__(self) -> str:
        return f"order of {self._function}"

    def __repr__(self) -> str:
        return f"<order of {self._function}>"

    def seeded(self, seed: int) -> "CustomOrder":
        """See `Order.seeded`."""
        return self if seed == self._seed else CustomOrder(self._function.function, seed)

    def num_scenes(self, length: int) -> int:
        """See `Order.num_scenes`; calls the function for epoch 0.

        Raises:
            TypeError, ValueError: What it returned cannot be indices; the message says why.
            Exception: What the function raises.
        """
        return len(self._epoch(length, self._seed, 0))

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`.

        Raises:
            TypeError, ValueError: What the function returned cannot be the indices of this epoch.
            Exception: What the function raises.
        """
        count = self.num_scenes(length)
        found = self._epoch(length, seed, epoch)
        if len(found) != count:
            raise ValueError(
                f"order={self._function} gave {len(found):,} indices for epoch {epoch} and {count:,} for epoch 0: an "
                "epoch has the same number of scenes each time, so that the number of steps is known"
            )
        return found[start:stop]

    def _epoch(self, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        return self._epochs.get_or_load((length, seed, epoch), lambda: self._call(length, seed, epoch))[0]

    def _call(self, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        found = self._function.call("order", length, seed, epoch)
        indices = check_numbers(f"order={self._function} for epoch {epoch}", found, whole=True, below=length)
        indices.setflags(write=False)
        return indices
