"""Requests for batches ahead of a consumer."""

from concurrent.futures import Future

import pytest

from kerasfeed.errors import FeedClosedError, HostLostError, WorkerStartError
from kerasfeed.feeds.feed_cursor import Prefetcher

AHEAD = 4


class Log:
    """Futures of submitted numbers: waiting for one resolves it and all earlier ones."""

    def __init__(self):
        self.futures = []

    def submit(self, number, timeout):
        log = self

        class Noting(Future):
            def result(self, timeout=None):
                log.complete(number)
                return super().result(timeout)

        self.futures.append(Noting())
        return self.futures[-1]

    def complete(self, number):
        for done, future in enumerate(self.futures[: number + 1]):
            if not future.done():
                future.set_result(done)


def window(submit, **options):
    return Prefetcher(submit, 0, 100, AHEAD, **options)


def submitted_by_takes(count, **options):
    log, found = Log(), []
    taken = window(log.submit, **options)
    for number in range(count):
        assert taken.next_batch() == number
        found.append(len(log.futures))
    return found


def test_each_taken_batch_requests_one_more():
    assert submitted_by_takes(6) == [4, 5, 6, 7, 8, 9]


def test_a_cancelled_batch_raises_feed_closed_error():
    log = Log()
    taken = window(log.submit)
    assert taken.next_batch() == 0
    log.futures[1].cancel()
    with pytest.raises(FeedClosedError, match="closed before this batch was loaded"):
        taken.next_batch()


def test_no_batch_is_requested_after_a_failed_batch():
    log = Log()
    taken = window(log.submit)
    assert taken.next_batch() == 0
    log.futures[3].set_exception(HostLostError("no hosts any more"))
    assert [taken.next_batch(), taken.next_batch()] == [1, 2]
    assert len(log.futures) == AHEAD
    with pytest.raises(HostLostError):
        taken.next_batch()
    assert taken.next_batch() == 4  # the consumer may continue


def test_batches_in_flight_are_delivered_before_an_error_of_a_request():
    log = Log()

    def submit(number, timeout):
        if number >= AHEAD:
            raise WorkerStartError("no memory")
        return log.submit(number, timeout)

    taken = window(submit)
    assert [taken.next_batch() for _ in range(AHEAD)] == [0, 1, 2, 3]
    with pytest.raises(WorkerStartError):
        taken.next_batch()
