"""`rechunk` where something is wrong: the new file is whole or is not there, and the old one as it was."""

import os
import signal
import subprocess
import sys
import threading
import tracemalloc

import h5py
import numpy as np
import pytest
from rechunked import listing, rechunk
from waits import PROGRAM_SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.writers.hdf5 import rechunk as room
from kerasfeed.writers.hdf5.sink import Sink

pytestmark = pytest.mark.usefixtures("no_signal_left")


def test_a_name_taken_meanwhile_is_left_to_whoever_took_it(points, tmp_path, monkeypatch):
    compare = room._compare

    def slow_compare(*arguments):
        (tmp_path / "out.h5").write_text("somebody else's")
        return compare(*arguments)

    monkeypatch.setattr(room, "_compare", slow_compare)
    with pytest.raises(FileExistsError, match="was made by somebody else meanwhile"):
        rechunk(points, tmp_path / "out.h5", "points", 1)
    assert (tmp_path / "out.h5").read_text() == "somebody else's"
    assert listing(tmp_path) == ["in.h5", "out.h5"]


def test_what_differs_when_compared_is_never_delivered(points, tmp_path, monkeypatch):
    digests = iter(range(10**6))
    monkeypatch.setattr(room, "digest", lambda rows: str(next(digests)))
    with pytest.raises(OSError, match=r"comparison failed: rows 0 to \d+ of '/points' are not what was written"):
        rechunk(points, tmp_path / "out.h5", "points", 1)
    assert listing(tmp_path) == ["in.h5"]


def test_a_damaged_source_is_an_error_and_leaves_nothing(points, tmp_path):
    with h5py.File(points) as file:
        place = file["points"].id.get_chunk_info(3).byte_offset
    with points.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff" * 40)
    with pytest.raises(OSError, match=r"rechunking .* failed and left nothing behind"):
        rechunk(points, tmp_path / "out.h5", "points", 1)
    assert listing(tmp_path) == ["in.h5"]


_LARGE = """
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w") as file:
    file.create_dataset("x", data=np.random.default_rng(0).random((400, 100, 100)), chunks=(40, 10, 10))
"""


@pytest.fixture
def large(tmp_path):
    """A file of 32 MB of noise, made in another process."""
    path = tmp_path / "in.h5"
    subprocess.run([sys.executable, "-c", _LARGE, str(path)], check=True, timeout=PROGRAM_SECONDS)
    return path


_FULL = """
import resource, signal, sys
import kerasfeed as kf
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    kf.rechunk(sys.argv[1], sys.argv[2], None, 1, progress=False)
except OSError as error:
    print(type(error).__name__, error.errno, error)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("limit", [0, 1000, 100_000, 20_000_000])
def test_a_disk_that_is_full_is_an_error_leaves_nothing_and_does_not_crash(large, tmp_path, limit):
    ended = subprocess.run(
        [sys.executable, "-c", _FULL, str(large), str(tmp_path / "out.h5"), str(limit)],
        capture_output=True, text=True, timeout=PROGRAM_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "failed and left nothing behind" in ended.stdout
    assert "File too large" in ended.stdout
    assert listing(tmp_path) == ["in.h5"]


_INTERRUPTED = """
import sys, threading, os, signal, time
import kerasfeed as kf
def interrupt():
    while not [name for name in os.listdir(os.path.dirname(sys.argv[2])) if name.endswith(".part")]:
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    kf.rechunk(sys.argv[1], sys.argv[2], "x", 1, 9, progress=False)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.heavy
def test_ctrl_c_leaves_nothing(large, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(large), str(tmp_path / "out.h5")],
        capture_output=True, text=True, timeout=PROGRAM_SECONDS,
    )  # fmt: skip
    assert ended.stdout == "interrupted\n", ended.stderr
    assert ended.returncode == 0
    assert listing(tmp_path) == ["in.h5"]


def test_ctrl_c_as_the_thread_that_writes_is_started_ends_it(large, tmp_path, monkeypatch):
    start = threading.Thread.start

    def struck(thread):
        start(thread)
        if "rechunk" in thread.name:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", struck)
    with pytest.raises(KeyboardInterrupt):
        kf.rechunk(large, tmp_path / "out.h5", "x", 1, 9, progress=False)
    wait_until(lambda: not any("rechunk" in thread.name for thread in threading.enumerate()))
    assert listing(tmp_path) == ["in.h5"]


