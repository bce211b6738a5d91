"""The log "kerasfeed" reports events of workers, each once, and nothing about tasks."""

import logging
import os
import signal

import pytest
from every_pool import EVERY, gives, outcome_of
from pool_kinds import Do, RecordedTask
from waits import wait_until

import kerasfeed as kf

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
]


@pytest.fixture
def log_lines(caplog):
    """The lines of the log, each with its level."""
    caplog.set_level(logging.DEBUG, "kerasfeed")
    return lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


@EVERY
def test_the_start_and_end_of_workers_are_logged_once(kind, make, log_lines):
    pool = make(kind)
    for number in range(50):
        assert gives(pool, number)
    pool.close()
    pool.close()
    lines = log_lines()
    assert len(lines) == (0 if kind == "inline" else 2)
    if lines:
        assert lines[0].startswith("INFO the test (")
        assert f"worker {pool.worker_type}" in lines[0]
        assert lines[0].endswith("): starting")
        assert lines[1].endswith("): ended")


def test_replacing_a_process_logs_a_warning(make, log_lines):
    pool = make("process", 1)
    assert gives(pool, 0)
    pid = pool.pids()[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pool.respawns == 1)
    assert gives(pool, 1)
    [line] = [line for line in log_lines() if line.startswith("WARNING")]
    assert f": a new process replaces a worker: worker process 0 (pid {pid}) was killed by SIGKILL" in line


def test_replacing_a_thread_logs_a_warning(make, log_lines, target):
    pool = make("thread", 1, timeout=0.2)
    target.hold()
    assert outcome_of(pool, RecordedTask(Do.HANG, 5))[0] == "stuck"
    target.release()
    assert gives(pool, 1)
    [line] = [line for line in log_lines() if line.startswith("WARNING")]
    assert line.endswith("another thread replaces worker thread 0, which hangs at task 5")


def test_the_log_prints_nothing_by_default():
    logger = logging.getLogger(kf.__name__)
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    assert (logger.level, logger.propagate, logger.disabled) == (logging.NOTSET, True, False)
