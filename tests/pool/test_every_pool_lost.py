"""Workers that are killed, end or hang, for every pool that can lose them."""

import os
import signal
import threading

import pytest
from every_pool import EVERY_SEPARATE, gives, outcome_of, outcomes_of
from pool_kinds import Do, RecordedTask
from waits import SECONDS, wait_until

from kerasfeed.errors import SceneTimeoutError, WorkerDiedError, WorkerStartError
from kerasfeed.pool.task import FutureTask

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]


@EVERY_SEPARATE
def test_a_worker_that_is_killed_loses_no_task(kind, make):
    pool = make(kind)
    assert gives(pool, 0)
    tasks = [RecordedTask(Do.GIVE, number) for number in range(2000)]
    pool.submit(tasks[:1000])
    os.kill(pool.pids()[0], signal.SIGKILL)
    pool.submit(tasks[1000:])
    assert outcomes_of(tasks) == [("done", number) for number in range(2000)]
    assert all(len(task.outcomes) == 1 for task in tasks)
    wait_until(lambda: pool.respawns == 1 and len(pool.pids()) == 2)


@EVERY_SEPARATE
def test_a_killed_worker_loses_none_of_its_own_tasks_and_keeps_their_order(kind, make):
    pool = make(kind, addressed=True)
    done = {0: [], 1: []}

    class Noted(FutureTask):
        def done(self, payload, seconds, worker):
            done[self.worker].append(payload)
            return super().done(payload, seconds, worker)

    assert gives(pool, 0)
    futures = []
    for number in range(2000):
        futures.append(pool.run(Noted(Do.GIVE, number, number % 2)))
        if number == 1500:  # and only after the first one was replaced, because its id may be unused
            wait_until(lambda: pool.respawns == 1)
        if number in (500, 1500):
            os.kill(pool.pids()[0], signal.SIGKILL)
    for future in futures:
        future.result(SECONDS)
    assert done == {0: list(range(0, 2000, 2)), 1: list(range(1, 2000, 2))}


@EVERY_SEPARATE
def test_a_task_whose_worker_dies_once_runs_in_another_worker(kind, make):
    pool = make(kind)
    assert outcome_of(pool, RecordedTask(Do.KILL_WORKER_ONCE, 3)) == ("done", 3)
    assert pool.respawns == 1


@EVERY_SEPARATE
@pytest.mark.light(where=lambda addressed: not addressed)
@pytest.mark.parametrize("addressed", [False, True])
def test_a_task_that_ends_its_workers_repeatedly_fails_and_the_pool_continues(kind, addressed, make):
    pool = make(kind, tries=2, addressed=addressed)
    last = RecordedTask(Do.GIVE, 3, 1)
    fatal = RecordedTask(Do.KILL_WORKER, 1, 0, next=(last,))
    others = [RecordedTask(Do.GIVE, number, number % 2) for number in range(10, 20)]
    pool.submit([fatal, *others])
    outcome, note, crash, count = fatal.future.result(SECONDS)
    assert (outcome, note, count) == ("crashed", 0, 2)
    assert (crash.ending, crash.position, crash.hung) == ("ended with exit code 7", "task 1", False)
    assert crash.worker.startswith("worker process ")
    assert crash.kind is WorkerDiedError
    assert outcomes_of(others) == [("done", task.number) for task in others]
    assert last.future.result(SECONDS) == ("done", 3)
    assert pool.respawns == 2


@EVERY_SEPARATE
def test_a_process_that_exceeds_the_timeout_is_replaced_and_its_task_retried(kind, make, target):
    pool = make(kind, 1, timeout=0.5)
    target.hold()
    assert outcome_of(pool, RecordedTask(Do.HANG_ONCE, 5)) == ("done", 5)
    assert pool.respawns == 1


@EVERY_SEPARATE
@pytest.mark.heavy
def test_a_task_that_exceeds_the_timeout_repeatedly_fails(kind, make, target):
    pool = make(kind, 1, timeout=0.5)
    target.hold()
    outcome, _, crash, count = outcome_of(pool, RecordedTask(Do.HANG, 5))
    assert (outcome, count, crash.hung, crash.kind) == ("crashed", 2, True, SceneTimeoutError)
    assert gives(pool, 1)


@pytest.mark.parametrize("addressed", [False, True])
def test_a_thread_that_exceeds_the_timeout_is_reported_as_stuck_and_replaced(addressed, make, target):
    pool = make("thread", 1, timeout=0.2, addressed=addressed)
    target.hold()
    stuck = RecordedTask(Do.HANG, 5, 0)
    outcome, note, crash = outcome_of(pool, stuck)
    assert (outcome, note, crash.worker, crash.kind) == ("stuck", 0, "worker thread 0", SceneTimeoutError)
    assert "time.sleep(0.005)" in crash.stack
    assert gives(pool, 1)
    pool.wait_until_idle()
    target.release()
    wait_until(lambda: len(stuck.outcomes) == 2)
    assert stuck.outcomes[1] == ("done", 5)


@EVERY_SEPARATE
def test_a_pool_that_fails_reports_it_and_stays_failed(kind, make, target):
    target.fails_to_begin = True
    pool = make(kind, 1)
    reported = threading.Event()
    pool.on_failure = reported.set
    assert reported.wait(SECONDS)
    assert isinstance(pool.failure, WorkerStartError)
    with pytest.raises(WorkerStartError):
        pool.submit([RecordedTask(Do.GIVE, 1)])
    assert pool.in_flight == 0
    pool.wait_until_idle()
