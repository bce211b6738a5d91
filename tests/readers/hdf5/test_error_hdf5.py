"""Every error of reading HDF5 names file and dataset once, also from worker processes."""

import os

import h5py
import numpy as np
import pytest
from error_kinds import whole_text

import kerasfeed as kf

READERS = ["direct", "h5py"]


class Rooms(kf.SceneSequence):
    """Scenes of a file that is damaged outside the scenes of the spec."""

    def __init__(self, path, **options):
        self.file = kf.HDF5File(path, **options)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.file["points"][index]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rooms.h5"
    with h5py.File(path, "w") as file:
        data = np.random.default_rng(0).integers(0, 9, (24, 500))
        file.create_dataset("points", data=data, chunks=(1, 500), compression="gzip")
    return path


def _options(reader):
    return {"driver": "stdio"} if reader == "h5py" else {}


def _damage(path, index):
    with h5py.File(path) as file:
        place = file["points"].id.get_chunk_info(index).byte_offset
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 20)


def _assert_named_once(error, path):
    texts = [str(error), *error.__notes__[:2]]
    places = [text for text in texts if "'points'" in text and repr(str(path)) in text and "Traceback" not in text]
    assert len(places) == 1, texts


@pytest.mark.light(where=lambda reader, worker_type: worker_type != "process" or reader == "direct")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("workers", "worker_type"), [(0, "thread"), (2, "thread"), (1, "process")])
def test_the_error_for_a_damaged_chunk_names_dataset_file_and_scene(path, reader, workers, worker_type):
    _damage(path, 13)
    with kf.Feed(Rooms(path, **_options(reader)), 6, workers=workers, worker_type=worker_type) as feed:
        assert feed.sequence.file["points"].reader.kind == reader
        with pytest.raises(OSError, match=r"cannot read 'points'\[13\] of '.*rooms\.h5'") as caught:
            list(feed)
        _assert_named_once(caught.value, path)
        assert "scene 13, epoch 0, step 2" in whole_text(caught.value)


@pytest.mark.light(where=lambda reader, worker_type: worker_type != "process" or reader == "direct")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_error_for_an_index_out_of_range_names_dataset_and_file(path, reader, worker_type):
    class Beyond(Rooms):
        def __getitem__(self, index):
            return self.file["points"][index + (20 if index == 13 else 0)]

    with kf.Feed(Beyond(path, **_options(reader)), 6, workers=2, worker_type=worker_type) as feed:
        with pytest.raises(IndexError, match="33") as caught:
            list(feed)
        _assert_named_once(caught.value, path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("held", [False, True])
def test_a_file_that_has_vanished_is_named_with_the_dataset(path, reader, held):
    class Holding(Rooms):
        def __init__(self, path, **options):
            super().__init__(path, **options)
            self.points = self.file["points"]

        def __getitem__(self, index):
            return self.points[index]

    sequence = (Holding if held else Rooms)(path, **_options(reader))
    sequence.file.close()
    path.unlink()
    with kf.Feed(sequence, 6, workers=1, worker_type="thread") as feed, pytest.raises(FileNotFoundError) as caught:
        list(feed)
    text = whole_text(caught.value)
    assert "there is no file 'rooms.h5' in the folder" in text
    assert f"kerasfeed: reading 'points' of {str(path)!r}" in caught.value.__notes__


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_truncated_file_is_named_with_the_dataset(path, worker_type):
    sequence = Rooms(path)
    with path.open("r+b") as file:
        file.truncate(3000)
    with kf.Feed(sequence, 6, workers=1, worker_type=worker_type) as feed:
        with pytest.raises(OSError, match=r"cannot open '.*rooms\.h5': it is a damaged HDF5 file") as caught:
            list(feed)
        assert f"kerasfeed: reading 'points' of {str(path)!r}" in caught.value.__notes__


@pytest.mark.heavy
def test_a_file_that_is_locked_is_named_with_the_dataset(path):
    with h5py.File(path, "r+"):
        feed = kf.Feed(Rooms(path), 6, workers=1, worker_type="process")
        with feed, pytest.raises(OSError, match=r"cannot open '.*rooms\.h5': .*lock") as caught:
            list(feed)
    assert f"kerasfeed: reading 'points' of {str(path)!r}" in caught.value.__notes__


@pytest.mark.heavy
def test_the_error_for_a_missing_dataset_names_it_once(path):
    class Wrong(Rooms):
        def __getitem__(self, index):
            return self.file["walls"][index]

    with kf.Feed(Wrong(path), 6, workers=1, worker_type="process") as feed, pytest.raises(KeyError) as caught:
        list(feed)
    assert "'walls' is not in the file" in str(caught.value)
    assert not any("reading" in note for note in caught.value.__notes__ if "Traceback" not in note)


@pytest.fixture
def elsewhere(tmp_path):
    """A dataset over three files, another over that one, and one in external files."""
    layout = h5py.VirtualLayout((3, 4), "i8")
    for number in range(3):
        with h5py.File(tmp_path / f"part{number}.h5", "w") as file:
            file["x"] = np.full(4, number)
        layout[number] = h5py.VirtualSource(f"part{number}.h5", "x", (4,))
    above = h5py.VirtualLayout((2, 4), "i8")
    above[:] = h5py.VirtualSource(".", "virtual", (3, 4))[1:]
    raw = [(str(tmp_path / "raw0"), 0, 4), (str(tmp_path / "raw1"), 2, h5py.h5f.UNLIMITED)]
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file.create_virtual_dataset("virtual", layout, fillvalue=-1)
        file.create_virtual_dataset("above", above)
        file.create_dataset("external", data=np.arange(8, dtype="u1"), external=raw)
    return tmp_path


def test_a_missing_source_of_a_virtual_dataset_raises_instead_of_the_fill_value(elsewhere):
    with kf.HDF5File(elsewhere / "whole.h5") as file:
        assert file["virtual"][1].tolist() == file["above"][0].tolist() == [1, 1, 1, 1]
    (elsewhere / "part1.h5").rename(elsewhere / "kept.h5")
    for name in ("virtual", "above"):
        with kf.HDF5File(elsewhere / "whole.h5") as file:
            text = rf"cannot read '{name}'\[0\] of '.*whole.h5': its source 'x' is in 'part1.h5', which does not"
            with pytest.raises(FileNotFoundError, match=text):
                file[name][0]
            with pytest.raises(FileNotFoundError, match=r"in 'part1\.h5'"):
                file[name].take([0])
    (elsewhere / "kept.h5").rename(elsewhere / "part1.h5")
    with h5py.File(elsewhere / "part1.h5", "r+") as file:
        file.move("x", "y")
    with (
        kf.HDF5File(elsewhere / "whole.h5") as file,
        pytest.raises(OSError, match=r"its source 'x' is not in '.*part1.h5'"),
    ):
        file["virtual"][0]


def test_a_truncated_or_missing_external_file_raises(elsewhere):
    with kf.HDF5File(elsewhere / "whole.h5") as file:
        assert file["external"][:].tolist() == list(range(8))
        os.truncate(elsewhere / "raw1", 5)
        with pytest.raises(OSError, match=r"its external file '.*raw1' is truncated: it has 5 bytes and needs 6"):
            file["external"][:2]
    for name in ("raw0", "raw1"):
        (elsewhere / name).unlink()
    with kf.HDF5File(elsewhere / "whole.h5") as file, pytest.raises(OSError, match="cannot read 'external'"):
        file["external"][:]
