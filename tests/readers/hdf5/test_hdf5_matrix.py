"""Hundreds of files of every storage, each read like h5py, by the expected reader."""

import ctypes
import importlib.util
import json
import pickle
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_answers import Refusal, answers, difference, numpy_selections, selections
from hdf5_files import INDEXES, Case, lacking, library, values
from hdf5_storages import cases
from places import SUPPORT
from waits import PROGRAM_SECONDS

import kerasfeed as kf

CASES = cases()
FAMILIES = {case.name.split("-")[0]: case for case in reversed(CASES)}  # the first case of each
LIGHT = {*(case.name for case in CASES[::8]), *(case.name for case in FAMILIES.values())}


some_cases = pytest.mark.parametrize("case", [case for case in CASES if case.name in LIGHT], ids=lambda case: case.name)


def every_case(function):
    """Run a test with every file; by default with every eighth, and one of each family."""
    light = pytest.mark.light(where=lambda case: case.name in LIGHT)
    return light(pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)(function))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Writes a case's file at first use, once per session; its folder lets `nothing_leaks` see descriptors."""
    folder = tmp_path_factory.mktemp("kerasfeed-matrix")

    def make(case: Case) -> Path:
        if reason := lacking(case.needs):
            pytest.skip(reason)
        path = folder / f"{case.name}.h5"
        if not path.exists():
            case.make(path)
        return path

    return make


def _names_of_references(value, file):
    """References replaced by their targets, so that they can be compared."""
    if isinstance(value, h5py.RegionReference):
        return h5py.h5r.get_region(value, file.id).get_select_bounds() if value else None
    if isinstance(value, h5py.Reference):
        return h5py.h5r.get_name(value, file.id) if value else None
    return [_names_of_references(one, file) for one in value] if isinstance(value, np.ndarray) else value


def _differences(ours, theirs):
    return {name: found for name in theirs if (found := difference(ours[name], theirs[name]))}


@cache
def _reference(path, name):
    """Selections and answers of h5py to every selection, with the file closed again: no handle is shared."""
    with h5py.File(path) as file:
        dataset = file[name]
        asked = selections(dataset.shape or ())
        return asked, answers(dataset, asked)


@every_case
def test_every_selection_equals_h5py(made, case):
    path = made(case)
    for name in case.datasets:
        asked, theirs = _reference(path, name)
        with kf.HDF5File(path) as file:
            ours = answers(file[name], asked)
        assert not _differences(ours, theirs)
        assert not isinstance(ours["()"], Refusal)


