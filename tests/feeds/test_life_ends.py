"""Programs with feeds in flight that fork, exec or end: workers and memory end with them."""

import os
import signal
import sys
from pathlib import Path

import pytest
from programs import alive, assert_gone, finish, launch, memory_files
from waits import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")


LIGHT, LEAN = "    import light_keras\n", "    import lean_keras\n"


FEEDS = """
    import atexit, os, sys, threading, time
    import numpy as np
    import kerasfeed as kf

    class Slow(kf.SceneSequence):
        def __len__(self): return 400
        def __getitem__(self, index):
            time.sleep(0.002)
            return np.int64(index)

    def make(kind):
        return kf.Feed(Slow(), 4, workers=2, worker_type=kind)

    def begin(kind):
        feed = make(kind)
        iterator = iter(feed)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        return feed, iterator

    feeds = [begin("thread"), begin("process")]
    def tell():
        print(*feeds[1][0].stats().pids, flush=True)
    tell()
"""


FORK = """
    def child():
        try:
            next(feeds[1][1])
        except kf.FeedClosedError:
            pass
        else:
            os._exit(5)
        {end}

    import warnings
    warnings.simplefilter("ignore")
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            child()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    for feed, iterator in feeds:
        assert [batch[0] for batch in iterator] == list(range(4, 400, 4))
        assert len(list(feed)) == 100
        feed.close()
    print("right")
"""


@pytest.mark.heavy
@pytest.mark.parametrize("end", ["os._exit(3)", "sys.exit(3)"])
def test_forks_exit_cleanly_and_do_not_affect_the_feeds_of_the_parent(tmp_path, end):
    program = launch(tmp_path, LIGHT + FEEDS + FORK.format(end=end))
    pids, right = finish(program).splitlines()
    assert right == "right"
    assert_gone([int(pid) for pid in pids.split()])


@pytest.mark.heavy
def test_a_surviving_fork_keeps_no_worker_of_its_parent_alive(tmp_path):
    program = launch(
        tmp_path,
        LIGHT
        + FEEDS
        + """
    import warnings
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        time.sleep(1000)
        os._exit(0)
    print(child)
    """,
    )
    pids, child = finish(program).splitlines()
    try:
        assert_gone([int(pid) for pid in pids.split()])
        assert alive(int(child))
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.heavy
def test_exec_ends_all_workers_and_frees_their_memory(tmp_path):
    program = launch(tmp_path, LIGHT + FEEDS + "    os.execv('/bin/sleep', ['sleep', '1000'])\n")
    try:
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2
        assert_gone(pids)
        executable = Path(f"/proc/{program.pid}/exe")  # the workers end first, with the threads that started them
        wait_until(lambda: executable.resolve().name != Path(sys.executable).resolve().name)
        assert memory_files(program.pid) == set()
        assert program.poll() is None
    finally:
        program.kill()
        program.communicate()


ENDS = {
    "in the middle of an epoch": "    print('end')\n",
    "by sys.exit in a loop": "    for batch in feeds[1][0]:\n        print('end')\n        sys.exit(0)\n",
    "while threads read": """
    def read(feed):
        for batch in feed.epoch(1):
            time.sleep(0.001)
    for feed, _ in feeds:
        threading.Thread(target=read, args=(feed,)).start()
    print('end')
    """,
    "while only daemon threads read": """
    def read(feed):
        while True:
            for batch in feed.epoch(1):
                time.sleep(0.001)
    stream = kf.StreamFeed(lambda: iter(range(10_000_000)), 4, workers=1, worker_type="thread")
    def read_stream():
        while True:
            for batch in stream:
                pass
    for feed, _ in feeds:
        threading.Thread(target=read, args=(feed,), daemon=True).start()
    threading.Thread(target=read_stream, daemon=True).start()
    time.sleep(0.2)
    print('end')
    """,
    "in an exit handler that reads": """
    @atexit.register
    def read():
        for feed, _ in feeds:
            for batch in feed.epoch(1):
                if batch[0] > 100:
                    break
        print('end')
    """,
    "in an exit handler that makes a feed": """
    @atexit.register
    def read():
        with make("process") as feed:
            assert next(iter(feed)).tolist() == [0, 1, 2, 3]
        global left
        left = begin("process")
        feeds.append(left)
        print('end')
        print(*left[0].stats().pids)
    """,
}


LIGHT_ENDS = ["by sys.exit in a loop", "while only daemon threads read", "in an exit handler that makes a feed"]


@pytest.mark.heavy
@pytest.mark.parametrize("how", ENDS)
def test_an_interpreter_with_open_feeds_exits_cleanly(tmp_path, how):
    with_keras = how == "in the middle of an epoch"  # it has its own exit handlers and threads; one case is enough
    program = launch(tmp_path, (LEAN if with_keras else LIGHT) + FEEDS + ENDS[how])
    pids, end, *more = finish(program).splitlines()
    assert end == "end"
    assert_gone([int(pid) for line in (pids, *more) for pid in line.split()])
