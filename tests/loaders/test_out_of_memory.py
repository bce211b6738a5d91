"""Workers that the kernel's out-of-memory killer ends."""

import os
from pathlib import Path

import numpy as np
import pytest
import scenes
from faulty_feeds import bits, reference

import kerasfeed as kf


@pytest.fixture
def small_group():
    """A new control group of 64 MB of memory."""
    roots = (Path("/sys/fs/cgroup"), "memory.max"), (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
    for root, limit in roots:
        group = root / f"kerasfeed-test-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(64 << 20))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group can be made here")


class Greedy(scenes.Clouds):
    """Clouds; one takes more memory than its control group has, always or once."""

    def __init__(self, group, folder, times):
        super().__init__()
        self.group, self.folder, self.times = group, folder, times

    def __getitem__(self, index):
        if index == 7 and (self.times is None or not (self.folder / "greedy").exists()):
            (self.folder / "greedy").touch()
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
            np.ones(1 << 26)
        return super().__getitem__(index)


@pytest.mark.heavy
def test_a_worker_that_the_kernel_kills_for_memory_is_replaced(feed_of, small_group, tmp_path):
    feed = feed_of(Greedy(small_group, tmp_path, 1))
    with pytest.warns(kf.FeedWarning, match="was killed by SIGKILL while it loaded scene 7"):
        assert bits(feed.epoch(0)) == reference(scenes.Clouds())
    feed = feed_of(Greedy(small_group, tmp_path, None))
    with pytest.raises(kf.errors.WorkerDiedError, match=r"scene 7 .*SIGKILL often means that the memory is full"):
        list(feed.epoch(0))
