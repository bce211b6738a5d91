"""The HDF5 part of the benchmarks: every reader fills batches with the same scenes, and counts are right."""

import importlib.util
import subprocess
import sys
import threading

import h5py
import numpy as np
import pytest
from places import ROOT
from waits import PROGRAM_SECONDS

pytest.importorskip("psutil", reason="needs the extra `bench`")
pytest.importorskip("matplotlib", reason="needs the extra `bench`")

from benchmarks import bars
from benchmarks.catalog import WORKLOADS, Case
from benchmarks.figures import Figures
from benchmarks.harness import Outcome, Settings, run_all
from benchmarks.hdf5 import files, fills
from benchmarks.hdf5.files import DataFile
from benchmarks.hdf5.measure import epoch_figures, open_figures
from benchmarks.hdf5.scenes import DirectScenes, GroupedScenes, StoredScenes
from benchmarks.peers import hdf5_feeds, hdf5_open, hdf5_readers
from benchmarks.peers.job import Job

STORED = 64
WITHOUT_OPTIONAL_CODECS = """
import sys
sys.path += ["tests/benchmarks", "tests/support"]
import light_keras
from benchmarks.hdf5.scenes import DirectScenes
from benchmarks.hdf5.tables import OPTIONAL_CODECS
from test_hdf5_benchmarks import SMALL, STORED

scenes = DirectScenes(SMALL, STORED, hides=OPTIONAL_CODECS)
print(scenes.points.reader.kind, scenes[3][0].sum())
print([sys.modules.get(name) is None for name in OPTIONAL_CODECS], "isal.isal_zlib" in sys.modules)
"""


