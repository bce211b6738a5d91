"""The calling thread loads scenes in memory, unless the user requests worker threads."""

import threading
import time

import numpy as np
import pytest
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.batches.row_loader import RowLoader

ARRAY = np.arange(256 * 64.0).reshape(256, 64)
SCENES = [(index, row) for index, row in enumerate(ARRAY)]


@pytest.fixture
def loaders(monkeypatch):
    """The threads of this process that load rows."""
    found, fill = set(), RowLoader.fill

    def recording(row_loader, *args):
        found.add(threading.get_ident())
        return fill(row_loader, *args)

    monkeypatch.setattr(RowLoader, "fill", recording)
    return found


@pytest.mark.parametrize("sequence", [ARRAY, SCENES, tuple(SCENES)], ids=["array", "list", "tuple"])
def test_the_calling_thread_loads_scenes_in_memory(sequence, loaders):
    with kf.Feed(sequence, 32) as feed:
        assert len(list(feed)) == 8
    assert loaders == {threading.get_ident()}


def test_requested_worker_threads_load_scenes_in_memory(loaders):
    with kf.Feed(SCENES, 32, shuffle=True, seed=3, workers=2, worker_type="thread") as feed:
        found = [batch[0].tolist() for batch in feed]
    assert threading.get_ident() not in loaders
    with kf.Feed(SCENES, 32, shuffle=True, seed=3) as feed:
        assert found == [batch[0].tolist() for batch in feed]


@pytest.mark.parametrize(
    ("sequence", "options"),
    [
        (SCENES, {"worker_type": "thread"}),
        (SCENES, {"timeout": 60.0}),
        ([np.zeros(1 << 16)] * 4, {}),
        (np.memmap, {}),
    ],
    ids=["a type of workers", "a timeout", "large scenes", "memmap"],
)
def test_large_scenes_memmaps_and_explicit_options_use_a_worker(sequence, options, loaders, tmp_path):
    if sequence is np.memmap:
        np.save(tmp_path / "a.npy", ARRAY)
        sequence = np.load(tmp_path / "a.npy", mmap_mode="r")
    with kf.Feed(sequence, 32, **options) as feed:
        assert len(list(feed)) == -(-len(sequence) // 32)
    assert threading.get_ident() not in loaders


class Rooms(kf.SceneSequence):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.0001)
        return SCENES[index]


class Rows(list):
    def __getitem__(self, index):
        time.sleep(0.0001)
        return super().__getitem__(index)


def stacked(scenes):
    time.sleep(0.001)
    return np.vstack(scenes)


@pytest.mark.parametrize(
    ("sequence", "options"),
    [(Rooms(), {}), (Rows(SCENES), {}), (list(ARRAY), {"collate": stacked})],
    ids=["class", "subclass of list", "collate function"],
)
def test_workers_run_user_code_if_a_batch_takes_a_millisecond(sequence, options, loaders):
    with kf.Feed(sequence, 32, **options) as feed:
        assert len(list(feed)) == 8
    assert threading.get_ident() not in loaders


def test_a_feed_can_be_closed_while_another_thread_loads_a_batch(loaders):
    for _ in range(60):
        feed, ended = kf.Feed(ARRAY, 8), []

        def consume(feed=feed, ended=ended):
            try:
                while True:
                    for _ in feed:
                        pass
            except FeedClosedError as error:
                ended.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        wait_until(lambda: consumer.ident in loaders)  # noqa: B023 - called at once
        feed.close()
        consumer.join(SECONDS)
        assert not consumer.is_alive()
        assert ended
