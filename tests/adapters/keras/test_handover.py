"""`Handover`: batches that the trainer's thread takes and TensorFlow's threads receive."""

from types import SimpleNamespace

import pytest

from kerasfeed.adapters.keras.run import Handover
from kerasfeed.feeds.cursor import EndOfData, RequestLog
from kerasfeed.util.polling import NotYet


class Batches:
    """Yields batches 0, 1, ... before `stop`; raises at `bad`; batches from `late` on are not ready immediately."""

    def __init__(self, stop, *, bad=-1, late=99):
        self.stop, self.bad, self.late, self.taken = stop, bad, late, 0

    def take(self, timeout):
        number = self.taken
        if number == self.stop:
            raise EndOfData
        if number >= self.late and timeout == 0:
            raise NotYet
        self.taken += 1
        if number == self.bad:
            raise ValueError(f"batch {number}")
        return number, number


def handover(batches, convert=lambda batch: batch, *, shared=False):
    run = SimpleNamespace(
        convert=convert, in_other_threads=shared, seen_at_begin=0, feed=SimpleNamespace(request_log=RequestLog())
    )
    return Handover(run, batches)


def test_a_shared_handover_takes_one_more_batch_if_ready():
    batches = Batches(5, late=2)
    cursor = handover(batches, lambda batch: -batch, shared=True)
    with pytest.raises(NotYet):
        cursor.take(0.01)
    assert batches.taken == 0
    assert cursor.ensure(1)
    assert batches.taken == 2  # one ahead
    assert cursor.ensure(2)
    assert batches.taken == 2  # the third is not ready
    assert [cursor.take(1) for _ in range(2)] == [(0, 0), (1, -1)]
    with pytest.raises(NotYet):
        cursor.take(0.01)


def test_an_error_of_a_prefetched_batch_is_raised_in_its_turn():
    cursor = handover(Batches(5, bad=1), shared=True)
    assert cursor.ensure(1)
    assert cursor.take(1) == (0, 0)
    with pytest.raises(ValueError, match="batch 1"):
        cursor.ensure(2)


@pytest.mark.parametrize("late", [0, 99])
def test_consumer_sees_end_of_data_without_delay(late):
    cursor = handover(Batches(2, late=late), shared=True)
    assert cursor.ensure(2, last=True)
    assert [cursor.take(1) for _ in range(2)] == [(0, 0), (1, 1)]
    for _ in range(2):
        with pytest.raises(EndOfData):
            cursor.take(1)
    assert not cursor.ensure(3)


def test_an_unshared_handover_is_taken_from_without_waiting():
    cursor = handover(Batches(2))
    assert cursor.ensure(1)
    assert [cursor.take(None) for _ in range(2)] == [(0, 0), (1, 1)]
    with pytest.raises(EndOfData):
        cursor.take(None)


def test_a_closed_handover_takes_no_batches():
    batches = Batches(2)
    cursor = handover(batches)
    cursor.close()
    cursor.close()
    with pytest.raises(EndOfData):
        cursor.take(None)
    assert not cursor.ensure(1)
    assert batches.taken == 0
