"""What the watching thread counts and says; what becomes of scenes that hang is tested with the loaders."""

import pytest

from kerasfeed.pool import watchdog as watch
from kerasfeed.pool.local import LocalWorker, run_here
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.task import FutureTask
from kerasfeed.sequences.context import Worker


@pytest.mark.parametrize(("kind", "timeout", "remedy"), [
    ("inline", None, "timeout=<seconds> and worker_type='process'"), ("thread", None, "worker_type='process'"),
    ("thread", 60.0, "timeout=60.0 s will give it up"), ("process", None, "it then replaces the worker"),
    ("process", 60.0, "timeout=60.0 s will end it"),
])  # fmt: skip
def test_the_advice_fits_the_feed(kind, timeout, remedy):
    assert remedy in watch.remedy_of(kind, timeout)


def test_a_worker_that_does_not_answer_is_not_shown_as_an_empty_stack():
    assert "Where it is cannot be told" in watch.stall_text("scene 3", "worker process 0", 31.0, "", "")


def test_a_stall_timer_counts_time_at_one_thing_and_hardly_time_in_which_nobody_looked():
    timer = watch.StallTimer(1.0)
    for now, expected in [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (100.0, 4.0)]:
        timer.begin(now)
        assert timer.look(0, "a") == expected
    timer.begin(101.0)
    assert timer.look(0, "b") == 0.0
    assert timer.look(1, None) == 0.0


class Tokens:
    """A runner whose tasks give what the watching thread sees."""

    def run(self, record, note, context):
        note[1] = 0
        return context.token()


def test_the_next_task_of_a_thread_is_not_taken_for_the_last_one_that_was_at_the_same_place():
    worker = LocalWorker(Worker(0, 1, "thread"), "worker thread 0", PoolMemory(shared=False), [None])
    task = FutureTask(0, 0)
    run_here(task, Tokens(), worker)
    again = FutureTask(0, 0)
    run_here(again, Tokens(), worker)
    assert task.future.result() != again.future.result()
