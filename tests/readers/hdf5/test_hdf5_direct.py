"""The direct reader: parallel, into the destination, from the right file, with a fallback to h5py."""

import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import h5py
import numpy as np
import pytest
from decode_threads import set_threads
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.readers.hdf5.codecs import Pipeline

VALUES = np.random.default_rng(0).normal(size=(64, 40, 9)).astype("f4").round(2)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("scene", data=VALUES, chunks=(1, 40, 9), compression=4, shuffle=True)
        file.create_dataset("block", data=VALUES, chunks=(10, 16, 9), compression=4, shuffle=True)
        file.create_dataset("big", data=VALUES.astype(">f4"), chunks=(7, 40, 4), compression=1)
        file["plain"] = VALUES
        sparse = file.create_dataset("sparse", VALUES.shape, "f4", chunks=(5, 40, 9), compression=1, fillvalue=3)
        sparse[20:25] = VALUES[20:25]
    return path


NAMES = ["scene", "block", "big", "plain"]


@pytest.mark.parametrize("limit", [0, 20_000, "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_every_read_method_returns_the_same_rows(path, name, limit):
    rows = np.random.default_rng(1).integers(-64, 64, 50)
    with kf.HDF5File(path, chunk_cache=limit) as file:
        data = file[name]
        assert str(data.reader) == "direct"
        for _ in range(2):
            assert np.array_equal(data.take(rows), VALUES[rows])
            assert np.array_equal(np.stack([data[int(row)] for row in rows]), VALUES[rows])
            assert np.array_equal(data[rows], VALUES[rows])
            assert np.array_equal(data[5:60:3, ::-2, [8, 0]], VALUES[5:60:3, ::-2, [8, 0]])
            assert np.array_equal(data[VALUES > 2], VALUES[VALUES > 2])
            assert np.array_equal(data[VALUES[:, :, 0] > 1, 3:5], VALUES[VALUES[:, :, 0] > 1, 3:5])
            out = np.empty((50, 40, 9), "f4")
            assert data.take(rows, out) is out
            assert np.array_equal(out, VALUES[rows])
            wide = np.zeros((50, 80, 18), "f4")
            data.take(rows, wide[:, ::2, ::2])
            assert np.array_equal(wide[:, ::2, ::2], VALUES[rows])
            assert not wide[:, 1::2].any()
            for index, row in enumerate(rows.tolist()):
                data.read_into(row, out[index])
            assert np.array_equal(out, VALUES[rows])
        data[0][:] = 0  # the caller may write to the result
        assert np.array_equal(data[0], VALUES[0])


def test_missing_chunks_are_the_fill_value(path):
    expected = np.full_like(VALUES, 3)
    expected[20:25] = VALUES[20:25]
    with kf.HDF5File(path, chunk_cache=0) as file:
        assert str(file["sparse"].reader) == "direct"
        assert np.array_equal(file["sparse"][...], expected)
        assert np.array_equal(file["sparse"][0], expected[0])
        assert file["sparse"].stats().decoded == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty((40, 8), "f4"), ValueError, r"out must have the selection's shape \(40, 9\), received \(40, 8\)"),
        (np.empty((40, 9), "f8"), TypeError, "out must be of dtype .f4|float32, .* received float64"),
        ([[0.0]], TypeError, "out must be a NumPy array, received list"),
        (np.broadcast_to(np.float32(0), (40, 9)), ValueError, "out is read-only"),
    ],
)
def test_the_error_for_an_unsuitable_destination_gives_the_reason(path, name, out, error, message):
    with kf.HDF5File(path) as file:
        with pytest.raises(error, match=message):
            file[name].read_into(3, out)
        with pytest.raises(error, match=message.replace("(40,", "(2, 40,").replace("(40, 9)", "(2, 40, 9)")):
            file[name].take([3, 4], out if isinstance(out, list) else np.stack([out, out]) if out.flags.writeable
                            else np.broadcast_to(np.float32(0), (2, 40, 9)))  # fmt: skip


