"""However the program ends, its workers and their memory end with it; after any interrupt, the feed continues."""

import os
import signal
import sys
from pathlib import Path

import pytest
from places import ROOT
from programs import assert_gone, finish, holders, launch, memory_files
from waits import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

# ---- the parent is killed

BEGIN = """
    import ctypes, os, sys, threading, time
    import numpy as np
    import kerasfeed as kf
    from kerasfeed.loaders.base import Job
    from loader_kinds import ProcessLoader
    from kerasfeed.orders.plan import Plan

    class Rooms(kf.SceneSequence):
        def __len__(self):
            return 100
        def __getitem__(self, index):
            if index == 8:
                open("reached", "w").close()
                wait()
            return np.full(5, index)

    def wait():
        pass

    def make():
        loader = ProcessLoader(Job(Rooms(), Plan(100, 4), 2, 1 << 30, 4))
        loader.start()
        return loader
"""
HOLDING_THE_GIL = """
    def wait():
        ctypes.PyDLL(None).sleep(1000)  # not CDLL: that would release the GIL
"""
SLEEPING = """
    def wait():
        time.sleep(1000)
"""
READ_AND_WAIT = """
    loader = make()
    loader.submit(0, 0).result()
    futures = [loader.submit(0, step) for step in range(5)]
    futures[1].result()
    while not os.path.exists("reached"):
        time.sleep(0.01)
"""
TELL = """
    print(*loader.stats().pids, flush=True)
    time.sleep(1000)
"""
SITUATIONS = {
    "idle": "    loader = make()\n    loader.submit(0, 0).result()\n",
    "asleep in a scene": SLEEPING + READ_AND_WAIT,
    "in a scene that holds the GIL": HOLDING_THE_GIL + READ_AND_WAIT,
    "forked, in a scene that holds the GIL": HOLDING_THE_GIL
    + READ_AND_WAIT
    + "    if os.fork() == 0:\n        os.closerange(0, 3)\n        time.sleep(1000)\n        os._exit(0)\n",
    "just being started": "    loader = make()\n",
    "up a moment ago": "    loader = make()\n    time.sleep(0.1)\n",
}


@pytest.mark.light(where=lambda situation: situation in ("idle", "in a scene that holds the GIL"))
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_killed_parent_leaves_no_worker_and_no_memory(tmp_path, situation):
    parent = launch(tmp_path, BEGIN + SITUATIONS[situation] + TELL)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    forked = [child.pid for child in _children(parent.pid) if child.pid not in pids]
    try:
        assert len(pids) == 2, parent.communicate(timeout=60)
        files = memory_files(parent.pid)
        assert len(files) == 3  # slots, shared objects, stacks
        for pid in (parent.pid, *pids):
            assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()
        parent.kill()
        assert_gone(pids)
        wait_until(lambda: set(holders(files)) <= set(forked))  # a killed process may need time to end
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
        parent.kill()
        parent.communicate()


def _children(pid):
    import psutil

    return psutil.Process(pid).children()


@pytest.mark.heavy
def test_workers_outlive_the_thread_that_started_them(tmp_path):
    program = launch(
        tmp_path,
        BEGIN
        + """
    made = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    time.sleep(0.5)
    for epoch in range(2):
        for step in range(25):
            assert made[0].submit(epoch, step).result(timeout=60)[:, 0].tolist() == list(range(4 * step, 4 * step + 4))
    made[0].close()
    print("right")
    """,
    )
    assert finish(program) == "right\n"


