"""`close()` frees memory and descriptors itself: the collector does not run in these tests.

Except the objects that an exception refers to, because its traceback is part of a cycle.
"""

import gc
import os
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from loader_kinds import new_loader
from programs import finish, launch, memory_files

import kerasfeed as kf
from kerasfeed.errors import WorkerStartError

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc"),
]
_WORKERS = {"process": (1, "process"), "thread": (2, "thread"), "inline": (0, "thread")}
_LENGTH = 40
_BATCH = 4


@pytest.fixture(autouse=True)
def no_collector():
    """Disable garbage collection during a test that owns all of kerasfeed's memory files."""
    for name in ("Feed", "StreamFeed"):
        assert getattr(kf, name)  # traces of their imports refer to the importing module
    gc.collect()
    gc.disable()
    before = _held()
    yield
    gc.enable()
    assert before == ([], set())


def _held():
    """Descriptors and memory files of feeds that this process holds; modules of other tests hold caches."""
    found, files = [], memory_files(os.getpid())
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
            status = link.stat()
        except OSError:
            continue
        if "memfd:kerasfeed-scenes" in target:
            files.discard((status.st_dev, status.st_ino))
        elif "memfd:kerasfeed" in target:
            found.append(target)
    return found, files


def _bytes_held():
    """Memory of kerasfeed's memory files, by their descriptors."""
    sizes = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:kerasfeed" in str(link.readlink()):
                status = link.stat()
                sizes[status.st_ino] = 512 * status.st_blocks
        except OSError:
            continue
    return sum(sizes.values())


def _pipes_and_sockets():
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += str(link.readlink()).startswith(("pipe:", "socket:"))
        except OSError:
            continue
    return count


class Large(kf.SceneSequence):
    """Scenes of 80 kB from 8 MB that are sent to workers; one may fail."""

    def __init__(self, bad=-1, error=ValueError):
        self.data = np.ones((_LENGTH, 10_000))
        self.bad = bad
        self.error = error

    def __len__(self):
        return _LENGTH

    def __getitem__(self, index):
        if index == self.bad:
            if self.error is None:
                os._exit(3)
            raise self.error("one of the scenes")
        return self.data[index]


class TwoShapes(Large):
    """Scenes of two shapes, which cannot be batched."""

    def __getitem__(self, index):
        return np.zeros(index % 7)


class BadStart(Large):
    """Its `on_worker_begin` raises."""

    def on_worker_begin(self, worker):
        raise ValueError("it does not begin")


