"""Every kind of chunk index that HDF5 writes, compared with h5py."""

import itertools

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerasfeed as kf

VERSIONS = ["earliest", "v108", "v110", "v112", "latest"]
drawn = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kerasfeed-indexes")


@st.composite
def files(draw, folder):
    """A file with one dataset "x": any maximal shape, file format, filters, early or late storage, holes, resized."""
    shape = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    most = tuple(draw(st.sampled_from([None, size, size + 3])) for size in shape)
    chunks = tuple(draw(st.integers(1, min(4, limit or 4))) for limit in most)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(chunks)
    storage = draw(st.sampled_from(["late", "early", "compressed"]))
    if storage == "early":
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    if storage == "compressed":
        properties.set_deflate(1)
    places = st.tuples(*(st.integers(0, size - 1) for size in shape))
    path = folder / f"{next(_numbers)}.h5"
    with h5py.File(path, "w", libver=draw(st.sampled_from(VERSIONS))) as file:
        space = h5py.h5s.create_simple(shape, tuple(h5py.h5s.UNLIMITED if size is None else size for size in most))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, properties))
        if draw(st.booleans()):
            dataset[...] = np.arange(1, dataset.size + 1).reshape(shape)
        else:
            for number, place in enumerate(draw(st.lists(places, max_size=5)), 1):
                dataset[place] = number
        if draw(st.booleans()):
            dataset.resize([draw(st.integers(1, limit or 12)) for limit in most])
    return path


@pytest.mark.parametrize("examples", [20, pytest.param(1000, marks=pytest.mark.heavy)])
def test_any_maximal_shape_in_any_file_format_reads_as_in_h5py(folder, examples):
    @settings(drawn, max_examples=examples)
    @given(st.data())
    def check(data):
        path = data.draw(files(folder))
        with h5py.File(path) as plain, kf.HDF5File(path, chunk_cache=0) as file:
            assert np.array_equal(file["x"][...], plain["x"][...])
            assert np.array_equal(file["x"][-1], plain["x"][-1])
        path.unlink()

    check()


@pytest.mark.parametrize("libver", VERSIONS)
@pytest.mark.parametrize("maxshape", [(16, None), (None, 200), (None, None), (32, 400), (16, 200)])
def test_every_value_of_a_dataset_that_may_grow_is_read(tmp_path, libver, maxshape):
    path, values = tmp_path / "kerasfeed.h5", np.arange(3200, dtype="f4").reshape(16, 200)
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", data=values, chunks=(8, 50), maxshape=maxshape)
    with kf.HDF5File(path) as file:
        assert np.array_equal(file["x"][...], values)
        is_listed_wrong = maxshape == (16, None) and libver in ("v110", "v112", "latest")
        assert file["x"].reader.kind == ("h5py" if is_listed_wrong else "direct")
        if is_listed_wrong:
            assert file["x"].reader.reason == "HDF5 lists chunks outside the dataset"


def test_h5py_reads_holes_at_offsets_that_hdf5_lists_wrong(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset("x", (4, 4), "i4", chunks=(1, 1), maxshape=(4, None), fillvalue=5)
        dataset[:, 0] = 5, 6, 5, 5  # listed as the first row: all offsets inside the dataset, none twice
    with h5py.File(path) as plain, kf.HDF5File(path) as file:
        assert np.array_equal(file["x"][...], plain["x"][...])
        assert file["x"].reader.kind == "h5py"