def test_memory_is_bounded_however_large_the_dataset(large, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_MEMORY", 4 << 20)
    tracemalloc.start()
    try:
        rechunk(large, tmp_path / "out.h5", "x", 2, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20  # of 32 MB: rows read, and their bytes on the way to HDF5


def test_a_sink_reads_back_what_the_disk_would_not_take(tmp_path):
    read, write = os.pipe()  # neither end can be written to at an offset
    os.close(write)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        sink = Sink(fd)
        sink.write(b"0123456789")
        os.close(fd)
        os.dup2(os.open(tmp_path / "file", os.O_RDONLY), fd)  # from now on, writing fails
        sink.seek(4)
        assert sink.write(b"abcd") == 4
        sink.seek(8)
        assert sink.write(b"efgh") == 4
        with pytest.raises(OSError, match="Bad file descriptor"):
            sink.check()
        found = bytearray(14)
        sink.seek(0)
        assert sink.readinto(found) == 14
        assert bytes(found) == b"0123abcdefgh\0\0"
        sink.seek(0, os.SEEK_END)
        assert sink.tell() == 12
    finally:
        os.close(fd)
        os.close(read)


@pytest.mark.parametrize(
    ("name", "scenes", "compression", "error", "message"),
    [
        ("point", 1, "gzip", KeyError, "'point' is not in the file; .*in.h5' holds the datasets empty, labels, points"),
        ("group", 1, "gzip", KeyError, "'group' is a group; "),
        ("scalar", 1, "gzip", ValueError, "'scalar' of .* is a single value: it has no axis of scenes"),
        ("empty", 1, "gzip", ValueError, r"'empty' of .* is empty for ever \(shape \(0, 2\)\)"),
        ("refs", 1, "gzip", ValueError, "'refs' of .* holds references to objects, which no reader wants in chunks"),
        ([], 1, "gzip", ValueError, "name is an empty list"),
        ("points", 0, "gzip", ValueError, "scenes_per_chunk must be at least 1, received 0"),
        ("points", 1.5, "gzip", TypeError, "scenes_per_chunk must be an integer, received 1.5"),
        ("points", 1, "zip", ValueError, r"compression must be one of None, 'gzip', 0 to 9 .*'lzf'.*received 'zip'"),
        ("points", 1, 10, ValueError, "compression must be one of .* received 10"),
        ("points", 1 << 30, "gzip", ValueError, r"a chunk of 1,073,741,824 scenes of '/points' would take "
         r"103,079,215,104 bytes, and HDF5 allows 4,294,967,295. Use scenes_per_chunk=44739242 or less"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_and_leaves_nothing(points, tmp_path, name, scenes, compression, error, message):
    with h5py.File(points, "a") as file:
        file.create_group("group")
        file["scalar"] = 1
        file["refs"] = np.array([file["group"].ref], h5py.ref_dtype)
        file.create_dataset("empty", (0, 2))
    with pytest.raises(error, match=message):
        rechunk(points, tmp_path / "out.h5", name, scenes, compression)
    assert listing(tmp_path) == ["in.h5"]


def test_files_and_folders_that_are_not_there_are_named(points, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing.h5' to rechunk"):
        rechunk(tmp_path / "missing.h5", tmp_path / "out.h5", None, 1)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere' to write 'out.h5' to"):
        rechunk(points, tmp_path / "nowhere" / "out.h5", None, 1)
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        rechunk(points, tmp_path, None, 1, overwrite=True)
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(OSError, match=r"rechunking .*text.h5' into .*out.h5' failed and left nothing behind"):
        rechunk(tmp_path / "text.h5", tmp_path / "out.h5", None, 1)
    assert listing(tmp_path) == ["in.h5", "text.h5"]


@pytest.mark.parametrize("where", ["attribute", "dataset"])
def test_references_that_cannot_be_kept_are_refused_by_name(points, tmp_path, where):
    with h5py.File(points, "a") as file:
        region = file["labels"].regionref[2:5]
        if where == "attribute":
            file["labels"].attrs["part"] = region
            message = "the attribute 'part' of '/labels' holds references to regions"
        else:
            file["parts"] = np.array([region], h5py.regionref_dtype)
            message = "the dataset '/parts' holds references to regions"
    with pytest.raises(ValueError, match=message):
        rechunk(points, tmp_path / "out.h5", "points", 1)
    assert listing(tmp_path) == ["in.h5"]
