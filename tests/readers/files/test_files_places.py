"""Which file and row stand at an index: against a plain model, and against tf.data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasfeed.readers.files.sequence import places_of

COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=9)


def interleaved(counts, cycle):
    """k places go round; an ended file leaves its place empty for the round in which that is found."""
    waiting = iter(range(len(counts)))
    places = [None] * cycle
    given, idle = [], 0
    place = -1
    while idle <= cycle:
        place = (place + 1) % cycle
        if places[place] is None:
            file = next(waiting, None)
            places[place] = None if file is None else (file, iter(range(counts[file])))
        row = None if places[place] is None else next(places[place][1], None)
        idle = 0 if places[place] is not None else idle + 1
        if row is not None:
            given.append((places[place][0], row))
        else:
            places[place] = None
    return given


def located(counts, interleave):
    places = places_of(np.array(counts, np.int64), interleave)
    return [places.locate(index) for index in range(places.length)], places


@given(COUNTS, st.integers(1, 5))
@settings(deadline=None)
def test_indices_go_round_the_files_as_the_plain_model_does(counts, interleave):
    found, places = located(counts, interleave)
    assert found == interleaved(counts, interleave)
    assert places.file_of.tolist() == [file for file, _ in found]


@given(COUNTS)
def test_without_turns_one_file_comes_after_the_other(counts):
    assert located(counts, 1)[0] == [(file, row) for file, count in enumerate(counts) for row in range(count)]


@pytest.mark.parametrize("interleave", [2, 3, 7])
@pytest.mark.parametrize("counts", [(3, 1, 0, 5, 2, 2), (4, 4, 4), (0, 0, 1, 0, 3), (1, 9, 1, 1)], ids=str)
def test_turns_are_those_of_tf_data_interleave(counts, interleave):
    import tensorflow as tf

    def rows_of(file):
        return tf.data.Dataset.range(tf.gather(tf.constant(counts, tf.int64), file)).map(lambda row: (file, row))

    theirs = tf.data.Dataset.range(len(counts)).interleave(rows_of, cycle_length=interleave, block_length=1)
    assert located(counts, interleave)[0] == [(int(file), int(row)) for file, row in theirs.as_numpy_iterator()]


def test_many_files_take_little_room_and_no_time_that_grows_with_their_scenes():
    places = places_of(np.full(1000, 10**9), 8)
    assert places.length == 10**12
    assert places.locate(10**12 - 1) == (999, 10**9 - 1)
    assert len(places.files) < 10_000
