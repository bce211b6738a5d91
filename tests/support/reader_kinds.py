"""The readers of files by name, each of which the conformance suite gives scenes to write and to read.

A kind is a function that writes scenes (float32[3], int64) into a folder and returns the sequence that reads them.
"""

import numpy as np

import kerasfeed as kf


def read_npz(path):
    with np.load(path) as file:
        return file["x"], file["y"]


def _files(folder, scenes):
    for part in range(3):
        x, y = zip(*scenes[part * 4 : part * 4 + 4], strict=True)
        np.savez(folder / f"part-{part}.npz", x=np.stack(x), y=np.array(y))
    return kf.FileSequence(sorted(map(str, folder.glob("*.npz"))), read_npz)


def _hdf5_scenes(folder, scenes):
    kf.write_hdf5(scenes, folder / "scenes.h5", workers=0, progress=False)
    return kf.HDF5Scenes(folder / "scenes.h5")


class Rows(kf.SceneSequence):
    """What a user writes over `HDF5File`."""

    def __init__(self, path):
        self.file = kf.HDF5File(path)

    def __len__(self):
        return len(self.file["x"])

    def __getitem__(self, index):
        return self.file["x"][index], self.file["y"][index]


def _hdf5_file(folder, scenes):
    import h5py

    with h5py.File(folder / "rows.h5", "w") as file:
        file["x"] = np.stack([x for x, _ in scenes])
        file["y"] = np.array([y for _, y in scenes])
    return Rows(folder / "rows.h5")


def _tfrecord(compression):
    def make(folder, scenes):
        kf.write_tfrecords(
            scenes, folder / "{shard}.tfrecord", num_shards=1, compression=compression, workers=0, progress=False
        )
        return kf.TFRecordSequence(folder / "*.tfrecord")

    return make


READERS = {
    "HDF5File": _hdf5_file,
    "HDF5Scenes": _hdf5_scenes,
    "FileSequence": _files,
    "TFRecordSequence": _tfrecord(None),
    "TFRecordSequence, gzip": _tfrecord("GZIP"),
}
