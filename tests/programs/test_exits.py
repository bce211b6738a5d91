"""`SystemExit` and its like from users' code: a failure of that code in every loader, not the end of the program."""

import os
import signal
import time

import numpy as np
import pytest
from loader_kinds import LOADERS
from scenes_sized import KINDS

import kerasfeed as kf
from kerasfeed.errors import WorkerStartError


class Abort(BaseException):
    """Like the exceptions of test frameworks and task runners."""


class Exiting(kf.SceneSequence):
    """Scenes; one raises an exception that controls the program, if `in_spec` while the spec is inferred."""

    def __init__(self, kind, index=9):
        self.kind, self.index = kind, index

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.index:
            raise self.kind(3)
        return np.float32(index), np.int64(index)


def _feed(loader, sequence, **arguments):
    workers, worker_type = KINDS[loader]
    return kf.Feed(sequence, 4, **{"workers": min(1, workers), "worker_type": worker_type, **arguments})


each_loader = pytest.mark.parametrize("loader", LOADERS)
HERE = ["inline", "thread"]  # in loaders whose workers start fast; for processes, one kind of exception is enough
RAISED = [SystemExit, GeneratorExit, Abort]
PLACES = [9, 11]  # in a batch, and in a scene of the spec


@pytest.mark.parametrize(
    ("loader", "kind", "index"),
    [(loader, kind, index) for loader in HERE for kind in RAISED for index in PLACES]
    + [("process", SystemExit, index) for index in PLACES],
)
def test_an_exit_in_a_scene_is_a_scene_error_that_names_the_scene(loader, kind, index):
    with _feed(loader, Exiting(kind, index)) as feed:
        with pytest.raises(kf.SceneError, match=f"the sequence raised {kind.__name__}: 3") as caught:
            list(feed)
        assert any(f"scene {index}, " in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("loader", "on_error", "index"),
    [(loader, on_error, index) for loader in HERE for on_error in ("replace", "mask", "skip") for index in PLACES]
    + [("process", "replace", 9), ("process", "skip", 11)],
)
def test_on_error_applies_to_an_exit_in_a_scene(loader, on_error, index):
    with _feed(loader, Exiting(SystemExit, index), on_error=on_error) as feed:
        found = [label for batch in feed for label in batch[1].tolist()]
        assert len(found) == (11 if on_error == "skip" else 12)
        assert index not in found
        assert [row.index for row in feed.failures] == [index]


@pytest.mark.parametrize(
    ("loader", "kind"), [*((loader, kind) for loader in HERE for kind in RAISED), ("process", SystemExit)]
)
def test_an_exit_in_on_worker_begin_is_a_worker_start_error(loader, kind):
    class Beginning(Exiting):
        def on_worker_begin(self, worker):
            raise kind(3)

    with _feed(loader, Beginning(kind)) as feed, pytest.raises(WorkerStartError, match=f"{kind.__name__}"):
        list(feed)


@each_loader
def test_an_exit_in_on_worker_end_is_a_warning(loader):
    class Ending(Exiting):
        def on_worker_end(self):
            raise SystemExit("at the end")

    feed = _feed(loader, Ending(SystemExit, None))
    assert len(list(feed)) == 3
    with pytest.warns(kf.FeedWarning, match="on_worker_end failed in .*SystemExit: at the end") as caught:
        feed.close()
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_an_exception_of_a_signal_handler_reaches_the_program(raised, on_error):
    class Struck(Exiting):
        def __getitem__(self, index):
            if index == 9:
                os.kill(os.getpid(), signal.SIGALRM)
                time.sleep(0.05)
            return np.float32(index), np.int64(index)

    def end(number, frame):
        raise raised("as the program wants")

    before = signal.signal(signal.SIGALRM, end)
    try:
        with _feed("inline", Struck(SystemExit), on_error=on_error) as feed:
            with pytest.raises(raised, match="as the program wants"):
                list(feed)
            assert not feed.failures
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.heavy
def test_workers_ignore_sighup():
    with _feed("process", Exiting(SystemExit, None), workers=2) as feed:
        for _ in range(5):  # also before they have set up their signal handlers
            for pid in feed.stats().pids:
                os.kill(pid, signal.SIGHUP)
            time.sleep(0.05)
        pids = feed.stats().pids
        assert len(list(feed)) == 3
        for pid in pids:
            os.kill(pid, signal.SIGHUP)
        assert len(list(feed)) == 3
        assert feed.stats().respawns == 0