def test_two_threads_decode_in_parallel(path, monkeypatch):
    both, original = threading.Barrier(2, timeout=60), Pipeline.decode
    with kf.HDF5File(path, chunk_cache=0) as file:
        data = file["scene"]
        assert data.shape == VALUES.shape

        def decode(self, *args):
            both.wait()  # fails the read unless two threads are here at the same time
            return original(self, *args)

        monkeypatch.setattr(Pipeline, "decode", decode)
        found = [None, None]
        threads = [threading.Thread(target=lambda k=k: found.__setitem__(k, data[k])) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert np.array_equal(np.stack(found), VALUES[:2])


def test_take_decodes_large_chunks_with_the_help_of_free_threads(tmp_path, monkeypatch):
    path = tmp_path / "kerasfeed.h5"
    values = np.random.default_rng(0).integers(0, 9, (8, 200_000)).astype("u1")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 200_000), compression=1)
    names, original, here, helped = set(), Pipeline.decode, threading.Event(), threading.Event()
    with kf.HDF5File(path, chunk_cache=0) as file:
        data = file["x"]
        assert data.shape == (8, 200_000)

        def decode(self, *args):  # three threads help with four chunks, and each waits until another has one
            names.add(threading.current_thread().name)
            own, other = (here, helped) if threading.current_thread() is threading.main_thread() else (helped, here)
            own.set()
            assert other.wait(60)
            return original(self, *args)

        monkeypatch.setattr(Pipeline, "decode", decode)
        set_threads(monkeypatch, 3)
        assert np.array_equal(data.take([7, 0, 3, 3, 5]), values[[7, 0, 3, 3, 5]])
        assert any(name.startswith("kerasfeed-decode") for name in names)
        assert threading.current_thread().name in names


def test_an_error_of_a_helper_thread_is_raised_in_the_caller(tmp_path, monkeypatch):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros((8, 200_000), "u1"), chunks=(1, 200_000), compression=1)
    with kf.HDF5File(path, chunk_cache=0) as file:
        data = file["x"]
        assert data.shape == (8, 200_000)
        here, helped = threading.current_thread(), threading.Event()

        def decode(*_):
            if threading.current_thread() is not here:
                helped.set()
                raise MemoryError("in a helper")
            assert helped.wait(60)
            return bytes(200_000)

        monkeypatch.setattr(Pipeline, "decode", decode)
        set_threads(monkeypatch, 2)
        with pytest.raises(MemoryError, match="in a helper"):
            data.take(np.arange(8))


def test_h5py_reads_a_chunk_that_cannot_be_decoded_and_the_fallback_is_counted(path):
    with h5py.File(path) as reference:
        place = reference["block"].id.get_chunk_info(12)
        first = place.chunk_offset[0]
    damaged = bytearray(path.read_bytes())
    damaged[place.byte_offset + 20 : place.byte_offset + 40] = bytes(20)
    path.write_bytes(damaged)
    with h5py.File(path) as reference, kf.HDF5File(path) as file:
        with pytest.raises(OSError, match=r"."):
            reference["block"][first]
        with pytest.raises(OSError, match=rf"cannot read 'block'\[{first}\] of '.*kerasfeed.h5': "):
            file["block"][first]
        with pytest.raises(OSError, match=r"cannot read 'block'.take\(...\) of '.*kerasfeed.h5': "):
            file["block"].take([0, first])
        file["block"].read_ahead([first])
        assert file["block"].stats().fallbacks == 2
        assert np.array_equal(file["block"][0], VALUES[0])


def _touch(path, seconds=5):
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + int(seconds * 1e9)))


def _replace(path):
    other = path.with_name("kerasfeed-other.h5")
    other.write_bytes(path.read_bytes())
    other.replace(path)


CHANGES = {
    "modified": (_touch, r"it was modified 5.000 s later"),
    "replaced": (_replace, r"another file has replaced it \(inode \d+, was \d+\)"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"more"), r"its size is [\d,]+ bytes, was [\d,]+"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_pickled_copy_detects_that_the_file_changed(path, change):
    with kf.HDF5File(path) as file:
        file["scene"][0]
        sent = pickle.dumps(file["scene"])
        unopened = pickle.dumps(kf.HDF5File(path))
    act, message = CHANGES[change]
    act(path)
    with pytest.raises(OSError, match=f"kerasfeed.h5' changed since it was first opened: {message}. .*close"):
        pickle.loads(sent)[0]
    with pickle.loads(unopened) as fresh:
        assert np.array_equal(fresh["scene"][0], VALUES[0])


@pytest.mark.parametrize("name", ["scene", "plain"])
def test_reading_a_file_modified_while_open_raises_until_it_is_closed(path, name):
    with kf.HDF5File(path, chunk_cache=0) as file:
        data = file[name]
        data[0]
        _touch(path)
        time.sleep(0.25)  # it is checked five times a second
        with pytest.raises(OSError, match=r"changed since it was first opened: it was modified 5.000 s later"):
            data[1]
        file.close()
        assert np.array_equal(data[1], VALUES[1])


def test_the_index_needs_at_most_24_bytes_per_chunk(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("full", data=np.zeros((2000, 4), "f4"), chunks=(1, 4))
        file.create_dataset("half", (4000, 4), "f4", chunks=(1, 4), compression=1)[::2] = 1
    with kf.HDF5File(path) as file:
        for name, most in (("full", 12), ("half", 20)):
            assert np.array_equal(file[name][0], [name == "half"] * 4)
            index = file._open().dataset(name, file._cache_limit).reader._index
            assert sum(part.nbytes for part in vars(index).values() if part is not None) <= most * 2000


def test_the_index_of_a_sparse_dataset_needs_a_few_bytes(tmp_path):
    rows = 1 << 40
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (rows, 4), "f4", chunks=(1, 4))[rows - 7] = 1
    with kf.HDF5File(path) as file:
        assert file["data"].reader.kind == "direct"
        assert file["data"][rows - 7].tolist() == [1] * 4
        assert not file["data"][rows - 8].any()
        index = file._open().dataset("data", file._cache_limit).reader._index
        assert sum(part.nbytes for part in vars(index).values() if part is not None) <= 24


def test_a_forked_child_reads_while_the_threads_of_its_parent_decode(path):
    code = f"""
        import os, sys, threading, warnings
        import numpy as np
        import kerasfeed as kf
        warnings.simplefilter("ignore")
        file = kf.HDF5File({str(path)!r})
        expected = [file[name][...] for name in ("scene", "block", "plain")]
        stop = threading.Event()
        def work():
            while not stop.is_set():
                file["block"].take(np.arange(64))
                file["block"].read_ahead(np.arange(64))
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        children = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                good = all(
                    np.array_equal(file[name].take(np.arange(64)), value)
                    for name, value in zip(("scene", "block", "plain"), expected)
                )
                os._exit(0 if good else 1)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        stop.set()
        for thread in threads: thread.join()
        print(codes)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert run.stdout.strip() == "[0, 0, 0, 0, 0]", run.stderr


def test_a_process_can_exit_during_read_ahead(path):
    code = f"""
        import numpy as np, kerasfeed as kf
        file = kf.HDF5File({str(path)!r})
        for _ in range(50):
            for name in ("block", "big", "scene"):
                file[name].read_ahead(np.arange(64))
        print("done")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "done", "")


