"""Local paths from users: anything else is refused before a file is created."""

from pathlib import Path

import numpy as np
import pytest

import kerasfeed as kf

SCENES = [np.zeros(3, np.float32)] * 4


def _feed():
    return kf.Feed(SCENES, 2, seed=0, workers=0)


TAKEN = [
    ("path", lambda path: kf.Cached(SCENES, path, key="v1")),
    ("path", lambda path: kf.write_hdf5(SCENES, path, workers=0, progress=False)),
    ("path", lambda path: kf.FeedCheckpoint(_feed(), path)),
    ("pattern", lambda path: kf.write_tfrecords(SCENES, path, num_shards=1, workers=0, progress=False)),
    ("error_log", lambda path: kf.Feed(SCENES, 2, error_log=path)),
    ("backup_dir", lambda path: kf.BackupAndRestore(_feed(), path)),
]


@pytest.mark.parametrize(("name", "take"), TAKEN)
def test_a_url_is_refused_as_a_local_path_and_no_folder_is_created(name, take, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kf.write_tfrecords(SCENES, "a.tfrecord", num_shards=1, workers=0, progress=False)
    before = sorted(tmp_path.iterdir())
    for url in ("s3://bucket/kept", Path("gs://bucket/kept"), "file:///tmp/kept", ""):
        with pytest.raises(ValueError, match=f"^{name} must be .* on a disk, received '{url}'"):
            take(url)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("given", [5, b"kept"])
def test_the_error_for_an_object_that_is_not_a_path_names_its_type(given):
    with pytest.raises(TypeError, match=f"path must be a path, received {given!r} of type {type(given).__name__}"):
        kf.Cached(SCENES, given, key="v1")


@pytest.mark.parametrize("option", ["shuffle", "drop_remainder", "pad_remainder"])
@pytest.mark.parametrize("value", ["no", 1000, None])
def test_an_option_that_is_neither_true_nor_false_is_refused(option, value):
    with pytest.raises(TypeError, match=f"{option} must be True or False, received {value!r}"):
        kf.Feed(np.arange(4), 2, **{option: value})


@pytest.mark.parametrize("option", ["shuffle", "overwrite"])
def test_a_writer_refuses_an_option_that_is_neither_true_nor_false(option, tmp_path):
    with pytest.raises(TypeError, match=f"{option} must be True or False, received 'no'"):
        kf.write_hdf5(SCENES, tmp_path / "scenes.h5", workers=0, progress=False, **{option: "no"})
    assert list(tmp_path.iterdir()) == []
