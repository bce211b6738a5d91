"""The state that worker processes inherit.

It consists of the current directory, the environment variables and the seed of text hashes.

Invariant: all workers of a feed, and their replacements, get the state of the moment when the feed was made.
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

_HASH_SEEDS = 2**32 - 1  # Python accepts 1 to this number; 0 would disable hash randomization
# Each of these libraries would start one thread per core in every worker.
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
_MMAP_BYTES = 32 << 20  # the most that glibc accepts
_HELD_SHARE, _MOST_HELD = 16, 256 << 20  # 1/16 of the memory for all workers; bytes per worker


@dataclass(frozen=True)
class Environment:
    """Directory and environment of one moment.

    Attributes:
        directory: The current directory, absolute; None if it had been removed.
        environment: The environment variables.
        modules: The `module_values` of the program that made the feed, if it runs on another host; else None.
    """

    directory: str | None
    environment: Mapping[str, str] = field(repr=False)  # it may hold passwords
    modules: Mapping[str, Description] | None = field(default=None, repr=False)

    @classmethod
    def now(cls) -> "Environment":
        """The present directory and environment; takes 30 us."""
        try:
            directory = str(Path.cwd())
        except OSError:
            directory = None
        return cls(directory, dict(os.environ))

    @property
    def is_here(self) -> bool:
        """Whether this directory is still the current one."""
        return self.directory == Environment.now().directory

    def variables(self, seed: int, workers: int) -> dict[str, str]:
        """The environment of a worker.

        Args:
            seed: Seed of the feed. All workers hash text by it, so they iterate over sets in the same order.
            workers: Number of workers, which share cores and memory.
        """
        variables = {**dict.fromkeys(_THREAD_VARIABLES, str(max(1, cores() // workers))), **self.environment}
        tunables = variables.get("GLIBC_TUNABLES", "")
        if _MMAP_VARIABLE not in variables and _TRIM_VARIABLE not in variables and "glibc.malloc." not in tunables:
            variables[_MMAP_VARIABLE] = str(_MMAP_BYTES)
            variables[_TRIM_VARIABLE] = str(min(_MOST_HELD, memory() // _HELD_SHARE // workers))
        if variables.get("PYTHONHASHSEED", "") in ("", "random"):
            variables["PYTHONHASHSEED"] = str(hash_seed(seed))
        return variables


def hash_seed(seed: int) -> int:
    """PYTHONHASHSEED for the workers of a feed with this seed.

    In [1, 2**32 - 1].
    """
    drawn = np.random.SeedSequence(entropy=seed, spawn_key=(SeedStream.HASH,)).generate_state(1)[0]
    return 1 + int(drawn) % _HASH_SEEDS


def search_path() -> tuple[str, ...]:
    """This process's module search path, with relative entries resolved."""
    return tuple(map(_absolute, sys.path))


def managers_key() -> bytes:
    """Key for proxies of this program's `multiprocessing` managers; empty without managers."""
    if "multiprocessing.managers" not in sys.modules:
        return b""
    return bytes(multiprocessing.current_process().authkey)


def _absolute(entry: str) -> str:
    # Python resolves a relative entry when it first searches it. The empty entry always means the current directory,
    # which in a worker is the feed's.
    known = getattr(sys.path_importer_cache.get(entry), "path", None)
    return known if isinstance(known, str) and Path(known).is_absolute() else entry