def write(path):
    values = np.arange(STORED * 20 * 3, dtype=np.float32).reshape(STORED, 20, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("points", data=values, chunks=(8, 20, 3), compression="gzip", shuffle=True)


SMALL = DataFile("small.h5", write)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(files.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def job_of(scenes, workers=2):
    return Job(scenes, scenes[0], 8, workers, False)


def test_a_file_that_failed_to_be_written_is_written_next_time(folder):
    def fail(path):
        path.write_bytes(b"half of it")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        DataFile("small.h5", fail).path()
    assert not (folder / "small.h5").exists()
    with h5py.File(SMALL.path(), "r") as file:
        assert file["points"].shape == (STORED, 20, 3)


def test_an_existing_file_is_not_written_again():
    path = SMALL.path()
    before = path.stat().st_mtime_ns
    assert SMALL.path().stat().st_mtime_ns == before


def test_point_clouds_do_not_depend_on_the_size_of_the_request():
    assert np.array_equal(files.point_clouds(0, 128)[64:], files.point_clouds(64, 128))


@pytest.mark.parametrize("length", [None, 1000])
def test_both_sequences_give_the_same_scenes(length):
    stored, direct = StoredScenes(SMALL, STORED, length), DirectScenes(SMALL, STORED, length)
    assert len(stored) == len(direct) == (length or STORED)
    out = np.empty((20, 3), np.float32), np.empty(1, np.int32)
    for index in range(0, len(stored), 7):
        direct.read_into(index, out)
        for ours, theirs, into in zip(direct[index], stored[index], out, strict=True):
            assert np.array_equal(ours, theirs)
            assert np.array_equal(into, theirs)
    stored.close()


@pytest.mark.parametrize(
    "name", ["h5py", "h5py_cached", "h5py_list", "hidefix", "pyfive", "memcpy", "kerasfeed", "take"]
)
def test_every_fill_function_writes_the_requested_scenes(name):
    if name in ("hidefix", "pyfive") and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    scenes = (DirectScenes if name in ("kerasfeed", "take") else StoredScenes)(SMALL, STORED)
    indices = np.random.default_rng(0).permutation(STORED)[:8]
    out = np.zeros((8, 20, 3), np.float32)
    getattr(fills, name)(scenes)(indices, out)
    with h5py.File(SMALL.path(), "r") as file:
        assert np.array_equal(out, file["points"][:][indices])


@pytest.mark.parametrize("opener", [hdf5_readers.kerasfeed, hdf5_readers.kerasfeed_busy, hdf5_readers.h5py])
def test_reader_threads_end_with_their_loop(opener):
    before = set(threading.enumerate())
    scenes = StoredScenes(SMALL, STORED) if opener is hdf5_readers.h5py else DirectScenes(SMALL, STORED)
    with opener(job_of(scenes)) as batches:
        for _ in range(20):
            next(batches)
    assert not {each for each in threading.enumerate() if "kerasfeed-decode" not in each.name} - before


def test_an_error_in_a_reader_thread_is_raised_in_the_loop():
    def broken(_):
        def fill(indices, out):
            raise OSError("damaged")

        return fill

    reading = hdf5_readers.Reading(broken)
    job = job_of(DirectScenes(SMALL, STORED))
    with reading.by_threads(job) as batches, pytest.raises(OSError, match="damaged"):
        next(batches)


@pytest.mark.heavy
def test_a_reader_without_the_optional_codecs_reads_the_same_scenes_with_isal(folder):
    pytest.importorskip("isal")
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPTIONAL_CODECS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    expected = StoredScenes(SMALL, STORED)[3][0].sum()
    assert found.stdout.splitlines() == [f"direct {expected}", "[True, True] True"], found.stderr


def test_whole_epochs_in_block_order_count_a_decode_for_each_chunk():
    scenes = DirectScenes(SMALL, STORED, chunk_cache=4 * 8 * 20 * 3 * 4)
    found = epoch_figures(hdf5_feeds.sequential_threads, job_of(scenes), 0.0)
    assert 0 < found["decodes_per_chunk"] < 4  # a cache of 4 chunks under a look-ahead of all 8
    all_of_it = DirectScenes(SMALL, STORED, chunk_cache=1 << 20)
    all_of_it.file.close()
    found = epoch_figures(hdf5_feeds.blocks_threads, job_of(all_of_it), 0.0)
    assert found.get("decodes_per_chunk", 0.0) <= 1.0
    assert found["scenes_per_s"] == pytest.approx(STORED / found["epoch_s"])


def test_opening_reports_its_time_and_the_size_of_its_index():
    theirs = open_figures(hdf5_open.by_h5py, job_of(StoredScenes(SMALL, STORED)))
    ours = open_figures(hdf5_open.by_kerasfeed, job_of(StoredScenes(SMALL, STORED)))
    assert set(theirs) == {"open_s"}
    assert ours["open_s"] > 0
    assert 0 < ours["index_mb"] < 0.01


def test_first_and_later_passes_over_many_datasets_are_timed_separately(monkeypatch):
    monkeypatch.setattr(files, "GROUP_SCENES", 5)
    job = job_of(GroupedScenes(DataFile("few.h5", files._write_groups), 5))
    passes = [hdf5_open.pass_by_h5py, hdf5_open.pass_by_kerasfeed, hdf5_open.later_pass_by_kerasfeed]
    with passes[0](job) as theirs, passes[1](job) as ours, passes[2](job) as later:
        assert theirs.dataset[0] == ours.dataset[0] == later.dataset[0] > 5000
        assert later.begun is not None
    assert all(set(open_figures(opener, job)) == {"open_s"} for opener in passes)


@pytest.mark.heavy
@pytest.mark.parametrize("peer", ["kerasfeed_take", "h5py_2"])
def test_a_case_over_a_file_runs_in_its_own_process(peer):
    (result,) = run_all([Case("hdf5-rows", "loop", peer)], Settings(seconds=0.1, repeats=1), lambda _: None)
    assert (result.status, result.reason) == ("ok", "")
    assert result.figures["scenes_per_s"] > 10_000


def test_the_bars_compare_with_the_fastest_peer_and_with_the_worst_epoch():
    def outcome(name, repeat=0, **figures):
        return Outcome(Case(*name.split("/")), repeat, "ok", figures=figures, peak_mb=1.0)

    epoch = "hdf5-chunks/epoch/kerasfeed_blocks_thread"
    figures = Figures(
        [
            outcome("hdf5-gzip/loop/kerasfeed_default_2", scenes_per_s=4000.0),
            outcome("hdf5-gzip/loop/h5py_1", scenes_per_s=1000.0),
            outcome("hdf5-gzip/loop/h5py_2", scenes_per_s=800.0),
            outcome("hdf5-open/open/kerasfeed_open", open_s=2.5, index_mb=12.0),
            outcome("hdf5-groups/open/h5py_pass", open_s=2.0),
            outcome("hdf5-groups/open/kerasfeed_pass", open_s=2.5),
            outcome("hdf5-groups/open/kerasfeed_later_pass", open_s=0.2),
            outcome(epoch, 0, scenes_per_s=1.0, decodes_per_chunk=1.0),
            outcome(epoch, 1, scenes_per_s=1.0, decodes_per_chunk=1.25),
        ]
    )
    verdicts = {bar.title: bar for bar in bars.judge(figures)}
    gzip = verdicts["HDF5 gzip: 2 threads, default codecs, over h5py"]
    assert (gzip.measured, gzip.verdict) == ("4 x (nearest: h5py, 1 thread)", "met")
    opening = verdicts["HDF5: open 1,000,000 chunks"]
    assert (opening.measured, opening.verdict) == ("2.5 s (index of 12 MB)", "short")
    first = verdicts["HDF5: first pass over 2,000 datasets, time over h5py's"]
    assert (first.measured, first.verdict) == ("1.25 x (later ones 0.1 x)", "met")
    decodes = verdicts["HDF5 64 scenes a chunk: decodes a chunk and epoch, block order"]
    assert (decodes.measured.strip(), decodes.verdict) == ("1.25", "short")


def test_every_file_based_workload_has_a_sequence_for_kerasfeed():
    names = [name for name in WORKLOADS if name.startswith("hdf5-") and name not in ("hdf5-open", "hdf5-groups")]
    assert len(names) == 6
    assert all(WORKLOADS[name].make_ours for name in names)
