"""`kf.check_sequence`: the checks in order, with reasons and remedies.

Invariant: a check is skipped if a check that it needs failed, so each fault is reported once.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from kerasfeed.explore.check import methods, repeats, scenes
from kerasfeed.explore.check.case import Case
from kerasfeed.explore.check.result import CheckResult, Finding, SequenceReport, failed, skipped
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.loaders.sequence_argument import check_sequence as check_arguments
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.util.error_text import class_name, exception_text
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import check_integer, check_number

_LONGEST = 86_400
_CALLER = "kf.check_sequence()"
_IN_PROCESSES = ("process", "threads")


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        name: Name of the check.
        run: The function: returns a description, or raises a `Finding` if there is a fault.
        reason: Why the check matters.
        remedy: What to change if it fails.
        needs: Names of the checks that must not fail.
    """

    name: str
    run: Callable[[Case], str]
    reason: str
    remedy: str
    needs: tuple[str, ...] = ()


_READ = ("scenes_load", "fields")
_STABLE = (*_READ, "same_twice", "any_order")

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check(
            "length", scenes.length,
            "A feed reads the scenes 0 to len(sequence) - 1. Their number gives the number of batches.",
            "Return the number of scenes from __len__, the same at every call",
        ),
        Check(
            "scenes_load", scenes.scenes_load,
            "A scene that fails ends fit, unless the feed replaces it.",
            "Read it here, sequence[index], in a debugger. Leave the scene out with kf.Subset, or pass "
            'on_error="replace" to the feed',
            ("length",),
        ),
        Check(
            "fields", scenes.fields,
            "A batch holds numbers and text. A model cannot take other objects.",
            "Return NumPy arrays, numbers, str or bytes, nested in tuples, lists or dicts", ("scenes_load",),
        ),
        Check(
            "same_spec", scenes.same_spec,
            "Scenes are stacked into batches, so they need one structure, and one dtype and shape for each field.",
            "Crop, pad or resample in __getitem__; or pass collate=kf.Pad(...), collate=kf.Ragged(...) or "
            "order=kf.Bucketed(...) to the feed", _READ,
        ),
        Check(
            "finite", scenes.finite,
            "One NaN makes the loss, and then every weight of the model, NaN.",
            "Find it with np.isnan. Replace it, np.nan_to_num(array), or leave the scene out with kf.Subset", _READ,
        ),
        Check(
            "same_twice", repeats.same_twice,
            "A batch must be a function of seed, epoch and index. Otherwise no run can be repeated or resumed.",
            "Draw random numbers from self.rng (kf.current_rng() in functions); do not write into stored arrays; do "
            "not use the time or counters", _READ,
        ),
        Check(
            "any_order", repeats.any_order,
            "Several workers read scenes in any order, so a scene must not depend on the scenes read before.",
            "Keep nothing but caches from one scene to the next; seek before each read", (*_READ, "same_twice"),
        ),
        Check(
            "own_arrays", scenes.own_arrays,
            "Collate functions, kf.Cached and your own code hold several scenes at once.",
            "Return a new array for each scene: array.copy() if a buffer is filled again", _READ,
        ),
        Check(
            "global_random", scenes.global_random,
            "Worker threads share the global generators with the whole program, so scenes differ from run to run. "
            "Seeding them in a scene changes the random numbers of all other code.",
            "Draw from self.rng (kf.current_rng() in functions, self.rng_for(index) in get_batch)", _READ,
        ),
        Check(
            "pickle", repeats.copied,
            "The sequence is pickled to be sent to worker processes.",
            "Open files and connections in __getitem__ or on_worker_begin (for HDF5, keep a kerasfeed.HDF5File, which "
            "pickles), leave locks out of __getstate__, and restore all that __getitem__ needs", _READ,
        ),
        Check(
            "process", repeats.process,
            "A worker process has its own globals, process id, open files and hashes of text.",
            "Keep all that a scene needs in the object, or read it in __getitem__; set no globals that it uses; sort "
            "sets, and hash with zlib.crc32 instead of hash()", (*_STABLE, "pickle"),
        ),
        Check(
            "threads", repeats.threads,
            'With thread_safe = True in the class, or worker_type="thread", several threads read from one object at '
            "the same time.",
            "Leave thread_safe unset. Or keep nothing of a scene in self while it is read; open files for each thread "
            "or process (kerasfeed.HDF5File does), or guard them with a lock", _STABLE,
        ),
        Check(
            "get_batch", methods.get_batch,
            "Feeds call get_batch if a class defines it. Its rows must equal the scenes of __getitem__.",
            "Return for each field an axis of len(indices), in the order of indices; draw from self.rng_for(index)",
            (*_STABLE, "same_spec"),
        ),
        Check(
            "read_into", methods.read_into,
            "Feeds call read_into if a class defines it. It must write the scene of __getitem__.",
            "Write every element, out[...] = array, and draw random numbers in the same order", (*_STABLE, "same_spec"),
        ),
    )
}  # fmt: skip


