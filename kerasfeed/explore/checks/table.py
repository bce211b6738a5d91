"""The checks, in the order in which they are run, each with its reason and its remedy.

Invariant: a check that needs another one is skipped where that has failed, so that one fault is told once.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kerasfeed.explore.checks import growth, methods, repeats, scenes
from kerasfeed.explore.checks.case import Case, guarded
from kerasfeed.explore.checks.result import CheckResult, Finding, skipped


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        name: Its name.
        run: What finds out.
        reason: Why it matters.
        remedy: What to change where it fails.
        needs: The checks that must not have failed.
    """

    name: str
    run: Callable[[Case], Finding]
    reason: str
    remedy: str
    needs: tuple[str, ...] = ()


_READ = ("scenes_load", "fields")
_STABLE = (*_READ, "same_twice", "any_order")
_MEMORY = ("memory", "descriptors")  # measured in a worker process
_BOUND = "Keep what a scene needs in the object, or read it in __getitem__"

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
            "indices", scenes.indices,
            "Feeds use 0 to len(sequence) - 1 alone. People write sequence[-1], and loops end with IndexError.",
            "Begin __getitem__ with: if not 0 <= index < len(self): raise IndexError(index)", _READ,
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
            "pickle_cost", repeats.pickle_cost,
            "Worker processes start when the sequence has been pickled.",
            "Keep names of files in place of what was read from them, or use np.load(..., mmap_mode='r') or a "
            "kerasfeed.HDF5File, which are sent by name", ("length",),
        ),
        Check(
            "process", repeats.process,
            "What this process alone knows (globals set later, its id, its handles) is another thing in a worker.",
            _BOUND + "; set no globals that it uses", (*_STABLE, "pickle"),
        ),
        Check(
            "hash_seed", repeats.hash_seed,
            "Python hashes text differently in every run, unless PYTHONHASHSEED is set, and so orders sets of text.",
            "Sort sets before they are used, and hash with zlib.crc32 or hashlib in place of hash()",
            (*_STABLE, "pickle", "process"),
        ),
        Check(
            "directory", repeats.directory,
            "Relative paths mean another file after os.chdir, on another host, or in another program.",
            "Keep absolute paths: Path(path).resolve() in __init__", (*_STABLE, "pickle", "process"),
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
        Check(
            "read_ahead", methods.read_ahead,
            "It is called before a batch is loaded, by the thread that asks for it: it is to begin work, not to do it.",
            "Start the reading in the background, and return; draw nothing from self.rng", _STABLE,
        ),
        Check(
            "hooks", methods.hooks,
            "Workers are replaced, share the sequence if they are threads, and serve feeds that are closed.",
            "Define on_worker_begin(self, worker), on_worker_end(self), on_epoch_begin(self) and on_epoch_end(self) so "
            "that each may be called again", ("length",),
        ),
        Check(
            "views", methods.views,
            "kf.split, slices, kf.Subset and others read through the sequence.",
            "Let __getitem__ take integers, and __iter__ go through the scenes, or leave __iter__ out", _STABLE,
        ),
        Check(
            "memory", growth.memory,
            "What grows with every scene ends an epoch, or a night, later.",
            "Keep nothing of what was read, or bound it (functools.lru_cache(maxsize=...), kf.Cached)", _READ,
        ),
        Check(
            "descriptors", growth.descriptors,
            "A process may have some thousand files open; the next open() then fails.",
            "Open files with `with`, or once for each process", _READ,
        ),
    )
}  # fmt: skip


def check_names(names: object, argument: str) -> list[str]:
    """Names of checks, as given.

    Raises:
        TypeError: They are a single text, or no list.
        ValueError: There is no such check.
    """
    if isinstance(names, str):
        raise TypeError(f"{argument} must be names of checks in a list, received {names!r}: write [{names!r}]")
    if not isinstance(names, Iterable):
        raise TypeError(f"{argument} must be names of checks in a list, received {names!r}")
    found: list[str] = list(names)
    for name in found:
        if name not in CHECKS:
            raise ValueError(f"{argument} names {name!r}, and there is no such check: {', '.join(CHECKS)}")
    return found


class Checks:
    """The checks of one sequence: each is run once, when its result is asked for.

    Args:
        case: The sequence.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._known: dict[str, CheckResult] = {}
        self._culprits: dict[str, str] = {}  # from what has failed, or was skipped for that, to what has failed

    def result(self, name: str) -> CheckResult:
        """The result of a check; those that it needs are run before."""
        if name in self._known:
            return self._known[name]
        check = CHECKS[name]
        for needed in check.needs:
            self.result(needed)
        begun = time.monotonic()
        culprit = next((self._culprits[needed] for needed in check.needs if needed in self._culprits), None)
        if culprit is None and self.case.over:
            return self._made(check, skipped(f"the {self.case.seconds:g} s are over: give more seconds="), begun)
        if culprit is None and name not in _MEMORY and self.case.has_grown:
            return self._made(check, skipped("reading scenes has taken much memory; see memory"), begun)
        finding = guarded(check.run, self.case) if culprit is None else skipped(f"{culprit} has failed")
        if culprit is not None or (finding.status == "failed" and finding.blocks):
            self._culprits[name] = culprit or name
        self._known[name] = found = self._made(check, finding, begun)
        return found

    def _made(self, check: Check, finding: Finding, begun: float) -> CheckResult:
        remedy = check.remedy if finding.remedy is None else finding.remedy
        return CheckResult(
            check.name, finding.status, finding.message, check.reason, remedy, finding.index, finding.field,
            time.monotonic() - begun,
        )  # fmt: skip
