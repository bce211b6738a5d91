"""Pools of every kind, which must not leak."""

from pathlib import Path

import pytest
from pool_kinds import KINDS, Target, TaskRunner
from waits import wait_until

from kerasfeed.pool.base import PoolOptions


@pytest.fixture
def target(tmp_path):
    """The object that workers hold."""
    return Target(tmp_path)


@pytest.fixture
def make(target):
    """Make pools that the test need not close; none may leave a descriptor open."""
    descriptors = _descriptors()
    made = []

    def _make(kind, workers=2, runner=None, **options):
        made.append(
            KINDS[kind](runner or TaskRunner(target), PoolOptions(workers=workers, owner="the test", **options))
        )
        return made[-1]

    yield _make
    target.release()
    for pool in made:
        pool.close()
    wait_until(lambda: _descriptors() <= descriptors)


def _descriptors():
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0
