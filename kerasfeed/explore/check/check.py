"""`kf.check_sequence`: the checks, in the order in which they are run, each with its reason and its remedy.

Invariant: a check that needs another one is skipped where that has failed, so that one fault is told once.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kerasfeed.explore.check import methods, repeats, scenes
from kerasfeed.explore.check.case import Case
from kerasfeed.explore.check.result import CheckResult, Finding, SequenceReport, failed, skipped
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.loaders.sequence_argument import check_sequence as check_arguments
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.util.error_text import class_name, exception_text
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import check_integer

_LONGEST = 86_400
_CALLER = "kf.check_sequence()"
_IN_PROCESSES = ("process", "threads")


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        name: Its name.
        run: What finds out: it returns what it has looked at, and raises a `Finding` where that is not in order.
        reason: Why it matters.
        remedy: What to change where it fails.
        needs: The checks that must not have failed.
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
            "A feed reads the scenes 0 to len(sequence) - 1, and counts its batches by that.",
            "Return the number of scenes from __len__, the same at every call",
        ),
        Check(
            "scenes_load", scenes.scenes_load,
            "A scene that fails ends fit, unless the feed is told to replace it.",
            "Read it here, sequence[index], in a debugger. Leave the scene out with kf.Subset, or give the feed "
            'on_error="replace"',
            ("length",),
        ),
        Check(
            "fields", scenes.fields,
            "A batch holds numbers and text: other objects cannot be sent to a model.",
            "Return NumPy arrays, numbers, str or bytes, nested in tuples, lists or dicts", ("scenes_load",),
        ),
        Check(
            "same_spec", scenes.same_spec,
            "Scenes are stacked into batches, so they need one structure, and for each field one dtype and one shape.",
            "Crop, pad or resample in __getitem__; or give the feed collate=kf.Pad(...), kf.Ragged(...) or "
            "order=kf.Bucketed(...)", _READ,
        ),
        Check(
            "finite", scenes.finite,
            "One NaN makes the loss, and then every weight of the model, NaN.",
            "Replace it, np.nan_to_num(array), or leave the scene out with kf.Subset; find it with np.isnan", _READ,
        ),
        Check(
            "same_twice", repeats.same_twice,
            "A batch is to be a function of seed, epoch and index: else no run can be repeated or resumed.",
            "Draw random numbers from self.rng (kf.current_rng() in functions); do not write into what is stored; do "
            "not use the time, or counters", _READ,
        ),
        Check(
            "any_order", repeats.any_order,
            "Scenes are read in any order, by several workers: what depends on the scene before is left to chance.",
            "Keep nothing from one scene to the next, but caches; seek before each read", (*_READ, "same_twice"),
        ),
        Check(
            "own_arrays", scenes.own_arrays,
            "Collate functions, kf.Cached and your own code hold several scenes at once.",
            "Return a new array for each scene: array.copy() of what is filled again", _READ,
        ),
        Check(
            "global_random", scenes.global_random,
            "Worker threads share the global generators with the whole program, so scenes differ from run to run; and "
            "seeding them in a scene changes what everybody else draws.",
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
            "Keep in the object all that a scene needs, or read it in __getitem__; set no globals that it uses; sort "
            "sets, and hash with zlib.crc32 in place of hash()", (*_STABLE, "pickle"),
        ),
        Check(
            "threads", repeats.threads,
            'With thread_safe = True in the class, or worker_type="thread", several threads read from one object at '
            "the same time.",
            "Set no thread_safe. Or keep nothing of a scene in self while it is read; open files for each thread or "
            "process (kerasfeed.HDF5File does), or guard them with a lock", _STABLE,
        ),
        Check(
            "get_batch", methods.get_batch,
            "Feeds read through get_batch where a class defines it: its rows are to be the scenes of __getitem__.",
            "Return for each field an axis of len(indices), in the order of indices; draw from self.rng_for(index)",
            (*_STABLE, "same_spec"),
        ),
        Check(
            "read_into", methods.read_into,
            "Feeds read through read_into where a class defines it: it is to write the scene of __getitem__.",
            "Write every element, out[...] = array, and draw random numbers in the same order", (*_STABLE, "same_spec"),
        ),
    )
}  # fmt: skip


def check_names(names: object, argument: str) -> list[str]:
    """Names of checks, as given.

    Raises:
        TypeError: They are a single text, or no list.
        ValueError: There is no such check.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        remedy = f": write [{names!r}]" if isinstance(names, str) else ""
        raise TypeError(f"{argument} must be names of checks in a list, received {names!r}{remedy}")
    checked: list[str] = list(names)
    for name in checked:
        if name not in CHECKS:
            raise ValueError(f"{argument} names {name!r}, and there is no such check: {', '.join(CHECKS)}")
    return checked


class Checks:
    """The checks of one sequence: each is run once, when its result is asked for.

    Args:
        sequence: The sequence.
        scenes: How many scenes are compared, at most.
        seconds: How long the checks may take, s.
        seed: Seed of each scene's `rng`.
        processes: Whether worker processes are started even if reading all scenes takes less than a second.
    """

    def __init__(self, sequence: Any, *, scenes: int, seconds: float, seed: int, processes: bool) -> None:
        self.case = Case(as_sequence(sequence), scenes=scenes, seconds=seconds, seed=seed, processes=processes)
        self._known: dict[str, CheckResult] = {}
        self._culprits: dict[str, str] = {}  # from what has failed, or was skipped for that, to what has failed

    def result(self, name: str) -> CheckResult:
        """The result of a check; those that it needs are run before."""
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
            finding = skipped(f"the {self.case.seconds:g} s are over: give more seconds=")
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
        return replace(finding)  # without the frames that raised it, which hold scenes
    except Exception as error:  # noqa: BLE001 - the user's, from where nobody looks for it
        return failed(f"the check cannot be made, for the sequence raises {exception_text(error)}")


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
    made by pickling, by a worker process, through `get_batch` and `read_into`, and, in a worker process, by several
    threads: a class that passes that may set `thread_safe = True`. Augmentation through `self.rng` is the same each
    time, and so passes. Each check has a name, a reason and a remedy; `print` the report, or look at it in a notebook.
    In a test, write `kf.check_sequence(Rooms()).raise_if_failed()`.

    The sequence itself is read in this process by one worker thread, and its hooks are called as a feed calls them. No
    worker process is started if reading all scenes takes less than a second, unless `checks` names `process` or
    `threads`. A scene that hangs is abandoned after a third of `seconds`, at most 20 s.

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
    begun = time.monotonic()
    processes = checks is not None and not wanted.isdisjoint(_IN_PROCESSES)
    checker = Checks(sequence, scenes=scenes, seconds=float(seconds), seed=seed, processes=processes)
    results = []
    with progress_bar("checking", len(names), progress, tty=True, after=1.0) as advance:
        for name in names:
            results.append(checker.result(name))
            advance(1)
    seconds = time.monotonic() - begun
    return SequenceReport(class_name(sequence), *checker.case.counts(), tuple(results), seconds)


def refuse(sequence: Any) -> None:
    """Refuse what is no sequence at all.

    Raises:
        TypeError: `sequence` cannot be indexed by integers, or is a feed.
    """
    if isinstance(sequence, AnyFeed) and not hasattr(sequence, "sequence"):
        raise TypeError(f"{_CALLER} reads scenes by their index, and a {class_name(sequence)} has none")
    try:
        check_arguments(as_sequence(sequence), _CALLER)
    except Exception as error:
        if isinstance(error, TypeError):  # others are those of __len__, which is checked
            raise