def _generator(n, count):
    for number in range(_LENGTH // count):
        yield np.full(100, float(number))


def _failing(n, count):
    yield from [np.zeros(100)] * 10
    raise ValueError("a generator fails")


def _double(scene):
    if scene[0] < 0:
        raise ValueError("a negative scene")
    return 2 * scene


_MAKE = {
    "feed": lambda arguments: kf.Feed(Large(), _BATCH, **arguments),
    "generators": lambda arguments: kf.StreamFeed(_generator, _BATCH, count=2, **arguments),
    "map": lambda arguments: kf.StreamFeed(_generator, _BATCH, count=2, **arguments).map(_double),
}
_MAKE_FAILING = {
    "feed": lambda arguments: kf.Feed(Large(30), _BATCH, **arguments),
    "first scene": lambda arguments: kf.Feed(Large(0), _BATCH, **arguments),
    "shapes": lambda arguments: kf.Feed(TwoShapes(), _BATCH, **arguments),
    "start": lambda arguments: kf.Feed(BadStart(), _BATCH, **arguments),
    "too many": lambda arguments: kf.Feed(Large(30), _BATCH, on_error="replace", max_failures=0.001, **arguments),
    "generators": lambda arguments: kf.StreamFeed(_failing, _BATCH, count=2, **arguments),
    "all generators": lambda arguments: kf.StreamFeed(_failing, _BATCH, count=2, on_error="skip", **arguments),
    "map": lambda arguments: kf.StreamFeed(_failing, _BATCH, **arguments).map(_double),
}


def _arguments(kind):
    workers, worker_type = _WORKERS[kind]
    return {"workers": workers, "worker_type": worker_type, "max_queue_size": 4, "seed": 3}


def _loop(feed):
    for _ in feed:
        pass


def _leave(feed):
    for _ in feed:
        break


def _keep_iterator(feed):
    iterator = iter(feed)
    next(iterator)
    return iterator


def _take_nothing(feed):
    return None


_USES = {"looped": _loop, "left": _leave, "kept": _keep_iterator, "not begun": _take_nothing}


def _fail(feed):
    with pytest.raises((ValueError, RuntimeError)):
        for _ in feed:
            pass


def _check(make, kind, use):
    """A closed feed holds nothing; the feed and its sequence are freed with their last reference.

    After an error they are freed at the next collection, like the memory of its batches.
    """
    pipes = _pipes_and_sockets()
    feed = make(_arguments(kind))
    parts = [weakref.ref(feed), weakref.ref(getattr(feed, "sequence", feed))]
    kept = use(feed)
    feed.__exit__(None, None, None)
    assert _pipes_and_sockets() == pipes
    if use is _fail:
        gc.collect()
    assert _held() == ([], set())
    del kept, feed
    if use is _fail:
        gc.collect()
    assert [part() for part in parts] == [None, None]


@pytest.mark.heavy
@pytest.mark.parametrize("made", _MAKE)
@pytest.mark.parametrize(
    ("kind", "use"),
    [*(("process", use) for use in _USES), ("thread", "looped"), ("thread", "kept"), ("inline", "kept")],
)
def test_a_closed_feed_holds_no_memory_or_descriptors(made, kind, use):
    _check(_MAKE[made], kind, _USES[use])


@pytest.mark.heavy
@pytest.mark.parametrize("kind", _WORKERS)
@pytest.mark.parametrize("made", _MAKE_FAILING)
def test_a_feed_closed_after_an_error_holds_no_memory(made, kind):
    _check(_MAKE_FAILING[made], kind, _fail)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning")
def test_a_feed_closed_after_its_workers_died_holds_no_memory():
    _check(lambda arguments: kf.Feed(Large(9, None), _BATCH, max_failures=1, **arguments), "process", _fail)


def test_a_feed_of_an_unpicklable_sequence_leaks_no_descriptors():
    sequence = Large()
    sequence.lock = threading.Lock()
    pipes = _pipes_and_sockets()
    with pytest.raises(TypeError, match="cannot be sent to worker processes"):
        kf.Feed(sequence, _BATCH, **_arguments("process"))
    assert _held() == ([], set())
    assert _pipes_and_sockets() == pipes


@pytest.mark.heavy
def test_a_failed_and_replaced_session_leaks_nothing():
    loader = new_loader("process", BadStart())
    for _ in range(2):
        with pytest.raises(WorkerStartError):
            loader.submit(0, 0).result()
    loader.close()
    gc.collect()
    assert _held() == ([], set())


@pytest.mark.heavy
def test_a_batch_outlives_its_feed_and_holds_only_its_own_memory():
    arguments = {**_arguments("process"), "max_queue_size": 8}
    with kf.Feed(Large(), _BATCH, **arguments) as feed:
        iterator = iter(feed)
        batches = [next(iterator), next(iterator)]
    nbytes = batches[0].nbytes
    assert nbytes <= _bytes_held() - nbytes < 1.1 * nbytes
    assert all((batch == 1).all() for batch in batches)
    first = batches.pop(0)[0, :5]  # a view keeps the whole batch
    batches.clear()
    assert nbytes <= _bytes_held() < 1.1 * nbytes
    assert (first == 1).all()
    del first
    assert _held() == ([], set())


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_loop_raises_after_its_feed_was_closed(kind):
    feed = kf.Feed(Large(), _BATCH, **_arguments(kind))
    iterator = iter(feed)
    next(iterator)
    feed.close()
    with pytest.raises(kf.FeedClosedError):
        next(iterator)


class Slow(kf.SceneSequence):
    """Its scene 3 waits until the test releases it."""

    def __init__(self):
        self.waits, self.resume = threading.Event(), threading.Event()

    def __len__(self):
        return _BATCH

    def __getitem__(self, index):
        if index == 3 and threading.current_thread().name == "slow":
            self.waits.set()
            assert self.resume.wait(30)
        return np.full(5000, index + 1.0)


def closed_meanwhile(sequence):
    """Close a feed while a thread named "slow" loads its first batch; it continues when this generator is resumed."""
    found, feed = [], kf.Feed(sequence, _BATCH, workers=0)
    assert feed.scene_spec
    thread = threading.Thread(target=lambda: found.append(feed.submit(0, 0).result()), name="slow")
    thread.start()
    assert sequence.waits.wait(30)
    feed.close()
    yield found
    sequence.resume.set()
    thread.join(30)
    yield found


def test_a_batch_being_loaded_is_complete_although_another_thread_closes_the_feed():
    *_, found = closed_meanwhile(Slow())
    assert [row.tolist() for row in found[0][:, [0, -1]]] == [[1, 1], [2, 2], [3, 3], [4, 4]]


def test_close_leaves_on_worker_end_to_a_thread_that_still_reads():
    threads = []

    class Ending(Slow):
        def on_worker_end(self):
            threads.append(threading.current_thread().name)

    closing = closed_meanwhile(Ending())
    next(closing)
    assert threads == []
    found = next(closing)
    assert threads == ["slow"]
    assert len(found) == 1


@pytest.mark.heavy
def test_closed_feeds_leave_no_memory_files_in_a_program(tmp_path):
    program = """
        import gc
        gc.disable()
        import light_keras, os
        import numpy as np
        import kerasfeed as kf
        from programs import memory_files

        class Rooms(kf.SceneSequence):
            def __init__(self):
                self.data = np.ones((40, 100_000))
            def __len__(self):
                return 40
            def __getitem__(self, index):
                return self.data[index]

        for _ in range(2):
            feed = kf.Feed(Rooms(), 4, workers=2, worker_type="process")
            for batch in feed:
                break
            del batch
            feed.close()
            print(len(memory_files(os.getpid())))
    """
    assert finish(launch(tmp_path, program)).split() == ["0", "0"]
