"""The protocol `Pool`, for every pool: inline, of threads, of processes, and of processes that share no memory.

This module tests the outcomes of tasks, up to the end. `test_every_pool_object` has the object that workers hold, and
`test_every_pool_lost` workers that are lost.
"""

import sys
import threading
import time

import pytest
from every_pool import EVERY, EVERY_PARALLEL, gives, outcome_of, outcomes_of
from pool_kinds import Do, Told, WrongError
from waits import SECONDS, wait_until

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.task import FutureTask, Place
from kerasfeed.pool.threads import ThreadPool

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]


@EVERY
def test_the_future_of_a_task_gives_what_the_runner_returned(kind, make):
    assert make(kind, 1).run(FutureTask(Do.GIVE, 41)).result(SECONDS) == 41


@EVERY
def test_the_outcomes_of_many_tasks_from_several_threads_come_once_each(kind, make):
    pool = make(kind)
    tasks = [Told(Do.GIVE, number) for number in range(400)]
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
def test_what_the_user_s_code_raises_fails_the_task_with_its_place_class_message_and_notes(kind, make):
    pool = make(kind, 1)
    outcome, place, error, worker = outcome_of(pool, Told(Do.RAISE, 7))
    assert outcome == "failed"
    assert place == Place(scene=7, row=1, method="get_batch")
    assert type(error) is WrongError
    assert (error.args, error.number, error.__notes__[0]) == ((7, "too deep"), 7, "on Mars")
    assert worker
    assert gives(pool, 1)
    del error


@EVERY
def test_a_task_without_a_consumer_is_cancelled(kind, make):
    pool = make(kind, 1)
    assert outcome_of(pool, Told(Do.CANCEL, 0)) == ("cancelled",)
    assert gives(pool, 1)


@EVERY
@pytest.mark.parametrize("do", [Do.GIVE, Do.RAISE])
def test_what_a_task_says_is_to_be_done_next_is_done(kind, do, make):
    last = Told(Do.GIVE, 2)
    between = Told(Do.GIVE, 1, next=(last,))
    pool = make(kind, 1)
    pool.submit([Told(do, 0, next=(between,))])
    assert last.future.result(SECONDS) == ("done", 2)
    pool.wait_until_idle()
    assert (between.outcomes, last.outcomes) == ([("done", 1)], [("done", 2)])


@EVERY
def test_a_task_may_have_itself_done_again_and_is_in_flight_until_then(kind, make):
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
def test_tasks_that_are_sent_one_by_one_in_a_row_are_begun_by_all_workers(kind, make, target, monkeypatch):
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
def test_a_task_that_names_its_worker_is_done_by_it_in_order_of_submission(kind, make):
    workers = 1 if kind == "inline" else 3
    pool = make(kind, workers, addressed=True)
    done = []
    tasks = [Told(Do.TELL_WORKER, number, number % workers, outcomes=done) for number in range(60)]
    for task in tasks:
        pool.submit([task])
    found = [payload[0] for _, payload in outcomes_of(tasks)]
    assert found == [number % workers for number in range(60)]


@EVERY_PARALLEL
def test_outcomes_of_one_worker_s_tasks_come_in_order_of_submission(kind, make):
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
def test_close_gives_up_what_is_in_flight_and_may_be_called_again(kind, make, target):
    pool = make(kind)
    target.hold()
    tasks = [Told(Do.HANG, number) for number in range(6)]
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
def test_a_pool_that_is_closed_takes_no_task(kind, make):
    pool = make(kind, 1)
    pool.close()
    with pytest.raises(FeedClosedError):
        pool.submit([Told(Do.GIVE, 1)])


@EVERY_PARALLEL
def test_what_was_to_be_done_next_is_given_up_where_the_pool_is_closed_before(kind, make):
    pool = make(kind, 1)
    last = Told(Do.GIVE, 2)

    class Closes(FutureTask):
        def done(self, payload, seconds, worker):
            pool.close()
            return (last,)

    pool.submit([Closes(Do.GIVE, 1)])
    outcome, error = last.future.result(SECONDS)
    assert outcome == "given up"
    assert isinstance(error, FeedClosedError)
