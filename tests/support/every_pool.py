"""Marks for tests of every pool, of those with workers, and of those with worker processes; and what tasks come to."""

import pytest
from pool_kinds import KINDS, PARALLEL, SEPARATE, Do
from waits import SECONDS

from kerasfeed.pool.task import FutureTask

EVERY, EVERY_PARALLEL, EVERY_SEPARATE = (
    pytest.mark.parametrize("kind", kinds) for kinds in (KINDS, PARALLEL, SEPARATE)
)


def outcome_of(pool, task):
    """What came of a `Told`, done by a pool."""
    pool.submit([task])
    return task.future.result(SECONDS)


def outcomes_of(tasks):
    """What came of several, in their order."""
    return [task.future.result(SECONDS) for task in tasks]


def gives(pool, number):
    """Whether a pool does its work."""
    return pool.run(FutureTask(Do.GIVE, number)).result(SECONDS) == number
