"""An order given by the user's function `(length, seed, epoch) -> indices`.

Invariant: indices are checked before use, and every epoch has the same number of them. The function is called once for
each epoch, and again if the epoch has left the small cache.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order
from kerasfeed.orders.groups import EPOCHS_KEPT, Identified, Kept, Portable, check_numbers
from kerasfeed.util.array_bits import frozen


class CustomOrder(Identified, Order):
    """The indices that a function returns.

    A cached epoch takes 8 bytes per scene.

    Args:
        function: Takes (length, seed, epoch), returns the indices of the epoch: integers in [0, length), at least one,
            the same number for every epoch. Indices may repeat or be missing.
        seed: The feed's seed. Epoch 0 with this seed gives the number of scenes in every epoch.
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
            TypeError, ValueError: The function returned something that cannot be indices; the message says why.
            Exception: The function raised it.
        """
        return len(self._epoch(length, self._seed, 0))

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`.

        Raises:
            TypeError, ValueError: The function returned something that cannot be the indices of this epoch.
            Exception: The function raised it.
        """
        count = self.num_scenes(length)
        indices = self._epoch(length, seed, epoch)
        if len(indices) != count:
            raise ValueError(
                f"order={self._function} returned {len(indices):,} indices for epoch {epoch} and {count:,} for epoch "
                "0: return the same number for every epoch, because the number of steps must not change"
            )
        return indices[start:stop]

    def _epoch(self, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        return self._epochs.get_or_load((length, seed, epoch), lambda: self._call(length, seed, epoch))[0]

    def _call(self, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        result = self._function.call("order", length, seed, epoch)
        return frozen(check_numbers(f"order={self._function} for epoch {epoch}", result, whole=True, below=length))
