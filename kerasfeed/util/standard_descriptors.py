"""Open descriptors 0, 1 and 2 of a program started without them.

Invariant: no file, socket or memory map gets one of these numbers. C libraries print to 1 and 2 whatever is open there,
and would write into it.
"""

import os
from contextlib import suppress


def open_closed() -> None:
    """Open /dev/null at each of 0, 1 and 2 that is closed; 2 us.

    Moving our descriptors to higher numbers is not enough, because `mmap` and HDF5 open their own.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):  # there is no /dev/null, or no descriptor left
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
