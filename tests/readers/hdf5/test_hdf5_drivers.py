"""Files that change: other drivers, active writers, SWMR, files truncated, replaced or rewritten while open."""

import contextlib
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
from hdf5_answers import answers, difference, selections
from hdf5_files import values
from waits import PROGRAM_SECONDS

import kerasfeed as kf

WHOLE = values((40, 16), "f4")
STORAGES = {
    "contiguous": {},
    "chunked": {"chunks": (8, 16)},
    "gzip": {"chunks": (8, 16), "compression": 4, "shuffle": True},
    "scaleoffset": {"chunks": (8, 16), "scaleoffset": 2},
}


@pytest.fixture(params=STORAGES)
def path(request, tmp_path):
    path = tmp_path / f"kerasfeed-{request.param}.h5"
    _write(path, WHOLE, STORAGES[request.param])
    return path


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    _write(path, WHOLE, STORAGES["gzip"])
    return path


def _write(path, data, keywords, **options):
    with h5py.File(path, "w", **options) as file:
        file.create_dataset("data", data=data, **keywords)


def _later(path):
    """Wait until a change of the file must show in its time of modification (the kernel's clock ticks in 1-10 ms)."""
    probe = path.with_name("clock")
    before = path.stat().st_mtime_ns
    while True:
        probe.touch()
        if probe.stat().st_mtime_ns > before:
            return
        time.sleep(0.002)


@contextlib.contextmanager
def _process(script):
    """A Python process that runs the script, answers each line with a line, and ends at the line "end"."""
    code = "import sys\ndef tell(text): print(text, flush=True)\n" + textwrap.dedent(script)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdin=pipe, stdout=pipe, text=True, env=environment
    ) as process:

        def ask(text=None):
            if text is not None:
                process.stdin.write(text + "\n")
                process.stdin.flush()
            return process.stdout.readline().strip()

        try:
            yield ask
            process.stdin.close()
            assert process.wait(timeout=PROGRAM_SECONDS) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("driver", ["core", "stdio", "sec2", "split"])
def test_other_drivers_fall_back_to_h5py_and_read_the_same(tmp_path, driver):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w", driver=None if driver in ("core", "stdio", "sec2") else driver) as file:
        file.create_dataset("data", data=WHOLE, **STORAGES["gzip"])
    if driver == "split":
        path.write_bytes(b"")  # the parts are kerasfeed.h5-m.h5 and kerasfeed.h5-r.h5
    with kf.HDF5File(path, driver=driver) as file:
        asked = selections(WHOLE.shape)
        whole = dict.fromkeys(asked)
        with h5py.File(path, driver=driver) as reference:
            whole = answers(reference["data"], asked)
        ours = answers(file["data"], asked)
        assert not [found for name in asked if (found := difference(ours[name], whole[name]))]
        assert not difference(file["data"].take([3, 3, -1]), WHOLE[[3, 3, -1]])
        if driver != "sec2":
            assert file["data"].reader.kind == "h5py"
            assert "driver" in file["data"].reader.reason
        copy = pickle.loads(pickle.dumps(file))
    with copy:
        assert not difference(copy["data"][5], WHOLE[5])
        assert copy["data"].reader.kind == ("direct" if driver == "sec2" else "h5py")


def test_a_family_of_files_is_read_as_one(tmp_path):
    pattern = tmp_path / "kerasfeed-%d.h5"
    _write(pattern, WHOLE, STORAGES["chunked"], driver="family", memb_size=4096)
    assert len(list(tmp_path.iterdir())) > 1
    with kf.HDF5File(pattern, driver="family", memb_size=4096) as file:
        assert file["data"].reader.kind == "h5py"
        assert "family" in file["data"].reader.reason
        assert not difference(file["data"][:], WHOLE)


def test_an_unknown_driver_is_named(plain):
    with pytest.raises((ValueError, OSError), match="cloud9"):
        kf.HDF5File(plain, driver="cloud9")["data"]


WRITER = """
    import h5py, numpy as np
    with h5py.File({path!r}, {mode!r}, libver="latest") as file:
        if "data" not in file:
            file.create_dataset("data", (0, 4), "i4", maxshape=(None, 4), chunks=(3, 4), compression={compression})
        file.flush()
        if {swmr}:
            file.swmr_mode = True
        tell("ready")
        for line in sys.stdin:
            data = file["data"]
            rows = int(line)
            start = len(data)
            data.resize(start + rows, axis=0)
            data[start:] = np.arange(start, start + rows)[:, None]
            data.flush()
            tell("written")
    """


