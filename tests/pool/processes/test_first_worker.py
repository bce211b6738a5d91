"""A pool of processes that begins with a thread of this process, which works on a copy."""

import os
import signal
import threading

import pytest
from every_pool import gives, outcome_of, outcomes_of
from pool_kinds import Do, RecordedTask
from waits import SECONDS, wait_until

from kerasfeed.errors import FeedClosedError, WorkerStartError
from kerasfeed.pool.task import FutureTask

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]


def _worker(pool):
    return pool.run(FutureTask(Do.TELL_WORKER, 0)).result(SECONDS)


def test_the_first_thread_runs_all_tasks_without_a_process(make, target):
    pool = make("process", 2, most_workers=2)
    tasks = [RecordedTask(Do.GIVE, number) for number in range(400)]
    pool.submit(tasks)
    assert outcomes_of(tasks) == [("done", number) for number in range(400)]
    pool.wait_until_idle()
    assert (pool.in_flight, pool.pids(), pool.worker_type) == (0, (), "thread")
    pool.close()
    assert (target.noted("begun"), target.noted("ended")) == (["0 1 thread"], ["first"])


def test_the_thread_has_a_copy_that_follows_the_changes_of_the_object(make, target):
    pool = make("process", 2, most_workers=2)
    target.state = "unseen"
    assert pool.run(FutureTask(Do.SEE_OBJECT, 0)).result(SECONDS) == "first"
    pool.refresh(lambda: setattr(target, "state", "second"))
    assert pool.run(FutureTask(Do.SEE_OBJECT, 0)).result(SECONDS) == "second"
    pool.refresh(lambda: setattr(target, "fails_to_begin", True))
    outcome, position, error, _ = outcome_of(pool, RecordedTask(Do.GIVE, 3))
    assert (outcome, position.method) == ("failed", "on_worker_begin")
    assert "no such disk" in str(error)
    pool.refresh(lambda: setattr(target, "fails_to_begin", False))
    assert gives(pool, 4)
    assert target.noted("begun") == ["0 1 thread"] * 3


def test_a_failing_begin_hook_raises_as_in_a_process(make, target):
    target.fails_to_begin = True
    pool = make("process", 2, most_workers=2)
    with pytest.raises(WorkerStartError, match="could not load the sequence: OSError: no such disk"):
        pool.run(FutureTask(Do.GIVE, 1)).result(SECONDS)


def test_close_cancels_the_tasks_of_the_thread_and_waits_for_it(make, target):
    pool = make("process", 2, most_workers=2)
    target.hold()
    tasks = [RecordedTask(Do.HANG, number) for number in range(6)]
    pool.submit(tasks)
    wait_until((target.folder / "begun 0").exists)
    threading.Timer(0.2, target.release).start()
    pool.close()
    assert [type(error) for _, error in outcomes_of(tasks)] == [FeedClosedError] * 6
    assert target.noted("ended") == ["first"]


def test_processes_take_over_without_losing_or_repeating_a_task(make, target):
    pool = make("process", 2, most_workers=4)
    tasks = [RecordedTask(Do.GIVE, number) for number in range(3000)]
    pool.submit(tasks[:1000])
    pool.take_processes(2, at_once=False)
    pool.submit(tasks[1000:2000])
    wait_until(lambda: len(target.noted("begun")) == 3)
    pool.submit(tasks[2000:])
    assert outcomes_of(tasks) == [("done", number) for number in range(3000)]
    pool.wait_until_idle()
    assert all(len(task.outcomes) == 1 for task in tasks)
    wait_until(lambda: _worker(pool)[1:] == (2, "process"))
    assert (len(pool.pids()), pool.worker_type) == (2, "process")
    pool.close()
    assert len(target.noted("ended")) == 3


@pytest.mark.heavy
def test_processes_that_die_at_start_lose_no_task_of_the_thread(make, target):
    pool = make("process", 2, most_workers=2)
    target.hold()
    tasks = [RecordedTask(Do.HANG, number) for number in range(4)]
    pool.submit(tasks)
    wait_until((target.folder / "begun 0").exists)
    pool.take_processes(2, at_once=False)
    for _ in range(3):
        wait_until(pool.pids)
        killed = pool.pids()[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: killed not in pool.pids())
    target.release()
    assert outcomes_of(tasks) == [("done", number) for number in range(4)]
    pool.wait_until_idle()
    assert all(len(task.outcomes) == 1 for task in tasks)


def test_take_processes_at_once_moves_all_unstarted_tasks_to_processes(make, target):
    pool = make("process", 1, most_workers=2)
    pool.take_processes(1, at_once=True)
    assert [_worker(pool) for _ in range(20)] == [(0, 1, "process")] * 20
    assert target.noted("begun") == ["0 1 process"]


def test_the_thread_continues_if_no_process_can_be_started(make, monkeypatch):
    def refuse(*given):
        raise OSError("no more processes")

    monkeypatch.setattr("kerasfeed.pool.processes.pool.start_worker", refuse)
    pool = make("process", 1, most_workers=2)
    pool.take_processes(1, at_once=False)
    warnings = pool.options.deferred_warnings
    wait_until(lambda: warnings.is_known("no process"))
    assert _worker(pool) == (0, 1, "thread")
    with pytest.warns(UserWarning, match="keeps one worker thread: no worker process can be started: no more"):
        warnings.issue_last()
