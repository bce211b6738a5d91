"""Selections and output arrays that do not fit are refused, for every storage."""

import contextlib
import gc
import re

import h5py
import numpy as np
import pytest
from hdf5_answers import difference
from hdf5_files import write_values

import kerasfeed as kf

STORAGES = {
    "contiguous": {},
    "chunked": {"chunks": (4, 3)},
    "gzip": {"chunks": (4, 3), "compression": 4, "shuffle": True},
    "whole rows": {"chunks": (1, 6), "compression": 4},
    "fletcher32": {"chunks": (4, 3), "fletcher32": True},
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kerasfeed.h5"


@pytest.fixture(params=STORAGES)
def opened(request, path):
    """A dataset float32[20, 6] of each storage, and its values."""
    whole = write_values(path, (20, 6), "f4", **STORAGES[request.param])
    with kf.HDF5File(path) as file:
        yield file["data"], whole


BAD_SELECTIONS = {
    "newaxis": (np.newaxis, TypeError),
    "newaxis among others": ((0, None), TypeError),
    "a row too many": (20, IndexError),
    "a row too few": (-21, IndexError),
    "a column too many": ((0, 6), IndexError),
    "a list out of range": ([0, 20], IndexError),
    "a negative list out of range": ([-21, 0], IndexError),
    "too many axes": ((0, 0, 0), (IndexError, TypeError, ValueError)),
    "two ellipses": ((..., 0, ...), (IndexError, TypeError, ValueError)),
    "a float": (1.5, TypeError),
    "a list of floats": ([0.5, 1.0], (IndexError, TypeError)),
    "a text": ("field", (TypeError, ValueError)),
    "a short mask": (np.ones(3, bool), (IndexError, TypeError)),
    "a mask of another shape": (np.ones((20, 5), bool), (IndexError, TypeError)),
    "a step of zero": (np.s_[::0], ValueError),
    "lists of two dimensions": (np.zeros((2, 2), int), (IndexError, TypeError, ValueError)),
}


def _refusal(error, read):
    """Message and notes of the error; the error itself, which holds every frame, is dropped."""
    try:
        read()
    except error as raised:
        return "\n".join([str(raised), *getattr(raised, "__notes__", [])])
    pytest.fail(f"not refused with {error}")


@pytest.mark.parametrize("name", BAD_SELECTIONS)
def test_the_error_for_an_invalid_selection_names_dataset_and_file(opened, name):
    dataset, _ = opened
    selection, error = BAD_SELECTIONS[name]
    message = _refusal(error, lambda: dataset[selection])
    assert "'data'" in message
    assert str(dataset.file.path) in message
    with pytest.raises(error):
        dataset.read_into(selection, np.empty((20, 6), "f4"))


@pytest.mark.parametrize(
    ("selection", "told"), [(20, "20"), ((0, 6), "6"), ([0, 20], "20"), (-21, "-21"), ([-21, 0], "-21")]
)
def test_the_error_for_an_index_out_of_range_names_the_axis_size(opened, selection, told):
    message = _refusal(IndexError, lambda: opened[0][selection]).partition("\n")[0]
    assert told in message
    size = 6 if isinstance(selection, tuple) else 20
    assert re.search(rf"\b({size}|{size - 1})\b", message), message


@pytest.mark.parametrize("indices", [[20], [0, -21], [2**40], [-(2**62)]])
def test_take_refuses_rows_out_of_range(opened, indices):
    with pytest.raises(IndexError, match=r"'data'"):
        opened[0].take(indices)
    opened[0].read_ahead(indices)  # reading ahead never fails; the read itself does


@pytest.mark.parametrize("indices", [[0.5, 1.0], [[0, 1], [2, 3]], ["a"], [None], "text"])
def test_take_refuses_invalid_rows(opened, indices):
    with pytest.raises((TypeError, ValueError, IndexError)):
        opened[0].take(indices)
    opened[0].read_ahead(indices)


def test_take_of_no_rows_returns_an_empty_array(opened):
    dataset, whole = opened
    for nothing in ([], np.empty(0, int), ()):
        assert not difference(dataset.take(nothing), whole[:0])


def test_two_lists_are_refused_as_in_h5py(opened):
    with pytest.raises(TypeError, match=r"list|vector|array"):
        opened[0][[0, 1], [2, 3]]


def test_a_negative_step_is_refused_or_read_backwards(opened):
    dataset, whole = opened
    try:
        ours = dataset[::-2]
    except ValueError as error:
        assert "step" in str(error).lower()  # noqa: PT017  either outcome is right, and clear
    else:
        assert not difference(ours, whole[::-2])


WRONG_OUTS = {
    "a column too many": lambda: np.empty((3, 7), "f4"),
    "a row too few": lambda: np.empty((2, 6), "f4"),
    "one axis": lambda: np.empty(18, "f4"),
    "transposed shape": lambda: np.empty((6, 3), "f4"),
    "read-only": lambda: _frozen(np.empty((3, 6), "f4")),
    "a list": lambda: [[0.0] * 6] * 3,
    "bytes": lambda: bytes(72),
}


def _frozen(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("name", WRONG_OUTS)
@pytest.mark.parametrize("method", ["take", "read_into"])
def test_an_unsuitable_output_is_refused_and_not_written(opened, name, method):
    out = WRONG_OUTS[name]()
    before = bytes(out) if isinstance(out, bytes) else np.array(out, "f4").tobytes()
    reads = {
        "take": lambda: opened[0].take([0, 1, 2], out=out),
        "read_into": lambda: opened[0].read_into(np.s_[0:3], out),
    }
    assert "'data'" in _refusal((TypeError, ValueError), reads[method])
    assert (bytes(out) if isinstance(out, bytes) else np.array(out, "f4").tobytes()) == before


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i4", "S4", "?", "O"])
@pytest.mark.parametrize("method", ["take", "read_into"])
def test_an_output_of_another_dtype_is_refused_or_receives_the_same_values(opened, dtype, method):
    dataset, whole = opened
    out = np.zeros((3, 6), dtype)
    try:
        dataset.take([0, 1, 2], out=out) if method == "take" else dataset.read_into(np.s_[0:3], out)
    except (TypeError, ValueError) as error:
        assert "float32" in str(error) or "dtype" in str(error)  # noqa: PT017  either outcome is right
        assert not out.any()
    else:
        assert np.array_equal(out.astype("f4"), whole[:3])
        assert np.can_cast("f4", dtype)


def _strided(shape):
    return np.full((2 * shape[0], 3 * shape[1]), -1, "f4")[::2, 1::3]


def _reversed(shape):
    return np.full(shape, -1, "f4")[::-1, ::-1]


def _columns(shape):
    return np.full(shape[::-1], -1, "f4").T


def _unaligned(shape):
    return np.frombuffer(bytearray(4 * shape[0] * shape[1] + 1), "f4", offset=1).reshape(shape)


@pytest.mark.parametrize("make", [_strided, _reversed, _columns, _unaligned])
def test_an_output_of_any_memory_layout_receives_exactly_its_data(opened, make):
    dataset, whole = opened
    out = make((3, 6))
    dataset.read_into(np.s_[4:13:4], out)
    assert np.array_equal(out, whole[4:13:4])
    out = make((5, 6))
    base = out
    while isinstance(base.base, np.ndarray):
        base = base.base
    dataset.take([3, 3, -1, 0, 12], out=out)
    assert np.array_equal(out, whole[[3, 3, -1, 0, 12]])
    if make is _strided:
        assert np.count_nonzero(base == -1) == base.size - out.size


def test_a_0d_array_receives_a_scalar(opened):
    dataset, whole = opened
    out = np.zeros((), "f4")
    dataset.read_into((7, 2), out)
    assert out == whole[7, 2]


def test_the_caller_owns_returned_arrays(opened):
    dataset, whole = opened
    for read in (lambda: dataset[3], lambda: dataset[0:4], lambda: dataset[...], lambda: dataset.take([0, 1])):
        first = read()
        assert first.flags.writeable
        assert first.flags.c_contiguous
        first[...] = -5
        assert not np.array_equal(first, read())
    assert np.array_equal(dataset[...], whole)


@pytest.mark.parametrize("selection", [99, "field", None, [0, 20], np.s_[0, 0, 0]])
def test_a_refused_read_keeps_no_file_open(path, selection):
    """Without a garbage collection, an error that holds itself would hold the file and its lock."""
    write_values(path, (20, 6), "f4", **STORAGES["gzip"])
    gc.collect()
    gc.disable()
    try:
        with kf.HDF5File(path) as file:
            dataset = file["data"]
            for read in (dataset.__getitem__, dataset.take, lambda given: dataset.read_into(given, np.empty(3))):
                with contextlib.suppress(Exception):
                    read(selection)
        with h5py.File(path, "r+") as writer:  # refused while another handle reads it
            writer["more"] = 1
    finally:
        gc.enable()


def test_an_error_for_damage_keeps_no_file_open(path):
    write_values(path, (20, 6), "f4", **STORAGES["gzip"])
    with h5py.File(path) as reference:
        place = reference["data"].id.get_chunk_info(0)
    damaged = bytearray(path.read_bytes())
    damaged[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(damaged)
    gc.collect()
    gc.disable()
    try:
        with kf.HDF5File(path) as file, contextlib.suppress(OSError):
            file["data"][0]
            pytest.fail("the damage was not seen")
        with h5py.File(path, "r+") as writer:
            writer["more"] = 1
    finally:
        gc.enable()


def test_structured_rows_are_written_to_an_output_of_other_byte_order(path):
    dtype = np.dtype([("a", "<i4"), ("b", "<f4")])
    whole = np.zeros((40, 6), dtype)
    whole["a"], whole["b"] = np.arange(240).reshape(40, 6), np.arange(240).reshape(40, 6) / 2
    with h5py.File(path, "w") as file:
        file["contiguous"] = whole
        file.create_dataset("chunked", data=whole, chunks=(4, 6), compression="gzip")
    with kf.HDF5File(path) as file:
        for name in ("contiguous", "chunked"):
            assert file[name].reader.kind == "direct"
            out = np.zeros((3, 6), dtype.newbyteorder(">"))
            assert np.array_equal(file[name].take([9, 1, 5], out=out), whole[[9, 1, 5]])
            file[name].read_into(np.s_[2:8:2], out)
            assert np.array_equal(out, whole[2:8:2])
            file[name].read_into(7, out[0])
            assert np.array_equal(out[0], whole[7])


@pytest.fixture
def ragged(path):
    """Datasets whose rows are text, or arrays: "even" of one length, "uneven" of 0 to 3."""
    with h5py.File(path, "w") as file:
        for name, lengths in (("even", [3, 3, 3, 3]), ("uneven", [0, 1, 2, 3])):
            data = file.create_dataset(name, (4,), h5py.vlen_dtype("f4"))
            for row, length in enumerate(lengths):
                data[row] = np.arange(length) + row
        file["text"] = ["a", "b", "cc", "d"]
    with kf.HDF5File(path) as file:
        yield file


@pytest.mark.parametrize("name", ["even", "uneven", "text"])
def test_a_0d_object_array_receives_a_row_of_text_or_variable_length(ragged, name):
    out = np.empty((), object)
    ragged[name].read_into(2, out)
    assert np.array_equal(out[()], ragged[name][2])
    many = np.empty(2, object)
    ragged[name].read_into([3, 1], many)
    assert all(map(np.array_equal, many, ragged[name][[3, 1]]))
