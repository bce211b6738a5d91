"""When batches are asked for ahead of a consumer, and how many of them it waits for at once."""

from concurrent.futures import Future

import pytest

from kerasfeed.feeds.prefetch import Pauses, Prefetcher

AHEAD = 4


class Log:
    """Futures of the numbers that were submitted; which of them were waited for, and were done then with those before.

    The first is done at once.
    """

    def __init__(self):
        self.futures, self.awaited = [], []

    def submit(self, number, timeout):
        log = self

        class Noting(Future):
            def exception(self, timeout=None):
                if not self.done():
                    log.awaited.append(number)
                    log.complete(number)
                return super().exception(timeout)

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
    [({}, 5, 2), ({"in_threads": True}, 5, 3), (IN_TURNS, 4, 3)],
    ids=["processes", "threads", "threads in their turn"],
)
def test_whoever_waits_sleeps_until_several_have_come(options, submitted, awaited):
    log = Log()
    taken = window(log.submit, **options)
    assert taken.take() == 0
    assert taken.take() == 1
    assert (len(log.futures), log.awaited) == (submitted, [awaited])
