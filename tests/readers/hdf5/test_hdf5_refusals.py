"""Errors of HDF5File name the file, the dataset, the selection, and the object found instead."""

import os
import subprocess
import sys

import h5py
import hdf5_sample
import numpy as np
import pytest
from waits import PROGRAM_SECONDS

import kerasfeed as kf


@pytest.fixture
def path(tmp_path):
    return hdf5_sample.write(tmp_path / "kerasfeed.h5")


def test_the_error_for_a_missing_file_names_it_at_construction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no file 'scans.h5' in the folder '.*'. Check the path"):
        kf.HDF5File("scans.h5")
    with pytest.raises(FileNotFoundError, match=r"no file 'scans.h5' and no folder '.*nowhere'"):
        kf.HDF5File("nowhere/scans.h5")
    with pytest.raises(FileNotFoundError, match="is a folder; HDF5File needs a file in it"):
        kf.HDF5File(tmp_path)


def test_the_error_for_a_deleted_file_names_it(path):
    file = kf.HDF5File(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no file 'kerasfeed.h5' in the folder"):
        file["points"]


def test_the_error_for_a_file_that_is_not_hdf5_says_so(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    path.write_text("<html>404</html>")
    with pytest.raises(OSError, match=r"cannot open '.*kerasfeed.h5': it is not an HDF5 file \(16 bytes, no HDF5 sig"):
        kf.HDF5File(path)["points"]
    path.write_bytes(b"")
    with pytest.raises(OSError, match=r"it is not an HDF5 file \(0 bytes"):
        kf.HDF5File(path)["points"]


def test_the_error_for_a_truncated_file_says_that_it_is_damaged(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match="it is a damaged HDF5 file, or one still being written"):
        kf.HDF5File(path)["points"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_raises_permission_error(path):
    path.chmod(0)
    with pytest.raises(PermissionError, match=r"cannot open '.*kerasfeed.h5'"):
        kf.HDF5File(path)["points"]


def test_a_file_locked_by_a_writer_keeps_the_type_of_the_error(path):
    script = f"import h5py, sys; f = h5py.File({str(path)!r}, 'r+'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1) as writer:
        assert writer.stdout.readline().strip() == b"open"
        with pytest.raises(BlockingIOError, match=r"cannot open '.*kerasfeed.h5': .*lock") as caught:
            kf.HDF5File(path)["points"]
        for remedy in ("a program that writes the file", "swmr=True", "locking=False"):
            assert remedy in str(caught.value)
        writer.communicate(timeout=PROGRAM_SECONDS)
    with kf.HDF5File(path) as file:
        assert file["labels"][1] == 1


def test_a_file_after_a_user_block_is_read(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w", userblock_size=1024) as writer:
        writer["x"] = np.arange(5)
    with kf.HDF5File(path) as file:
        assert file["x"][:].tolist() == [0, 1, 2, 3, 4]


def test_the_error_for_a_missing_dataset_names_the_file_and_its_content(path):
    with kf.HDF5File(path) as file:
        with pytest.raises(
            KeyError, match=r"^.'point' is not in the file; .*kerasfeed.h5.* holds the datasets .*points"
        ):
            file[np.str_("point")]
        with pytest.raises(KeyError, match=r"'scans/night' is not in the file; .* datasets .*scans/day/intensity"):
            file["scans"]["night"]
        with pytest.raises(TypeError, match=r"indexed by the name of a dataset, received 0: write file\[name\]\[0\]"):
            file[0]


def test_only_read_mode_is_accepted(path):
    with kf.HDF5File(path, "r") as file:
        assert len(file["points"]) == 20
    with pytest.raises(ValueError, match=r"mode must be \"r\", received 'r\+': an HDF5File only reads"):
        kf.HDF5File(path, "r+")


@pytest.mark.parametrize("option", ["track_ordr", "chunk_cach"])
def test_an_option_that_h5py_lacks_is_refused_before_the_file_is_read(path, option):
    with pytest.raises(
        TypeError, match=f"has no argument '{option}': a file is opened only for reading, with chunk_cache"
    ):
        kf.HDF5File(path, **{option: "r"})
    with kf.HDF5File(path, rdcc_nbytes=2**20, locking=False) as file:
        assert len(file["points"]) == 20


def test_the_error_for_a_missing_dataset_of_a_large_file_lists_a_few(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as writer:
        for number in range(300):
            writer[f"x{number:03}"] = number
    with kf.HDF5File(path) as file, pytest.raises(KeyError, match=r"x000, .*x019 and 280 more"):
        file["y"]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (20, r"index 20 is out of range for axis 0 of dataset 'points', of size 20: choose -20 to 19"),
        (-21, r"index -21 is out of range for axis 0 of dataset 'points', of size 20"),
        (np.s_[:, [0, 6]], r"index 6 is out of range for axis 1 of dataset 'points', of size 6: choose -6 to 5"),
        (np.s_[..., -4], r"index -4 is out of range for axis 2 of dataset 'points', of size 3"),
        (np.array([1, 2**63], "u8"), r"index 9223372036854775808 is out of range for axis 0"),
    ],
)
def test_the_error_for_an_index_out_of_range_names_dataset_axis_and_size(path, selection, message):
    with kf.HDF5File(path) as file, pytest.raises(IndexError, match=message) as error:
        file["points"][selection]
    assert "reading 'points'[" in error.value.__notes__[-1]
    assert str(path) in error.value.__notes__[-1]


@pytest.mark.parametrize("selection", [np.ones(3, bool), "x", None, 1.5, ([1, 2], [0, 1]), (0, 0, 0, 0), (..., ...)])
def test_a_bad_selection_raises_as_in_h5py_and_names_the_dataset(path, selection):
    with h5py.File(path) as reference, kf.HDF5File(path) as file:
        with pytest.raises(Exception) as theirs:
            reference["points"][selection]
        with pytest.raises(theirs.type) as ours:
            file["points"][selection]
        assert str(ours.value) == str(theirs.value)
        assert "reading 'points'[" in ours.value.__notes__[-1]
        assert str(path) in ours.value.__notes__[-1]


def test_the_error_for_a_damaged_chunk_names_dataset_selection_and_file(path):
    with h5py.File(path) as reference:
        place = reference["gzip"].id.get_chunk_info(2)
    damaged = bytearray(path.read_bytes())
    damaged[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(damaged)
    with kf.HDF5File(path) as file:
        assert file["gzip"][0].shape == (4,)
        with pytest.raises(OSError, match=r"cannot read 'gzip'\[7\] of '.*kerasfeed.h5': "):
            file["gzip"][7]
