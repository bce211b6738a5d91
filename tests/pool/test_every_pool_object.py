"""The object that workers hold, in every pool: its hooks, its changes, and posted values."""

import threading
import time

import pytest
from every_pool import EVERY, EVERY_PARALLEL, EVERY_SEPARATE, gives, outcome_of
from pool_kinds import Do, RecordedTask, TaskRunner
from waits import SECONDS, wait_until

from kerasfeed.errors import WorkerStartError
from kerasfeed.pool.task import FutureTask

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]


@EVERY
def test_the_hooks_of_the_object_run_once_per_worker_with_its_description(kind, make, target):
    pool = make(kind)
    assert gives(pool, 1)
    expected = {"inline": ["0 1 inline"], "thread": ["0 2 thread", "1 2 thread"]}
    expected = expected.get(kind, ["0 2 process", "1 2 process"])
    wait_until(lambda: target.noted("begun") == expected)
    assert target.noted("ended") == []
    pool.close()
    assert target.noted("begun") == expected
    assert target.noted("ended") == ["first"] * len(expected)


@EVERY
def test_a_failing_begin_hook_raises_in_the_consumer(kind, make, target):
    target.fails_to_begin = True
    pool = make(kind, 1)
    with pytest.raises(WorkerStartError, match="no such disk"):
        pool.run(FutureTask(Do.GIVE, 1)).result(SECONDS)
    assert target.noted("ended") == []


@EVERY_PARALLEL
def test_refresh_waits_for_tasks_in_flight_and_workers_then_see_the_changed_object(kind, make, target):
    pool = make(kind)
    assert pool.run(FutureTask(Do.SEE_OBJECT, 0)).result(SECONDS) == "first"
    target.hold()
    held = pool.run(FutureTask(Do.HANG, 1))
    changed = []

    def change():
        changed.append(held.done())
        target.state = "second"

    thread = threading.Thread(target=pool.refresh, args=(change,))
    thread.start()
    time.sleep(0.1)
    assert not changed
    target.release()
    thread.join(SECONDS)
    assert changed == [True]
    found = [pool.run(FutureTask(Do.SEE_OBJECT, number)).result(SECONDS) for number in range(20)]
    assert found == ["second"] * 20


@EVERY_SEPARATE
def test_a_worker_ends_with_the_old_object_before_it_begins_with_the_new_one(kind, make, target):
    pool = make(kind, 1)
    assert gives(pool, 1)
    pool.refresh(lambda: setattr(target, "state", "second"))
    assert gives(pool, 2)
    assert (target.noted("begun"), target.noted("ended")) == (["0 1 process"] * 2, ["first"])
    pool.refresh(lambda: setattr(target, "fails_to_begin", True))
    outcome, position, error, _ = outcome_of(pool, RecordedTask(Do.GIVE, 3))
    assert (outcome, position.method) == ("failed", "on_worker_begin")
    assert "no such disk" in str(error)
    pool.refresh(lambda: setattr(target, "fails_to_begin", False))
    assert gives(pool, 4)


@EVERY
def test_later_tasks_see_posted_values(kind, make):
    pool = make(kind)
    for value in ("one", {"two": 2}):
        pool.post(value)
        found = [pool.run(FutureTask(Do.SEE_POSTED, number)) for number in range(10)]
        assert [future.result(SECONDS) for future in found] == [value] * 10


class Unpicklable(TaskRunner):
    """Holds what does not pickle."""

    def __init__(self, target):
        super().__init__(target)
        self.lock = threading.Lock()


@EVERY_SEPARATE
def test_an_unpicklable_runner_raises_type_error(kind, make, target):
    with pytest.raises(TypeError, match=r"the sequence \(Target\) cannot be sent to worker processes: .*lock"):
        make(kind, runner=Unpicklable(target))
    pool = make(kind, 1)
    with pytest.raises(TypeError, match="cannot be sent to worker processes"):
        pool.refresh(lambda: setattr(target, "lock", threading.Lock()))
    assert gives(pool, 1)
