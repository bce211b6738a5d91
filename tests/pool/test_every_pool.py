"""The protocol `Pool`, for every pool: inline, of threads, of processes, and of processes that share no memory.

This module tests the outcomes of tasks, up to the end. `test_every_pool_object` tests the object that workers hold, and
`test_every_pool_lost` workers that are lost.
"""

import sys
import threading
import time

import pytest
from every_pool import EVERY, EVERY_PARALLEL, gives, outcome_of, outcomes_of
from pool_kinds import Do, RecordedTask, WrongError
from waits import SECONDS, wait_until

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.task import FailurePosition, FutureTask
from kerasfeed.pool.threads import ThreadPool

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]


@EVERY
def test_the_future_of_a_task_returns_the_result_of_the_runner(kind, make):
    assert make(kind, 1).run(FutureTask(Do.GIVE, 41)).result(SECONDS) == 41


@EVERY
def test_tasks_from_several_threads_have_exactly_one_outcome_each(kind, make):
    pool = make(kind)
    tasks = [RecordedTask(Do.GIVE, number) for number in range(400)]
    threads = [threading.Thread(target=pool.submit, args=(tasks[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes_of(tasks) == [("done", number) for number in range(400)]
    pool.wait_until_idle()
    assert pool.in_flight == 0
    assert all(len(task.outcomes) == 1 for task in tasks)


@EVERY
def test_an_error_of_user_code_fails_its_task_with_location_class_and_notes(kind, make):
    pool = make(kind, 1)
    outcome, place, error, worker = outcome_of(pool, RecordedTask(Do.RAISE, 7))
    assert outcome == "failed"
    assert place == FailurePosition(scene=7, row=1, method="get_batch")
    assert type(error) is WrongError
    assert (error.args, error.number, error.__notes__[0]) == ((7, "too deep"), 7, "on Mars")
    assert worker
    assert gives(pool, 1)
    del error


@EVERY
def test_a_task_without_a_consumer_is_cancelled(kind, make):
    pool = make(kind, 1)
    assert outcome_of(pool, RecordedTask(Do.CANCEL, 0)) == ("cancelled",)
    assert gives(pool, 1)


@EVERY
@pytest.mark.parametrize("do", [Do.GIVE, Do.RAISE])
def test_tasks_returned_by_done_are_run_next(kind, do, make):
    last = RecordedTask(Do.GIVE, 2)
    between = RecordedTask(Do.GIVE, 1, next=(last,))
    pool = make(kind, 1)
    pool.submit([RecordedTask(do, 0, next=(between,))])
    assert last.future.result(SECONDS) == ("done", 2)
    pool.wait_until_idle()
    assert (between.outcomes, last.outcomes) == ([("done", 1)], [("done", 2)])


@EVERY
def test_a_task_can_repeat_itself_and_stays_in_flight(kind, make):
    pool = make(kind, 1)
    runs = []

    class Again(FutureTask):
        def done(self, payload, seconds, worker):
            runs.append(payload)
            time.sleep(0.02)  # so that a consumer waits meanwhile
            return () if len(runs) == 5 else (self,)

    assert gives(pool, 1)
    pool.submit([Again(Do.GIVE, 7)])
    pool.wait_until_idle()
    assert runs == [7] * 5


@EVERY_PARALLEL
def test_tasks_submitted_one_by_one_are_started_by_all_workers(kind, make, target, monkeypatch):
    monkeypatch.setattr(ThreadPool, "look", lambda pool: None)  # a second later it would wake threads left asleep
    target.hold()
    pool, interval = make(kind, 4), sys.getswitchinterval()
    sys.setswitchinterval(5)  # no thread wakes in between
    try:
        for number in range(4):
            pool.submit([FutureTask(Do.HANG, number)])
    finally:
        sys.setswitchinterval(interval)
    wait_until(lambda: all((target.folder / f"begun {number}").exists() for number in range(4)))


@EVERY
def test_a_task_for_a_given_worker_runs_there_in_order_of_submission(kind, make):
    workers = 1 if kind == "inline" else 3
    pool = make(kind, workers, addressed=True)
    done = []
    tasks = [RecordedTask(Do.TELL_WORKER, number, number % workers, outcomes=done) for number in range(60)]
    for task in tasks:
        pool.submit([task])
    found = [payload[0] for _, payload in outcomes_of(tasks)]
    assert found == [number % workers for number in range(60)]


@EVERY_PARALLEL
def test_outcomes_of_one_worker_are_reported_in_order_of_submission(kind, make):
    pool = make(kind, 2, addressed=True)
    done = {0: [], 1: []}

    class Noted(FutureTask):
        def done(self, payload, seconds, worker):
            done[self.worker].append(payload)
            return super().done(payload, seconds, worker)

    futures = [pool.run(Noted(Do.GIVE, number, number % 2)) for number in range(200)]
    for future in futures:
        future.result(SECONDS)
    assert done == {0: list(range(0, 200, 2)), 1: list(range(1, 200, 2))}


# ---- the end


@EVERY_PARALLEL
def test_close_cancels_tasks_in_flight_and_is_idempotent(kind, make, target):
    pool = make(kind)
    target.hold()
    tasks = [RecordedTask(Do.HANG, number) for number in range(6)]
    pool.submit(tasks)
    wait_until((target.folder / "begun 0").exists)
    threading.Timer(0.2, target.release).start()
    pool.close()
    for outcome, error in outcomes_of(tasks):
        assert outcome == "given up"
        assert isinstance(error, FeedClosedError)
    pool.close()
    assert pool.closed
    assert pool.pids() == ()


@EVERY
def test_a_closed_pool_accepts_no_task(kind, make):
    pool = make(kind, 1)
    pool.close()
    with pytest.raises(FeedClosedError):
        pool.submit([RecordedTask(Do.GIVE, 1)])


@EVERY_PARALLEL
def test_closing_the_pool_cancels_tasks_returned_by_done(kind, make):
    pool = make(kind, 1)
    last = RecordedTask(Do.GIVE, 2)

    class Closes(FutureTask):
        def done(self, payload, seconds, worker):
            pool.close()
            return (last,)

    pool.submit([Closes(Do.GIVE, 1)])
    outcome, error = last.future.result(SECONDS)
    assert outcome == "given up"
    assert isinstance(error, FeedClosedError)
