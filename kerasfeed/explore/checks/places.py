"""Checks that scenes are the same in another process, under another hash seed, and from another directory.

Invariant: a process with everything changed is looked at first. Only where its scenes differ are further ones started,
each with one change, to tell what the scenes depend on.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kerasfeed.errors import KerasfeedError
from kerasfeed.explore.checks.calls import Calling, Where
from kerasfeed.explore.checks.case import Case, lost
from kerasfeed.explore.checks.finding import Finding, passed, skipped
from kerasfeed.explore.checks.reading import Reading, first_difference, read_all
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.pool.task import Note
from kerasfeed.util.counted import counted

_HERE = "in this process"


@dataclass(frozen=True)
class Setting:
    """A process.

    Attributes:
        hash_seed: Its PYTHONHASHSEED.
        elsewhere: Whether it reads from another directory.
        number: Tells processes that are alike apart.
        backwards: Whether it reads the last scene first.
    """

    hash_seed: int = 1
    elsewhere: bool = False
    number: int = 0
    backwards: bool = False


_LIKE_THIS = Setting()
_CHANGED = Setting(2, elsewhere=True, backwards=True)


class Elsewhere:
    """What processes of several settings have read.

    Args:
        case: The case.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._known: dict[Setting, list[Reading] | KerasfeedError] = {}

    def read(self, *settings: Setting) -> None:
        """Have these processes, started together, read the scenes."""
        case = self.case
        wanted = [setting for setting in settings if setting not in self._known]
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="check-"))
            calls = []
            for setting in wanted:
                now = Environment.now()
                variables = {**now.environment, "PYTHONHASHSEED": str(setting.hash_seed)}
                where = Where("process", environment=replace(now, environment=variables))
                call = partial(
                    _read_from, folder=folder if setting.elsewhere else "", seed=case.seed,
                    plan=case.good[::-1] if setting.backwards else case.good,
                )  # fmt: skip
                copy = case.unread()
                sequence = case.sequence if copy is None else copy
                calling = Calling(sequence, call, where, case.scene_seconds)
                calls.append(stack.enter_context(closing(calling)))
            for setting, calling in zip(wanted, calls, strict=True):
                try:
                    self._known[setting] = calling.results(case.deadline)[0]
                except KerasfeedError as error:
                    self._known[setting] = error

    def difference(self, one: Setting | None, other: Setting, before: str, now: str) -> Finding | None:
        """What tells the scenes of two processes apart; None stands for this process."""
        self.read(*([other] if one is None else [one, other]))
        expected, found = (self.case.readings if each is None else self._known[each] for each in (one, other))
        for each in (expected, found):
            if isinstance(each, KerasfeedError):
                return lost(each)
        assert isinstance(expected, list)
        assert isinstance(found, list)
        return first_difference(expected, found, before, now)

    def readings(self, setting: Setting) -> list[Reading]:
        """What such a process has read; nothing where it ended."""
        found = self._known[setting]
        return found if isinstance(found, list) else []

    @property
    def is_broken(self) -> bool:
        """Whether such a process ended, hung or did not start."""
        return any(isinstance(each, KerasfeedError) for each in self._known.values())

    @property
    def all_equal(self) -> bool:
        """Whether neither a process like this one nor one with all changed differs."""
        self.read(_LIKE_THIS, _CHANGED)
        if self.is_broken:
            return False
        return all(self.difference(None, each, "", "") is None for each in (_LIKE_THIS, _CHANGED))


def _read_from(sequence: Any, note: Note, worker: object, *, folder: str, plan: list[int], seed: int) -> list[Reading]:
    with _directory(folder):
        return read_all(sequence, note, worker, plan=plan, seed=seed, sendable=True)


@contextlib.contextmanager
def _directory(folder: str) -> Iterator[None]:
    """Change the directory of this process, a worker that does nothing else."""
    if folder:
        os.chdir(folder)
    try:
        yield
    finally:
        if folder:
            os.chdir("/")


def process(case: Case) -> Finding:
    """A worker process reads the same bits."""
    if not processes_supported():
        return skipped("there are no worker processes on this system")
    seen = elsewhere_of(case)
    if seen.all_equal:
        return passed(f"{counted(len(case.good), 'scene')} read by two worker processes")
    found = seen.difference(None, _LIKE_THIS, _HERE, "in a worker process")
    if found is None and not seen.is_broken:
        now = "in another one that reads the last scene first"
        found = seen.difference(_LIKE_THIS, Setting(backwards=True), "in a worker process", now)
        if found is not None:
            return replace(found, remedy="Number, or work out, in __init__ what all scenes share, and keep it in self")
    if found is None or seen.is_broken:
        return found or passed("a worker process reads the same bits")
    # Processes of one hash seed: the one of this process nobody knows.
    unlike = seen.difference(_LIKE_THIS, Setting(number=1), "in one worker process", "in another one")
    if unlike is None and hash_seed(case).status == "failed":
        return skipped("scenes depend on the hash seed, in which every process differs; see hash_seed")
    return unlike or found


def hash_seed(case: Case) -> Finding:
    """Scenes do not depend on the hash seed of the process."""
    seen = elsewhere_of(case)
    found = None
    if not seen.all_equal:
        now = "in one with PYTHONHASHSEED=2"
        found = seen.difference(_LIKE_THIS, Setting(2), "in a process with PYTHONHASHSEED=1", now)
    return found or passed("the same with PYTHONHASHSEED=1 and 2")


def directory(case: Case) -> Finding:
    """Scenes do not depend on the current directory."""
    seen = elsewhere_of(case)
    found = None
    if not seen.all_equal:
        found = seen.difference(_LIKE_THIS, Setting(elsewhere=True), "in this directory", "in another directory")
        if found is not None and _raises(seen):  # workers of a feed start in its directory: nothing wrong is read
            return replace(found, status="warned")
    return found or passed("the same from another directory")


def _raises(seen: Elsewhere) -> bool:
    return any(reading.error for reading in seen.readings(Setting(elsewhere=True)))


def elsewhere_of(case: Case) -> Elsewhere:
    """What is known of other processes, one object a case."""
    found: Elsewhere = vars(case).setdefault("elsewhere", Elsewhere(case))
    return found