# Subprocess's -3 is DEVNULL: remaining processes must not hold the program's stdout.
LEAVING = """
    def wait():
        # Once; the scene is fine thereafter.
        try:
            descriptor = os.open("left", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        {leave}
        os.write(descriptor, str(child).encode())
        os._exit(3)

    loader = make()
    future = loader.submit(0, 2)
    print(type(future.exception(timeout=60)).__name__)
    loader.close()
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    "leave",
    [
        "child = os.fork()\n        if child == 0:\n            os.setsid()\n            os.closerange(0, 3)\n"
        "            time.sleep(1000)",
        "from subprocess import Popen\n"
        '        child = Popen(["sleep", "1000"], close_fds=False, stdout=-3, stderr=-3, start_new_session=True).pid',
    ],
    ids=["fork", "subprocess"],
)
def test_a_dead_worker_is_detected_although_a_child_holds_its_pipes(tmp_path, leave):
    program = launch(tmp_path, BEGIN + LEAVING.format(leave=leave))
    try:
        assert finish(program) in ("WorkerDiedError\n", "NoneType\n")
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


@pytest.mark.heavy
def test_a_process_started_by_a_scene_inherits_no_descriptors_of_the_feed(tmp_path):
    program = launch(
        tmp_path,
        BEGIN
        + """
    class Listing(Rooms):
        def __getitem__(self, index):
            import subprocess
            found = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True)
            return found.stdout

    loader = ProcessLoader(Job(Listing(), Plan(100, 1), 1, 1 << 30, 1))
    listing = loader.submit(0, 0).result()[0]
    loader.close()
    print(listing.count("->"), "kerasfeed" in listing, "socket" in listing)
    """,
    )
    count, *others = finish(program).split()
    assert int(count) <= 5  # stdin, two pipes of subprocess, stderr, and the folder that ls reads
    assert others == ["False", "False"]


@pytest.mark.heavy
def test_a_loader_that_runs_out_of_descriptors_closes_its_own(tmp_path):
    program = launch(
        tmp_path,
        BEGIN
        + """
    import gc, resource
    def count():
        gc.collect()  # an error keeps the objects of its frames alive
        return len(os.listdir("/proc/self/fd"))
    make().close()
    before, limits, started = count(), resource.getrlimit(resource.RLIMIT_NOFILE), 0
    for more in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + more, limits[1]))
        try:
            make().close()
            started += 1
            if started == 2:
                break
        except OSError as error:
            assert "Too many open files" in str(error)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert count() == before, more
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    print(started == 2 and more > 3 and count() == before)
    """,
    )
    assert finish(program) == "True\n"


# ---- the program is interrupted

INTERRUPTED = """
    import light_keras
    import os, random, signal, sys, threading, time
    import numpy as np
    import kerasfeed as kf

    class Slow(kf.SceneSequence):
        def __len__(self): return 120
        def __getitem__(self, index):
            time.sleep(0.002)
            return np.int64(index)

    kind = sys.argv[1] if len(sys.argv) > 1 else "KIND"
    options = {"workers": 0} if kind == "inline" else {"workers": 2, "worker_type": kind}
    interrupted = 0
    with kf.Feed(Slow(), 4, shuffle=True, seed=1, **options) as feed:
        expected = [batch.tolist() for batch in kf.Feed(list(range(120)), 4, shuffle=True, seed=1, workers=0).epoch(7)]
        next(iter(feed))
        for attempt in range(6):
            timer = threading.Timer(0.01 + 0.011 * attempt, os.killpg, (os.getpgid(0), signal.SIGINT))
            try:
                timer.start()
                while True:
                    for batch in feed:
                        time.sleep(0.01)
            except KeyboardInterrupt:
                interrupted += 1
            timer.join()
        print(interrupted, [batch.tolist() for batch in feed.epoch(7)] == expected)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
def test_a_feed_gives_correct_batches_after_repeated_ctrl_c(tmp_path, kind):
    program = launch(tmp_path, INTERRUPTED.replace("KIND", kind), start_new_session=True)
    assert finish(program) == "6 True\n"


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_a_feed_gives_correct_batches_after_an_interrupted_notebook_cell(tmp_path, kernel):
    kernel("""
        import time, numpy as np, kerasfeed as kf
        class Slow(kf.SceneSequence):
            def __len__(self): return 200
            def __getitem__(self, index):
                time.sleep(0.01)
                return np.int64(index)
        feed = kf.Feed(Slow(), 4, workers=2, worker_type="process")
        next(iter(feed))
    """)
    for _ in range(3):
        kind, _ = kernel(
            """
            while True:  # however long it takes until the cell is interrupted
                for number, batch in enumerate(feed):
                    if number == 3:
                        print("three", flush=True)
            """,
            interrupt_at="three",
        )
        assert kind == "KeyboardInterrupt"
    kind, printed = kernel("print([i for batch in feed.epoch(0) for i in batch.tolist()] == list(range(200)))")
    assert (kind, printed) == ("ok", "True\n")
    _, printed = kernel("pids = feed.stats().pids; feed.close(); print(*pids)")
    assert_gone([int(pid) for pid in printed.split()])


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Run a cell in a notebook's kernel: "ok" or the name of the exception, and its output."""
    pytest.importorskip("ipykernel", reason="needs ipykernel (pip install kerasfeed[test])")
    manager_module = pytest.importorskip("jupyter_client.manager", reason="comes with ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "") + ":" + str(ROOT))
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    manager, client = manager_module.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))

    def run(code, interrupt_at=None):
        import textwrap

        printed, interrupted = [], []

        def hear(message):
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                if interrupt_at is not None and interrupt_at in "".join(printed) and not interrupted:
                    interrupted.append(True)
                    manager.interrupt_kernel()

        reply = client.execute_interactive(textwrap.dedent(code), timeout=240, output_hook=hear)["content"]
        return (reply["ename"] if reply["status"] == "error" else "ok"), "".join(printed)

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)