@every_case
def test_selections_take_and_read_into_equal_numpy_without_a_cache(made, case):
    path, name = made(case), case.datasets[-1]
    whole = _reference(path, name)[1]["()"]
    with kf.HDF5File(path, chunk_cache=0) as file:
        dataset = file[name]
        rows = numpy_selections(dataset.shape or ())
        for asked, selection in rows.items():
            indices = np.arange(len(whole))[np.asarray(selection, np.int64)]
            assert not difference(dataset[selection], whole[indices]), asked
            assert not difference(dataset.take(selection), whole[indices]), asked
        if rows and not whole.dtype.hasobject:
            size = whole[:1].nbytes
            raw = bytearray(b"\x77" * 3 * size)
            memory = np.frombuffer(raw, whole.dtype).reshape(3, *whole.shape[1:])
            dataset.read_into(len(whole) - 1, memory[1:2].reshape(memory.shape[1:]))
            assert not difference(memory[1:2], whole[-1:])
            assert raw[:size] == raw[2 * size :] == b"\x77" * size
            dataset.take([len(whole) - 1, 0, len(whole) // 2], out=memory)
            assert not difference(memory, whole[[-1, 0, len(whole) // 2]])


@every_case
def test_the_description_and_the_reader_are_as_expected(made, case):
    path = made(case)
    due, _, module = case.reader.partition(" with ")
    if module and importlib.util.find_spec(module) is None:
        due = "h5py"
    for name in case.datasets:
        with h5py.File(path) as reference:
            theirs = reference[name]
            shape, dtype, chunks, attrs = theirs.shape, theirs.dtype, theirs.chunks, dict(theirs.attrs)
        with kf.HDF5File(path) as file:
            ours = file[name]
            assert (ours.shape, ours.chunks) == (shape, chunks)
            assert not difference(np.empty(0, ours.dtype), np.empty(0, dtype))
            assert set(ours.attrs) == set(attrs)
            assert ours.ndim == len(shape or ())
            assert ours.block_size == (chunks[0] if chunks else 1)
            if shape:
                assert len(ours) == shape[0]
            assert ours.reader.kind == due, f"{name}: {ours.reader}"
            assert bool(ours.reader.reason) == (due == "h5py")


@some_cases  # one of each storage, because every selection of every file is compared above
def test_four_concurrent_threads_and_a_pickled_copy_read_the_same(made, case):
    path, name = made(case), case.datasets[0]
    asked, theirs = _reference(path, name)
    file = kf.HDF5File(path)
    barrier, wrong = threading.Barrier(4), []

    def read(number):
        first = number * len(asked) // 4  # half of them, while each other thread reads some at the same time
        order = (list(asked) * 2)[first : first + (len(asked) + 1) // 2]
        barrier.wait(timeout=30)
        try:
            dataset = file[name]
            found = answers(dataset, {key: asked[key] for key in order})
            wrong.append(_differences(found, {key: theirs[key] for key in found}))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pickle.loads(pickle.dumps(file)) as copy:
        file.close()
        wrong.append(_differences(answers(copy[name], asked), theirs))
    assert wrong == [{}] * 5


@pytest.mark.heavy
def test_another_process_reads_every_file_the_same(made):
    """Datasets are pickled unopened, as for workers; the child compares with h5py."""
    sent, names = [], []
    for case in CASES:
        try:
            sent.append(pickle.dumps(kf.HDF5File(made(case))))
        except pytest.skip.Exception:
            continue
        names.append((len(sent[-1]), case.datasets))
    script = (
        f"import sys; sys.path[:0] = {[str(SUPPORT), str(Path(__file__).parent)]!r}\n"
        "import test_hdf5_matrix as matrix; matrix.compare(sys.stdin.buffer)"
    )
    request = json.dumps(names).encode() + b"\n" + b"".join(sent)
    done = subprocess.run([sys.executable, "-c", script], input=request, capture_output=True, timeout=PROGRAM_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {"compared": len(sent), "wrong": {}}


def compare(stream):
    """In the child: reads the pickled files from the stream and prints what differs from h5py."""
    wrong = {}
    names = json.loads(stream.readline())
    for size, datasets in names:
        with pickle.loads(stream.read(size)) as file:
            for name in datasets:
                ours = answers(file[name], selections(file[name].shape or ()))
                file.close()
                if found := _differences(ours, _reference(file.path, name)[1]):
                    wrong[f"{file.path} {name}"] = found
    print(json.dumps({"compared": len(names), "wrong": wrong}))


@pytest.mark.parametrize("name", ["dtype-reference", "dtype-region-reference-gzip"])
def test_references_have_the_same_targets_as_in_h5py(made, name):
    path = made(next(case for case in CASES if case.name == name))
    with kf.HDF5File(path) as file:
        ours = file["data"][:]
    with h5py.File(path) as reference:
        theirs = _names_of_references(reference["data"][:], reference)
        assert any(theirs)
        assert _names_of_references(ours, reference) == theirs


def test_the_matrix_has_at_least_200_files_for_both_readers(made):
    assert len({case.name for case in CASES}) == len(CASES) >= 200
    assert sum(case.reader == "direct" for case in CASES) > 0.4 * len(CASES)
    assert sum(case.reader == "h5py" for case in CASES) > 50


@pytest.mark.skipif(library() is None, reason="the libhdf5 that h5py uses cannot be reached through ctypes")
@pytest.mark.parametrize(
    ("name", "number"),
    [*((f"none-{index}", number) for index, number in zip(INDEXES, (0, 1, 3, 4, 5), strict=True)),
     ("implicit-index", 2)],
)  # fmt: skip
def test_the_files_use_every_chunk_index_of_hdf5(made, name, number):
    path = made(next(case for case in CASES if case.name == name))
    found = ctypes.c_int(-1)
    with h5py.File(path) as file:
        assert library().H5Dget_chunk_index_type(ctypes.c_int64(file["data"].id.id), ctypes.byref(found)) >= 0
    assert found.value == number


def test_a_dangling_link_is_a_missing_dataset(made):
    path = made(next(case for case in CASES if case.name == "links"))
    with kf.HDF5File(path) as file:
        assert "dangling" not in file
        with pytest.raises(KeyError, match="dangling"):
            file["dangling"]


def test_different_names_of_one_file_share_its_descriptors(made):
    path = made(next(case for case in CASES if case.name == "symlink"))
    names = (path, path.with_name(f"{path.stem}-real.h5"), path.with_name(f"{path.stem}-hard.h5"))
    files = [kf.HDF5File(name) for name in names]
    assert all(np.array_equal(file["data"][:], values((21, 10), "f4")) for file in files)
    held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert sum(path.stem in target for target in held) <= 2  # h5py's descriptor, and the direct reader's
    for file in files:
        file.close()


def test_the_files_include_chunks_with_a_skipped_filter(made):
    with h5py.File(made(next(case for case in CASES if case.name == "noise-lzf"))) as file:
        identifier = file["data"].id
        masks = {identifier.get_chunk_info(number).filter_mask for number in range(identifier.get_num_chunks())}
    assert len(masks) > 1


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((2**37,), (1024,)), ((2**20, 2**20), (64, 64)), ((2**40,), None), ((2**27, 3, 5), (1, 3, 5))],
)
def test_a_sparse_dataset_larger_than_memory_can_be_read(tmp_path, shape, chunks):
    """In a process limited to 0.5 GiB more: neither the grid of chunks nor a selection may be expanded."""
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        maxshape = (None, *shape[1:]) if chunks else None
        data = file.create_dataset("data", shape, "i2", chunks=chunks, maxshape=maxshape, fillvalue=7)
        if chunks:
            data[(shape[0] // 2, *(slice(0, 2),) * (len(shape) - 1))] = 9
    script = f"""
import resource, h5py, psutil, numpy as np, kerasfeed as kf
limit = psutil.Process().memory_info().vms + (1 << 29)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
data = kf.HDF5File({str(path)!r})["data"]
rows = {shape[0]}
few = (slice(0, 2),) * (data.ndim - 1)
assert data.shape == {shape}
assert (data[(0, *few)] == 7).all() and (data[(-1, *few)] == 7).all()
middle = data[(rows // 2, *few)]
assert (middle == {9 if chunks else 7}).all(), middle
assert (data[(slice(None, None, rows // 4), *few)].reshape(4, -1)[:, 0] == [7, 7, {9 if chunks else 7}, 7]).all()
assert (data[([rows - 1, 0, rows // 2], *few)].reshape(3, -1)[:, 0] == [7, 7, {9 if chunks else 7}]).all()
print("read")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert done.stdout.strip() == "read", done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("chunk_cache", ["auto", 0, 3000])
def test_many_threads_read_the_same_with_a_small_cache(tmp_path, chunk_cache):
    path = tmp_path / "kerasfeed.h5"
    whole = values((600, 40), "f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("gzip", data=whole, chunks=(16, 9), compression=1, shuffle=True)
        file.create_dataset("rows", data=whole, chunks=(1, 40), compression=1)
        file.create_dataset("plain", data=whole)
        file.create_dataset("scaled", data=whole, chunks=(16, 9), scaleoffset=2)  # h5py's, with equal values
    with kf.HDF5File(path, chunk_cache=chunk_cache) as file:
        wrong, barrier = [], threading.Barrier(8)

        def read(seed):
            rng = np.random.default_rng(seed)
            barrier.wait(timeout=30)
            try:
                for _ in range(25):
                    data = file[str(rng.choice(["gzip", "rows", "plain", "scaled"]))]
                    rows = rng.integers(-600, 600, int(rng.integers(1, 30)))
                    data.read_ahead(rng.integers(0, 600, 8))
                    out = np.empty((4, 40), "f4")
                    data.read_into(np.s_[5:9], out)
                    if not (
                        np.array_equal(data.take(rows), whole[rows])
                        and np.array_equal(data[int(rows[0])], whole[rows[0]])
                        and np.array_equal(data[3:77:5, 2:30], whole[3:77:5, 2:30])
                        and np.array_equal(out, whole[5:9])
                    ):
                        wrong.append(data.name)
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_the_real_point_clouds_equal_h5py(real_data):
    path = real_data / "bimnet10_train.h5"
    rng = np.random.default_rng(0)
    with h5py.File(path) as reference:
        whole = {name: reference[name][()] for name in reference if isinstance(reference[name], h5py.Dataset)}
    with kf.HDF5File(path) as file:
        for name, expected in whole.items():
            rows = rng.integers(-len(expected), len(expected), 50)
            assert not difference(file[name].take(rows), expected[rows])
            assert not difference(file[name][int(rows[0])], expected[int(rows[0])])
            assert not difference(file[name][5:100:7], expected[5:100:7])
        assert file["data"].reader.kind == "direct"


def test_a_name_that_is_not_utf8_hides_no_other_dataset(tmp_path):
    """Old writers use other encodings; h5py lists such names as bytes."""
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(5)
        space = h5py.h5s.create_simple((5,))
        h5py.Dataset(h5py.h5d.create(file.id, b"caf\xe9", h5py.h5t.NATIVE_INT64, space))[...] = np.arange(5) + 10
    with kf.HDF5File(path) as file:
        names = file.dataset_paths()
        assert len(names) == 2
        assert all(isinstance(name, str) for name in names)
        assert file["data"][3] == 3
        (other,) = set(names) - {"data"}
        assert file[other][3] == 13
        assert pickle.loads(pickle.dumps(file[other]))[4] == 14
        with pytest.raises(KeyError, match="nothing"):
            file["nothing"]
        assert "data" in file.tree()
        assert "data" in file._repr_html_()
