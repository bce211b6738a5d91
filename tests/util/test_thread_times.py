"""The time that a thread used."""

import threading
import time

from kerasfeed.util.thread_times import ThreadTimes, ThreadWatch


def test_own_seconds_excludes_other_threads_and_includes_computing():
    assert ThreadTimes(0.1, 0.03, 0.04).own_seconds == 0.1 - 0.04
    assert ThreadTimes(0.1, 0.08, 0.04).own_seconds == 0.08
    assert ThreadTimes(0.1, 0.18, 0.0).own_seconds == 0.1


def test_a_thread_that_waits_uses_no_processor():
    watch = ThreadWatch()
    time.sleep(0.1)
    took = watch.look()
    assert took.seconds >= 0.1
    assert took.cpu_seconds < 0.05


def test_processor_time_of_other_threads_counts_for_a_whole_process():
    own, whole = ThreadWatch(), ThreadWatch(whole_process=True)
    helper = threading.Thread(target=lambda: sum(range(3_000_000)))
    helper.start()
    helper.join()
    assert whole.look().cpu_seconds > own.look().cpu_seconds + 0.01
