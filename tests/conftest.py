"""Fixtures of all tests: leaks are failures; paths of the real data, if installed."""

import contextlib
import gc
import inspect
import os
import signal
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import error_kinds
import h5py
import numpy as np
import psutil
import pytest
from forked_scripts import ForkedScripts
from hypothesis import HealthCheck, settings
from loader_kinds import new_loader
from scenes_frameworks import environment_of, let_tensorflow_free_memory
from scenes_records import Small
from scenes_sized import KINDS
from scenes_views import Log
from streams import numbered
from stuck import Stuck
from waits import PROGRAM_SECONDS, SECONDS

import kerasfeed as kf

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# The slowest files, heavy tests first, so that the last ones to run are short. By default, pytest-xdist begins with the
# files of most tests, and ends with the files that run whole programs.
_LONGEST = [
    "pages", "ray_cluster", "on_jax", "notebooks", "check_sequence", "on_torch", "resume_exact", "worker_faults",
    "resume_fit", "global_random", "loaders", "closed", "let_go", "hdf5_matrix", "shards_processes", "resume_kill",
    "abandoned", "first_scenes", "hostile_errors", "auto_workers", "every_pool", "collate_loaders",
    "hosts", "exits", "hangs", "stream_fit", "tf_data", "hdf5_drivers", "processes", "files_grow", "epochs_fit",
    "every_reader", "loader_errors", "to_jax", "resume_refusals", "every_pool_lost", "describe", "error_tf_data",
    "docstrings", "imports", "demo", "cached_memory", "every_adapter", "predicted_order", "hdf5_outputs",
    "stream_resume", "keras_fit", "urls", "cached_key", "shards_evaluate", "hdf5_feed", "on_error", "files_replaced",
    "hosts_errors", "read_into", "error_fit", "lists", "tfrecord_write", "other_loaders", "shards_padding",
    "stream_sources", "every_pool_object", "show", "zero_copy", "tfrecord_workers", "keras_adapter", "error_texts",
    "state", "feed", "text_fit", "collate_function", "shuffle_cost", "life", "keras_fit_models", "keras_fit_errors",
    "messages_fuzz", "hdf5_selections", "hdf5_damage", "write_hdf5", "error_hdf5", "life_ends", "tf_data_graphs",
    "chaos",
]  # fmt: skip
_RANK = {f"test_{name}": rank for rank, name in enumerate(_LONGEST)}


def pytest_configure(config):
    config.pluginmanager.register(Stuck())
    if config.option.left_out:
        config.option.markexpr = ""
    is_light = config.option.markexpr == "not heavy"
    if is_light and "PYTEST_XDIST_WORKER" not in os.environ and hasattr(config, "cache"):
        config.pluginmanager.register(_SkippedTests(config))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell sets this for background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
        # A test that ends its process ends the run. Otherwise pytest-xdist hangs at the end: it gives the dead
        # worker's finished files to other workers, and no worker reports them again.
        config.option.maxworkerrestart = config.option.maxworkerrestart or "0"


def pytest_addoption(parser):
    parser.addoption(
        "--left-out", action="store_true", help="run what the last run of light tests has skipped, and the heavy tests"
    )


class _SkippedTests:
    """Remembers which tests a run skips, for `--left-out`."""

    def __init__(self, config):
        self._config = config
        self._found = set()

    def pytest_collectreport(self, report):
        self._found.update([report.nodeid] if report.skipped else [])

    def pytest_runtest_logreport(self, report):
        self._found.update([report.nodeid] if report.skipped and not hasattr(report, "wasxfail") else [])

    def pytest_sessionfinish(self):
        self._config.cache.set("kerasfeed/skipped", sorted(self._found))


