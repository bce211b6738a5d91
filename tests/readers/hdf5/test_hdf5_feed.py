"""Sequences over an HDF5File, in feeds with every kind of worker."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import hdf5_sample
import numpy as np
import pytest
from waits import PROGRAM_SECONDS

import kerasfeed as kf


@pytest.fixture
def path(tmp_path):
    return hdf5_sample.write(tmp_path / "kerasfeed.h5")


class Rooms(kf.SceneSequence):
    """Scenes of the fixture's file; also a dataset in an attribute, as in users' classes."""

    def __init__(self, path):
        self.file = kf.HDF5File(path)
        self.labels = self.file["labels"]

    def __len__(self):
        return len(self.file["points"])

    def __getitem__(self, index):
        return self.file["points"][index], self.labels[index], self.file["names"][index]


@pytest.mark.parametrize(("workers", "worker_type"), [(0, "thread"), (3, "thread"), (1, "process")])
def test_a_feed_reads_the_file_with_every_kind_of_worker(path, workers, worker_type):
    with h5py.File(path) as reference:
        points, labels, names = reference["points"][()], reference["labels"][()], reference["names"][()]
    rooms = Rooms(path)
    with kf.Feed(rooms, 6, workers=workers, worker_type=worker_type) as feed:
        batches = list(feed)
    assert np.array_equal(np.concatenate([batch[0] for batch in batches]), points)
    assert np.array_equal(np.concatenate([batch[1] for batch in batches]), labels)
    assert np.concatenate([batch[2] for batch in batches]).tolist() == names.tolist()
    rooms.file.close()


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_dataset_is_a_sequence(path, worker_type):
    with h5py.File(path) as reference:
        points = reference["points"][()]
    file = kf.HDF5File(path)
    with kf.Feed(file["points"], 6, workers=2, worker_type=worker_type) as feed:
        assert np.array_equal(np.concatenate(list(feed)), points)
    with pytest.raises(TypeError, match="holds arrays by name"):
        kf.Feed(file, 1, workers=1, worker_type="thread")
    file.close()


def test_variable_length_rows_of_equal_length_are_scenes(tmp_path):
    path, expected = tmp_path / "kerasfeed.h5", np.arange(3, dtype="f4") + np.arange(4)[:, None]
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("rows", (4,), h5py.vlen_dtype("f4"))
        for number, row in enumerate(expected):
            rows[number] = row
    with kf.HDF5File(path) as file:
        with kf.Feed(file["rows"], batch_size=4, workers=0) as feed:
            (batch,) = feed
        assert batch.dtype == np.float32
        assert np.array_equal(batch, expected)
        with kf.Feed(kf.Zip(file["rows"], np.arange(4)), batch_size=4, workers=0) as feed:
            ((batch, _),) = feed
        assert np.array_equal(batch, expected)


def test_each_worker_process_opens_its_own_handle(path):
    class Handles(Rooms):
        def __getitem__(self, index):
            points = super().__getitem__(index)[0]
            where = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
            return points, os.getpid(), where.count(os.path.realpath(self.file.path))

    rooms = Handles(path)
    with kf.Feed(rooms, 1, workers=2, worker_type="process") as feed:
        found = [(int(batch[1][0]), int(batch[2][0])) for batch in feed]
    assert {count for _, count in found} == {1}
    assert os.getpid() not in {pid for pid, _ in found}
    rooms.file.close()


@pytest.mark.heavy
def test_the_error_for_a_damaged_scene_names_its_index_and_file(path):
    with h5py.File(path) as reference:
        place = reference["gzip"].id.get_chunk_info(2)  # scenes 6, 7, 8: not scenes of the spec
    damaged = bytearray(path.read_bytes())
    damaged[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(damaged)
    file = kf.HDF5File(path)

    class Compressed(kf.SceneSequence):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return file["gzip"][index]

    with kf.Feed(Compressed(), 20, workers=2, worker_type="process") as feed:
        with pytest.raises(OSError, match=r"cannot read 'gzip'\[6\] of") as caught:
            next(iter(feed))
        assert any("scene 6, epoch 0, step 0" in note for note in caught.value.__notes__)
    file.close()


def test_a_forked_child_opens_its_own_handle(path):
    # kerasfeed never forks, but other libraries of the user may.
    script = textwrap.dedent(f"""
        import os, sys
        import kerasfeed as kf
        file = kf.HDF5File({str(path)!r})
        points = file["points"]
        first = points[3].tolist()
        parent = file._open()
        if (child := os.fork()) == 0:
            same = points[3].tolist() == first and points[4].shape == (6, 3)
            os._exit(0 if same and file._open() is not parent else 1)
        _, status = os.waitpid(child, 0)
        assert points[3].tolist() == first
        sys.exit(os.waitstatus_to_exitcode(status))
        """)
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=PROGRAM_SECONDS)


def test_importing_the_reader_loads_no_framework():
    script = (
        "import sys, kerasfeed as kf; kf.HDF5File; "
        "print([name for name in ('keras', 'tensorflow', 'jax', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=PROGRAM_SECONDS
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_real_point_clouds_are_delivered_unchanged(real_data, worker_type):
    path = Path(real_data) / "bimnet10_test.h5"
    with h5py.File(path) as reference:
        data, label = reference["data"][()], reference["label"][()]
    file = kf.HDF5File(path)
    assert file["data"].dtype == np.float32
    assert file["data"].shape == (len(label), 2048, 3)
    assert "label" in file

    class Clouds(kf.SceneSequence):
        def __len__(self):
            return len(file["data"])

        def __getitem__(self, index):
            return file["data"][index], file["label"][index]

    with kf.Feed(Clouds(), 16, shuffle=True, seed=0, workers=2, worker_type=worker_type) as feed:
        order = np.concatenate([feed.plan.indices(0, step) for step in range(len(feed))])
        batches = list(feed)
    assert np.array_equal(np.concatenate([batch[0] for batch in batches]), data[order])
    assert np.array_equal(np.concatenate([batch[1] for batch in batches]), label[order])
    file.close()