def test_a_file_closed_during_read_ahead_is_closed(path):
    file = kf.HDF5File(path)
    for _ in range(20):
        file["block"].read_ahead(np.arange(64))
        file.close()
    assert np.array_equal(file["block"][3], VALUES[3])
    file.close()


def test_a_url_is_read_through_fsspec_without_h5py(path):
    pytest.importorskip("fsspec")
    with kf.HDF5File(f"file://{path}") as file:
        assert file["scene"].reader.kind == "direct"
        assert np.array_equal(file["scene"].take([5, 1, 5]), VALUES[[5, 1, 5]])
        with pickle.loads(pickle.dumps(file)) as copy:
            assert np.array_equal(copy["plain"][3], VALUES[3])
    with pytest.raises(FileNotFoundError, match=r"cannot open 'file:///nowhere/x.h5'"):
        kf.HDF5File("file:///nowhere/x.h5")["x"]


@pytest.mark.parametrize("name", ["a b.h5", "ü#1%20.h5", "a%20b.h5"])
def test_a_path_as_uri_opens(tmp_path, name):
    pytest.importorskip("fsspec")
    folder = tmp_path / "kerasfeed files"
    folder.mkdir()
    with h5py.File(folder / name, "w") as file:
        file["x"] = np.arange(5)
    with kf.HDF5File((folder / name).as_uri()) as file:
        assert file["x"][...].tolist() == [0, 1, 2, 3, 4]
    with kf.HDF5File(f"file://{folder / name}") as file:
        assert file["x"][2] == 2


def test_the_contents_of_a_file_are_shown_as_text_and_html(path):
    with h5py.File(path, "r+") as file:
        file["group/<names>"] = ["a", "b"]
        file["group"].attrs["unit"] = "m"
        file.attrs["year"] = 2024
    with kf.HDF5File(path) as file:
        assert file.attrs == {"year": 2024}
        assert file["group"].attrs == {"unit": "m"}
        assert file["group"]["<names>"][1] == b"b"
        assert "<names>" in file["group"]
        assert len(file["group"]) == 1
        lines = file.tree().splitlines()
        assert lines[0] == "kerasfeed.h5"
        assert "  scene  float32 (64, 40, 9)  chunks (1, 40, 9)  shuffle + gzip  [direct]" in lines
        assert "  plain  float32 (64, 40, 9)  contiguous  none  [direct]" in lines
        assert any(line.startswith("    <names>  object (2,)  contiguous  none  [h5py: text or") for line in lines)
        table = file._repr_html_()
        assert table.count("<tr>") == 7
        assert "<code>group/&lt;names&gt;</code>" in table
        assert "shuffle + gzip" in table
        assert "<names>" not in file["group"]._repr_html_()


def test_block_size_is_the_number_of_rows_in_a_chunk(path):
    with kf.HDF5File(path) as file:
        assert [file[name].block_size for name in (*NAMES, "sparse")] == [1, 10, 7, 1, 5]
        assert file["scene"].nbytes == VALUES.nbytes
        assert file["scene"].size == VALUES.size
