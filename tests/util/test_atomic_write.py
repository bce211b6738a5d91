"""Files written whole or not at all."""

import os
import stat

import pytest

from kerasfeed.util.atomic_write import write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_written_at_a_symbolic_link_takes_its_place_and_leaves_what_it_leads_to(tmp_path, durable):
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    write_whole(link, b"new", durable=durable)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    assert set(tmp_path.iterdir()) == {fifo, link}


def test_a_folder_at_which_a_file_is_to_be_written_is_left_as_it_is(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]
