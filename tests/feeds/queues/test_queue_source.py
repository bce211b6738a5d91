"""A queue that producers fill: its epochs, its bounds, its ends, and what interrupts do to it."""

import os
import queue
import random
import re
import signal
import threading
import time

import numpy as np
import pytest
from programs import finish, launch

import kerasfeed as kf
from kerasfeed.feeds.queues.source import QueueSource
from kerasfeed.spec.spec_json import as_scene_spec

PAIR = {"x": kf.ArraySpec((2, None), np.float32), "y": kf.ArraySpec((), np.int32)}


@pytest.fixture
def source():
    made = []

    def make(maxsize=100, *, spec=None, **options):
        made.append(QueueSource(maxsize, spec=None if spec is None else as_scene_spec(spec), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _epoch(source, limit=3):
    source.begin(0)
    found = []
    while taken := source.take(limit):
        found += taken
    return found


def _in_thread(function, *args):
    ends = []

    def run():
        try:
            ends.append(function(*args))
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ends


def _put_all(source, items):
    for item in items:
        source.put(item)


def test_epochs_come_one_after_the_other_and_may_be_empty(source):
    filled = source()
    for epoch in ([1, 2, 3, 4], [], [5]):
        _put_all(filled, epoch)
        filled.end_epoch()
    assert [_epoch(filled) for _ in range(3)] == [[1, 2, 3, 4], [], [5]]
    assert filled.take(3) == []


def test_put_waits_while_maxsize_items_wait(source):
    filled = source(2)
    _put_all(filled, [0, 1])
    thread, ends = _in_thread(_put_all, filled, [2, 3])
    time.sleep(0.1)
    assert thread.is_alive()
    assert filled.count == 2
    filled.begin(0)
    assert filled.take(9) == [0, 1]
    thread.join(60)
    assert ends == [None]
    assert filled.take(1) == [2]


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_put_that_finds_no_room_in_time_says_what_waits(source, timeout):
    filled = source(2)
    _put_all(filled, [0, 1])
    with pytest.raises(queue.Full, match=r"full for 0(.05)? s: 2 scenes not taken yet \(maxsize=2\).*raise maxsize"):
        filled.put(2, timeout=timeout)
    filled.end_epoch()
    assert _epoch(filled) == [0, 1]
    with pytest.raises(ValueError, match="at least 0, or None to wait for ever; received -1"):
        filled.put(2, timeout=-1)


def test_a_producer_runs_at_most_maxsize_empty_epochs_ahead(source):
    filled = source(2)
    filled.end_epoch()
    filled.end_epoch()
    with pytest.raises(kf.QueueFullError, match="2 ends of epochs not taken yet"):
        filled.end_epoch(timeout=0)
    assert _epoch(filled) == []
    filled.end_epoch(timeout=0)


def test_after_finish_what_was_put_still_comes_and_every_later_epoch_is_empty(source):
    filled = source()
    _put_all(filled, [1, 2])
    filled.end_epoch()
    filled.put(3)
    filled.finish()
    filled.finish()
    assert [_epoch(filled) for _ in range(4)] == [[1, 2], [3], [], []]
    with pytest.raises(kf.FeedClosedError, match=r"close\(\) has said, after 3 were put, .*Call it once"):
        filled.put(4)


def _raising(text):
    raise OSError(text)


def test_a_failure_comes_after_what_was_put_and_ever_after(source):
    filled = source()
    _put_all(filled, [1, 2])
    try:
        _raising("the camera is off")
    except OSError as error:
        filled.fail(error)
    filled.fail(ValueError("a second one"))
    filled.begin(0)
    assert filled.take(9) == [1, 2]
    depths = []
    for repetition in range(3):
        with pytest.raises(OSError, match="the camera is off") as raised:
            filled.take(9)
        assert raised.value.__notes__ == ["kerasfeed: from a producer of the queue, after 2 scenes put"]
        assert raised.traceback[-1].name == "_raising"
        depths.append(len(raised.traceback))
        filled.begin(repetition)
    assert len(set(depths)) == 1
    with pytest.raises(kf.FeedClosedError, match=r"a producer has failed, after 2 .*\(OSError: the camera is off\)"):
        filled.put(3)


@pytest.mark.parametrize("kind", [StopIteration, KeyboardInterrupt, SystemExit])
def test_what_would_be_taken_for_the_consumers_own_arrives_as_a_cause(source, kind):
    filled, error = source(), kind("x")
    filled.fail(error)
    with pytest.raises(kf.SceneError, match=f"ended with {kind.__name__}: x") as raised:
        filled.take(1)
    assert raised.value.__cause__ is error


def test_fail_takes_exceptions_only(source):
    with pytest.raises(TypeError, match=r"fail\(\) takes an exception, for example .* received 'no disk'"):
        source().fail("no disk")


def test_a_repetition_that_is_left_goes_on_in_the_next_one(source):
    filled = source()
    _put_all(filled, range(5))
    filled.end_epoch()
    _put_all(filled, [5, 6])
    filled.begin(0)
    assert filled.take(2) == [0, 1]
    filled.leave()
    assert filled.take(2) == []
    assert _epoch(filled) == [2, 3, 4]
    filled.begin(2)
    assert filled.take(5) == [5, 6]
    filled.leave()
    filled.end_epoch()  # nothing but the end is left of that epoch: it is no repetition of its own
    filled.put(7)
    filled.end_epoch()
    assert _epoch(filled) == [7]


def test_leave_wakes_a_take_that_waits(source):
    filled = source()
    filled.begin(0)
    thread, ends = _in_thread(filled.take, 1)
    time.sleep(0.05)
    filled.leave()
    thread.join(60)
    assert ends == [[]]


def test_close_ends_everyone_who_waits(source):
    filled = source(1)
    filled.put(0)
    blocked = [_in_thread(filled.put, number) for number in range(3)]
    empty = source()
    waiting = _in_thread(empty.take, 1)
    time.sleep(0.05)
    filled.close()
    empty.close()
    for thread, ends in [*blocked, waiting]:
        thread.join(60)
        assert isinstance(ends[0], kf.FeedClosedError)
    assert "its consumer has closed it, after 1 were put. End the producer" in str(blocked[0][1][0])
    with pytest.raises(kf.FeedClosedError):
        filled.put(1)


def test_many_producers_lose_and_double_nothing(source):
    filled = source(7)
    threads = [_in_thread(_put_all, filled, [(who, number) for number in range(500)])[0] for who in range(4)]
    filled.begin(0)
    found = []
    while len(found) < 2000:
        found += filled.take(5)
    for thread in threads:
        thread.join(60)
    for who in range(4):
        assert [number for one, number in found if one == who] == list(range(500))


def test_an_exception_of_a_managed_producer_reaches_the_consumer(source):
    filled = source()

    def produce(first):
        filled.put(first)
        raise ZeroDivisionError("in the producer")

    filled.produce(produce, 7)
    filled.begin(0)
    assert filled.take(1) == [7]
    with pytest.raises(ZeroDivisionError, match="in the producer"):
        filled.take(1)


def test_producers_end_quietly_when_the_consumer_has_gone(source):
    filled = source(1)
    thread = filled.produce(lambda: _put_all(filled, range(10)))

    def own():
        with filled.producing():
            _put_all(filled, range(10))
        return "ended"

    other, ends = _in_thread(own)
    time.sleep(0.05)
    filled.close()
    assert not thread.is_alive()
    other.join(60)
    assert ends == ["ended"]


def test_producing_raises_on_what_it_hands_over(source):
    filled = source()
    with pytest.raises(KeyError), filled.producing():
        raise KeyError("k")
    with pytest.raises(KeyError):
        filled.take(1)


WRONG = {
    "dtype": ({"x": np.zeros((2, 3)), "y": 1}, r"'x': expected float32\[2, \?\], received float64\[2, 3\]. Convert it"),
    "shape": ({"x": np.zeros(3, "f4"), "y": 1}, r"'x': expected .*, received float32\[3\]. Bring it .* or write None"),
    "structure": ((1, 2), r"expected the structure \{'x': \*, 'y': \*\} with the fields x, y, received \(\*, \*\)"),
    "nothing": (None, "received NoneType|received None"),
    "nested": ({"x": {"a": 1}, "y": 1}, r"'x': expected .*, received a dict of the structure \{'a': \*\}"),
    "large": (
        {"x": np.zeros((2, 3), "f4"), "y": 2**40},
        r"'y': expected int32\[\], received 1099511627776, which",
    ),
    "huge": ({"x": np.zeros((2, 3), "f4"), "y": 2**70}, "which that dtype does not hold"),
    "fraction": ({"x": np.zeros((2, 3), "f4"), "y": 0.5}, "received 0.5, which that dtype does not hold"),
    "ragged": ({"x": [[1], [2, 3]], "y": 1}, "'x': expected .*, received a list of lists of unequal length"),
    "object": ({"x": threading, "y": 1}, "'x' is of type module .*, which is not an array"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_put_of_a_wrong_spec_is_refused_where_it_is_made(source, kind):
    filled = source(spec=PAIR)
    right = {"x": np.ones((2, 5), np.float32), "y": np.int32(1)}
    filled.put(right)
    scene, told = WRONG[kind]
    with pytest.raises(kf.SpecError, match=rf"^put\(\) after 1 scene: .*({told})"):
        filled.put(scene)
    filled.put(right)
    filled.finish()
    assert len(_epoch(filled)) == 2


def test_python_numbers_lists_and_foreign_byte_orders_take_the_dtype_of_the_spec(source):
    filled = source(spec={**PAIR, "name": kf.ArraySpec((), str), "f": kf.ArraySpec((), np.float32)})
    filled.put({"x": [[1, 2.5, 3], [4, 5, 6]], "y": True, "name": "a", "f": 0.1})
    filled.put({"x": np.zeros((2, 1), ">f4"), "y": 7, "name": np.str_("b"), "f": 1})
    first, second = filled.take(9)
    assert first["x"].tolist() == [[1, 2.5, 3], [4, 5, 6]]
    assert second["x"].dtype.isnative
    assert [scene["name"] for scene in (first, second)] == ["a", "b"]
    for scene in (first, second):
        assert [scene[key].dtype for key in "xyf"] == [np.float32, np.int32, np.float32]


@pytest.mark.parametrize("spec", [None, PAIR], ids=["inferred", "given"])
def test_a_producer_may_use_its_arrays_again(source, spec):
    x = np.zeros((2, 3), np.float32)
    copied, shared = source(spec=spec), source(spec=spec, copy=False)
    for each in (copied, shared):
        each.put({"x": x, "y": np.int32(1)})
    x[:] = 7
    assert copied.take(1)[0]["x"].max() == 0
    assert shared.take(1)[0]["x"] is x


def test_a_forked_process_is_told_that_it_has_a_copy(source, monkeypatch):
    filled = source()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(RuntimeError, match=r"and this is process 1, which has only a copy.*feed.producer\(\)"):
        filled.put(1)
    monkeypatch.undo()


class Interrupt(BaseException):
    pass


def test_interrupts_lose_no_item_and_leave_no_lock_held(source):
    filled = source(50)
    thread, _ = _in_thread(_put_all, filled, range(30_000))
    generator, found, count = random.Random(0), [], 0

    def strike(*_):
        if len(found) < 30_000:  # else the loop is over, and the timer is about to be stopped
            raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        filled.begin(0)
        while len(found) < 30_000:
            try:
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, 5e-4))
                while len(found) < 30_000:
                    found.extend(filled.take(3))
            except Interrupt:
                count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    thread.join(60)
    assert count > 20
    assert found == list(range(30_000))


def test_producers_that_wait_do_not_keep_a_program_from_its_end(tmp_path):
    program = launch(
        tmp_path,
        r"""
        import os
        import threading
        import kerasfeed as kf
        from kerasfeed.feeds.queues.source import QueueSource

        source = QueueSource(2)

        def produce():
            try:
                while True:
                    source.put(1)
            except kf.FeedClosedError as error:
                os.write(1, (str(error).split(": ")[1] + "\n").encode())

        threads = [threading.Thread(target=produce) for _ in range(2)]
        for thread in threads:
            thread.start()
        source.take(1)
        """,
    )
    told = r"the program has ended, after [23] were put, and takes no more\n"
    assert re.fullmatch(f"({told}){{2}}", finish(program))


def test_a_thread_of_produce_that_waits_at_the_end_of_a_program_leaves_its_blocks_and_is_not_waited_for(tmp_path):
    program = launch(
        tmp_path,
        """
        import light_keras
        import kerasfeed as kf

        def produce(put):
            try:
                for number in range(100):
                    put(number)
            finally:
                print("left", flush=True)

        feed = kf.QueueFeed(batch_size=2, maxsize=2)
        feed.produce(produce, feed.put)
        print(next(iter(feed)).tolist(), flush=True)
        """,
    )
    assert finish(program) == "[0, 1]\nleft\n"
