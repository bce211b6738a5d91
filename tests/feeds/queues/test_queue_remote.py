"""Producers in other processes: what they put, what they are told, and how they end."""

import contextlib
import errno
import gc
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import util
from multiprocessing.connection import Client

import numpy as np
import pytest
from places import SUPPORT
from programs import ROOT, finish, launch
from waits import PROGRAM_SECONDS, SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.feeds.queues import connection, server
from kerasfeed.feeds.queues.connection import authenticate
from kerasfeed.feeds.queues.source import QueueSource
from kerasfeed.spec.spec_json import as_scene_spec

SCRIPT = SUPPORT / "queue_producers.py"


@pytest.fixture
def source():
    made = []

    def make(maxsize=100, **options):
        made.append(QueueSource(maxsize, **options))
        made[-1].begin(0)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def process():
    """Start producer processes that do not outlive the test."""
    started = []

    def start(name, producer):
        command = [sys.executable, str(SCRIPT), name, pickle.dumps(producer).hex()]
        environment = {**os.environ, "PYTHONPATH": ROOT}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def _all(source, limit=7):
    found = []
    while taken := source.take(limit):
        found += taken
    return found


def test_a_process_puts_scenes_in_order_and_loads_no_framework(source, process):
    filled = source(4)
    producer = process("arrays", filled.producer())
    found = _all(filled)
    assert [number for _, number, _ in found] == list(range(20))
    for array, number, name in found:
        assert array.dtype == np.float32
        assert array.shape == (4 if number % 2 else 50_000,)
        assert (array == number).all()
        assert name == f"scene-{number}"
        array += 1  # it is the consumer's own
    assert producer.communicate(timeout=PROGRAM_SECONDS) == ("[]\n", "")


def test_a_killed_process_fails_the_stream_after_what_it_had_put(source, process):
    filled = source()
    producer = process("killed", filled.producer())
    producer.wait(PROGRAM_SECONDS)
    assert _numbers(filled, 3) == [0, 1, 2]
    told = (
        f"producer process {producer.pid} ended without closing its producer after it had put 3 scenes.*on_death='warn'"
    )
    with pytest.raises(kf.ProducerDiedError, match=told):
        filled.take(1)


def _numbers(source, count):
    found = []
    while len(found) < count:
        found += source.take(count - len(found))
    return found


def test_a_killed_process_may_be_told_as_a_warning(source, process):
    filled = source()
    producer = process("killed", filled.producer(on_death="warn"))
    assert _numbers(filled, 3) == [0, 1, 2]
    producer.wait(PROGRAM_SECONDS)
    while not filled.deferred_warnings.is_known(f"death of {producer.pid}"):
        time.sleep(0.01)
    with pytest.warns(kf.FeedWarning, match=f"producer process {producer.pid} ended without closing its producer"):
        filled.deferred_warnings.issue()
    filled.put(3)
    assert filled.take(1) == [3]
    with pytest.raises(ValueError, match='on_death is "fail" or "warn", received \'ignore\''):
        filled.producer(on_death="ignore")


def test_an_exception_that_ends_a_process_reaches_the_consumer(source, process):
    filled = source()
    producer = process("raising", filled.producer())
    assert filled.take(9) == [1]
    with pytest.raises(ZeroDivisionError, match="in the producer") as raised:
        filled.take(1)
    place, traceback = raised.value.__notes__[:2]
    assert place == f"kerasfeed: in producer process {producer.pid}"
    assert 'raise ZeroDivisionError("in the producer")' in traceback
    assert producer.wait(PROGRAM_SECONDS) == 1


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("raising_at_once", FileNotFoundError, "before its first scene"),
        ("killed_in_its_first_put", kf.ProducerDiedError, "after it had put 0 scenes"),
        ("killed_with_a_child", kf.ProducerDiedError, "after it had put 1 scene:"),
    ],
    ids=["raising", "killed", "killed with a child"],
)
def test_a_consumer_hears_of_a_process_that_ends_early_or_leaves_a_child(source, process, how, error, told):
    filled = source()
    process(how, filled.producer())
    with pytest.raises(error, match=told):
        _all(filled)


def test_a_process_that_waits_in_put_ends_when_the_consumer_has_gone(source, process):
    filled = source(2)
    producer = process("endless", filled.producer())
    assert len(_numbers(filled, 3)) == 3
    filled.close()
    assert producer.communicate(timeout=PROGRAM_SECONDS) == ("ended\n", "")
    assert producer.returncode == 0


