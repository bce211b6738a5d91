"""What worker processes take over from this one: current directory, environment variables, seed of text hashes.

Invariant: all workers of a feed are given the same, those that replace dead ones too: what held when the feed was made.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kerasfeed.util.resources import cores, memory
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.user_modules import Description

_HASH_SEEDS = 2**32 - 1  # Python takes 1 to so many; 0 would mean no seed at all
# Libraries that would each start one thread a core in every worker.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# Without these, glibc returns the arrays of each scene to the system: 320 page faults for an image of 0.6 MB, a third
# of the CPU time. If only one is set, arrays are mapped one by one, with more page faults. Other libraries ignore them.
_MMAP_VARIABLE, _TRIM_VARIABLE = "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"
_MMAP_BYTES = 32 << 20  # the most that glibc takes
_HELD_SHARE, _MOST_HELD = 16, 256 << 20  # of the memory, all workers together; bytes of one


class DirectoryGoneError(FileNotFoundError):
    """The directory in which a feed was made cannot be entered any more. Another one would have other files."""


@dataclass(frozen=True)
class Environment:
    """Directory and environment of one moment.

    Attributes:
        directory: The current directory, absolute; None where it had been removed.
        environment: The environment variables.
        modules: The `module_values` of the program that made the feed, if it runs on another host; else None.
    """

    directory: str | None
    environment: Mapping[str, str] = field(repr=False)  # it may hold passwords
    modules: Mapping[str, Description] | None = field(default=None, repr=False)

    @classmethod
    def now(cls) -> "Environment":
        """Those of this moment; 30 us."""
        try:
            directory = str(Path.cwd())
        except OSError:
            directory = None
        return cls(directory, dict(os.environ))

    @property
    def is_here(self) -> bool:
        """Whether this process is still in that directory."""
        return self.directory == Environment.now().directory

    def variables(self, seed: int, workers: int) -> dict[str, str]:
        """The environment of a worker.

        Args:
            seed: Seed of the feed: with it all workers hash text alike, and iterate over sets of text in one order.
            workers: Number of workers, which share cores and memory.
        """
        found = {**dict.fromkeys(_THREAD_VARIABLES, str(max(1, cores() // workers))), **self.environment}
        tunables = found.get("GLIBC_TUNABLES", "")
        if _MMAP_VARIABLE not in found and _TRIM_VARIABLE not in found and "glibc.malloc." not in tunables:
            found[_MMAP_VARIABLE] = str(_MMAP_BYTES)
            found[_TRIM_VARIABLE] = str(min(_MOST_HELD, memory() // _HELD_SHARE // workers))
        if found.get("PYTHONHASHSEED", "") in ("", "random"):
            found["PYTHONHASHSEED"] = str(hash_seed(seed))
        return found


def hash_seed(seed: int) -> int:
    """PYTHONHASHSEED for the workers of a feed, in [1, 2**32 - 1]: a function of the feed's seed alone."""
    drawn = np.random.SeedSequence(entropy=seed, spawn_key=(SeedStream.HASH,)).generate_state(1)[0]
    return 1 + int(drawn) % _HASH_SEEDS


def search_path() -> tuple[str, ...]:
    """This process's module search path, relative entries as this process understands them."""
    return tuple(map(_absolute, sys.path))


def managers_key() -> bytes:
    """The key by which proxies of this program's `multiprocessing` managers reach them; empty where it has none."""
    if "multiprocessing.managers" not in sys.modules:
        return b""
    return bytes(multiprocessing.current_process().authkey)


def _absolute(entry: str) -> str:
    # Python goes on searching a relative entry where it pointed when it was first searched. The empty one always means
    # the current directory, which is the feed's in a worker.
    known = getattr(sys.path_importer_cache.get(entry), "path", None)
    return known if isinstance(known, str) and Path(known).is_absolute() else entry
