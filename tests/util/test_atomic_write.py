"""Files written whole or not at all."""

import os
import stat

import pytest

from kerasfeed.util.atomic_write import appearing, write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_write_whole_replaces_a_symbolic_link_and_keeps_its_target(tmp_path, durable):
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    write_whole(link, b"new", durable=durable)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    assert set(tmp_path.iterdir()) == {fifo, link}


def test_write_whole_refuses_to_replace_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


@pytest.mark.parametrize("through_link", [False, True])
def test_only_regular_files_are_replaced(tmp_path, through_link):
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    what = "is a device, a pipe or a socket, which is not replaced; name a file"
    with pytest.raises(OSError, match=what), appearing(link if through_link else fifo, overwrite=True):
        raise AssertionError("nothing is to be written")
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert set(tmp_path.iterdir()) == {fifo, link}


def test_a_regular_file_is_replaced_at_the_target_of_a_link(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"old")
    link.symlink_to(file)
    with appearing(link, overwrite=True) as descriptor:
        os.write(descriptor, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
