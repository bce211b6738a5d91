"""Fixtures of all tests: leaks are failures, and the files of real data where they exist."""

import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import error_kinds
import h5py
import numpy as np
import psutil
import pytest
from scenes_frameworks import environment_of, frameworks_left_alone, let_tensorflow_free_memory

import kerasfeed as kf

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

_SETTLE_SECONDS = 5.0


def _our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("kerasfeed")}


def _our_children() -> set[int]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if any("kerasfeed.loaders.worker" in part for part in child.cmdline()):
                found.add(child.pid)
        except psutil.Error:
            continue
    return found


def _our_descriptors() -> list[str]:
    """What kerasfeed's own open descriptors point to: memory files by name, and files of the test's data."""
    found = []
    folder = Path("/proc/self/fd")
    for link in folder.iterdir() if folder.exists() else []:
        try:
            target = str(link.readlink())
        except OSError:
            continue
        # The environment may be called after kerasfeed, and matplotlib keeps a font of it open.
        if "kerasfeed" in target and not target.startswith(sys.prefix):
            found.append(target)
    return sorted(found)


@pytest.fixture(autouse=True)
def nothing_leaks():
    """Fail a test that leaves a thread, a worker process or a descriptor of kerasfeed behind."""
    before = (_our_threads(), _our_children(), _our_descriptors())
    yield
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        after = (_our_threads() - before[0], _our_children() - before[1], _our_descriptors())
        if not after[0] and not after[1] and len(after[2]) <= len(before[2]):
            return
        gc.collect()  # only now: it takes 0.5 s once TensorFlow is loaded
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: threads {after[0]}, processes {after[1]}, descriptors {after[2]}")
        time.sleep(0.05)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the BIMNet10 files; tests that need them skip where they are absent."""
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


@pytest.fixture(
    scope="module", params=[(kind, *workers) for kind in error_kinds.KINDS for workers in error_kinds.WORKERS], ids=str
)
def case(request, path):
    """A feed, the kind of exception that one of its scenes raises, number and type of the workers."""
    kind, workers, worker_type = request.param
    with kf.Feed(error_kinds.Raising(kind, path), 6, workers=workers, worker_type=worker_type) as feed:
        error_kinds.bring_up(feed)
        yield feed, kind, workers, worker_type


@pytest.fixture
def feed_of():
    """Make feeds of processes that the test need not close."""
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


@pytest.fixture(scope="module")
def quick_collector():
    """For modules that load a framework."""
    with frameworks_left_alone():
        yield


@pytest.fixture
def memory_freed():
    """Before `nothing_leaks` looks."""
    yield
    let_tensorflow_free_memory()


@pytest.fixture(scope="session")
def runs_on_other_backends(request):
    """Exit code and output, on Keras's other backends, of all modules of this run that want it, side by side."""
    modules = {str(item.path) for item in request.session.items if item.originalname == "test_all_of_this_holds_on"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *sorted(modules)]
    running = {
        backend: subprocess.Popen(
            command, env=environment_of(KERAS_BACKEND=backend), cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for backend in ("jax", "torch")
        if importlib.util.find_spec(backend) is not None
    }  # fmt: skip
    try:
        return {name: (process.communicate(timeout=540)[0], process.returncode) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