def pytest_runtest_logreport(report):
    """Report a failure when it happens, because an aborted run has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        captured = "\n".join(f"{name}:\n{text[-4000:]}" for name, text in report.sections)
        print(f"\n{report.nodeid} ({report.when}):\n{report.longreprtext}\n{captured}", flush=True)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects heavy tests
def pytest_collection_modifyitems(config, items):
    for item in items:
        for mark in item.iter_markers("light"):
            is_light = mark.kwargs["where"]
            if not is_light(**{name: item.callspec.params[name] for name in inspect.signature(is_light).parameters}):
                item.add_marker(pytest.mark.heavy)
    if config.option.left_out:
        skipped = set(config.cache.get("kerasfeed/skipped", []))
        items[:] = [
            item
            for item in items
            if item.get_closest_marker("heavy") or skipped & {item.nodeid, item.parent.nodeid, item.location[0]}
        ]
    items.sort(key=lambda item: _RANK.get(item.path.stem, len(_RANK)))


def _our_threads() -> set[str]:
    """Names of kerasfeed's threads, except decoding threads, which end after one idle second."""
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("kerasfeed-") and "-decode" not in thread.name
    }


def _descendants() -> list[psutil.Process]:
    """Living descendants of this process."""
    try:  # psutil examines every process of the machine
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # this process has no children
        return []
    return psutil.Process().children(recursive=True)


def _our_children() -> set[int]:
    found = set()
    for child in _descendants():
        try:
            names = ("kerasfeed.pool.processes.worker", "subprocess_worker", "subprocess_hosts")
            if any(name in part for name in names for part in child.cmdline()):
                found.add(child.pid)
        except psutil.Error:
            continue
    return found


def _our_descriptors() -> list[str]:
    """Targets of kerasfeed's open descriptors: memory files by name, and files of the test's data."""
    found = []
    folder = Path("/proc/self/fd")
    for link in folder.iterdir() if folder.exists() else []:
        try:
            target = str(link.readlink())
        except OSError:
            continue
        # The environment's path may contain "kerasfeed", and matplotlib keeps a font of it open.
        if "kerasfeed" in target and not target.startswith(sys.prefix):
            found.append(target)
    return sorted(found)


@pytest.fixture(scope="module", autouse=True)
def quick_collector():
    """Exclude the million objects of the frameworks, and of earlier modules, from garbage collection."""
    if len(gc.get_objects()) > 100_000:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def nothing_leaks():
    """Fail a test that leaves a thread, a worker process or a descriptor of kerasfeed behind."""
    before = (_our_threads(), _our_children(), _our_descriptors())
    yield
    begin, collected_at = time.monotonic(), None
    while True:
        after = (_our_threads() - before[0], _our_children() - before[1], _our_descriptors())
        if not after[0] and not after[1] and len(after[2]) <= len(before[2]):
            return
        waited = time.monotonic() - begin
        if collected_at is None or waited > 2 * collected_at:  # rarely, because it takes 0.5 s with TensorFlow loaded
            let_tensorflow_free_memory()
            collected_at = time.monotonic() - begin
        elif waited > SECONDS:
            pytest.fail(f"left behind: threads {after[0]}, processes {after[1]}, descriptors {after[2]}")
        time.sleep(0.02)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the BIMNet10 files; tests that need it are skipped without it."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "bimnet10"
    folder = Path(os.environ.get("KERASFEED_TEST_DATA", default))
    if not (folder / "bimnet10_train.h5").is_file():
        pytest.skip(f"the BIMNet10 files are not in {folder} (set KERASFEED_TEST_DATA)")
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An HDF5 file of 24 scenes."""
    path = tmp_path_factory.mktemp("data") / "scans.h5"
    with h5py.File(path, "w") as file:
        file["points"] = np.zeros((24, 1), np.float32)
    return path


@pytest.fixture(scope="module")
def forked():
    """Run scripts in forks that have imported Keras and TensorFlow, and find the tests' modules."""
    with contextlib.closing(ForkedScripts(environment_of(KERAS_BACKEND="tensorflow"))) as scripts:
        yield scripts


@pytest.fixture
def run_forked(forked, tmp_path):
    """Run `text` as a script, in a fork of a process that has imported TensorFlow; return its output."""

    def run(text, seconds=PROGRAM_SECONDS):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(text))
        done = forked.run(script, tmp_path, seconds=seconds)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return done.stdout

    return run


