"""Files by URL: every reader returns the same as from a disk, or an error that names the URL."""

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pytest
import slow_store
from slow_store import Rooms, read_npz
from url_server import serving
from waits import PROGRAM_SECONDS, SECONDS

import kerasfeed as kf
from kerasfeed.readers import remote
from kerasfeed.readers.file_bytes import ByteSource
from kerasfeed.readers.opened_files import file_identity
from kerasfeed.readers.remote import FileObject

pytestmark = pytest.mark.timeout(120)

VALUES = np.arange(32 * 50, dtype=np.float32).reshape(32, 50)
PLACES = ["memory", "file", "http", "filecache", "filecache http"]


def write(folder):
    """Files of every kind that hold VALUES."""
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(1, 50), compression="gzip")
        file["plain"] = VALUES
        file["text"] = ["a", "bc"]
    scenes = kf.Zip(x=VALUES)
    kf.write_tfrecords(
        scenes, folder / "t-{shard:02d}-of-{count:02d}.tfrecord", num_shards=2, workers=0, progress=False
    )
    kf.write_tfrecords(
        scenes, folder / "z-{shard}.tfrecord", num_shards=2, workers=0, compression="GZIP", progress=False
    )
    with h5py.File(folder / "large.h5", "w") as file:
        file["x"] = np.zeros((4, 1 << 17))
    kf.write_hdf5(scenes, folder / "scenes.h5", workers=0, progress=False)
    for part in range(2):
        np.savez(folder / f"part-{part}.npz", x=VALUES[part * 16 : part * 16 + 16])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("store"))


@pytest.fixture(params=PLACES)
def url(request, folder, tmp_path, monkeypatch):
    """The URL of the folder at each place."""
    monkeypatch.setitem(fsspec.config.conf, "filecache", {"cache_storage": str(tmp_path / "kept")})
    if "http" in request.param:
        with serving(folder) as server:
            yield f"{request.param.removesuffix('http').strip() + '::' if ' ' in request.param else ''}{server.url}"
        return
    yield {"file": f"file://{folder}", "filecache": f"filecache::file://{folder}"}.get(request.param) or in_memory(
        folder
    )


def in_memory(folder):
    files = fsspec.filesystem("memory")
    for path in folder.glob("[!.]*"):
        files.pipe_file(f"/store/{path.name}", path.read_bytes())
    return "memory://store"


def test_an_hdf5_file_by_url_is_read_directly_and_equals_a_local_one(url):
    with kf.HDF5File(f"{url}/rows.h5") as file:
        assert sorted(file) == ["plain", "text", "x"]
        assert [file[name].reader.kind for name in ("plain", "x", "text")] == ["direct", "direct", "h5py"]
        assert np.array_equal(file["x"].take([5, 1, 5]), VALUES[[5, 1, 5]])
        assert np.array_equal(file["plain"][3:7, ::2], VALUES[3:7, ::2])
        assert list(file["text"][:]) == [b"a", b"bc"]
        with pickle.loads(pickle.dumps(file)) as copy:
            assert np.array_equal(copy["x"][31], VALUES[31])
    scenes = kf.HDF5Scenes(f"{url}/scenes.h5")
    assert np.array_equal(scenes[17]["x"], VALUES[17])
    scenes.file.close()


@pytest.mark.parametrize("name", ["t-*.tfrecord", "z-?.tfrecord"])
def test_all_records_by_url_are_read(url, folder, name):
    name = name.replace("?", "*") if "http" in url else name  # there "?" begins a query
    assert np.array_equal(np.sort([scene["x"][0] for scene in kf.TFRecordSequence.read(f"{url}/{name}")]), VALUES[:, 0])


@pytest.mark.parametrize("name", ["t-*.tfrecord", "t-{shard:02d}-of-{count:02d}.tfrecord"])
def test_records_and_their_spec_are_found_by_globs_and_patterns(url, folder, name):
    here, there = (kf.TFRecordSequence(f"{place}/{name}") for place in (folder, url))
    assert there.paths == tuple(f"{url}/{Path(path).name}" for path in here.paths)
    assert there.spec == here.spec
    assert all(np.array_equal(there[index]["x"], here[index]["x"]) for index in range(32))
    copy = pickle.loads(pickle.dumps(there))
    assert np.array_equal(copy[9]["x"], here[9]["x"])
    for each in (here, there, copy):
        each.close()


def test_a_glob_of_urls_skips_hidden_files(folder):
    files = fsspec.filesystem("memory")
    files.pipe_file("/hidden/t-0.tfrecord", (folder / "t-00-of-02.tfrecord").read_bytes())
    files.pipe_file("/hidden/.t-0.tfrecord.part", b"")
    local = kf.TFRecordSequence(f"{folder}/t-*.tfrecord")
    found = kf.TFRecordSequence("memory://hidden/*t-0.tfrecord*", spec=local.spec)
    assert found.paths == ("memory://hidden/t-0.tfrecord",)
    for each in (local, found):
        each.close()


