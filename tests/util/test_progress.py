"""Progress bars on a terminal, in a file and in a notebook."""

import importlib.util
import threading
from types import SimpleNamespace

import IPython
import pytest

from kerasfeed.util.progress import progress_bar


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(config={"IPKernelApp": {}}))


def test_a_finished_bar_shows_100_percent_and_leaves_no_thread(capsys):
    before = threading.enumerate()
    with progress_bar("reading", 3, True, unit="scenes") as advance:
        advance(1)
        advance(2)
    assert threading.enumerate() == before
    assert "reading: 100%" in (last := capsys.readouterr().err.rpartition("\r")[2])
    assert " 3/3 " in last
    assert "scenes/s" in last


def test_a_bar_for_terminals_is_not_written_into_a_file(capsys):
    with progress_bar("reading", 3, True, tty=True) as advance:
        advance(3)
    assert not capsys.readouterr().err


def test_a_bar_that_finishes_before_its_delay_is_not_shown(capsys):
    with progress_bar("reading", 3, True, after=60) as advance:
        advance(3)
    assert "reading" not in capsys.readouterr().err


def test_a_notebook_without_ipywidgets_draws_no_warning(monkeypatch, notebook, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ipywidgets" else find(name))
    with progress_bar("reading", 3, True, tty=True) as advance:
        advance(3)
    assert " 3/3 " in capsys.readouterr().err
