"""The table of what files were when a worker of a feed first opened them."""

import os
import threading

import pytest

from kerasfeed.pool.file_identities import FirstOpened
from kerasfeed.util import opened_files as opened


@pytest.fixture
def table():
    file = FirstOpened()
    yield opened.Table(file.descriptor())
    file.close()


def _identity(number):
    return opened.Identity(number, (1 << 64) - 1 - number, number, -number)


def test_the_first_to_enter_a_file_decides_for_all_threads(table):
    found = [[None] * 200 for _ in range(4)]

    def enter(own):
        for number in range(200):
            found[own][number] = table.first(str(number), _identity(own))

    threads = [threading.Thread(target=enter, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == found[2] == found[3]
    assert set(found[0]) <= set(map(_identity, range(4)))


def test_an_entry_that_a_worker_was_killed_in_is_no_entry(table, monkeypatch):
    def killed(fd, data, offset):
        original(fd, data, offset)
        raise SystemExit

    original = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", killed)
        with pytest.raises(SystemExit):
            table.first("x", _identity(1))
    assert table.first("x", _identity(2)) == _identity(2)
    assert table.first("x", _identity(3)) == _identity(2)


def test_files_whose_places_are_taken_go_to_the_next_ones(table, monkeypatch):
    monkeypatch.setattr(opened, "_PLACES", 8)
    for number in range(8):
        assert table.first(str(number), _identity(number)) == _identity(number)
    for number in range(8):
        assert table.first(str(number), _identity(99)) == _identity(number)
    assert table.first("one too many", _identity(99)) == _identity(99)
