"""What worker processes know, and tell, of files that were opened."""

import pickle

import pytest

from kerasfeed.util import opened_files
from kerasfeed.util.fingerprint import Hasher
from kerasfeed.util.opened_files import Identity, Opened, first_in_feed, same_as_first, take_untold

BEFORE, NOW = Identity(1, 2, 30, 4), Identity(1, 2, 31, 5)


@pytest.fixture
def worker(monkeypatch):
    """Make this process a worker for a while."""
    monkeypatch.setattr(opened_files, "_first", None)
    monkeypatch.setattr(opened_files, "_untold", {})
    return opened_files.begin_worker


def test_a_worker_keeps_to_what_others_have_found_and_tells_once_what_is_new(worker):
    worker({Opened("/a"): BEFORE})
    assert first_in_feed(Opened("/a"), NOW) == BEFORE
    assert first_in_feed(Opened("/b"), NOW) == NOW
    assert first_in_feed(Opened("/b"), BEFORE) == NOW
    assert take_untold() == {Opened("/b"): NOW}
    assert take_untold() == {}


def test_a_file_that_others_have_found_to_be_another_one_is_refused(worker):
    worker({Opened("/a"): BEFORE, Opened("/grows", may_grow=True): BEFORE})
    with pytest.raises(OSError, match="'/a' changed since it was first opened: its size is 31 bytes, was 30"):
        same_as_first("/a", 0, None, NOW)
    assert same_as_first("/a", 1, None, NOW) == NOW  # closed since, on purpose
    assert same_as_first("/grows", 0, None, NOW, may_grow=True) == BEFORE


def test_a_process_that_is_no_worker_keeps_nothing(worker):
    assert first_in_feed(Opened("/a"), BEFORE) == BEFORE
    assert first_in_feed(Opened("/a"), NOW) == NOW
    assert take_untold() == {}


def test_a_file_of_another_machine_need_only_be_as_large_and_a_url_is_the_same_everywhere(monkeypatch):
    sent, sent_url = pickle.dumps(BEFORE), pickle.dumps(Identity(0, 2, 30, 4))
    assert pickle.loads(sent) == BEFORE
    monkeypatch.setattr(opened_files, "_files_of", lambda: 1)
    for arrived in (pickle.loads(sent), pickle.loads(pickle.dumps(pickle.loads(sent)))):
        assert arrived.difference(Identity(7, 8, 30, 9)) == ""
        assert arrived.difference(Identity(7, 8, 31, 9)) == "its size is 31 bytes, was 30"
        assert arrived.difference(Identity(7, 8, 31, 9), may_grow=True) == ""
    assert "another file" in pickle.loads(sent_url).difference(Identity(0, 3, 30, 4))


def test_the_key_of_a_cache_on_disk_does_not_depend_on_when_a_machine_was_started(monkeypatch):
    before = Hasher().of(BEFORE)
    monkeypatch.setattr(opened_files, "_files_of", lambda: 1)
    assert Hasher().of(BEFORE) == before
