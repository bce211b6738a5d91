"""Descriptors 0, 1 and 2 of a program that was started without some of them, as by `python train.py >&-`.

Invariant: no file, socket or map of memory gets one of these numbers. Libraries written in C print to 1 and 2 whatever
is open there, and would write into it.
"""

import os
from contextlib import suppress


def open_closed() -> None:
    """Open /dev/null at each of 0, 1 and 2 that is closed; 2 us.

    Moving our own descriptors to higher numbers would not do: `mmap` and HDF5 take theirs themselves.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):  # there is no /dev/null, or no descriptor left
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
