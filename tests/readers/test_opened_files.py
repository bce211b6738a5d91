"""The comparison of an opened file with a known one."""

import pickle

from kerasfeed.readers import opened_files
from kerasfeed.readers.opened_files import Identity

BEFORE = Identity(1, 2, 30, 4)


def test_on_another_machine_a_file_is_compared_by_size_and_a_url_fully(monkeypatch):
    sent, sent_url = pickle.dumps(BEFORE), pickle.dumps(Identity(0, 2, 30, 4))
    assert pickle.loads(sent) == BEFORE
    monkeypatch.setattr(opened_files, "_machine", lambda: 1)
    for arrived in (pickle.loads(sent), pickle.loads(pickle.dumps(pickle.loads(sent)))):
        assert arrived.difference(Identity(7, 8, 30, 9)) == ""
        assert arrived.difference(Identity(7, 8, 31, 9)) == "its size is 31 bytes, was 30"
        assert arrived.difference(Identity(7, 8, 31, 9), may_grow=True) == ""
    assert "another file" in pickle.loads(sent_url).difference(Identity(0, 3, 30, 4))
