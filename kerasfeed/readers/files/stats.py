"""What reading files has cost, as users see it.

Invariant: a snapshot of one process, which never changes.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FileStats:
    """What reading files has cost this process so far.

    Attributes:
        reads: Files read; for files that are read forward, how often one was begun.
        again: Of these, files that had been read before, and were no longer kept or had been read past the scene.
        seconds: Time spent in `read_file`, s, summed over threads; for a generator, only the time to create it.
        kept: Files kept now.
    """

    reads: int
    again: int
    seconds: float
    kept: int
