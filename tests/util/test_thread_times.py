"""What threads did with their time: arithmetic on times that were seen on two cores."""

import pytest

from kerasfeed.util.thread_times import ThreadTimes, undelayed


def test_delays_of_threads_that_compute_side_by_side_are_taken_off():
    times = [ThreadTimes(0.131, 0.072, 0.057), ThreadTimes(0.131, 0.074, 0.055)]  # beside one other program
    assert undelayed(0.131, times, 0.0) == pytest.approx(0.075)


def test_a_thread_that_waits_for_a_processor_while_another_holds_the_gil_is_not_delayed():
    times = [ThreadTimes(0.1216, 0.057, 0.038), ThreadTimes(0.1216, 0.065, 0.039)]  # beside one other program
    assert undelayed(0.1216, times, 0.0) == pytest.approx(0.1216)
    times = [ThreadTimes(0.1176, 0.034, 0.055), ThreadTimes(0.1176, 0.038, 0.055)]  # beside two
    assert undelayed(0.1176, times, 0.0) == pytest.approx(0.072)


def test_scenes_that_wait_by_themselves_are_not_taken_for_threads_that_wait_for_each_other():
    times = [ThreadTimes(0.1, 0.03, 0.05), ThreadTimes(0.1, 0.03, 0.05)]
    assert undelayed(0.1, times, 0.0) == pytest.approx(0.06)
    assert undelayed(0.1, times, 0.04) == pytest.approx(0.05)


def test_no_more_than_half_of_the_time_is_taken_for_a_delay():
    assert undelayed(0.1, [ThreadTimes(0.1, 0.01, 0.09)] * 2, 0.0) == pytest.approx(0.05)
    assert undelayed(0.1, [ThreadTimes(0.1, 0.1, 0.0)] * 2, 0.0) == pytest.approx(0.1)
