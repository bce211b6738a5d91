"""When batches are asked for ahead of a consumer, and how many of them it waits for at once."""

from concurrent.futures import Future

import pytest

from kerasfeed.errors import FeedClosedError, HostLostError, WorkerStartError
from kerasfeed.feeds.prefetch import _MOST_SECONDS, _SEVERAL_SECONDS, Pauses, Prefetcher

AHEAD = 4


class Log:
    """Futures of the numbers that were submitted, and which of them were waited for.

    What is waited for is done then, with those before, unless it is `late`. The first is done at once.
    """

    def __init__(self, late=False):
        self.futures, self.awaited, self.late = [], [], late

    def submit(self, number, timeout):
        log = self

        class Noting(Future):
            def exception(self, timeout=None):
                if not self.done():
                    log.awaited.append((number, timeout))
                    if log.late:
                        raise TimeoutError
                    log.complete(number)
                return super().exception(timeout)

            def result(self, timeout=None):
                log.complete(number)
                return super().result(timeout)

        self.futures.append(Noting())
        self.complete(0)
        return self.futures[-1]

    def complete(self, number):
        for done, future in enumerate(self.futures[: number + 1]):
            if not future.done():
                future.set_result(done)


class ShortPauses(Pauses):
    """On however busy a machine."""

    def are_short(self, batch_seconds):
        return True


IN_TURNS = {"in_threads": True, "pauses": ShortPauses(), "seconds_in_turns": lambda: 1e-3}


def window(submit, **options):
    return Prefetcher(submit, 0, 100, AHEAD, **options)


def submitted_by_takes(count, **options):
    log, found = Log(), []
    taken = window(log.submit, **options)
    for number in range(count):
        assert taken.take() == number
        found.append(len(log.futures))
    return found


def test_the_next_batch_is_asked_for_with_each_that_is_taken():
    assert submitted_by_takes(6) == [4, 5, 6, 7, 8, 9]


def test_in_turns_batches_are_asked_for_when_all_have_been_taken():
    assert submitted_by_takes(6, **IN_TURNS) == [4, 4, 4, 4, 8, 8]


@pytest.mark.parametrize("seconds", [0.0, 2e-3], ids=["no turns are taken", "a turn would take long"])
def test_batches_are_looked_ahead_for_where_turns_gain_nothing(seconds):
    assert submitted_by_takes(6, **{**IN_TURNS, "seconds_in_turns": lambda: seconds}) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("options", "submitted", "awaited"),
    [
        ({}, 5, (2, _SEVERAL_SECONDS)),
        ({"in_threads": True}, 5, (3, _SEVERAL_SECONDS)),
        (IN_TURNS, 4, (3, _MOST_SECONDS)),
    ],
    ids=["processes", "threads", "threads in their turn"],
)
def test_whoever_waits_sleeps_until_several_have_come(options, submitted, awaited):
    log = Log()
    taken = window(log.submit, **options)
    assert [taken.take(), taken.take()] == [0, 1]
    assert (len(log.futures), log.awaited) == (submitted, [awaited])


def test_the_first_batch_is_taken_as_soon_as_it_has_come():
    log = Log()
    log.complete = lambda number: Log.complete(log, number) if len(log.futures) == AHEAD else None
    assert window(log.submit, in_threads=True).take() == 0
    assert log.awaited == []


@pytest.mark.parametrize(("options", "waits"), [({}, 1), (IN_TURNS, 3)], ids=["processes", "threads in their turn"])
def test_where_several_take_long_each_is_waited_for_by_itself_but_in_turns(options, waits):
    log = Log(late=True)
    taken = window(log.submit, **options)
    assert [taken.take() for _ in range(AHEAD)] == list(range(AHEAD))
    assert len(log.awaited) == waits


def test_no_turns_are_taken_by_who_takes_only_what_is_there():
    log = Log()
    taken = window(log.submit, **IN_TURNS)
    assert [taken.take(), taken.take(0)] == [0, 1]
    assert len(log.futures) == AHEAD + 1


def test_a_batch_that_was_given_up_is_an_error_that_says_so():
    log = Log()
    taken = window(log.submit)
    assert taken.take() == 0
    log.futures[1].cancel()
    with pytest.raises(FeedClosedError, match="closed before this batch was loaded"):
        taken.take()


def test_nothing_is_asked_for_behind_a_batch_that_has_failed():
    log = Log()
    taken = window(log.submit)
    assert taken.take() == 0
    log.futures[3].set_exception(HostLostError("no hosts any more"))
    assert [taken.take(), taken.take()] == [1, 2]
    assert len(log.futures) == AHEAD
    with pytest.raises(HostLostError):
        taken.take()
    assert taken.take() == 4  # whoever goes on may


def test_batches_in_flight_are_given_before_what_asking_for_more_raises():
    log = Log()

    def submit(number, timeout):
        if number >= AHEAD:
            raise WorkerStartError("no memory")
        return log.submit(number, timeout)

    taken = window(submit)
    assert [taken.take() for _ in range(AHEAD)] == [0, 1, 2, 3]
    with pytest.raises(WorkerStartError):
        taken.take()