@pytest.mark.heavy
def test_processes_of_multiprocessing_produce_forked_and_spawned(tmp_path):
    program = launch(
        tmp_path,
        """
        import multiprocessing
        import os
        import sys
        from kerasfeed.feeds.queues.source import QueueSource

        sys.ps1, sys.last_value = ">>>", KeyError("told in a session, long ago")

        def fail(producer):
            os.close(2)
            raise LookupError("at once")

        def produce(producer, first):
            for number in range(first, first + 50):
                producer.put(number)

        if __name__ == "__main__":
            source = QueueSource(10)
            producer = source.producer()
            started = []
            for first, method in enumerate(["fork", "spawn", "fork"]):
                context = multiprocessing.get_context(method)
                started.append(context.Process(target=produce, args=(producer, 50 * first)))
                try:
                    raise KeyError("dealt with as it is forked")
                except KeyError:
                    started[-1].start()
            found = []
            source.begin(0)
            while len(found) < 150:
                found += source.take(150)
            for process in started:
                process.join()
            failing = multiprocessing.get_context("fork").Process(target=fail, args=(producer,))
            failing.start()
            try:
                source.take(1)
            except LookupError as error:
                print(sorted(found) == list(range(150)), error)
            failing.join()
            source.close()
        """,
    )
    assert finish(program) == "True at once\n"


# ---- what needs no other process, for a producer works in the feed's own, too


def test_what_a_put_would_raise_here_it_raises_there(source):
    filled = source(1, spec=as_scene_spec(kf.ArraySpec((2,), np.float32)))
    producer = pickle.loads(pickle.dumps(filled.producer()))
    assert repr(producer) == f"<Producer for the feed of process {os.getpid()}>"
    with pytest.raises(kf.SpecError, match=r"put\(\) after 0 scenes: field 'scene': expected float32\[2\], received"):
        producer.put(np.zeros(3))
    producer.put([1, 2])
    with pytest.raises(queue.Full, match="1 scene not taken yet"):
        producer.put([1, 2], timeout=0)
    producer.end_epoch()
    assert filled.take(9)[0].tolist() == [1, 2]
    with pytest.raises(TypeError, match=r"fail\(\) takes an exception"):
        producer.fail("no disk")
    producer.close()
    with pytest.raises(kf.FeedClosedError, match=r"close\(\) has said, after 1 were put"):
        producer.put([1, 2])


def test_threads_that_share_a_producer_do_not_wait_for_one_another(source):
    filled = source(1)
    producer = filled.producer()
    producer.put(0)
    ends = []

    def put():
        try:
            producer.put(1)
        except kf.FeedClosedError as error:
            ends.append(str(error))

    thread = threading.Thread(target=put)
    thread.start()
    time.sleep(0.1)
    with pytest.raises(queue.Full):
        producer.put(2, timeout=0)
    producer.fail(OSError("the camera is off"))
    thread.join(60)
    assert "the camera is off" in ends[0]
    assert filled.take(9) == [0]
    with pytest.raises(OSError, match="the camera is off"):
        filled.take(1)


def test_a_handle_used_again_and_again_leaves_nothing_behind(source):
    filled = source(100)
    producer = filled.producer()
    before = len(util._finalizer_registry)
    for number in range(50):
        with producer:
            producer.put(number)
    assert len(util._finalizer_registry) <= before  # one of an earlier test may have gone
    wait_until(lambda: not filled._server._connections)
    assert filled.take(100) == list(range(50))


class Stubborn:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise LookupError("no such class here")


def test_what_cannot_travel_is_refused_in_the_producer(source):
    filled = source()
    producer = filled.producer()
    with pytest.raises(Exception, match=r"pickle.*lambda|lambda.*pickle") as raised:
        producer.put(lambda: 0)
    assert raised.value.__notes__ == ["kerasfeed: what a producer puts goes to another process, and must pickle"]
    with pytest.raises(LookupError, match="no such class here") as raised:
        producer.put(Stubborn())
    assert "which the scene was sent to, cannot unpickle it" in raised.value.__notes__[0]
    producer.put(1)
    assert filled.take(1) == [1]


def test_a_block_that_fails_hands_its_exception_to_the_consumer(source):
    filled = source()
    producer = filled.producer()
    producer.put(1)
    with pytest.raises(KeyError), producer:
        raise KeyError("k")
    assert filled.take(1) == [1]
    with pytest.raises(KeyError, match="k"):
        filled.take(1)


