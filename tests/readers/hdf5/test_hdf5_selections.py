"""Selections drawn at random, compared with NumPy over the whole array."""

import itertools
import os
import tracemalloc

import h5py
import numpy as np
import pytest
from hdf5_answers import difference
from hdf5_files import write_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerasfeed as kf
from kerasfeed.readers.hdf5 import dataset as dataset_room

EXAMPLES = int(os.environ.get("KERASFEED_EXAMPLES", "120"))
drawn = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kerasfeed-selections")


@st.composite
def datasets(draw):
    """Shape, chunks (None for contiguous), dtype and keywords of a dataset of at most 4 axes."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    dtype = draw(st.sampled_from(["u1", "<f4", ">i2", "<f8", "?", "<c8"]))
    if draw(st.booleans()):
        chunks = tuple(draw(st.integers(1, size + 2)) for size in shape)
        keywords = draw(st.sampled_from([{}, {"compression": 1}, {"compression": 4, "shuffle": True}]))
        return shape, dtype, {"chunks": chunks, "maxshape": (None,) * len(shape), **keywords}
    return shape, dtype, {}


def _axis(size, lists):
    """One axis of a selection that both h5py and NumPy support; lists only if `lists`."""
    place = st.integers(-size, size - 1)
    bound = st.none() | st.integers(-2 * size - 1, 2 * size + 1)
    kinds = [
        place,
        place.map(np.int64),
        place.filter(lambda index: index >= 0).map(np.uint8),
        st.builds(slice, bound, bound, st.none() | st.integers(1, size + 2)),
    ]
    if lists:
        indices = st.lists(place, max_size=2 * size)
        kinds += [
            indices,
            indices.map(lambda found: np.array(found, np.int32)),
            st.lists(st.booleans(), min_size=size, max_size=size).map(lambda found: np.array(found, bool)),
        ]
    return st.one_of(kinds)


@st.composite
def selections(draw, shape):
    """A selection and its axes in full, one per axis of the shape."""
    axes, listed = [], False
    for size in shape:
        axes.append(draw(_axis(size, not listed)))
        listed = listed or isinstance(axes[-1], list | np.ndarray)
    given_axes = draw(st.integers(0, len(shape)))
    front = draw(st.integers(0, given_axes))
    if given_axes < len(shape) or draw(st.booleans()):
        back = given_axes - front
        full = [*axes[:front], *[slice(None)] * (len(shape) - given_axes), *axes[len(shape) - back :]]
        selection = (*axes[:front], ..., *axes[len(shape) - back :])
        if back == 0 and draw(st.booleans()):
            selection = tuple(axes[:front])
    else:
        full, selection = axes, tuple(axes)
    if len(selection) == 1 and draw(st.booleans()):
        selection = selection[0]
    return selection, full


def _expected(whole, axes):
    """Each axis selected separately, as in h5py (NumPy moves an axis of a list beside integers)."""
    for axis in range(len(axes) - 1, -1, -1):
        one = axes[axis]
        if isinstance(one, list):
            one = np.array(one, np.int64)
        whole = whole[(slice(None),) * axis + (one,)]
    return whole


@pytest.mark.heavy
@drawn
@given(st.data())
def test_any_selection_equals_numpy(folder, data):
    shape, dtype, keywords = data.draw(datasets())
    path = folder / f"{next(_numbers)}.h5"
    whole = write_values(path, shape, dtype, **keywords)
    cache = data.draw(st.sampled_from(["auto", 0, 64]))
    with pytest.MonkeyPatch.context() as patch, kf.HDF5File(path, chunk_cache=cache) as file:
        patch.setattr(dataset_room, "_PIECE_NBYTES", data.draw(st.sampled_from([0, 100, 1 << 24])))
        patch.setattr(dataset_room, "_ROW_NBYTES", data.draw(st.sampled_from([0, 100, 1 << 26])))  # with 0, h5py picks
        dataset = file["data"]
        for _ in range(4):
            selection, axes = data.draw(selections(shape))
            expected = _expected(whole, axes)
            ours = dataset[selection]
            assert not difference(ours, expected)
            if isinstance(expected, np.ndarray):
                out = np.empty_like(expected)
                dataset.read_into(selection, out)
                assert out.tobytes() == expected.tobytes()
    path.unlink()


@pytest.mark.heavy
@drawn
@given(st.data())
def test_take_of_any_rows_equals_numpy(folder, data):
    shape, dtype, keywords = data.draw(datasets())
    path = folder / f"{next(_numbers)}.h5"
    whole = write_values(path, shape, dtype, **keywords)
    rows = st.lists(st.integers(-shape[0], shape[0] - 1), max_size=30)
    with kf.HDF5File(path, chunk_cache=data.draw(st.sampled_from(["auto", 0, 64]))) as file:
        for _ in range(3):
            indices = np.array(data.draw(rows), np.int64)
            file["data"].read_ahead(indices)
            ours = file["data"].take(indices)
            assert not difference(ours, whole[indices])
            out = np.empty((len(indices), 2, *shape[1:]), dtype)[:, 1]  # rows that are not neighbours in memory
            file["data"].take(indices, out=out)
            assert out.tobytes() == whole[indices].tobytes()
    path.unlink()


@pytest.mark.heavy
@drawn
@given(st.data())
def test_a_mask_over_several_axes_equals_numpy(folder, data):
    shape, dtype, keywords = data.draw(datasets())
    path = folder / f"{next(_numbers)}.h5"
    whole = write_values(path, shape, dtype, **keywords)
    share = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    mask = np.random.default_rng(data.draw(st.integers(0, 99))).random(shape) < share
    with pytest.MonkeyPatch.context() as patch, kf.HDF5File(path) as file:
        patch.setattr(dataset_room, "_PIECE_NBYTES", data.draw(st.sampled_from([0, 100, 1 << 24])))
        patch.setattr(dataset_room, "_ROW_NBYTES", data.draw(st.sampled_from([0, 100, 1 << 26])))  # with 0, h5py picks
        assert not difference(file["data"][mask], whole[mask])
    path.unlink()


@pytest.mark.parametrize("count", [0, 1, 16, 17])
@pytest.mark.parametrize(
    "written_as", [np.asarray, np.ndarray.tolist, lambda mask: (mask, ...), lambda mask: (..., mask)]
)
def test_a_mask_over_all_axes_equals_numpy_if_h5py_reads_the_dataset(tmp_path, count, written_as):
    whole = np.arange(120, dtype=np.int32).reshape(6, 5, 4)
    with h5py.File(tmp_path / "kerasfeed.h5", "w") as file:
        file.create_dataset("data", data=whole, chunks=(2, 5, 4), scaleoffset=0)
    mask = np.zeros(whole.shape, bool)
    mask.flat[np.random.default_rng(count).permutation(120)[:count]] = True
    with kf.HDF5File(tmp_path / "kerasfeed.h5") as file:
        assert file["data"].reader.kind == "h5py"
        assert np.array_equal(file["data"][written_as(mask)], whole[mask])


@pytest.mark.parametrize("over", [(0, 1), (1, 2), (0, 1, 2)])
def test_a_mask_over_several_axes_reads_little_of_a_large_dataset(tmp_path, over):
    shape = (16384, 1024, 4)  # 268 MB, without written data
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("data", shape, np.float32, chunks=(256, 256, 4), fillvalue=3)
    mask = np.zeros([shape[axis] for axis in over], bool)
    mask.flat[[0, -1]] = True
    index = tuple(mask if axis == over[0] else slice(None) for axis in range(3) if axis == over[0] or axis not in over)
    with kf.HDF5File(tmp_path / "large.h5") as file:
        dataset = file["data"]
        assert dataset.reader.kind == "direct"
        out = np.empty((2, *shape[2:]) if over == (0, 1) else (shape[0], 2) if over == (1, 2) else 2, np.float32)
        tracemalloc.start()
        try:
            assert (dataset[index] == 3).all()
            dataset.read_into(index, out)
            assert tracemalloc.get_traced_memory()[1] < 40e6
        finally:
            tracemalloc.stop()
        assert (out == 3).all()
