"""Worker processes from the user's view: crashes, plain scripts, big sequences, dead parents."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import scenes
from loader_kinds import ProcessLoader
from places import SUPPORT
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.errors import WorkerDiedError, WorkerStartError
from kerasfeed.explore.check.case import CallRunner
from kerasfeed.loaders.base import Job
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.processes.protocol import Result, Status, decode_results, decode_task, encode_task
from kerasfeed.pool.task import MOST_NUMBERS

SEARCH = f"{Path(kf.__file__).parents[1]}:{SUPPORT}"


def _loader(sequence, batch_size=8, workers=2):
    return ProcessLoader(Job(sequence, Plan(len(sequence), batch_size), workers, 1 << 30, 4))


@pytest.fixture
def run_script(tmp_path):
    """Run a program as a user would, from a file without a `__main__` guard."""

    def run(code, *, check=True, redirect="", **options):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(code))
        environment = {**os.environ, "PYTHONPATH": SEARCH, "KERAS_BACKEND": "jax"}
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-W", "error::ResourceWarning", str(path)],
            capture_output=True, text=True, timeout=PROGRAM_SECONDS, env=environment, cwd=tmp_path, **options,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


# ---- the user's program


LOADER_SCRIPT = """
    import numpy as np, sys
    import kerasfeed as kf
    from kerasfeed.loaders.base import Job
    from loader_kinds import ProcessLoader
    from kerasfeed.orders.plan import Plan
    print("main runs")

    scale = 3

    def prepare(x):
        return x * scale

    class Rooms(kf.SceneSequence):
        def __len__(self):
            return 20
        def __getitem__(self, index):
            return prepare(np.full(4, index, np.float32)), sorted(sys.modules)

    class Named(Rooms):
        def __getitem__(self, index):
            values, modules = super().__getitem__(index)
            return values, " ".join(modules)

    loader = ProcessLoader(Job(Named(), Plan(20, 4), 2, 1 << 30, 4))
    values, modules = loader.submit(0, 1).result()
    assert values[:, 0].tolist() == [12, 15, 18, 21], values
    loaded = set(modules[0].split())
"""


def test_a_script_without_a_main_guard_works_and_runs_once(run_script):
    done = run_script(LOADER_SCRIPT + "    print('done')\n")
    assert done.stdout.split("\n") == ["main runs", "done", ""]
    assert done.stderr == ""


@pytest.mark.heavy
def test_a_worker_imports_no_framework_even_when_the_script_did(run_script):
    done = run_script(
        "    import keras, tensorflow, jax\n"
        + LOADER_SCRIPT
        + "    print(sorted(loaded & {'keras', 'tensorflow', 'jax', 'torch', 'h5py', 'matplotlib'}))\n"
    )
    assert "[]" in done.stdout


@pytest.mark.heavy
def test_an_unclosed_feed_ends_cleanly_with_the_script(run_script):
    script = """
        import numpy as np
        import kerasfeed as kf
        feed = kf.Feed([np.zeros(3)] * 50, 4, workers=2, worker_type="process")
        iterator = iter(feed)
        print(next(iterator).shape)
    """
    done = run_script(script)
    assert done.stdout == "(4, 3)\n"
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_workers_find_a_module_next_to_the_script(run_script, tmp_path):
    (tmp_path / "rooms_module.py").write_text(
        "import numpy as np\nclass Rooms:\n    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return np.float32(index)\n"
    )
    done = run_script("""
        import light_keras
        from rooms_module import Rooms
        import kerasfeed as kf
        with kf.Feed(Rooms(), 2, workers=1, worker_type="process") as feed:
            print([batch.tolist() for batch in feed])
    """)
    assert done.stdout == "[[0.0, 1.0], [2.0, 3.0]]\n"


PRINTS_WITHOUT_STANDARD_DESCRIPTORS = """
    import os
    import kerasfeed as kf
    from kerasfeed.feeds.base import BaseFeed

    def print_as_c_does(numbers):
        for number in numbers:
            os.write(number, b"x" * 5000)

    class Rooms:
        def __len__(self): return 8
        def __getitem__(self, index):
            print_as_c_does([1, 2])
            return float(index)

    with BaseFeed(Rooms(), 2, workers=1, worker_type="process") as feed:
        first = list(feed)
        print_as_c_does(PRINTED)
        found = [batch.tolist() for batch in (*first, *feed)]
    with open("found", "w") as file:
        file.write(repr(found))