def check_names(names: object, argument: str) -> list[str]:
    """Check names of checks, and return them as a list.

    Raises:
        TypeError: `names` is a single string, or not iterable.
        ValueError: A name is unknown.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        remedy = f": write [{names!r}]" if isinstance(names, str) else ""
        raise TypeError(f"{argument} must be a list of names of checks, received {names!r}{remedy}")
    checked: list[str] = list(names)
    for name in checked:
        if name not in CHECKS:
            raise ValueError(f"{argument} names {name!r}, which is not a check. The checks are: {', '.join(CHECKS)}")
    return checked


class Checks:
    """The checks of one sequence; each runs once, when needed.

    Args:
        sequence: The sequence.
        scenes: Largest number of scenes to compare.
        seconds: Time limit for all checks, s.
        seed: Seed of each scene's `rng`.
        processes: Whether to start worker processes even if reading all scenes takes less than a second.
    """

    def __init__(self, sequence: Any, *, scenes: int, seconds: float, seed: int, processes: bool) -> None:
        self.case = Case(as_sequence(sequence), scenes=scenes, seconds=seconds, seed=seed, processes=processes)
        self._known: dict[str, CheckResult] = {}
        self._culprits: dict[str, str] = {}  # the failed check that caused each failure or skip

    def result(self, name: str) -> CheckResult:
        """Return the result of a check, running the checks before it."""
        if name not in self._known:
            self._known[name] = self._run(CHECKS[name])
        return self._known[name]

    def _run(self, check: Check) -> CheckResult:
        for needed in check.needs:
            self.result(needed)
        begun = time.monotonic()
        culprit = next((self._culprits[needed] for needed in check.needs if needed in self._culprits), None)
        if culprit is not None:
            finding = skipped(f"{culprit} has failed")
        elif begun >= self.case.deadline:
            finding = skipped(f"the time limit of {self.case.seconds:g} s is over: pass a larger seconds=")
        else:
            finding = _found(check, self.case)
        if culprit is not None or self.case.is_fatal(finding):
            self._culprits[check.name] = culprit or check.name
        remedy = check.remedy if finding.remedy is None else finding.remedy
        return CheckResult(
            check.name, finding.status, finding.message, check.reason, remedy, finding.index, finding.field,
            time.monotonic() - begun,
        )  # fmt: skip


def _found(check: Check, case: Case) -> Finding:
    try:
        return Finding("passed", check.run(case))
    except Finding as finding:
        return replace(finding)  # drop the traceback, whose frames hold scenes
    except Exception as error:  # noqa: BLE001 - code of the user may raise anywhere
        return failed(f"the check cannot run, because the sequence raises {exception_text(error)}")


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
    """Check that all workers read the same bits from a sequence.

    As many scenes as fit into a quarter of the time are read once: they must load, have one spec, and hold neither NaN
    nor infinity. Some scenes, spread over the sequence, are read in many ways: twice in a row, in another order, from
    pickled copies, in a worker process, through `get_batch` and `read_into`, and by several threads of a worker
    process. A class that passes the check `threads` may set `thread_safe = True`. Augmentation through `self.rng`
    repeats, and so passes. Each check has a name, a reason and a remedy; `print` the report, or view it in a notebook.
    In a test, write `kf.check_sequence(Rooms()).raise_if_failed()`.

    One worker thread of this process reads the sequence and calls its `on_worker_begin` and `on_worker_end`. If reading
    all scenes takes less than a second, no worker process is started, unless `checks` names `process` or `threads`. A
    scene that hangs is abandoned after a third of `seconds`, at most 20 s.

    Args:
        sequence: A sequence as for `Feed`: any object with `__len__` and `__getitem__(index)`.
        scenes: How many scenes are read many times, at least 1; fewer if they are slow.
        seconds: Time limit for all checks together, s. Checks that do not start in time are skipped.
        seed: Seed for `self.rng`, as in a feed.
        checks: Names of the checks to run; None for all.
        skip: Names of checks to leave out.
        progress: Whether to show a progress bar, in a terminal or a notebook.

    Returns:
        A report with `ok`, `results`, `raise_if_failed()` and `to_dict()`. `report["same_twice"]` is the result of one
        check. `read` is the number of scenes read, of `length` scenes.

    Raises:
        TypeError: `sequence` cannot be indexed, or is a feed.
        ValueError: A name is not a check, or a number is out of range.

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
    seconds = check_number("seconds", seconds, f"a positive number, at most a day ({_LONGEST:,})", most=_LONGEST)
    scenes, seed = check_integer("scenes", scenes, 1), check_integer("seed", seed, 0)
    left_out = set(check_names(skip, "skip"))
    wanted = set(CHECKS if checks is None else check_names(checks, "checks")) - left_out
    names = [name for name in CHECKS if name in wanted]
    begun = time.monotonic()
    processes = checks is not None and not wanted.isdisjoint(_IN_PROCESSES)
    checker = Checks(sequence, scenes=scenes, seconds=seconds, seed=seed, processes=processes)
    results = []
    with progress_bar("checking", len(names), progress, tty=True, after=1.0) as advance:
        for name in names:
            results.append(checker.result(name))
            advance(1)
    seconds = time.monotonic() - begun
    return SequenceReport(class_name(sequence), *checker.case.counts(), tuple(results), seconds)


def refuse(sequence: Any) -> None:
    """Refuse objects that are not a sequence.

    Raises:
        TypeError: `sequence` cannot be indexed by integers, or is a feed.
    """
    if isinstance(sequence, AnyFeed) and not hasattr(sequence, "sequence"):
        raise TypeError(f"{_CALLER} reads scenes by index, and a {class_name(sequence)} cannot be indexed")
    try:
        check_arguments(as_sequence(sequence), _CALLER)
    except Exception as error:
        if isinstance(error, TypeError):  # __len__ may raise others: a check reports them
            raise