@pytest.mark.parametrize("compression", [None, 4])
def test_rows_that_another_process_appends_are_followed_with_swmr(tmp_path, compression):
    path = tmp_path / "kerasfeed.h5"
    script = WRITER.format(path=str(path), mode="w", compression=compression, swmr=True)
    with _process(script) as ask, contextlib.ExitStack() as stack:
        assert ask() == "ready"
        data = stack.enter_context(kf.HDF5File(path, swmr=True))["data"]
        assert len(data) == 0
        assert data.reader.kind == "h5py"
        assert "single writer" in data.reader.reason
        rows = 0
        for more in (4, 1, 7, 20):
            assert ask(str(more)) == "written"
            rows += more
            assert data.shape == (rows, 4)
            assert len(data) == rows
            assert data[-1].tolist() == [rows - 1] * 4
            assert data[:, 0].tolist() == list(range(rows))
            assert data.take([rows - 1, 0])[:, 1].tolist() == [rows - 1, 0]
            with pytest.raises(IndexError):
                data[rows]


def test_a_pickled_file_keeps_swmr(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    with _process(WRITER.format(path=str(path), mode="w", compression=None, swmr=True)) as ask:
        assert ask() == "ready"
        ask("5")
        with kf.HDF5File(path, swmr=True) as file:
            assert len(file["data"]) == 5
            ask("2")  # a file that grows under SWMR has not "changed" for the worker that opens it
            with pickle.loads(pickle.dumps(file)) as copy:
                assert copy["data"][:, 0].tolist() == list(range(7))


def test_a_file_locked_by_a_writer_is_refused_until_it_is_closed(plain):
    script = WRITER.format(path=str(plain), mode="r+", compression=None, swmr=False)
    with _process(script) as ask:
        assert ask() == "ready"
        with pytest.raises(OSError, match=r"cannot open '.*kerasfeed\.h5'.*lock"):
            kf.HDF5File(plain)["data"]
    with kf.HDF5File(plain) as file:
        assert not difference(file["data"][:], WHOLE)


def test_an_open_file_locks_out_writers_until_it_is_closed(plain):
    script = f"""
        import h5py
        for line in sys.stdin:
            try:
                h5py.File({str(plain)!r}, "r+").close()
                tell("opened")
            except OSError as error:
                tell(type(error).__name__)
        """
    with _process(script) as ask:
        file = kf.HDF5File(plain)
        assert not difference(file["data"][3], WHOLE[3])
        assert ask("") == "BlockingIOError"
        file.close()
        assert ask("") == "opened"


def test_a_half_written_file_of_a_killed_writer_raises(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    script = f"""
        import h5py, numpy as np, os
        file = h5py.File({str(path)!r}, "w", libver="latest")
        file.create_dataset("data", data=np.arange(100000), chunks=(1000,))
        file.flush()
        tell("ready")
        sys.stdin.readline()
        os._exit(0)
        """
    with _process(script) as ask:
        assert ask() == "ready"
        ask("end")
    with pytest.raises(OSError, match=r"cannot open '.*kerasfeed\.h5'"):
        kf.HDF5File(path)["data"][:]


READER = """
    import sys, json
    import numpy as np
    import kerasfeed as kf
    file = kf.HDF5File({path!r})
    data = file["data"]
    first = data[0].copy()
    small = data.take([0, 1])
    tell("ready")
    sys.stdin.readline()
    for read in (lambda: data[:], lambda: data[39], lambda: data.take([39, 0, 20]), lambda: data.take(np.arange(40)),
                 lambda: data.read_into(np.s_[30:], np.empty((10, 16), "f4"))):
        try:
            read()
            tell("read")
        except OSError as error:
            tell("OSError " + str(error).replace(chr(10), " "))
        except Exception as error:
            tell("unclear " + repr(error).replace(chr(10), " "))
    file.close()
    """


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_file_truncated_while_open_raises_and_never_crashes(path, share):
    with _process(READER.format(path=str(path))) as ask:
        assert ask() == "ready"
        os.truncate(path, int(share * path.stat().st_size))
        answers = [ask(""), *(ask() for _ in range(4))]
    assert all(path.name in one or one == "read" for one in answers), answers
    assert all(one.startswith("OSError") for one in answers[:4]), answers


def test_repeated_truncation_during_reads_never_crashes_the_process(tmp_path):
    """The file may be truncated between size check and read; mapped memory would end the process (SIGBUS)."""
    path = tmp_path / "kerasfeed.h5"
    rows = values((4000, 100), "u1")
    _write(path, rows, {})
    script = f"""
        import numpy as np, time
        import kerasfeed as kf
        data = kf.HDF5File({str(path)!r})["data"]
        data.take([0, 1])
        tell("ready")
        wrong, refused, end = 0, 0, time.monotonic() + 60
        rows = np.random.default_rng(0).integers(0, 4000, 2000)
        while refused < 50 and time.monotonic() < end:
            try:
                data.take(rows)
                data[3990]
            except OSError:
                refused += 1
            except Exception:
                wrong += 1
        tell(f"{{wrong}} {{refused}}")
        """
    whole = path.read_bytes()
    with _process(script) as ask:
        assert ask() == "ready"
        over = threading.Event()

        def cut():
            with path.open("r+b") as file:
                while not over.is_set():
                    os.truncate(file.fileno(), 4096)
                    time.sleep(0.0005)
                    os.pwrite(file.fileno(), whole, 0)
                    time.sleep(0.0005)

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            assert ask() == "0 50"
        finally:
            over.set()
            cutting.join()


def test_a_file_rewritten_while_open_raises_or_gives_unmixed_data(path):
    """Its chunks have moved; a read must not return a mixture. The reader checks five times a second."""
    other = (WHOLE + 1000).astype("f4")
    with kf.HDF5File(path) as file:
        data = file["data"]
        assert not difference(data[0:8], WHOLE[0:8])
        _later(path)
        replacement = path.with_name("other.h5")
        with h5py.File(replacement, "w", userblock_size=512) as writer:
            writer["padding"] = np.arange(500)
            writer.create_dataset("data", data=other, **STORAGES["gzip"])
        path.write_bytes(replacement.read_bytes())  # the same inode
        time.sleep(0.3)
        for rows in (np.s_[16:24], np.s_[32:40]):
            try:
                ours = data[rows]
            except OSError as error:
                assert path.name in str(error)  # noqa: PT017  an error is one of the two right outcomes
            else:
                assert np.array_equal(ours, WHOLE[rows]) or np.array_equal(ours, other[rows])


@pytest.mark.parametrize("how", ["replaced", "rewritten", "grown"])
def test_a_worker_reports_that_the_file_changed_since_it_was_first_opened(path, how):
    with kf.HDF5File(path) as file:
        dataset = file["data"]
        assert not difference(dataset[1], WHOLE[1])
        pickled = pickle.dumps(dataset)
    _later(path)
    if how == "replaced":
        other = path.with_name("other.h5")
        _write(other, WHOLE + 1, {})
        other.replace(path)
    elif how == "rewritten":
        path.write_bytes(path.read_bytes())
    else:
        with h5py.File(path, "r+") as writer:
            writer["more"] = np.arange(10)
    script = f"""
        import pickle
        dataset = pickle.loads({pickled!r})
        try:
            dataset[1]
            tell("read")
        except OSError as error:
            tell(str(error))
        """
    with _process(script) as ask:
        found = ask()
    assert path.name in found
    assert "changed" in found


def test_a_file_that_did_not_change_is_read_by_any_worker(path):
    with kf.HDF5File(path) as file:
        dataset = file["data"]
        dataset[1]
        pickled = pickle.dumps(dataset)
    script = f"""
        import pickle
        dataset = pickle.loads({pickled!r})
        tell(dataset[1].tobytes().hex())
        """
    with _process(script) as ask:
        assert ask() == WHOLE[1].tobytes().hex()


def test_an_open_file_remains_readable_after_it_is_deleted(path):
    with kf.HDF5File(path) as file:
        data = file["data"]
        assert not difference(data[0], WHOLE[0])
        path.unlink()
        assert not difference(data[:], WHOLE)
        assert not difference(data.take([39, 8]), WHOLE[[39, 8]])
