"""A small file with every kind of dataset."""

import h5py
import numpy as np


def write(path):
    """Write it; a name with "kerasfeed" in it shows its descriptors to `nothing_leaks`."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        points = file.create_dataset("points", data=rng.normal(size=(20, 6, 3)).astype("f4"), chunks=(4, 6, 3))
        points.attrs["unit"] = "metre"
        points.attrs["scale"] = 2.5
        file["labels"] = np.arange(20, dtype="u1")
        file["scans/day/intensity"] = rng.integers(0, 9, (20, 5)).astype(">i2")
        file["names"] = [f"scene é {k}" for k in range(20)]
        file["raw"] = np.array([b"ab", b"c"] * 10)
        file["flags"] = rng.random(20) > 0.5
        file["waves"] = rng.normal(size=20) + 1j
        file["table"] = np.array([(k, k / 2) for k in range(20)], [("a", "i4"), ("b", "f8")])
        file["scalar"] = np.float32(7)
        file["empty"] = np.empty((0, 3))
        file["compressed"] = rng.normal(size=(20, 4))
        file.create_dataset("gzip", data=rng.normal(size=(20, 4)), chunks=(3, 4), compression="gzip", shuffle=True)
        file.create_dataset("ragged", data=[np.arange(k % 4) for k in range(20)], dtype=h5py.vlen_dtype("i4"))
    return path
