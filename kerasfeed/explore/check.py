"""`kf.check_sequence`: is this class of scenes right?"""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from kerasfeed.explore.checks.case import Case
from kerasfeed.explore.checks.result import SequenceReport
from kerasfeed.explore.checks.table import CHECKS, Checks, check_names
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.loaders.sequence_argument import check_sequence as check_arguments
from kerasfeed.util.error_text import class_name
from kerasfeed.util.frames import as_sequence
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import check_integer

_LONGEST = 86_400
_CALLER = "kf.check_sequence()"


def check_sequence(
    sequence: Any,
    *,
    scenes: int = 64,
    seconds: float = 60.0,
    seed: int = 0,
    checks: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    progress: bool = True,
) -> SequenceReport:
    """Check a class of scenes: that feeds get the same bits from it, by whatever worker, and that it costs no more.

    As many scenes as a quarter of the time allows are read once: that they can be read, have one spec, and hold no
    NaN. Some of them, spread over the sequence, are read again and again: twice in a row, in another order, from copies
    made by pickling before and after the first reading, by worker processes under another hash seed and from another
    directory, through `get_batch`, `read_into` and views, and, in a worker process, by several threads: a class that
    passes that may set `thread_safe = True`. Augmentation through `self.rng` is the same each time, and so passes. Each
    check has a name, a reason and a remedy; `print` the report, or look at it in a notebook. In tests,
    `kerasfeed.testing.parametrize_with_checks` makes a test of each check.

    The sequence itself is read, in this process by a worker thread of a pool, and its hooks are called as a feed calls
    them. Worker processes are started. A scene that hangs is given up after a third of `seconds`, at most 20 s. Where
    reading scenes takes more than 1 GB of memory, no more are read.

    Args:
        sequence: What a `Feed` takes: any object with `__len__` and `__getitem__(index)`.
        scenes: How many scenes are read again and again, at least 1; fewer where they are slow.
        seconds: How long all checks may take together, s. What is not done by then is skipped.
        seed: Seed of the feed that would read them; behind `self.rng`.
        checks: Names of the checks to run; None for all.
        skip: Names of checks to leave out.
        progress: Whether to show a progress bar, in a terminal or a notebook.

    Returns:
        A report: `ok`, `results`, `read` of `length` scenes, `report["same_twice"]`, `raise_if_failed()`, `to_dict()`.

    Raises:
        TypeError: `sequence` cannot be indexed, or is a feed.
        ValueError: There is no check of such a name, or a number is out of range.

    Examples:
        >>> class Rooms(kf.SceneSequence):
        ...     def __len__(self):
        ...         return 100
        ...     def __getitem__(self, index):
        ...         return np.random.normal(size=(4, 3)), index
        >>> report = kf.check_sequence(Rooms(), checks=["length", "same_twice", "global_random"], progress=False)
        >>> report.ok
        False
        >>> print(report["global_random"].message)
        scene 0 draws from, or seeds, the global generators of numpy.random
    """
    refuse(sequence)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number) or not 0 < seconds <= _LONGEST:
        raise ValueError(f"seconds must be a positive number, at most a day ({_LONGEST:,}), received {seconds!r}")
    scenes, seed = check_integer("scenes", scenes, 1), check_integer("seed", seed, 0)
    left_out = set(check_names(skip, "skip"))
    wanted = set(CHECKS if checks is None else check_names(checks, "checks")) - left_out
    names = [name for name in CHECKS if name in wanted]
    case = Case(as_sequence(sequence), scenes=scenes, seconds=float(seconds), seed=seed)
    begun = time.monotonic()
    every = Checks(case)
    results = []
    with progress_bar("checking", len(names), progress, tty=True, after=1.0) as advance:
        for name in names:
            results.append(every.result(name))
            advance(1)
    compared = len(vars(case).get("readings", ()))
    length = vars(case).get("length", 0)
    seconds = time.monotonic() - begun
    return SequenceReport(class_name(sequence), compared, case.read_count, length, tuple(results), seconds)


def refuse(sequence: Any) -> None:
    """Refuse what is no sequence at all.

    Raises:
        TypeError: `sequence` cannot be indexed by integers, or is a feed.
    """
    if isinstance(sequence, AnyFeed):
        if hasattr(sequence, "sequence"):
            raise TypeError(f"{_CALLER} checks a sequence of scenes, received a Feed: pass feed.sequence")
        raise TypeError(f"{_CALLER} reads scenes by their index, and a {class_name(sequence)} has none")
    try:
        check_arguments(as_sequence(sequence), _CALLER)
    except TypeError:
        if hasattr(type(sequence), "__len__") and hasattr(type(sequence), "__getitem__") and _len_fails(sequence):
            return
        raise
    except Exception:  # noqa: BLE001 - of __len__, which is checked
        return


def _len_fails(sequence: Any) -> bool:
    try:
        len(sequence)
    except Exception:  # noqa: BLE001 - the user's
        return True
    return False
