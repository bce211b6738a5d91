"""The promises of every reader of files in `reader_kinds.READERS`."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from reader_kinds import READERS

import kerasfeed as kf

SCENES = [(np.full(3, 0.5 + index, np.float32), np.int64(10 * index)) for index in range(12)]


def as_lists(scene):
    return [np.asarray(field).tolist() for field in scene]


EXPECTED = [as_lists(scene) for scene in SCENES]


@pytest.fixture(params=READERS)
def sequence(request, tmp_path):
    return READERS[request.param](tmp_path, SCENES)


def test_a_reader_returns_the_written_length_scenes_and_dtypes(sequence):
    assert len(sequence) == 12
    assert [as_lists(sequence[index]) for index in range(12)] == EXPECTED
    x, y = sequence[3]
    assert (np.asarray(x).dtype, np.asarray(x).shape, np.asarray(y).dtype) == (np.float32, (3,), np.int64)


def test_scenes_do_not_depend_on_read_order_or_index_type(sequence):
    for index in (11, 0, np.int32(7), np.uint64(7), 0):
        assert as_lists(sequence[index]) == EXPECTED[int(index)]


def test_the_caller_owns_each_scene(sequence):
    x = np.asarray(sequence[5][0])
    if x.flags.writeable:
        x[:] = -1
    assert as_lists(sequence[5]) == EXPECTED[5]


@pytest.mark.parametrize("index", [12, 1000, -13])
def test_an_index_out_of_range_raises_index_error(sequence, index):
    with pytest.raises(IndexError):
        sequence[index]


def test_a_pickled_copy_of_an_open_or_closed_reader_reads_the_same(sequence):
    closed = pickle.loads(pickle.dumps(sequence))
    assert as_lists(closed[4]) == EXPECTED[4]
    assert as_lists(pickle.loads(pickle.dumps(closed))[9]) == EXPECTED[9]


def test_several_threads_may_read_at_once(sequence):
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda index: as_lists(sequence[index % 12]), range(120))) == EXPECTED * 10


def test_get_batch_returns_the_scenes(sequence):
    if not hasattr(sequence, "get_batch"):
        return
    found = sequence.get_batch(np.array([7, 0, 7, 11]))
    assert [as_lists(scene) for scene in zip(*found, strict=True)] == [EXPECTED[index] for index in (7, 0, 7, 11)]


@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (1, "process")])
def test_feeds_with_any_workers_deliver_the_scenes(sequence, workers, kind):
    with kf.Feed(sequence, 5, workers=workers, worker_type=kind) as feed:
        found = [as_lists(scene) for batch in feed for scene in zip(*batch, strict=True)]
    assert found == EXPECTED


def test_views_and_slices_read_the_scenes(sequence):
    assert [as_lists(scene) for scene in kf.Subset(sequence, [3, 1])] == [EXPECTED[3], EXPECTED[1]]
    assert as_lists(kf.Concat(sequence, sequence)[15]) == EXPECTED[3]


@pytest.mark.parametrize("name", READERS)
def test_the_error_for_a_removed_file_names_it(name, tmp_path):
    sequence = READERS[name](tmp_path, SCENES)
    fresh = pickle.dumps(sequence)
    del sequence
    removed = [path for path in tmp_path.iterdir() if path.is_file()]
    for path in removed:
        path.unlink()
    with pytest.raises(OSError) as caught:
        _ = [pickle.loads(fresh)[index] for index in range(12)]
    assert any(path.name in str(caught.value) for path in removed)