def test_producers_that_end_in_order_are_not_told_of(source):
    filled = source()
    with filled.producer() as producer:
        producer.put(1)
    other = filled.producer()
    other.put(2)
    del other
    gc.collect()
    filled.put(3)
    assert filled.take(9) == [1, 2, 3]
    filled.deferred_warnings.issue()


def test_a_handle_of_a_feed_that_has_gone_says_so(source):
    filled = source()
    used, unused = filled.producer(), filled.producer()
    used.put(1)
    filled.close()
    for producer in (used, unused):
        with pytest.raises(kf.FeedClosedError, match=f"its process, {os.getpid()}, has closed it or has ended"):
            producer.put(2)
    with pytest.raises(kf.FeedClosedError):
        filled.producer()


def test_a_queue_closes_where_no_descriptor_is_left_to_wake_who_accepts(source, monkeypatch):
    def refuse(address):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(server, "Client", refuse)
    filled = source()
    filled.producer()
    accepting = filled._server._thread
    filled.close()
    assert not accepting.is_alive()


def struck_in_a_put(source):
    """A queue for one item, which holds 0, and its producer, whose put of 1 waited when Ctrl-C came."""
    filled = source(1)
    producer = filled.producer()
    producer.put(0)
    main, put, arrived = threading.main_thread().ident, filled.put, threading.Event()

    def noting(*given, **arguments):
        arrived.set()
        put(*given, **arguments)

    def interrupt():
        arrived.wait(SECONDS)
        time.sleep(0.1)  # for the feed to wait for room; Ctrl-C strikes the wait for its answer, however short
        signal.pthread_kill(main, signal.SIGINT)

    filled.put = noting
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        producer.put(1)
    interrupting.join()
    return filled, producer


def test_ctrl_c_in_a_put_that_waits_loses_and_doubles_nothing(source):
    filled, producer = struck_in_a_put(source)
    assert filled.take(1) == [0]
    assert filled.take(1) == [1]
    producer.put(2)
    assert filled.take(9) == [2]


def test_what_follows_a_put_that_ctrl_c_has_struck_does_not_overtake_it(source):
    filled, producer = struck_in_a_put(source)
    ending = threading.Thread(target=producer.end_epoch)
    ending.start()
    ending.join(0.5)  # the queue is full: nothing can be told yet
    assert [filled.take(9), filled.take(9), filled.take(9)] == [[0], [1], []]
    ending.join()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who connects")
def test_the_process_of_another_user_is_hung_up_on_before_anything_is_begun_for_it(source, monkeypatch):
    filled = source()
    producer = filled.producer()
    with monkeypatch.context() as patch:
        patch.setattr(server, "user_of", lambda sock: 4711)
        before = threading.active_count()
        stranger = Client(producer._address)
        assert stranger.poll(60)
        with pytest.raises(EOFError):
            stranger.recv_bytes()
        assert threading.active_count() == before
        stranger.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(
            PermissionError, match=r"takes scenes from that user alone, and this process is user 4711's"
        ):
            producer.put(0)
    producer.put(1)
    assert filled.take(9) == [1]


@pytest.mark.parametrize("said", [b"", b"x" * 100], ids=["nothing", "nonsense"])
def test_a_stranger_without_the_key_is_turned_away(source, said):
    filled = source()
    producer = filled.producer()
    with socket.socket(socket.AF_UNIX) as stranger, contextlib.suppress(ConnectionResetError):
        stranger.connect(producer._address)
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(100):  # the challenge, then the end
            pass
    with Client(producer._address) as other, pytest.raises((OSError, EOFError)):
        authenticate(other, b"another key", is_feed=False)
    producer.put(1)
    assert filled.take(9) == [1]


def test_a_stranger_that_says_nothing_holds_its_thread_for_a_while_only(source, monkeypatch):
    monkeypatch.setattr(connection, "_AUTH_SECONDS", 1)
    filled = source()
    producer = filled.producer()
    with Client(producer._address):
        wait_until(lambda: filled._server._connections)
        wait_until(lambda: not filled._server._connections)
    time.sleep(1.1)
    producer.put(1)
    time.sleep(1.1)  # past the limit, which ends with the greeting
    producer.put(2)
    assert filled.take(9) == [1, 2]