def test_read_file_receives_each_url_of_a_glob(url):
    files = kf.FileSequence(f"{url}/part-*.npz", read_npz)
    assert files.paths == (f"{url}/part-0.npz", f"{url}/part-1.npz")
    assert np.array_equal(np.stack([files[index] for index in range(32)]), VALUES)
    files.close()


def test_the_spec_is_found_in_a_folder_with_glob_characters(folder):
    files = fsspec.filesystem("memory")
    for path in folder.glob("t*"):
        files.pipe_file(f"/odd/[x] y/{path.name}", path.read_bytes())
    here = kf.TFRecordSequence(folder / "t-*.tfrecord")
    for name in ("t-{shard:02d}-of-{count:02d}.tfrecord", "t-00-of-02.tfrecord"):
        url = f"memory://odd/[x] y/{name}"
        there = kf.TFRecordSequence(url if "{" in name else [url])
        assert there.spec == here.spec
        assert np.array_equal(there[9]["x"], here[9]["x"])
        there.close()
    here.close()


def test_a_list_may_mix_urls_and_paths(folder):
    records = kf.TFRecordSequence([folder / "t-01-of-02.tfrecord", f"{in_memory(folder)}/t-00-of-02.tfrecord"])
    assert records.counts == (16, 16)
    assert np.array_equal(records[16]["x"], VALUES[0])
    records.close()


# ---- kept copies


def test_reopening_a_replaced_file_raises(folder):
    url = in_memory(folder)
    records = pickle.loads(pickle.dumps(kf.TFRecordSequence(f"{url}/t-*.tfrecord")))
    with kf.HDF5File(f"{url}/rows.h5") as file:
        assert len(file["x"]) == 32
        copy = pickle.loads(pickle.dumps(file))
        file.close()
        in_memory(folder)
        for read in (lambda: copy["x"], lambda: records[0]):
            with pytest.raises(
                OSError, match=rf"^'{url}/.*' changed since it was first opened: another version has replaced"
            ):
                read()
        assert len(file["x"]) == 32  # the file was closed


# ---- a slow store that fails


def test_slow_reads_run_in_parallel_and_failed_ones_are_retried(folder):
    url = f"slow://{folder}"
    for sequence in (Rooms(f"{url}/rows.h5"), kf.TFRecordSequence(f"{url}/t-*.tfrecord")):
        sequence[0]
        slow_store.most_at_once = 0
        with kf.Feed(sequence, 16, workers=16, worker_type="thread") as feed:
            batches = list(feed)
        rows = [batch["x"] if isinstance(batch, dict) else batch for batch in batches]
        assert sorted(np.concatenate(rows)[:, 0].tolist()) == VALUES[:, 0].tolist()
        assert slow_store.most_at_once >= 12


@pytest.mark.heavy
def test_worker_processes_read_urls(folder):
    with kf.Feed(Rooms(f"slow://{folder}/rows.h5"), 16, workers=2, worker_type="process") as feed:
        assert np.array_equal(np.concatenate(list(feed)), VALUES)


def test_the_error_for_a_store_that_fails_three_times_names_url_and_cause(folder, monkeypatch):
    monkeypatch.setattr(remote, "_PAUSES", (0.0, 0.0))
    (folder / "broken.h5").write_bytes((folder / "rows.h5").read_bytes())
    url = f"slow://{folder}/broken.h5"
    with pytest.raises(OSError, match=rf"cannot read '{url}': OSError: the store is busy \(tried 3 times\)"):
        kf.HDF5File(url)["x"]
    with pytest.raises(OSError, match=rf"cannot read '{url}': OSError: the store is busy"):
        kf.TFRecordSequence(url)


def test_requests_to_a_briefly_failing_web_server_are_retried(folder, monkeypatch):
    monkeypatch.setattr(remote, "_PAUSES", (0.0, 0.0))
    with serving(folder) as server, kf.HDF5File(f"{server.url}/rows.h5") as file:
        server.failures += [503, 503]  # for the check of the file, which fsspec requests twice
        assert len(file["x"]) == 32
        file["x"][0]
        server.failures += [500, 429]
        assert np.array_equal(file["x"][9], VALUES[9])


