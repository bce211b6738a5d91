"""How many scenes each file holds: counted in parallel, and checked; bad files."""

import os
import pty
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from files_written import COUNTS, expected, write_files

import kerasfeed as kf
from kerasfeed.readers.files import counts


@pytest.fixture
def paths(tmp_path):
    return write_files(tmp_path)


@pytest.mark.parametrize("count", [None, list(COUNTS), np.array(COUNTS), lambda path: len(np.load(path)["y"])])
def test_counts_are_given_or_determined(paths, count):
    files = kf.FileSequence(paths, np.load, count)
    assert files.counts.tolist() == list(COUNTS)
    assert files.counts.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        files.counts[0] = 3


def test_one_integer_is_the_count_of_every_file(tmp_path):
    files = kf.FileSequence(write_files(tmp_path, [4, 4]), np.load, 4)
    assert [int(scene["y"]) for scene in files] == expected([4, 4])


def test_a_thread_safe_function_counts_a_few_files_in_parallel():
    running, most, lock, several = [0], [0], threading.Lock(), threading.Event()

    def read_file(path):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] > 1:
                several.set()
        assert several.wait(60)
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return np.arange(path)

    read_file.thread_safe = True
    files = kf.FileSequence(range(1, 21), read_file)
    assert files.counts.tolist() == list(range(1, 21))
    assert 2 <= most[0] <= 8


def test_a_glob_expands_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        np.save(tmp_path / f"part-{number}.npy", np.full(2, number))
    files = kf.FileSequence(str(tmp_path / "*.npy"), np.load)
    assert [int(scene) for scene in files] == [1, 1, 2, 2, 10, 10]


def test_read_file_can_return_a_data_frame():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"x": [1.0, 2.0], "y": [3, 4]}, index=[7, 5])
    files = kf.FileSequence(["a"], lambda path: frame)
    assert [(float(scene["x"]), int(scene["y"])) for scene in files] == [(1.0, 3), (2.0, 4)]


def test_a_function_not_declared_thread_safe_counts_files_one_by_one():
    running = []

    def read_file(path):
        running.append(path)
        time.sleep(0.001)
        assert running.pop() == path
        return np.arange(path)

    assert len(kf.FileSequence(range(1, 21), read_file)) == 210


# ---- bad files


def test_the_error_for_a_file_that_cannot_be_counted_names_it(paths):
    Path(paths[4]).write_bytes(b"damaged")
    with pytest.raises(Exception, match="pickle") as caught:
        kf.FileSequence(paths, np.load)
    (note,) = caught.value.__notes__
    assert note.startswith(f"kerasfeed: while the scenes of {paths[4]!r} were counted; on_error='skip' leaves")


def test_on_error_skip_leaves_out_files_that_cannot_be_counted(paths):
    Path(paths[4]).write_bytes(b"damaged")
    Path(paths[0]).unlink()
    with pytest.warns(kf.FeedWarning, match=r"2 of 6 files cannot be read and are left out: '.*part-000.npz': FileNot"):
        files = kf.FileSequence(paths, np.load, on_error="skip")
    assert files.paths == tuple(paths[file] for file in (1, 2, 3, 5))
    assert [path for path, _ in files.skipped] == [paths[0], paths[4]]
    assert "pickle" in files.skipped[1][1]
    assert [int(scene["y"]) for scene in files] == [y for y in expected() if y // 100 in (2, 3, 5)]


def test_only_bad_files_is_an_error(paths):
    with pytest.raises(ValueError, match=r"none of the 1 files could be read\. The first: 'no-such-file'"):
        kf.FileSequence(["no-such-file"], np.load, on_error="skip")


# ---- progress


def _counted_in_a_terminal(monkeypatch, quiet):
    monkeypatch.setattr(counts, "_QUIET_SECONDS", quiet)
    monkeypatch.setenv("TERM", "xterm")
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        kf.FileSequence(range(6), lambda path: time.sleep(0.05) or np.arange(2))
        stderr.flush()
        os.set_blocking(main, False)
        shown = b""
        try:
            while True:  # a read returns one buffer of the terminal
                shown += os.read(main, 100_000)
        except BlockingIOError:
            return shown.decode()
        finally:
            monkeypatch.undo()
            os.close(main)


def test_slow_counting_shows_a_progress_bar_in_a_terminal(monkeypatch):
    shown = _counted_in_a_terminal(monkeypatch, 0.0)
    assert "counting scenes" in shown
    assert "6/6" in shown


def test_quick_counting_shows_no_progress_bar(monkeypatch):
    assert _counted_in_a_terminal(monkeypatch, 60.0) == ""


def test_counting_without_a_terminal_shows_no_progress_bar(paths, capfd, monkeypatch):
    monkeypatch.setattr(counts, "_QUIET_SECONDS", 0.0)
    kf.FileSequence(paths, np.load)
    assert capfd.readouterr() == ("", "")
