"""Workers that die or starve: other workers do their work, and the consumer sees the same batches."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest
import scenes
import scenes_faulty as faulty
from faulty_feeds import bits, reference
from killer import Killer
from waits import wait_until

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders.batch_runner import DESCRIBE, SpecRequest
from kerasfeed.loaders.session import FirstTask
from kerasfeed.pool.processes import pool, worker_process
from kerasfeed.pool.processes.crash_policy import CrashPolicy, start_text
from kerasfeed.pool.processes.worker_process import WorkerHandle
from kerasfeed.pool.task import Crash
from kerasfeed.util.deferred_warnings import DeferredWarnings

# ---- death


SCENE, BATCH = faulty.Faulty, faulty.FaultyBatches


# Workers choose to read scenes one by one or many at a time without knowing how another worker ended.
@pytest.mark.light(where=lambda kind, way: (kind, way) == (SCENE, "sigkill"))
@pytest.mark.parametrize(
    ("kind", "way"),
    [*((SCENE, way) for way in faulty.DEADLY), (BATCH, "segfault")],
    ids=[*(f"scene-{way}" for way in faulty.DEADLY), "batch-segfault"],
)
def test_a_dead_worker_is_replaced_without_changing_a_batch(feed_of, tmp_path, way, kind):
    sequence = kind(faulty.DEADLY[way], (7, 20, 21), folder=tmp_path, times=2)
    feed = feed_of(sequence)
    with pytest.warns(kf.FeedWarning, match=faulty.ENDINGS[way]) as caught:
        found = [bits(feed.epoch(epoch)) for epoch in (0, 1)]
    assert found == [reference(kind(None, ()), epoch) for epoch in (0, 1)]
    assert len(caught) == 1
    assert "feed.stats().respawns counts replaced workers" in str(caught[0].message)
    assert feed.stats().respawns == 6
    assert not feed.failures


def test_the_peak_memory_of_a_short_lived_worker_is_known():
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-S", "-c", "bytearray(100 << 20)"]
    handle = WorkerHandle(0, subprocess.Popen(command), ours, bytearray(), inherited_peak=0)
    theirs.close()
    handle.end(30)
    ours.close()
    assert handle.process.returncode == 0
    assert handle.peak > 100 << 20  # more, if this process holds more: see `own_peak`


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["segfault", "sigkill"])  # the others are named above
def test_the_error_for_a_scene_that_repeatedly_kills_workers_names_all_deaths(feed_of, way, monkeypatch):
    monkeypatch.setattr(
        worker_process, "own_peak", lambda: 0
    )  # the peak of a worker is known, whatever this process held
    feed = feed_of(faulty.Faulty(faulty.DEADLY[way]), shuffle=False, workers=1)
    with pytest.raises(kf.errors.WorkerDiedError) as caught:
        list(feed.epoch(2))
    text = str(caught.value)
    assert faulty.ENDINGS[way] in text
    assert "while it loaded scene 7 (epoch 2, step 0)" in text
    assert "has ended its worker 3 times" in text
    assert "its peak memory was" in text
    assert "sequence[7], or kf.load(feed, epoch=2, step=0)" in text
    assert "use on_error='replace'" in text
    if way == "segfault":
        assert "in segfault" in text
    assert [(row.index, row.count) for row in feed.failures] == [(7, 1)]


@pytest.mark.heavy
def test_max_failures_limits_how_often_a_scene_can_end_its_worker(feed_of, tmp_path):
    feed = feed_of(faulty.Faulty(faulty.leave, folder=tmp_path, times=3), max_failures=4)
    with pytest.warns(kf.FeedWarning):
        assert bits(feed.epoch(0)) == reference(scenes.Augmented())
    feed = feed_of(faulty.Faulty(faulty.leave), max_failures=1)
    with pytest.raises(kf.errors.WorkerDiedError, match=r"The scene has ended its worker\. SIGKILL often"):
        list(feed)
    assert feed.stats().respawns == 1


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "on_error"),
    [(SCENE, "mask"), (SCENE, "skip"), (BATCH, "replace")],
    ids=["scene-mask", "scene-skip", "batch-replace"],
)
def test_on_error_handles_a_deadly_scene_like_a_raising_one(feed_of, on_error, kind):
    class Raising(faulty.Faulty):
        def __getitem__(self, index):
            if index in self.bad:
                raise ValueError(index)
            return super().__getitem__(index)

    bad = (0, 20)  # the first is a scene of the spec
    feed = feed_of(kind(faulty.segfault, bad), on_error=on_error)
    with pytest.warns(kf.FeedWarning):
        found = [bits(feed.epoch(epoch)) for epoch in range(3)]
    assert found == [reference(Raising(None, bad), epoch, on_error=on_error) for epoch in range(3)]
    assert 6 <= feed.stats().respawns <= 8  # workers that read many at a time die once more per scene
    assert [row.index for row in feed.failures] == list(bad)


@pytest.mark.heavy
def test_a_feed_continues_after_a_worker_died(feed_of):
    feed = feed_of(faulty.Faulty(faulty.leave), shuffle=False)
    with pytest.raises(kf.errors.WorkerDiedError):
        feed[0]
    with pytest.warns(kf.FeedWarning):
        found = feed[1]
    assert found[0].shape == (8, 4, 3)


@pytest.mark.heavy
def test_a_whole_fit_completes_while_a_worker_is_killed_three_times_a_second(feed_of):
    import keras

    class Seen(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.losses = []

        def on_train_batch_end(self, batch, logs=None):
            self.losses.append(logs["loss"])

    def train(feed):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-12), "mse")
        seen = Seen()
        model.fit(feed, epochs=3, verbose=0, callbacks=[seen])
        return seen.losses

    sequence = scenes.Slow(400, 0.004)
    undisturbed = train(feed_of(sequence, 10))
    feed = feed_of(sequence, 10, max_failures=10, workers=3)
    with pytest.warns(kf.FeedWarning, match="was killed by SIGKILL"), Killer(feed, 0.3) as killer:
        assert train(feed) == undisturbed
    assert len(undisturbed) == 120
    assert killer.kills >= 3
    assert feed.stats().respawns >= 3


@pytest.mark.heavy
def test_scenes_hit_by_random_kills_are_not_blamed(feed_of):
    feed = feed_of(scenes.Slow(44, 0.08), 4, on_error="replace")
    expected = reference(scenes.Clouds(44), batch_size=4)
    with pytest.warns(kf.FeedWarning), Killer(feed, 0.3):
        assert bits(feed.epoch(0)) == expected
    assert feed.stats().respawns > 3
    assert not feed.failures


def test_a_death_counts_for_a_scene_unless_workers_die_between_scenes():
    deaths = CrashPolicy()
    killed = Crash("worker process 0", "was killed by SIGKILL", "scene 7")
    crashed = dataclasses.replace(killed, ending="was killed by SIGSEGV")
    assert [deaths.at_position(7, killed) for _ in range(3)] == [1, 2, 3]
    assert deaths.enough(killed, 3) == 3
    assert not deaths.between(killed)
    assert deaths.enough(killed, 3) == 15
    assert deaths.enough(crashed, 3) == 3
    assert deaths.enough(dataclasses.replace(killed, hung=True), 2) == 2


def test_a_scene_that_loads_in_another_worker_is_not_blamed():
    deaths = CrashPolicy()
    killed = Crash("worker process 0", "was killed by SIGKILL", "scene 7")
    deaths.at_position(7, killed)
    deaths.progress(FirstTask(DESCRIBE, 0, session=None, request=SpecRequest((7,))))
    assert deaths.enough(killed, 3) == 15
    assert deaths.at_position(7, killed) == 1


def _epoch_after_killing_workers(feed):
    for pid in feed.stats().pids:
        os.kill(pid, signal.SIGKILL)
    return bits(feed.epoch(0))


def test_a_start_ended_by_a_signal_is_retried_ten_times_with_growing_pauses():
    deaths = CrashPolicy()
    crashed = Crash("worker process 0", "was killed by SIGSEGV", started=False)
    pauses = []
    for _ in range(9):
        assert not deaths.at_start(crashed)
        pauses.append(deaths.pause)
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.0 < pauses[-1]
    assert deaths.at_start(crashed)


def test_a_start_that_ends_with_an_exit_code_is_tried_three_times():
    deaths = CrashPolicy()
    exited = Crash("worker process 0", "ended with exit code 3", started=False)
    killed = dataclasses.replace(exited, ending="was killed by SIGKILL")
    assert not any(deaths.at_start(death) for death in (killed, killed, killed, exited, exited))
    assert deaths.at_start(exited)
    deaths.started()
    assert not deaths.at_start(exited)


class KilledAtStart(scenes.Clouds):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_worker_begin(self, worker):
        starts = len(list(self.folder.iterdir()))
        (self.folder / str(starts)).touch()
        if starts < 5:
            os.kill(os.getpid(), signal.SIGABRT)


@pytest.mark.heavy
def test_workers_killed_by_signals_while_starting_are_restarted(tmp_path):
    with BaseFeed(KilledAtStart(tmp_path), 8, workers=1, worker_type="process") as feed:
        with pytest.warns(kf.FeedWarning, match="was killed by SIGABRT while it started"):
            assert len(list(feed.epoch(0))) == 5
        assert feed.stats().respawns == 5


class StartsPrograms(scenes.Clouds):
    def __getitem__(self, index):
        programs = [
            subprocess.Popen(["sleep", "1000"]),
            subprocess.Popen(["sh", "-c", "trap '' TERM; while true; do sleep 0.1; done"]),
            subprocess.Popen(["sleep", "1000"], start_new_session=True),
        ]
        return [program.pid for program in programs]


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
@pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning")
@pytest.mark.parametrize("end", [BaseFeed.close, pytest.param(_epoch_after_killing_workers, marks=pytest.mark.heavy)])
def test_programs_started_by_a_scene_end_with_its_worker_except_daemons(end):
    with BaseFeed(StartsPrograms(1), 1, workers=1, worker_type="process") as feed:
        obeying, stubborn, daemon = (int(pid[0]) for pid in feed[0])
        try:
            assert _runs(obeying)
            assert _runs(stubborn)
            end(feed)
            wait_until(lambda: not _runs(obeying) and not _runs(stubborn))
            assert _runs(daemon)
        finally:
            os.kill(daemon, signal.SIGKILL)


def test_the_cause_of_death_is_unknown_if_the_program_ignores_sigchld(tmp_path):
    sequence = faulty.Faulty(faulty.sigkill, folder=tmp_path, times=1)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with (
            BaseFeed(sequence, 8, workers=1, worker_type="process") as feed,
            pytest.warns(kf.FeedWarning, match=r"ended in an unknown way \(this program ignores SIGCHLD"),
        ):
            list(feed.epoch(0))
    finally:
        signal.signal(signal.SIGCHLD, handler)


@pytest.mark.heavy
def test_workers_killed_between_scenes_lose_no_batch(feed_of):
    feed = feed_of(scenes.Augmented())
    first = bits(feed.epoch(0))
    with pytest.warns(kf.FeedWarning, match="was killed by SIGKILL (between two scenes|while it started)"):
        found = [_epoch_after_killing_workers(feed) for _ in range(3)]
    assert found == [first] * 3
    assert 2 <= feed.stats().respawns <= 6


def _epoch_with_a_stopped_and_a_killed_worker(feed):
    iterator = feed.epoch(0)
    found = bits([next(iterator)])
    stopped, killed = feed.stats().pids
    os.kill(stopped, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    time.sleep(0.1)
    os.kill(stopped, signal.SIGCONT)
    return found + bits(iterator)


@pytest.mark.heavy
def test_a_stopped_worker_that_resumes_after_its_tasks_were_resent_is_harmless(feed_of):
    feed = feed_of(scenes.Slow(200, 0.002))
    expected = bits(feed.epoch(0))
    with pytest.warns(kf.FeedWarning):
        found = [_epoch_with_a_stopped_and_a_killed_worker(feed) for _ in range(5)]
    assert found == [expected] * 5


def test_a_memory_error_is_an_error_of_its_scene(feed_of):
    feed = feed_of(faulty.Faulty(faulty.hold_too_much), on_error="replace")
    assert sum(len(batch[1]) for batch in feed.epoch(0)) == 37
    assert "Error" in feed.failures[0].exception
    assert feed.failures[0].index == 7


@pytest.mark.heavy
def test_a_scene_that_kills_its_worker_during_spec_inference_is_retried_or_replaced(feed_of, tmp_path):
    feed = feed_of(faulty.Faulty(faulty.sigkill, (0,), folder=tmp_path, times=2))
    with pytest.warns(kf.FeedWarning):
        assert bits(feed.epoch(0)) == reference(scenes.Augmented())
    feed = feed_of(faulty.Faulty(faulty.sigkill, (0,)))
    with pytest.raises(kf.errors.WorkerDiedError, match=r"scene 0 \(to infer the spec\)"):
        _ = feed.element_spec
    assert [(row.index, row.epoch, row.count) for row in feed.failures] == [(0, None, 1)]


class DiesAtStart(scenes.Clouds):
    def on_worker_begin(self, worker):
        os._exit(3)


@pytest.mark.heavy
def test_repeated_deaths_at_start_raise_worker_died_error(feed_of):
    feed = feed_of(DiesAtStart())
    with pytest.raises(kf.errors.WorkerDiedError, match="ended with exit code 3 before it could load the sequence"):
        next(iter(feed))


@pytest.mark.heavy
def test_a_worker_that_closes_all_its_descriptors_is_replaced(feed_of, tmp_path):
    feed = feed_of(faulty.Faulty(lambda: os.closerange(3, 256) or time.sleep(1000), folder=tmp_path, times=1))
    with pytest.warns(kf.FeedWarning):
        assert bits(feed.epoch(0)) == reference(scenes.Augmented())


def test_a_dead_worker_is_detected_although_a_child_holds_its_socket(feed_of, tmp_path):
    def die_and_leave_a_child():
        if os.fork() == 0:
            time.sleep(8)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    feed = feed_of(faulty.Faulty(die_and_leave_a_child, folder=tmp_path, times=1))
    with pytest.warns(kf.FeedWarning, match="was killed by SIGKILL"):
        assert bits(feed.epoch(0)) == reference(scenes.Augmented())


@pytest.mark.heavy
def test_a_feed_continues_with_fewer_workers_if_no_more_can_be_started(feed_of, monkeypatch):
    start = pool.start_worker

    def scarce(number, *others, **options):
        if number == 2:
            raise OSError(24, "Too many open files")
        return start(number, *others, **options)

    monkeypatch.setattr(pool, "cores", lambda: 1)  # the third worker is started when another is up
    monkeypatch.setattr(pool, "start_worker", scarce)
    feed = feed_of(scenes.Augmented(), workers=3)
    assert bits(feed.epoch(0)) == reference(scenes.Augmented())
    monkeypatch.undo()
    wait_until(lambda: len(feed.stats().pids) == 3)


class Reopens(scenes.Clouds):
    """Opens a resource for its scenes again in each epoch, in the second epoch at the second try."""

    def __init__(self, folder) -> None:
        super().__init__()
        self.folder = folder
        self.epoch = 0
        self.is_open = False

    def on_epoch_end(self):
        self.epoch += 1

    def on_worker_begin(self, worker):
        if self.epoch == 1 and not (self.folder / "tried").exists():
            (self.folder / "tried").touch()
            raise OSError("not yet")
        self.is_open = True

    def on_worker_end(self):
        if not self.is_open:
            (self.folder / "ended").touch()

    def __getitem__(self, index):
        if not self.is_open:
            raise ValueError("nothing is open")
        return super().__getitem__(index)


@pytest.mark.heavy
def test_a_worker_that_failed_to_begin_an_epoch_retries(feed_of, tmp_path):
    feed = feed_of(Reopens(tmp_path), workers=1, max_queue_size=1)
    assert len(list(feed.epoch(0))) == 5
    with pytest.raises(OSError, match="not yet") as caught:
        next(feed.epoch(1))
    assert "(on_worker_begin)" in caught.value.__notes__[0]
    assert len(list(feed.epoch(1))) == 5
    feed.close()
    assert not (tmp_path / "ended").exists()


class Closes(scenes.Clouds):
    """Closes its feed as an epoch begins; in workers it has none."""

    feed = None

    def on_epoch_begin(self):
        if self.feed is not None:
            self.feed.close()

    def __getstate__(self):
        return {**self.__dict__, "feed": None}


def test_a_feed_closed_by_an_epoch_hook_raises_feed_closed_error(feed_of):
    sequence = Closes()
    feed = feed_of(sequence)
    feed[0]
    sequence.feed = feed
    with pytest.raises(kf.errors.FeedClosedError):
        next(feed.epoch(1))
    with pytest.raises(kf.errors.FeedClosedError):
        feed[0]


def test_a_warning_raised_as_an_error_reaches_the_user_and_loses_no_batch(feed_of, tmp_path):
    feed = feed_of(faulty.Faulty(faulty.leave, folder=tmp_path, times=1))
    with pytest.raises(kf.FeedWarning):
        list(feed.epoch(0))
    assert bits(feed.epoch(0)) == reference(scenes.Augmented())


# ---- parts


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ("was killed by SIGKILL", "the memory may be full"),
        ("ended with exit code 1", "see its output on stderr"),
    ],
)
def test_the_error_for_a_death_at_start_fits_its_cause(ending, why):
    death = Crash("worker process 0 (pid 7)", ending, started=False)
    text = start_text(death)
    assert f"worker process 0 (pid 7) {ending} before it could load the sequence; " in text
    assert why in text


def test_two_consumers_issue_a_deferred_warning_once():
    class OneTurnLate(deque):
        def __bool__(self):
            return True  # as if another thread took the warnings first

    deferred_warnings = DeferredWarnings()
    deferred_warnings._waiting = OneTurnLate()
    deferred_warnings.defer("kind", "said", kf.FeedWarning)
    deferred_warnings.defer("kind", "said", kf.FeedWarning)
    with pytest.warns(kf.FeedWarning, match="said") as caught:
        deferred_warnings.issue()
    assert len(caught) == 1
    deferred_warnings.issue_last()


def test_keeping_too_many_batches_warns_once_and_is_harmless():
    with kf.Feed(scenes.Clouds(400), 4, workers=2, worker_type="thread", max_memory=1 << 15) as feed:
        with pytest.warns(
            kf.FeedWarning, match="the consumer keeps so many batches that they fill max_memory"
        ) as caught:
            kept = list(feed)
        assert len(caught) == 1
        assert [labels.tolist() for _, labels in kept] == [list(range(4 * k, 4 * k + 4)) for k in range(100)]
        assert feed.stats().copied > 50
        assert feed.stats().slots * feed.stats().slot_bytes <= 1 << 15