"""


@pytest.mark.parametrize("redirect", [pytest.param("<&-", marks=pytest.mark.heavy), ">&- 2>&-"])
def test_printing_without_standard_descriptors_changes_no_batch(run_script, tmp_path, redirect):
    run_script(PRINTS_WITHOUT_STANDARD_DESCRIPTORS.replace("PRINTED", "[1, 2]"), redirect=redirect)
    assert (tmp_path / "found").read_text() == repr([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]] * 2)


@pytest.mark.heavy
def test_output_of_workers_does_not_reach_a_file_opened_as_descriptor_1(run_script, tmp_path):
    opened = """
    import os
    os.set_inheritable(os.open("users_file", os.O_RDWR | os.O_CREAT), True)  # as HDF5 opens files
    """
    run_script(opened + PRINTS_WITHOUT_STANDARD_DESCRIPTORS.replace("PRINTED", "[]"), redirect=">&-")
    assert (tmp_path / "users_file").read_text() == ""


@pytest.mark.parametrize("how", ["sys.frozen = True", "sys.executable = program"])
def test_an_executable_that_is_not_python_is_never_started_as_a_worker(run_script, tmp_path, how):
    done = run_script(f"""
        import os, sys, warnings
        from kerasfeed.feeds.base import BaseFeed

        program = os.path.abspath("application")
        with open("application", "w") as file:
            file.write("#!/bin/sh\\necho started >> starts\\n")
        os.chmod(program, 0o755)
        {how}
        if hasattr(sys, "frozen"):
            sys.executable = program

        class Rooms:
            def __len__(self): return 8
            def __getitem__(self, index): return index

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with BaseFeed(Rooms(), 4, workers=2) as feed:
                print([batch.tolist() for batch in feed], feed.stats().workers, feed.stats().worker_type)
        print(*(each.message for each in caught))
        try:
            BaseFeed(Rooms(), 4, workers=2, worker_type="process")
        except OSError as error:
            print(error)
    """)
    batches, warned, refused = done.stdout.splitlines()
    assert batches == "[[0, 1, 2, 3], [4, 5, 6, 7]] 1 thread"
    assert warned.startswith("worker_type='auto' uses one worker thread: worker processes need a Python interpreter")
    assert "application" in refused
    assert "Use worker_type='thread' if several threads may read the class at once, or workers=0" in refused
    assert not (tmp_path / "starts").exists()


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_process_of_multiprocessing_sends_its_main_module_to_workers(run_script, start):
    done = run_script(f"""
        import functools, multiprocessing, sys
        import light_keras
        import kerasfeed as kf

        @functools.cache
        def load(index):
            return index + Rooms.first

        class Rooms(kf.SceneSequence):
            first = 3
            def __len__(self): return 4
            def __getitem__(self, index): return load(index)

        def read():
            with kf.Feed(Rooms(), 2, workers=1, worker_type="process") as feed:
                print([batch.tolist() for batch in feed], flush=True)

        if __name__ == "__main__":
            child = multiprocessing.get_context("{start}").Process(target=read)
            child.start()
            child.join()
            sys.exit(child.exitcode)
    """)
    assert done.stdout == "[[3, 4], [5, 6]]\n"


def test_scenes_can_share_a_dict_of_a_multiprocessing_manager(run_script):
    done = run_script("""
        import multiprocessing
        import kerasfeed as kf
        from kerasfeed.feeds.base import BaseFeed

        class Rooms:
            def __init__(self, cache):
                self.cache = cache
            def __len__(self): return 4
            def __getitem__(self, index):
                return self.cache.setdefault(index, float(index))

        with multiprocessing.get_context("fork").Manager() as manager:
            cache = manager.dict()
            with BaseFeed(Rooms(cache), 2, workers=1, worker_type="process") as feed:
                print([batch.tolist() for batch in feed], sorted(cache))
    """)
    assert done.stdout == "[[0.0, 1.0], [2.0, 3.0]] [0, 1, 2, 3]\n"


def test_a_warning_names_module_settings_that_differ_in_workers(run_script):
    done = run_script("""
        import os, pathlib, sys, warnings
        from kerasfeed.feeds.base import BaseFeed

        pathlib.Path("settings.py").write_text("SIZE = 5")
        pathlib.Path("rooms.py").write_text(chr(10).join([
            "import settings",
            "class Rooms:",
            " root = None",
            " size = None",
            " def __len__(self): return 8",
            " def __getitem__(self, index): return index * settings.SIZE",
            " def on_worker_begin(self, worker):",
            "  if self.size: settings.SIZE, Rooms.root = self.size, '/data'",
        ]))
        sys.path.insert(0, os.getcwd())
        import rooms, settings

        settings.SIZE = 10
        rooms.Rooms.root = "/data"

        def run(size):
            sequence = rooms.Rooms()
            sequence.size = size
            feed = BaseFeed(sequence, 4, workers=2, worker_type="process")
            with warnings.catch_warnings(record=True) as told, feed:
                warnings.simplefilter("always")
                print([batch.tolist() for batch in feed][1])
            for each in told:
                print(str(each.message).split(". ")[0])

        run(None)
        run(10)  # the remedy
    """)
    assert done.stdout.splitlines() == [
        "[20, 25, 30, 35]",
        "your modules differ in worker processes: rooms.Rooms.root is None there and '/data' here; "
        "settings.SIZE is 5 there and 10 here",
        "[40, 50, 60, 70]",
    ]


@pytest.mark.heavy
def test_workers_of_python_with_option_o_skip_assertions(run_script):
    done = run_script("""
        import os, pathlib, subprocess, sys
        pathlib.Path("rooms.py").write_text(chr(10).join([
            "class Rooms:",
            " def __len__(self): return 4",
            " def __getitem__(self, index):",
            "  assert index < 2",
            "  return index",
        ]))
        program = "import rooms; from kerasfeed.feeds.base import BaseFeed\\n" \\
            "with BaseFeed(rooms.Rooms(), 4, workers=1, worker_type='process') as feed: print(feed[0])"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
        subprocess.run([sys.executable, "-O", "-W", "error", "-c", program], check=True, env=environment)
    """)
    assert done.stdout == "[0 1 2 3]\n"


# ---- faults


class Raw(scenes.Clouds):
    """Reads from the number of a descriptor that is open in the parent."""

    def __init__(self, descriptor):
        super().__init__()
        self.descriptor = descriptor

    def __getitem__(self, index):
        return np.frombuffer(os.pread(self.descriptor, 8, 8 * index))


def test_a_descriptor_of_the_parent_is_invalid_in_workers(tmp_path):
    np.ones(64).tofile(tmp_path / "x")
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    loader = _loader(Raw(descriptor))
    try:
        with pytest.raises(OSError, match="Bad file descriptor") as raised:
            loader.submit(0, 0).result()
        assert "an open descriptor" in "".join(raised.value.__notes__)
    finally:
        loader.close()
        os.close(descriptor)


class Deadly(scenes.Clouds):
    def __getitem__(self, index):
        if index == 7:
            os._exit(7)
        return super().__getitem__(index)


@pytest.mark.heavy
def test_the_error_for_a_dead_worker_names_scene_and_cause():
    loader = _loader(Deadly())
    futures = [loader.submit(2, step) for step in range(5)]
    errors = [future.exception(timeout=60) for future in futures]
    found = [error for error in errors if error is not None]
    assert found
    assert all(isinstance(error, WorkerDiedError) for error in found)
    assert "ended with exit code 7" in str(found[0])
    assert "scene 7 (epoch 2, step 0)" in str(found[0])
    loader.close()


@pytest.mark.heavy
def test_a_batch_submitted_while_a_worker_dies_fails_with_its_death():
    loader = _loader(scenes.Clouds())
    session = loader._ready_session()
    error = WorkerDiedError("worker process 0 was killed")
    session.pool.fail(error)
    with pytest.raises(WorkerDiedError, match="worker process 0 was killed"):
        session.submit(0, 0)  # as a caller who held the session when it failed
    assert loader.submit(0, 0).result()[0].shape[0] > 0  # the next one gets new workers
    loader.close()


@pytest.mark.heavy
def test_a_loader_continues_after_all_its_workers_were_killed():
    loader = _loader(scenes.Clouds())
    loader.submit(0, 0).result()
    for pid in loader.stats().pids:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            points, _ = loader.submit(0, 1).result(timeout=60)
            break
        except WorkerDiedError:
            continue  # the one that reports the kills
    assert points[0, 0, 0] == 800
    loader.close()


class Unloadable(scenes.Clouds):
    def __reduce__(self):
        return __import__, ("a_module_that_does_not_exist",)


def test_the_error_for_a_sequence_that_does_not_load_in_a_worker_gives_the_reason():
    loader = _loader(Unloadable())
    with pytest.raises(WorkerStartError, match=r"could not load the sequence: ModuleNotFoundError.*must be importable"):
        loader.submit(0, 0)
    loader.close()


def test_the_error_for_an_unpicklable_sequence_names_a_remedy():
    import threading

    class Locked(scenes.Clouds):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(TypeError, match=r"the sequence \(Locked\) cannot be sent .* use worker_type='thread'"):
        kf.Feed(Locked(), 4, workers=1, worker_type="process")


# ---- memory


class Big(kf.SceneSequence):
    def __init__(self, nbytes):
        self.values = np.zeros((nbytes // 4096, 512))
        self.values[:, 0] = np.arange(len(self.values))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index, :2]


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps")
def test_a_large_array_is_shared_by_all_workers_without_copies():
    nbytes = 200 << 20
    sequence = Big(nbytes)
    loader = _loader(sequence, batch_size=64, workers=3)
    plan = Plan(len(sequence), 64)
    for step in range(plan.steps):
        batch = loader.submit(0, step).result()
        assert batch[0, 0] == step * 64
    for pid in loader.stats().pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
        own = int(rollup[rollup.index("Anonymous:") + 1]) << 10  # its own pages, without the pages of the shared file
        assert own < nbytes / 4
    loader.close()


def test_a_memory_map_is_sent_as_the_name_of_its_file(tmp_path):
    path = tmp_path / "values.npy"
    values = np.arange(1 << 20, dtype=np.float32).reshape(-1, 64)
    np.save(path, values)

    class Mapped(kf.SceneSequence):
        def __init__(self):
            self.values = np.load(path, mmap_mode="r")
            self.part = self.values[100:]

        def __len__(self):
            return 1000

        def __getitem__(self, index):
            return self.values[index], self.part[index], type(self.values).__name__

    loader = _loader(Mapped())
    whole, part, kinds = loader.submit(0, 3).result()
    assert np.array_equal(whole, values[24:32])
    assert np.array_equal(part, values[124:132])
    assert set(kinds) == {"memmap"}
    assert os.fstat(loader._sessions.present.pool.shared_objects.fd).st_size < values.nbytes / 4
    loader.close()


def test_workers_that_cannot_be_started_leak_nothing(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    for _ in range(3):
        with pytest.raises(OSError, match="nonexistent"):
            kf.Feed(scenes.Clouds(), 4, workers=2, worker_type="process")
    with pytest.warns(UserWarning, match="uses one worker thread"):
        kf.Feed(scenes.Clouds(), 4, workers=2).close()


@pytest.mark.heavy
def test_a_file_in_the_working_directory_does_not_shadow_the_standard_library(run_script, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "struct.py").write_text("raise RuntimeError('shadowed')\n")
    done = run_script("""
        import light_keras
        import os, numpy as np
        import kerasfeed as kf
        feed_class = kf.Feed
        os.chdir("elsewhere")
        with feed_class([np.zeros(3)] * 5, 4, workers=2, worker_type="process") as feed:
            print(feed[0].shape)
    """)
    assert done.stdout == "(4, 3)\n"


@pytest.mark.heavy
def test_a_worker_can_write_to_its_arrays_without_changing_others():
    class Scratch(Big):
        def __getitem__(self, index):
            self.values[index] += 1
            return self.values[index, :2]

    sequence = Scratch(1 << 20)
    loader = _loader(sequence, batch_size=16)
    loader.submit(0, 0).result()
    assert sequence.values[3, 0] == 3
    loader.close()


class Threads(kf.SceneSequence):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return os.environ["OPENBLAS_NUM_THREADS"] + " " + os.environ["OMP_NUM_THREADS"]


@pytest.mark.heavy
def test_libraries_in_workers_do_not_start_one_thread_per_core(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    loader = _loader(Threads(), batch_size=1, workers=2)
    blas, omp = loader.submit(0, 0).result()[0].split()
    assert int(blas) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert omp == "3"  # the user's setting is kept
    loader.close()


def test_without_memfd_workers_share_an_unlinked_file(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    loader = _loader(scenes.Clouds())
    assert loader.submit(0, 1).result()[1].tolist() == list(range(8, 16))
    loader.close()


# ---- messages


def test_records_survive_encoding():
    record = tuple(range(MOST_NUMBERS))
    assert decode_task(encode_task(5, 2, record)) == (5, 2, record)
    assert decode_task(encode_task(5, 2, (7,))) == (5, 2, (7, *[0] * (MOST_NUMBERS - 1)))
    result = Result(Status.DONE, 5, 1, 0, 0.25)
    assert decode_results(result.encode() * 3) == [result] * 3


@pytest.mark.parametrize(
    "record", [b"", b"x", encode_task(1, 1, ())[:-1], encode_task(-1, 1, ()), encode_task(1, -1, ())]
)
def test_a_broken_task_raises_value_error(record):
    with pytest.raises(ValueError, match="a task has"):
        decode_task(record)


def test_a_broken_result_raises_value_error():
    with pytest.raises(ValueError, match="records of"):
        decode_results(b"x" * 41)


@pytest.mark.heavy
def test_more_tasks_than_a_pipe_holds_all_complete():
    loader = _loader(scenes.Slow(20_000, 0.0), batch_size=20_000)
    _ = loader.spec
    loader._sessions.present.timing.seconds = 1.0  # single scenes: 80 bytes each, far more than the pipe takes
    assert np.array_equal(loader.submit(0, 0).result(timeout=60)[1], np.arange(20_000))
    loader.close()


def test_ctrl_c_while_workers_end_leaks_no_descriptors(monkeypatch):
    def started():
        options = PoolOptions(1, "a test", timeout=None, tries=1, environment=Environment.now())
        return make_pool(CallRunner([1.0], 0, hooks=False), options, "process")

    started().close()  # the fixture that opened once
    before = len(list(Path("/proc/self/fd").iterdir()))
    pool = started()
    join, interrupts = pool._thread.join, [KeyboardInterrupt]

    def interrupted():
        if interrupts:
            raise interrupts.pop()
        join()

    monkeypatch.setattr(pool._thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
