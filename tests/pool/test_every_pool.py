"""The protocol `Pool`, for every pool: inline, of threads, of processes, and of processes that share no memory."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from pool_kinds import KINDS, PARALLEL, SEPARATE, Do, Doer, Receipt, Target, Told, WrongError
from waits import SECONDS, wait_until

from kerasfeed.errors import FeedClosedError, SceneTimeoutError, WorkerDiedError, WorkerStartError
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.task import FutureTask, Place

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]


def _each(kinds):
    """Hosts take seconds to start, and are heavy."""
    marks = {"hosts": pytest.mark.heavy}
    return pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks.get(kind, ())) for kind in kinds])


EVERY, EVERY_PARALLEL, EVERY_SEPARATE = _each(KINDS), _each(PARALLEL), _each(SEPARATE)


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
        if kind == "hosts" and options.get("addressed"):
            pytest.skip("hosts refuse tasks that name their worker")
        made.append(KINDS[kind](runner or Doer(target), PoolOptions(workers=workers, who="the test", **options)))
        return made[-1]

    yield _make
    target.release()
    for pool in made:
        pool.close()
    wait_until(lambda: _descriptors() <= descriptors)


def _descriptors():
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def _outcome(pool, task):
    pool.submit([task])
    return task.future.result(SECONDS)


def _outcomes(tasks):
    return [task.future.result(SECONDS) for task in tasks]


def _gives(pool, number):
    return pool.run(FutureTask(Do.GIVE, number)).result(SECONDS) == number


# ---- what comes of tasks


@EVERY
def test_the_future_of_a_task_gives_what_the_runner_returned(kind, make):
    assert make(kind).run(FutureTask(Do.GIVE, 41)).result(SECONDS) == 41


@EVERY
def test_the_outcomes_of_many_tasks_from_several_threads_come_once_each(kind, make):
    pool = make(kind)
    tasks = [Told(Do.GIVE, number) for number in range(400)]
    threads = [threading.Thread(target=pool.submit, args=(tasks[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _outcomes(tasks) == [("done", number) for number in range(400)]
    pool.wait_until_idle()
    assert pool.in_flight == 0
    assert all(len(task.outcomes) == 1 for task in tasks)


@EVERY
def test_what_the_user_s_code_raises_fails_the_task_with_its_place_class_message_and_notes(kind, make):
    pool = make(kind)
    outcome, place, error, worker = _outcome(pool, Told(Do.RAISE, 7))
    assert outcome == "failed"
    assert place == Place(scene=7, row=1, method="get_batch")
    assert type(error) is WrongError
    assert (error.args, error.number, error.__notes__[0]) == ((7, "too deep"), 7, "on Mars")
    assert worker
    assert _gives(pool, 1)
    del error


@EVERY
def test_a_task_for_which_nobody_waits_is_cancelled(kind, make):
    pool = make(kind)
    assert _outcome(pool, Told(Do.CANCEL, 0)) == ("cancelled",)
    assert _gives(pool, 1)


@EVERY
@pytest.mark.parametrize("do", [Do.GIVE, Do.RAISE])
def test_what_a_task_says_is_to_be_done_next_is_done(kind, do, make):
    last = Told(Do.GIVE, 2)
    between = Told(Do.GIVE, 1, next=(last,))
    pool = make(kind)
    pool.submit([Told(do, 0, next=(between,))])
    assert last.future.result(SECONDS) == ("done", 2)
    pool.wait_until_idle()
    assert (between.outcomes, last.outcomes) == ([("done", 1)], [("done", 2)])


@EVERY
def test_a_task_may_have_itself_done_again_and_is_in_flight_until_then(kind, make):
    pool = make(kind)
    runs = []

    class Again(FutureTask):
        def done(self, payload, seconds, worker):
            runs.append(payload)
            time.sleep(0.02)  # so that somebody waits meanwhile
            return () if len(runs) == 5 else (self,)

    assert _gives(pool, 1)
    pool.submit([Again(Do.GIVE, 7)])
    pool.wait_until_idle()
    assert runs == [7] * 5


@EVERY
def test_a_task_that_names_its_worker_is_done_by_it_in_order_of_submission(kind, make):
    workers = 1 if kind == "inline" else 3
    pool = make(kind, workers, addressed=True)
    done = []
    tasks = [Told(Do.TELL_WORKER, number, number % workers, outcomes=done) for number in range(60)]
    for task in tasks:
        pool.submit([task])
    found = [payload[0] for _, payload in _outcomes(tasks)]
    assert found == [number % workers for number in range(60)]


@EVERY_PARALLEL
def test_tasks_of_one_worker_are_told_of_in_order_of_submission(kind, make):
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


@EVERY_PARALLEL
def test_a_receipt_says_whether_tasks_were_sent(kind, make):
    pool, receipt = make(kind), Receipt()
    task = Told(Do.GIVE, 1)
    pool.submit([task], receipt)
    assert receipt.sent
    assert task.future.result(SECONDS) == ("done", 1)
    pool.close()
    refused = Receipt()
    with pytest.raises(FeedClosedError):
        pool.submit([Told(Do.GIVE, 2)], refused)
    assert not refused.sent


# ---- the object that workers hold


@EVERY
def test_the_hooks_of_the_object_run_once_a_worker_that_they_are_told_of(kind, make, target):
    pool = make(kind)
    assert _gives(pool, 1)
    expected = {"inline": ["0 1 inline"], "thread": ["0 2 thread", "1 2 thread"]}
    expected = expected.get(kind, ["0 2 process", "1 2 process"])
    wait_until(lambda: target.noted("begun") == expected)
    assert target.noted("ended") == []
    pool.close()
    assert target.noted("begun") == expected
    assert target.noted("ended") == ["first"] * len(expected)


@EVERY
def test_a_begin_hook_that_fails_is_an_error_for_whoever_waits(kind, make, target):
    target.fails_to_begin = True
    pool = make(kind)
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
def test_a_worker_begins_anew_with_the_changed_object_after_it_has_ended_with_the_one_before(kind, make, target):
    pool = make(kind, 1)
    assert _gives(pool, 1)
    pool.refresh(lambda: setattr(target, "state", "second"))
    assert _gives(pool, 2)
    assert (target.noted("begun"), target.noted("ended")) == (["0 1 process"] * 2, ["first"])
    pool.refresh(lambda: setattr(target, "fails_to_begin", True))
    outcome, place, error, _ = _outcome(pool, Told(Do.GIVE, 3))
    assert (outcome, place.method) == ("failed", "on_worker_begin")
    assert "no such disk" in str(error)
    pool.refresh(lambda: setattr(target, "fails_to_begin", False))
    assert _gives(pool, 4)


@EVERY
def test_what_was_posted_is_seen_by_later_tasks(kind, make):
    pool = make(kind)
    for value in ("one", {"two": 2}):
        pool.post(value)
        found = [pool.run(FutureTask(Do.SEE_POSTED, number)) for number in range(10)]
        assert [future.result(SECONDS) for future in found] == [value] * 10


class Unpicklable(Doer):
    """Holds what does not pickle."""

    def __init__(self, target):
        super().__init__(target)
        self.lock = threading.Lock()


@EVERY_SEPARATE
def test_a_runner_that_does_not_pickle_is_a_type_error(kind, make, target):
    with pytest.raises(TypeError, match=r"the sequence \(Target\) cannot be sent to worker processes: .*lock"):
        make(kind, runner=Unpicklable(target))
    pool = make(kind, 1)
    with pytest.raises(TypeError, match="cannot be sent to worker processes"):
        pool.refresh(lambda: setattr(target, "lock", threading.Lock()))
    assert _gives(pool, 1)


# ---- workers that are lost


@EVERY_SEPARATE
def test_a_worker_that_is_killed_loses_no_task(kind, make):
    pool = make(kind)
    assert _gives(pool, 0)
    tasks = [Told(Do.GIVE, number) for number in range(2000)]
    pool.submit(tasks[:1000])
    os.kill(pool.pids()[0], signal.SIGKILL)
    pool.submit(tasks[1000:])
    assert _outcomes(tasks) == [("done", number) for number in range(2000)]
    assert all(len(task.outcomes) == 1 for task in tasks)
    wait_until(lambda: pool.respawns == 1 and len(pool.pids()) == 2)


@EVERY_SEPARATE
def test_a_worker_that_is_killed_loses_no_task_that_names_it_and_their_order_stays(kind, make):
    pool = make(kind, addressed=True)
    done = {0: [], 1: []}

    class Noted(FutureTask):
        def done(self, payload, seconds, worker):
            done[self.worker].append(payload)
            return super().done(payload, seconds, worker)

    assert _gives(pool, 0)
    futures = []
    for number in range(2000):
        futures.append(pool.run(Noted(Do.GIVE, number, number % 2)))
        if number in (500, 1500):
            os.kill(pool.pids()[0], signal.SIGKILL)
    for future in futures:
        future.result(SECONDS)
    assert done == {0: list(range(0, 2000, 2)), 1: list(range(1, 2000, 2))}


@EVERY_SEPARATE
def test_a_task_whose_worker_dies_once_is_done_by_another(kind, make):
    pool = make(kind)
    assert _outcome(pool, Told(Do.KILL_WORKER_ONCE, 3)) == ("done", 3)
    assert pool.respawns == 1


@EVERY_SEPARATE
@pytest.mark.light(where=lambda addressed: not addressed)
@pytest.mark.parametrize("addressed", [False, True])
def test_a_task_that_ends_its_workers_again_and_again_is_told_so_and_the_pool_goes_on(kind, addressed, make):
    pool = make(kind, tries=2, addressed=addressed)
    last = Told(Do.GIVE, 3, 1)
    fatal = Told(Do.KILL_WORKER, 1, 0, next=(last,))
    others = [Told(Do.GIVE, number, number % 2) for number in range(10, 20)]
    pool.submit([fatal, *others])
    outcome, note, crash, count = fatal.future.result(SECONDS)
    assert (outcome, note, count) == ("crashed", 0, 2)
    assert (crash.ending, crash.place, crash.hung) == ("ended with exit code 7", "task 1", False)
    assert crash.worker.startswith("worker process ")
    assert crash.kind is WorkerDiedError
    assert _outcomes(others) == [("done", task.number) for task in others]
    assert last.future.result(SECONDS) == ("done", 3)
    assert pool.respawns == 2


@EVERY_SEPARATE
def test_a_process_at_a_task_that_outlasts_the_timeout_is_replaced_and_the_task_tried_again(kind, make, target):
    pool = make(kind, 1, timeout=0.5)
    target.hold()
    assert _outcome(pool, Told(Do.HANG_ONCE, 5)) == ("done", 5)
    assert pool.respawns == 1


@EVERY_SEPARATE
@pytest.mark.heavy
def test_a_task_that_outlasts_the_timeout_again_and_again_is_told_so(kind, make, target):
    pool = make(kind, 1, timeout=0.5, tries_in_time=2)
    target.hold()
    outcome, _, crash, count = _outcome(pool, Told(Do.HANG, 5))
    assert (outcome, count, crash.hung, crash.kind) == ("crashed", 2, True, SceneTimeoutError)
    assert _gives(pool, 1)


@pytest.mark.parametrize("addressed", [False, True])
def test_a_thread_at_a_task_that_outlasts_the_timeout_is_stuck_and_another_takes_its_place(addressed, make, target):
    pool = make("thread", 1, timeout=0.2, addressed=addressed)
    target.hold()
    stuck = Told(Do.HANG, 5, 0)
    outcome, note, crash = _outcome(pool, stuck)
    assert (outcome, note, crash.worker, crash.kind) == ("stuck", 0, "worker thread 0", SceneTimeoutError)
    assert "time.sleep(0.005)" in crash.stack
    assert _gives(pool, 1)
    pool.wait_until_idle()
    target.release()
    wait_until(lambda: len(stuck.outcomes) == 2)
    assert stuck.outcomes[1] == ("done", 5)


@EVERY_SEPARATE
def test_a_pool_that_fails_tells_whoever_asked_and_stays_failed(kind, make, target):
    target.fails_to_begin = True
    pool = make(kind)
    told = threading.Event()
    pool.on_failure = told.set
    assert told.wait(SECONDS)
    assert isinstance(pool.failure, WorkerStartError)
    with pytest.raises(WorkerStartError):
        pool.submit([Told(Do.GIVE, 1)])
    assert pool.in_flight == 0
    pool.wait_until_idle()


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
    for outcome, error in _outcomes(tasks):
        assert outcome == "given up"
        assert isinstance(error, FeedClosedError)
    pool.close()
    assert pool.closed
    assert pool.pids() == ()


@EVERY
def test_a_pool_that_is_closed_takes_no_task(kind, make):
    pool = make(kind)
    pool.close()
    with pytest.raises(FeedClosedError):
        pool.submit([Told(Do.GIVE, 1)])


@EVERY_PARALLEL
def test_what_was_to_be_done_next_is_given_up_where_the_pool_is_closed_before(kind, make):
    pool = make(kind)
    last = Told(Do.GIVE, 2)

    class Closes(FutureTask):
        def done(self, payload, seconds, worker):
            pool.close()
            return (last,)

    pool.submit([Closes(Do.GIVE, 1)])
    outcome, error = last.future.result(SECONDS)
    assert outcome == "given up"
    assert isinstance(error, FeedClosedError)
