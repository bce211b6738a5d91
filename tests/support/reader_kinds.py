"""The readers of files by name; the conformance suite writes scenes for each and reads them.

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
    """A user's class over `HDF5File`."""

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


def _boxes(folder, scenes):
    """All scenes in one file of one long array, with their labels, one number each."""
    import h5py

    with h5py.File(folder / "long.h5", "w") as file:
        file.create_dataset("x", data=np.concatenate([x for x, _ in scenes]), chunks=(5,))
        file["y"] = np.repeat([y for _, y in scenes], 3)
    return kf.HDF5File(folder / "long.h5")


def with_first_label(scene):
    return scene[0], scene[1][0]


def _patches(folder, scenes):
    file = _boxes(folder, scenes)
    return kf.Map(kf.Patches((file["x"], file["y"]), (3,)), with_first_label)


def _windows(folder, scenes):
    file = _boxes(folder, scenes)
    return kf.Windows(file["x"], 3, stride=3, targets=file["y"])


def _tfrecord(folder, scenes):
    kf.write_tfrecords(scenes, folder / "{shard}.tfrecord", num_shards=1, workers=0, progress=False)
    return kf.TFRecordSequence(folder / "*.tfrecord")


READERS = {
    "HDF5File": _hdf5_file,
    "HDF5Scenes": _hdf5_scenes,
    "Patches": _patches,
    "Windows": _windows,
    "FileSequence": _files,
    "TFRecordSequence": _tfrecord,
}
