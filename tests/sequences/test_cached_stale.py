"""Cached: the key of scenes on disk, and refusal of random scenes."""

import os

import h5py
import numpy as np
import pytest
import scenes
from scenes_views import Noisy, Squares, jittered

import kerasfeed as kf


@pytest.mark.heavy
def test_a_sequence_over_an_hdf5_file_has_one_key_in_every_process(path, tmp_path):
    class Scans(kf.SceneSequence):
        def __init__(self):
            self.file = kf.HDF5File(path)
            self.points = self.file["points"]

        def __len__(self):
            return len(self.points)

        def __getitem__(self, index):
            return self.file["points"][index], index

    for _ in range(2):
        with kf.Feed(kf.Cached(Scans(), tmp_path / "kept", key="v1"), 6, workers=2, worker_type="process") as feed:
            assert sum(int(labels.sum()) for _, labels in feed) == sum(range(24))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert len(list((tmp_path / "kept").rglob("*.scene"))) == 24


@pytest.mark.parametrize("sequence", [Noisy(), kf.Map([(np.zeros(2), 0)], jittered), kf.Zip(Noisy(3), range(3))])
def test_a_random_scene_is_refused(sequence, where):
    cached = kf.Cached(sequence, **where)
    message = r"scene 0 of \w+ uses random numbers.*Apply random changes after the cache: kf.Map\(kf.Cached"
    with pytest.raises(kf.KerasfeedError, match=message):
        cached[0]
    with kf.Feed(cached, 1, workers=0, seed=0) as feed, pytest.raises(kf.KerasfeedError, match=message):
        feed[0]


def test_scenes_that_differ_when_read_twice_are_refused(where, tmp_path):
    class Drifting(scenes.Clouds):
        def __getitem__(self, index):
            points, label = super().__getitem__(index)
            return points + np.float32(np.random.random()), label

    message = r"scene 1 of Drifting differs when it is read again, .*one of the two.*kf.Map\(kf.Cached\(Drifting"
    with pytest.raises(kf.KerasfeedError, match=message):
        kf.Cached(Drifting(3), **where)[1]


def test_each_key_and_length_has_separate_scenes(tmp_path):
    for factor, key in ((1, "v1"), (2, "v2"), (1, "v1"), (2, "version/2")):
        squares = Squares(5)
        squares.factor = factor
        assert kf.Cached(squares, tmp_path, key=key)[3]["x"][0][0, 0] == 3 * factor
    assert kf.Cached(Squares(4), tmp_path, key="v1")[3]["x"][0][0, 0] == 3
    assert sorted(folder.name.rpartition("-")[0] for folder in tmp_path.iterdir()) == [
        "Squares-v1", "Squares-v1", "Squares-v2", "Squares-version_2"
    ]  # fmt: skip


def test_parts_of_one_sequence_share_no_scenes_under_one_key(tmp_path):
    squares = Squares(6)
    parts = [*kf.split(squares, (0.5, 0.5), seed=0), squares[:3], squares[3:], squares[::2], kf.Concat(squares[2:5])]
    for part in (*parts, *parts):
        for scene, expected in zip(kf.Cached(part, tmp_path, key="v1"), part, strict=True):
            np.testing.assert_array_equal(scene["x"][0], expected["x"][0])
    assert len(list(tmp_path.rglob("*.scene"))) == 3 * len(parts)


def test_files_in_another_order_are_read_again_under_the_same_key(tmp_path):
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for path, first in zip(paths, (0, 10), strict=True):
        np.save(path, np.arange(first, first + 3))
    for named, values in ((paths, [0, 1, 2, 10, 11, 12]), (paths[::-1], [10, 11, 12, 0, 1, 2])):
        assert list(kf.Cached(kf.FileSequence(named, np.load), tmp_path / "kept", key="v1")) == values


def test_files_at_other_urls_are_read_again_under_the_same_key(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for first, part in ((0, "train"), (10, "val")):
        kf.write_tfrecords(np.arange(first, first + 4), tmp_path / "x-{shard}", num_shards=2, overwrite=True)
        for path in tmp_path.glob("x*"):
            store.pipe(f"/{tmp_path.name}/{part}/{path.name}", path.read_bytes())
        sequence = kf.TFRecordSequence(f"memory://{tmp_path.name}/{part}/x-*")
        assert sorted(kf.Cached(sequence, tmp_path / "kept", key="v1")) == list(range(first, first + 4))
        assert sorted(kf.Cached(sequence, tmp_path / "kept", key="v1")) == list(range(first, first + 4))


def _rows(path):
    class Rows(kf.SceneSequence):
        def __init__(self):
            self.x = {"points": [kf.HDF5File(path)["x"]]}

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return self.x["points"][0][index]

    return Rows()


def test_datasets_of_one_file_share_no_scenes_under_one_key(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["image"], file["mask"] = np.arange(4.0), np.arange(100.0, 104)
    file = kf.HDF5File(tmp_path / "x.h5")
    makers = (lambda data: data, lambda data: kf.Subset(data, [1, 0]), lambda data: kf.Patches(data, (2,)))
    for make in makers:
        for name in ("image", "mask", "image"):
            sequence = make(file[name])
            cached = list(kf.Cached(sequence, tmp_path / "kept", key="v1"))
            assert np.array_equal(cached, list(sequence))
    folders = set((tmp_path / "kept").iterdir())
    assert np.array_equal(kf.Cached(file["/mask"], tmp_path / "kept", key="v1"), file["mask"])
    assert set((tmp_path / "kept").iterdir()) == folders
    file.close()


def _nested(path):
    data = kf.HDF5File(path)["x"]
    return kf.Map(kf.Concat(kf.Zip(kf.Zip(kf.Subset(data, [0, 1, 2])))), lambda scene: scene[0][0])


def _npy(path):
    return kf.FileSequence([path], np.load)[:]


def _write_h5(path, values):
    with h5py.File(path, "w") as file:
        file["x"] = values


@pytest.mark.parametrize(("make", "write"), [(_rows, _write_h5), (_nested, _write_h5), (_npy, np.save)])
def test_a_changed_file_of_a_reader_is_read_again_under_the_same_key(tmp_path, make, write):
    path = tmp_path / "data.npy"
    for value in (3.0, 5.0, 3.0):
        write(path, np.array([1.0, 2.0, value]))
        os.utime(path, ns=(int(value), int(value)))
        assert [kf.Cached(make(path), tmp_path / "kept", key="v1")[2] for _ in range(2)] == [value] * 2
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_the_error_without_a_key_says_when_to_change_it(tmp_path):
    with pytest.raises(TypeError, match="the class, its arguments, or data that it reads by itself"):
        kf.Cached(Squares(), tmp_path)