@pytest.fixture(scope="module")
def raising(path, tmp_path_factory):
    """A feed for each of `error_kinds.WORKERS`, and the file that names the exception of their scene."""
    kind = tmp_path_factory.mktemp("kind") / "kind"
    kind.write_text("ordinary")
    with contextlib.ExitStack() as stack:
        feeds = {
            (workers, worker_type): stack.enter_context(
                kf.Feed(error_kinds.Raising(kind, path), 6, workers=workers, worker_type=worker_type)
            )
            for workers, worker_type in error_kinds.WORKERS
        }
        for feed in feeds.values():
            error_kinds.bring_up(feed)
        yield feeds, kind


@pytest.fixture(params=error_kinds.CASES, ids=str)
def case(request, raising):
    """A feed, the kind of its scene's exception, and number and type of the workers."""
    kind, *workers = request.param
    feeds, file = raising
    file.write_text(kind)
    return feeds[tuple(workers)], kind, *workers


@pytest.fixture
def feed_of():
    """Make feeds of processes, which are closed after the test."""
    made = []

    def make(sequence, batch_size=8, **arguments):
        arguments = {"seed": 3, "shuffle": True, "workers": 2, "worker_type": "process", **arguments}
        made.append(kf.Feed(sequence, batch_size, **arguments))
        return made[-1]

    yield make
    for feed in made:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kf.FeedWarning)
            feed.close()


@pytest.fixture
def feed_on():
    """Make feeds on a kind of loader, which are closed after the test."""
    made = []

    def make(kind, sequence, batch_size=8, **arguments):
        workers, worker_type = KINDS[kind]
        arguments = {"seed": 3, "shuffle": True, "workers": workers, "worker_type": worker_type, **arguments}
        made.append(kf.Feed(sequence, batch_size, **arguments))
        return made[-1]

    yield make
    for feed in made:
        feed.close()


@pytest.fixture
def make():
    """Make loaders, which are closed after the test; see `loader_kinds.new_loader`."""
    made = []

    def _make(*given, **arguments):
        made.append(new_loader(*given, **arguments))
        return made[-1]

    yield _make
    for loader in made:
        loader.close()


@pytest.fixture
def points(tmp_path):
    """A file with `points` float32[50, 8, 3] in chunks (7, 4, 1), and labels."""
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        data = np.random.default_rng(0).normal(size=(50, 8, 3)).astype(np.float32)
        file.create_dataset(
            "points", data=data, chunks=(7, 4, 1), maxshape=(None, 8, 3), compression="gzip", fillvalue=-1
        )
        file["points"].attrs["unit"] = "metres"
        file["labels"] = np.arange(50)
        file.attrs["title"] = "é"
    return path


@pytest.fixture
def few_processes(monkeypatch):
    """Limit profiles to one and two worker processes, because each takes 0.3 s to start."""
    monkeypatch.setattr("kerasfeed.explore.profile.profile.cores", lambda: 1)
    monkeypatch.setattr("kerasfeed.explore.profile.profile.processes_for", lambda *given: 1)


@pytest.fixture
def no_signal_left():
    """Fail a test that changes the handling of Ctrl-C."""
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def shards(tmp_path):
    """Four files of ten records each."""
    return kf.write_tfrecords(
        Small(40), tmp_path / "s-{shard}-of-{count}.tfrecord", num_shards=4, workers=0, assignment="contiguous"
    )


@pytest.fixture
def log(tmp_path):
    """Indices of the scenes that were read."""
    return Log(tmp_path / "log")


@pytest.fixture(params=["memory", "disk"])
def where(request, tmp_path):
    """Arguments of Cached."""
    return {} if request.param == "memory" else {"path": tmp_path / "kept", "key": "v1"}


@pytest.fixture
def stream():
    """Make streams, which are closed after the test."""
    made = []

    def make(make_generator=numbered, batch_size=4, function=None, **arguments):
        arguments = {"count": 3, "workers": 2, "worker_type": "thread", "seed": 5, **arguments}
        feed = kf.StreamFeed(make_generator, batch_size, **arguments)
        made.append(feed if function is None else feed.map(function))
        return made[-1]

    yield make
    for feed in made:
        feed.close()
