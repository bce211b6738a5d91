"""Sums of float64 values without rounding errors.

Invariant: a sum is an integer, so it depends neither on the order of what is added nor on how it was divided among
workers. Source: the long accumulator of Kulisch, "Computer Arithmetic and Validity", 2008, here with limbs of 32 bits.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BITS = 32
_LOWEST = -1126  # a float64 is an integer of at most 53 bits times 2**n with n >= this
_LIMBS = (971 - _LOWEST) // _BITS + 4
_MASK = np.int64((1 << _BITS) - 1)
_MOST_ADDED = 1 << 29  # to one limb, each less than 2**32, before carries are passed on


class ExactSums:
    """The exact sums of `columns` series of finite float64 values.

    Args:
        columns: How many series.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._limbs = np.zeros((columns, _LIMBS), np.int64)
        self._added = 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Add finite values, float64[n, columns]."""
        if not len(values):
            return
        fractions, exponents = np.frexp(values)
        whole = np.ldexp(fractions, 53).astype(np.int64)
        places = exponents.astype(np.int64) - (53 + _LOWEST)
        places[whole == 0] = 0
        shifts = places & (_BITS - 1)
        first = (places >> 5) + np.arange(self.columns) * _LIMBS
        low, high = (whole & _MASK) << shifts, (whole >> _BITS) << shifts
        flat = self._limbs.reshape(-1)
        np.add.at(flat, first.ravel(), (low & _MASK).ravel())
        np.add.at(flat, first.ravel() + 1, ((low >> _BITS) & _MASK).ravel())
        np.add.at(flat, first.ravel() + 1, (high & _MASK).ravel())
        np.add.at(flat, first.ravel() + 2, (high >> _BITS).ravel())
        self._note(2 * len(values))

    def merge(self, other: "ExactSums") -> None:
        """Add the sums of `other`, which has as many columns."""
        self._limbs += other._limbs
        self._note(other._added + 1)

    def _note(self, added: int) -> None:
        self._added += added
        if self._added > _MOST_ADDED:
            self._carry()

    def _carry(self) -> None:
        for limb in range(_LIMBS - 1):
            self._limbs[:, limb + 1] += self._limbs[:, limb] >> _BITS
            self._limbs[:, limb] &= _MASK
        self._added = 1

    def totals(self) -> list[Fraction]:
        """The sum of each series."""
        found = []
        for row in self._limbs:
            total = sum(int(row[limb]) << (_BITS * int(limb)) for limb in np.flatnonzero(row))
            found.append(Fraction(total, 1 << -_LOWEST))
        return found

    def __getstate__(self) -> dict[str, Any]:
        used = np.flatnonzero(self._limbs.any(axis=0))
        begin, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        return {"columns": self.columns, "begin": begin, "limbs": self._limbs[:, begin:end], "added": self._added}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["columns"])  # type: ignore[misc]
        limbs = state["limbs"]
        self._limbs[:, state["begin"] : state["begin"] + limbs.shape[1]] = limbs
        self._added = state["added"]
