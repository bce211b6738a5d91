"""Resources that the system refuses: the error names the feed, the amount and a remedy, and the next try works."""

import errno
import sys
import threading

import numpy as np
import pytest
from programs import finish, launch

import kerasfeed as kf

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's"),
]

BEGIN = """
    import light_keras
    import errno, os, re, resource
    import numpy as np
    import kerasfeed as kf

    class Rooms(kf.SceneSequence):
        def __len__(self): return 4000
        def __getitem__(self, index): return np.full(50_000, index, np.float32)

    def limited(kind, most, action):
        limits = resource.getrlimit(kind)
        resource.setrlimit(kind, (most, limits[1]))
        try:
            action()
        except OSError as error:
            return error
        finally:
            resource.setrlimit(kind, limits)
        raise AssertionError("no error")

    def assert_works(feed):
        with feed:
            assert next(iter(feed))[0, 0] == 0

    def make(**arguments):
        return kf.Feed(Rooms(), 8, **{"workers": 2, "worker_type": "process", **arguments})
"""


@pytest.mark.heavy
def test_the_error_for_too_many_open_files_names_feed_descriptors_and_remedy(tmp_path):
    program = launch(
        tmp_path,
        BEGIN
        + """
    make().close()
    opened = len(os.listdir("/proc/self/fd"))
    for more in (0, 4, 10):  # as memory, pipes or workers are made
        error = limited(resource.RLIMIT_NOFILE, opened - 1 + more, make)
        assert error.errno == errno.EMFILE, error
        text = str(error)
        assert "the feed of Rooms (2 worker processes) needs about 18 file descriptors" in text, text
        assert re.search(r"the limit of this process, \\d+, is reached", text), text
        assert "Too many open files" in text and "ulimit -n" in text and "fewer workers" in text, text
        del error
    feed = make()
    next(iter(feed))
    used = len(os.listdir("/proc/self/fd")) - opened
    assert 10 <= used <= 18, used
    assert_works(feed)

    stream = kf.StreamFeed(lambda: iter(range(100)), 8, workers=2, worker_type="process")
    error = limited(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) - 1, lambda: next(iter(stream)))
    assert "file descriptors" in str(error) and "ulimit -n" in str(error), error
    stream.close()
    print("right")
    """,
    )
    assert finish(program) == "right\n"


@pytest.mark.heavy
def test_the_error_for_refused_memory_names_the_amount_and_the_remedy(tmp_path):
    program = launch(
        tmp_path,
        BEGIN
        + """
    size = 8 * 200_000
    for limit, has in ((1_000_000, 0), (4 * size, 1)):
        feed = make()
        held = []
        def grow():
            for batch in feed:
                held.append(batch)
        error = limited(resource.RLIMIT_FSIZE, limit, grow)
        text = str(error)
        assert error.errno == errno.EFBIG, text
        asked, had = re.search(
            r"Rooms \\(2 worker processes\\) cannot get ([\\d,]+) bytes for batches, in addition to the ([\\d,]+)",
            text,
        ).groups()
        assert int(asked.replace(",", "")) >= size and bool(int(had.replace(",", ""))) == has, text
        assert "File too large; the system has no more memory that processes share" in text, text
        first = len(held)
        held.clear()
        del error
        assert_works(feed)  # refused memory is not counted

    class Large(Rooms):
        def __init__(self): self.array = np.zeros(1_000_000)

    def make_large(): return kf.Feed(Large(), 8, workers=1, worker_type="process")
    error = limited(resource.RLIMIT_FSIZE, 100_000, make_large)
    assert error.errno == errno.EFBIG and "bytes for the objects of its workers" in str(error), error
    assert_works(make_large())

    stream = kf.StreamFeed(lambda: iter([np.zeros(1_000_000)] * 4), 2, workers=1, worker_type="process")
    stream = stream.map(lambda item: item[:3])
    error = limited(resource.RLIMIT_FSIZE, 1_000_000, lambda: list(stream))
    assert "bytes for items on their way to workers" in str(error), error
    stream.close()
    print("right")
    """,
    )
    assert finish(program) == "right\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_the_error_for_refused_memory_keeps_its_errno_and_names_the_remedy(number):
    from kerasfeed.pool.resource_errors import naming_memory

    with pytest.raises(OSError, match="refused") as caught, naming_memory("the feed", 1_000_000, 5_000):
        raise OSError(number, "refused")
    error = caught.value
    assert error.errno == number
    assert "cannot get 1,000,000 bytes for batches, in addition to the 5,000 that it has" in str(error)
    assert "Lower max_memory" in str(error)


class Rooms(kf.SceneSequence):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.full(5, index, np.float32)


THREADED = {
    "threads": (
        lambda: kf.Feed(Rooms(), 8, workers=4, worker_type="thread"),
        r"the feed of Rooms \(4 worker threads\)",
        5,
    ),
    "calling": (lambda: kf.Feed(Rooms(), 8, workers=0), "the feed of Rooms", 1),
    "stream": (lambda: kf.StreamFeed(Rooms().__iter__, 8, workers=1, worker_type="thread"), "feed", 3),
    "mapped": (lambda: kf.StreamFeed(Rooms().__iter__, 8, workers=1, worker_type="thread").map(np.copy), "feed", 3),
}


@pytest.mark.parametrize("kind", THREADED)
def test_the_error_for_a_refused_thread_names_the_remedy_and_the_next_loop_works(kind, monkeypatch):
    make, who, needed = THREADED[kind]
    start, left = threading.Thread.start, [0]

    def refuse(thread):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    before = threading.active_count()
    with make() as feed:
        for most in range(needed):
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                left[0] = most
                with pytest.raises(RuntimeError, match=f"{who}.* needs . threads?, .*: can't start new .*ulimit -u"):
                    list(feed)
            if isinstance(feed, kf.Feed):  # idle threads must end
                assert threading.active_count() == before
        assert len(list(feed)) == 5


def test_the_error_for_worker_processes_without_a_thread_suggests_fewer_workers(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises((OSError, RuntimeError), match=r"needs 1 thread, .* can't start new thread.* Use fewer workers"):
        kf.Feed(Rooms(), 8, workers=2, worker_type="process")