class ByOthers(ByteSource):
    """A file that another thread reads; the read makes enough objects for a garbage collection."""

    def __init__(self, path):
        self.path, self.identity = str(path), file_identity(path)

    def check(self, *, now=False):
        """Nothing."""

    def read(self, address, size):
        """See `ByteSource.read`."""
        thread = threading.Thread(target=lambda: [[] for _ in range(5000)], daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive(), "it waits for HDF5's lock"
        return Path(self.path).read_bytes()[address : address + size]

    def read_into(self, address, out):
        """Not used."""


def test_garbage_collection_of_h5py_objects_does_not_deadlock_a_read(folder):
    source = FileObject(ByOthers(folder / "rows.h5"))
    with h5py.File(folder / "rows.h5") as here, h5py.File(source, "r", rdcc_nbytes=0) as there:
        for row in range(32):
            circle = [here["x"]]
            circle.append(circle)
            del circle
            assert np.array_equal(there["x"][row], VALUES[row])


# ---- files that cannot be read


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("memory://store/none.h5", FileNotFoundError, "cannot open '{}': there is no such file. Check bucket, folder"),
        ("memory://none/*.tfrecord", FileNotFoundError, "no file matches '{}'. Check bucket and folder"),
        ("memory://store", IsADirectoryError, "'{}' is a folder"),
        ("nope://store/a.h5", ValueError, "cannot read '{}': Protocol not known: nope. fsspec.available_protocols()"),
    ],
)
def test_the_error_for_a_missing_url_names_it(folder, name, kind, message):
    in_memory(folder)
    reads = [kf.TFRecordSequence]
    if "*" in name:
        reads.append(lambda url: kf.FileSequence(url, read_npz))
    else:
        reads.append(lambda url: kf.HDF5File(url)["x"])
    for read in reads:
        with pytest.raises(kind) as caught:
            read(name)
        assert message.format(name) in str(caught.value)


def test_a_file_removed_before_it_is_read_raises_file_not_found_error(folder):
    url = f"{in_memory(folder)}/t-00-of-02.tfrecord"
    records = kf.TFRecordSequence(url)
    records[0]
    fsspec.filesystem("memory").rm("/store/t-00-of-02.tfrecord")
    with pytest.raises(FileNotFoundError, match=f"cannot open '{url}': there is no such file"):
        records[1]
    records.close()


def test_a_url_passed_as_path_object_is_refused():
    for read in (kf.HDF5File, kf.TFRecordSequence, lambda path: kf.FileSequence(path, read_npz)):
        with pytest.raises(ValueError, match="'s3:/bucket/a' is a URL that lost a slash in a Path: pass URLs as str"):
            read(Path("s3://bucket/a"))


def test_swmr_is_refused_for_a_url():
    with pytest.raises(ValueError, match=r"swmr=True needs a file on a local disk, received 's3://b/a'"):
        kf.HDF5File("s3://b/a", swmr=True)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            {"ranges": False},
            r"the server sent the whole file, [\d,]+ bytes, instead of the .* 'filecache::' before the URL",
        ),
        ({"sizes": False}, "the server does not report the size of the file. Copy it here first"),
    ],
)
def test_the_error_for_a_server_without_ranges_or_sizes_names_a_remedy(folder, told, message):
    reads = {
        "large.h5": lambda url: kf.HDF5File(url)["x"],
        "t-00-of-02.tfrecord": lambda url: kf.TFRecordSequence(url)[0],
    }
    with serving(folder, **told) as server:
        for name, read in reads.items():
            url = f"{server.url}/{name}"
            with pytest.raises(OSError, match=f"'{url}'.*{message}"):
                read(url)


def test_a_server_without_ranges_suffices_if_whole_files_are_copied(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "filecache", {"cache_storage": str(tmp_path)})
    with serving(folder, ranges=False) as server, kf.HDF5File(f"filecache::{server.url}/rows.h5") as file:
        assert np.array_equal(file["x"][7], VALUES[7])


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (404, FileNotFoundError, "cannot open '{}': there is no such file"),
        (403, PermissionError, "fsspec takes keys from its configuration"),
    ],
)
def test_a_refusal_of_a_web_server_is_reported_with_the_url(folder, status, kind, message):
    with serving(folder) as server:
        url = f"{server.url}/rows.h5"
        server.failures += [status] * 4
        with pytest.raises(kind) as caught:
            kf.HDF5File(url)["x"]
        assert repr(url) in str(caught.value)
        assert message.format(url) in str(caught.value)


PROGRAM = """
import sys
sys.modules["fsspec"] = sys.modules["fsspec.core"] = None
import kerasfeed as kf
for read in (
    lambda: kf.HDF5File("s3://b/a.h5")["x"],
    lambda: kf.TFRecordSequence("s3://b/a.tfrecord"),
    lambda: kf.FileSequence("s3://b/*.npz", len),
):
    try:
        read()
    except ImportError as error:
        print(error)
"""


def test_the_import_error_without_fsspec_names_package_and_extra():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=True
    )
    expected = 'needs the package fsspec: pip install fsspec, or pip install "kerasfeed[remote]"'
    assert [line.split("' ", 1)[1] for line in done.stdout.splitlines()] == [expected] * 3


def test_files_at_urls_share_no_cached_scenes_under_one_key(tmp_path, folder):
    files = fsspec.filesystem("memory")
    for name, first in (("a", 0), ("b", 10)):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.arange(first, first + 3)
        files.pipe_file(f"/cached/{name}/x.h5", (tmp_path / name).read_bytes())
    for name, values in (("a", [0, 1, 2]), ("b", [10, 11, 12]), ("a", [0, 1, 2])):
        with kf.HDF5File(f"memory://cached/{name}/x.h5") as file:
            assert list(kf.Cached(file["x"], tmp_path / "kept", key="v1")) == values
