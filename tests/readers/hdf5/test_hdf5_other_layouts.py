"""Files that netCDF4 and MATLAB 7.3 write are HDF5 files: each dataset is read, and equals h5py's."""

import h5py
import numpy as np
import pytest

import kerasfeed as kf


@pytest.fixture
def netcdf(tmp_path):
    """A file in the layout of netCDF4: dimension scales, an unlimited dimension, packed integers, groups."""
    path = tmp_path / "kerasfeed.nc"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", libver=("earliest", "v108"), track_order=True) as file:
        file.attrs["_NCProperties"] = np.bytes_("version=2,netcdf=4.9.2,hdf5=1.14.3")
        for number, (name, length) in enumerate({"time": None, "lat": 6, "lon": 8}.items()):
            values = np.arange(length or 30, dtype="f8")
            file.create_dataset(name, data=values, maxshape=(length,), chunks=(512,) if length is None else None)
            file[name].make_scale(name)
            file[name].attrs["_Netcdf4Dimid"] = np.int32(number)
        file["station"] = np.zeros(4, ">f4")  # a dimension without a variable
        file["station"].make_scale("This is a netCDF dimension but not a netCDF variable.         4")
        packed = rng.integers(-2000, 2000, (30, 6, 8)).astype("<i2")
        variable = file.create_dataset(
            "t2m", data=packed, maxshape=(None, 6, 8), chunks=(1, 6, 8), compression="gzip", compression_opts=4,
            shuffle=True, fletcher32=True, fillvalue=-32767, track_order=True,
        )  # fmt: skip
        variable.attrs.update(scale_factor=0.01, add_offset=10.0, _FillValue=np.int16(-32767))
        for axis, name in enumerate(("time", "lat", "lon")):
            variable.dims[axis].attach_scale(file[name])
        file["names"] = np.array([list("abcd"), list("ef  ")], "S1")  # char names(n, 4)
        file.create_dataset("history", data=["created", "packed"], dtype=h5py.string_dtype())
        group = file.create_group("forecast", track_order=True)
        group.create_dataset("wind", data=rng.normal(size=(6, 8)).astype("f4"))  # contiguous
    return path


@pytest.fixture
def matlab(tmp_path):
    """A file in the layout of MATLAB 7.3: a block of 512 bytes first, arrays by column, cells of references."""
    path = tmp_path / "kerasfeed.mat"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", userblock_size=512) as file:

        def save(name, values, kind, **options):
            dataset = file.create_dataset(name, data=values, **options)
            dataset.attrs["MATLAB_class"] = np.bytes_(kind)
            return dataset

        save("volumes", rng.normal(size=(20, 8, 6)), "double", chunks=(3, 8, 6), compression="gzip")
        save("valid", rng.random((20, 1)) > 0.5, "logical", dtype="u1").attrs["MATLAB_int_decode"] = np.int32(1)
        save("title", np.array([[ord(letter)] for letter in "scans é"], "u2"), "char")
        save("spectrum", np.zeros((5, 1), [("real", "f8"), ("imag", "f8")]), "double")
        save("nothing", np.zeros(2, "u8"), "double").attrs["MATLAB_empty"] = np.uint8(1)
        for number in range(20):
            save(f"#refs#/{number}", rng.normal(size=(2 + number, 3)), "double")
        cells = save("cells", np.array([file[f"#refs#/{n}"].ref for n in range(20)], h5py.ref_dtype)[:, None], "cell")
        assert cells.shape == (20, 1)
        file["scan/points"] = rng.normal(size=(7, 3))  # a struct
        file["scan"].attrs["MATLAB_class"] = np.bytes_("struct")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


@pytest.mark.parametrize("layout", ["netcdf", "matlab"])
def test_every_dataset_of_the_layout_equals_h5pys(layout, request):
    path = request.getfixturevalue(layout)
    with h5py.File(path) as reference, kf.HDF5File(path) as file:
        names = []
        reference.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        assert sorted(file.dataset_paths()) == sorted(names)
        for name in names:
            ours, theirs = file[name], reference[name]
            assert (ours.shape, ours.dtype, ours.chunks) == (theirs.shape, theirs.dtype, theirs.chunks)
            if theirs.dtype != h5py.ref_dtype:  # a reference equals only itself
                assert np.array_equal(ours[()], theirs[()])
                assert np.array_equal(ours[-1], theirs[-1])


def test_packed_integers_are_read_directly_and_their_scale_is_an_attribute(netcdf):
    with kf.HDF5File(netcdf) as file:
        variable = file["t2m"]
        assert str(variable.reader) == "direct"
        assert variable.attrs["scale_factor"] == 0.01
        assert variable.attrs["_FillValue"] == -32767


def test_scenes_in_the_cells_of_matlab_are_found_by_their_references(matlab):
    with h5py.File(matlab) as reference, kf.HDF5File(matlab) as file:
        assert str(file["volumes"].reader) == "direct"
        for number in (0, 7, 19):
            assert np.array_equal(file[file["cells"][number, 0]][:], reference[f"#refs#/{number}"][:])


@pytest.mark.parametrize("layout", ["netcdf", "matlab"])
def test_worker_processes_read_the_layout(layout, request):
    path = request.getfixturevalue(layout)
    name = {"netcdf": "t2m", "matlab": "volumes"}[layout]
    with h5py.File(path) as reference, kf.HDF5File(path) as file:
        expected = reference[name][:]
        with kf.Feed(file[name], 4, workers=1, worker_type="process") as feed:
            assert np.array_equal(np.concatenate(list(feed)), expected)
