"""Marks for tests of every pool, of pools with workers, and of pools with worker processes; and outcomes of tasks."""

import pytest
from pool_kinds import KINDS, PARALLEL, SEPARATE, Do
from waits import SECONDS

from kerasfeed.pool.task import FutureTask

EVERY, EVERY_PARALLEL, EVERY_SEPARATE = (
    pytest.mark.parametrize("kind", kinds) for kinds in (KINDS, PARALLEL, SEPARATE)
)


def outcome_of(pool, task):
    """Outcome of a `RecordedTask` that a pool has done."""
    pool.submit([task])
    return task.future.result(SECONDS)


def outcomes_of(tasks):
    """Outcomes of several, in order."""
    return [task.future.result(SECONDS) for task in tasks]


def gives(pool, number):
    """Whether a pool does its work."""
    return pool.run(FutureTask(Do.GIVE, number)).result(SECONDS) == number
