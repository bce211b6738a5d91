"""Tracebacks of scenes that fail begin with the user's own lines."""

import linecache
import traceback

import numpy as np
import pytest
from streams import WAYS

import kerasfeed as kf
from kerasfeed.errors import SpecError, WorkerStartError
from kerasfeed.util.error_text import full_text


class Broken(kf.SceneSequence):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.load(index)

    def load(self, index):
        try:
            raise ZeroDivisionError("below")
        except ZeroDivisionError as error:
            raise OSError("no such room") from error


class Batched(Broken):
    def __getitem__(self, index):
        return np.zeros(2)

    def get_batch(self, indices):
        return self.load(indices)


class Misfit(Broken):
    def __getitem__(self, index):
        return {3}


class Unbegun(Broken):
    def on_worker_begin(self, worker):
        self.load(0)


def raised_by(feed, kind):
    with feed, pytest.raises(kind) as raised:
        next(iter(feed))
    return raised.value


def note_of(error):
    return next(note for note in error.__notes__ if note.startswith("Traceback in the worker:"))


def files_in(text):
    return [line.split('"')[1].rpartition("/")[2] for line in text.splitlines() if line.strip().startswith('File "')]


VIEWS = [
    lambda: Broken(),
    lambda: Broken()[2:],
    lambda: kf.Zip(Broken(), Broken()),
    lambda: kf.Map(kf.Concat(Broken()), list),
    lambda: kf.Cached(Broken()),
    lambda: Batched(),
]


@pytest.mark.heavy
@pytest.mark.parametrize("make", VIEWS)
def test_the_traceback_of_a_worker_process_contains_the_user_s_line(make):
    text = note_of(raised_by(kf.Feed(make(), 4, workers=1, worker_type="process"), OSError))
    assert "test_error_frames.py" in files_in(text)
    assert "in load" in text
    assert "ZeroDivisionError: below" in text
    assert "direct cause" in text


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", VIEWS)
def test_an_exception_has_no_kerasfeed_frames_before_the_user_s_line(make, workers):
    error = raised_by(kf.Feed(make(), 4, workers=workers, worker_type="thread"), OSError)
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = (
        "/loaders/batches/row_loader.py",
        "/kerasfeed/sequences/views.py",
        "/kerasfeed/sequences/base.py",
        "/kerasfeed/sequences/cached.py",
    )
    assert not [file for file in files if file.endswith(ours)]
    assert files[-1].endswith("test_error_frames.py")


@pytest.mark.heavy
def test_the_error_for_an_unsupported_scene_gives_the_reason():
    text = note_of(raised_by(kf.Feed(Misfit(), 4, workers=1, worker_type="process"), SpecError))
    assert "SpecError: scene 0: field 'scene' is of type set" in text


def test_a_worker_that_fails_to_start_reports_the_user_s_frames():
    error = raised_by(kf.Feed(Unbegun(), 4, workers=1, worker_type="process"), WorkerStartError)
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    assert files_in(text)[-1] == "test_error_frames.py"


def failing():
    yield np.zeros(2)
    raise OSError("no such room")


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_the_traceback_of_a_generator_ends_with_the_user_s_line(workers, worker_type):
    feed = kf.StreamFeed(failing, 1, workers=min(workers, 1), worker_type=worker_type)
    with feed, pytest.raises(OSError, match="no such room") as raised:
        list(feed)
    if worker_type == "process":
        assert files_in(note_of(raised.value))[-1] == "test_error_frames.py"


def test_frames_of_kerasfeed_called_by_the_user_are_kept():
    try:
        kf.Zip(Broken(), [1])
    except ValueError as error:
        text = full_text(error)
    assert files_in(text)[0] == "test_error_frames.py"
    assert "views.py" in files_in(text)


CELL = """
class Cell(kf.SceneSequence):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return 1 / (index - index)
"""


def test_the_traceback_of_a_class_in_a_notebook_cell_shows_its_lines(monkeypatch):
    lines = CELL.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "/cells/3.py", (len(CELL), None, lines, "/cells/3.py"))  # as IPython does
    names = {"kf": kf, "__name__": "__main__"}
    exec(compile(CELL, "/cells/3.py", "exec"), names)
    feed = kf.Feed(names["Cell"](), 4, workers=1, worker_type="process")
    note = note_of(raised_by(feed, ZeroDivisionError))
    assert 'File "/cells/3.py", line 7, in __getitem__\n    return 1 / (index - index)\n' in note
    assert note.count("return 1 /") == 1
