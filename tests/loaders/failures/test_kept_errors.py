"""Kept exceptions, with the frames of their tracebacks, do not hold the memory of the next batches."""

import gc

import numpy as np
import pytest
from waits import SECONDS

import kerasfeed as kf

WORKERS = {"inline": (0, "thread"), "thread": (2, "thread"), "process": (2, "process")}
BAD = (11, 12, 13, 16, 17, 18)


class Failing(kf.SceneSequence):
    """Scenes float64[4096]; scenes of the steps `BAD`, which are not read first, raise or differ in shape."""

    def __init__(self, raises):
        self.raises = raises

    def __len__(self):
        return 80

    def __getitem__(self, index):
        if index // 4 not in BAD:
            return np.full(4096, float(index))
        if self.raises:
            raise ValueError(f"scene {index} cannot be read")
        return np.full(100 + index % 2, float(index))


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "misfits"])
@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.filterwarnings("ignore:the consumer keeps so many batches:kerasfeed.FeedWarning")
def test_kept_exceptions_do_not_hold_memory_of_batches(no_collector, kind, raises):
    workers, worker_type = WORKERS[kind]
    kept = []
    with kf.Feed(Failing(raises), 4, workers=workers, worker_type=worker_type, max_memory=1_200_000) as feed:
        for step in BAD * 3:
            with pytest.raises(ValueError, match="scene") as caught:
                feed[step]
            kept.append(caught.value)
        for _ in range(3):
            for step in range(10):
                assert feed[step][:, 0].tolist() == [4.0 * step + row for row in range(4)]
        stats = feed.stats()
        assert stats.slots * stats.slot_bytes <= 1_200_000
    assert raises is False or stats.copied == 0
