"""Files read forward only: what it costs to ask for rows in one order or another, and that nothing stays open."""

import itertools
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kerasfeed as kf
from kerasfeed.readers.files.contents import ForwardContents, StreamEnded


class Opened:
    """Makes iterators of `count` scenes; counts those begun, those open and the scenes given."""

    def __init__(self, count=20):
        self.count = count
        self.begun = self.open = self.given = 0

    def __call__(self, _=None):
        self.begun += 1
        self.open += 1
        try:
            for row in range(self.count):
                self.given += 1
                yield np.full(2, row)
        finally:
            self.open -= 1

    def stream(self, lookback=1024, most_bytes=1 << 20):
        return ForwardContents(self(), self, lookback, most_bytes)


@given(st.lists(st.integers(0, 19), max_size=40), st.integers(1, 30))
@settings(deadline=None)
def test_a_row_is_the_same_whatever_was_asked_for_before(rows, lookback):
    stream = Opened().stream(lookback)
    assert [stream.row(row).tolist() for row in rows] == [[row, row] for row in rows]
    assert stream.nbytes <= 16 * lookback


def test_rows_in_order_are_read_once_and_nothing_of_them_is_kept():
    opened = Opened()
    stream = opened.stream()
    for row in range(20):
        stream.row(row)
        assert stream.nbytes == 0
    assert (opened.begun, opened.given) == (1, 20)


def test_rows_passed_over_are_kept_until_they_are_asked_for():
    opened = Opened()
    stream = opened.stream()
    for row in (5, 3, 0, 4, 1, 2):
        stream.row(row)
    assert (opened.begun, opened.given, stream.nbytes) == (1, 6, 0)


def test_of_rows_passed_over_only_the_last_few_are_kept():
    opened = Opened()
    stream = opened.stream(lookback=4)
    for row in (9, 5, 8):
        stream.row(row)
    assert opened.begun == 1
    stream.row(4)
    assert (opened.begun, opened.given) == (2, 15)


def test_what_is_kept_of_rows_passed_over_is_bounded_in_bytes_too():
    opened = Opened()
    stream = opened.stream(most_bytes=3 * 16)
    stream.row(9)
    assert stream.nbytes == 48
    stream.row(6)
    stream.row(5)
    assert opened.begun == 2


def test_the_end_before_a_row_is_told_with_what_there_was():
    stream = Opened(3).stream()
    with pytest.raises(StreamEnded) as caught:
        stream.row(5)
    assert caught.value.args == (3,)
    assert stream.row(2).tolist() == [2, 2]


def test_a_retired_stream_is_closed_and_still_answers():
    opened = Opened()
    stream = opened.stream()
    stream.row(3)
    assert opened.open == 1
    stream.retire()
    assert opened.open == 0
    assert stream.row(1).tolist() == [1, 1]
    assert opened.open == 0


def test_retiring_does_not_wait_for_a_thread_that_reads():
    inside, go_on = threading.Event(), threading.Event()
    closed = []

    def slow(_=None):
        try:
            inside.set()
            go_on.wait(60)
            yield 1
            yield 2
        finally:
            closed.append(True)

    stream = ForwardContents(slow(), slow, 4, 99)
    found = []
    reader = threading.Thread(target=lambda: found.append(stream.row(0)))
    reader.start()
    inside.wait(60)
    stream.retire()
    assert not closed
    go_on.set()
    reader.join(60)
    assert (found, closed) == ([1], [True])


def test_after_an_error_a_stream_begins_anew():
    tries = []

    def at_the_second(_=None):
        tries.append(True)
        yield 0
        if len(tries) < 2:
            raise OSError("lost the connection")
        yield 1

    stream = ForwardContents(at_the_second(), at_the_second, 4, 99)
    with pytest.raises(OSError, match="connection"):
        stream.row(1)
    assert stream.row(1) == 1


def test_a_file_in_order_is_read_once_an_epoch_and_nothing_stays_open(tmp_path):
    opened = Opened()
    files = kf.FileSequence(range(4), opened, count=20, cache_files=2)
    with kf.Feed(files, 7, workers=0) as feed:
        list(feed)  # the spec is inferred from scenes here and there
        before = opened.begun
        list(feed)
    assert opened.begun == before + 4
    assert opened.open == 0  # each was read to its end


def test_open_files_are_bounded_and_those_that_leave_are_closed():
    opened = Opened()
    files = kf.FileSequence(range(10), opened, count=20, cache_files=3)
    for index in range(0, 200, 20):
        _ = files[index]
        assert opened.open <= 3
    files.close()
    assert opened.open == 0


def test_threads_together_read_a_file_once(tmp_path):
    opened = Opened(300)
    files = kf.FileSequence(["a"], opened, count=300)
    _ = files[0]
    with kf.Feed(files, 10, workers=4, worker_type="thread") as feed:
        list(feed)
        begun, given = opened.begun, opened.given
        assert [int(row[0]) for batch in feed for row in batch] == list(range(300))
    assert opened.begun - begun <= 2  # what is left over of the epoch before may be behind
    assert opened.given - given <= 400


def test_a_generator_of_counts_is_read_to_its_end_and_closed_when_counting():
    opened = Opened(7)
    files = kf.FileSequence(range(3), opened)
    assert files.counts.tolist() == [7, 7, 7]
    assert (opened.begun, opened.open) == (3, 0)


def test_one_iterator_for_all_calls_is_seen_by_its_count():
    once = iter([1, 2, 3])
    files = kf.FileSequence(["a"], lambda path: once)
    with pytest.raises(ValueError, match="file 'a' has 0 scenes, and 3 were counted"):
        files[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_child_of_a_fork_reads_for_itself(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{row}\n" for row in range(5000)))

    def lines(path):
        with path.open() as file:
            yield from map(int, file)

    files = kf.FileSequence([path], lines)
    assert files[10] == 10
    child = os.fork()
    if child == 0:
        try:
            assert [files[row] for row in itertools.chain(range(11, 4000), [3, 4])] == [*range(11, 4000), 3, 4]
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert [files[row] for row in range(11, 5000)] == list(range(11, 5000))
