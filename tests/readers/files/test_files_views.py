"""Views of files of many scenes: their blocks, padded batches, and exact resume."""

import itertools

import numpy as np
import pytest
from files_written import COUNTS, Noting, write_files

import kerasfeed as kf


@pytest.fixture
def paths(tmp_path):
    return write_files(tmp_path)


def views_of(files):
    return {
        "a slice": files[5:30],
        "a split": kf.split(files, (0.8, 0.2), seed=0)[0],
        "two after another": kf.Concat(files[:20], files[20:]),
        "side by side with an array": kf.Map(kf.Zip(files, np.arange(34)), lambda scene: scene[0]),
        "kept": kf.Cached(files),
    }


@pytest.mark.parametrize("name", views_of(range(34)))
def test_views_of_files_keep_files_as_blocks(paths, tmp_path, name):
    view = views_of(kf.FileSequence(paths, Noting(tmp_path / "log"), COUNTS))[name]
    scenes = [int(y) for _, y in view]
    order = kf.BlockShuffled(view, window=1)
    with kf.Feed(view, 4, order=order, seed=1, workers=0) as feed:
        found = [int(y) for _, ys in feed for y in ys]
    assert sorted(found) == sorted(scenes)
    changes = sum(one // 100 != other // 100 for one, other in itertools.pairwise(found))
    assert changes == order.reads_per_epoch(len(view)) - 1 <= 5


def test_views_of_blocks_name_each_block_if_blocks_are_split():
    class Blocks(kf.SceneSequence):
        block_size = 4

        def __len__(self):
            return 10

        def __getitem__(self, index):
            return index

    class Named(Blocks):
        block_size = None

        def block_of(self, index):
            return "ab"[index % 2]

    blocks = Blocks()
    assert blocks[2:].block_of.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert kf.Concat(blocks, blocks[::3]).block_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 5]
    assert Named()[::-3].block_of.tolist() == ["b", "a", "b", "a"]
    for view in (blocks[4:], kf.Concat(blocks, range(3)), kf.Zip(Named(), Named()), kf.Map(range(3), str)):
        assert not hasattr(view, "block_of")


def test_block_of_accepts_a_sequence_of_files(paths):
    files = kf.FileSequence(paths, np.load)
    assert kf.BlockShuffled(block_of=files) == kf.BlockShuffled(files) == kf.BlockShuffled(block_of=files.block_of)


def test_padded_scenes_of_files_resume_exactly(paths):
    def long(path):
        return [(np.arange(y % 5 + 1, dtype=np.float32), int(y)) for y in np.load(path)["y"]]

    def made(**workers):
        files = kf.FileSequence(paths, long)[3:]
        return kf.Feed(
            files, 4, order=kf.BlockShuffled(files, window=2), seed=3, collate="pad", pad_remainder=True, **workers
        )

    with made(workers=0) as feed:
        whole = [[field.tolist() for field in batch] for batch in feed]
    with made(workers=1, worker_type="process") as feed:
        for _ in zip(range(3), feed, strict=False):
            pass
        state = feed.get_state()
    with made(workers=2, worker_type="thread") as feed:
        feed.set_state(state)
        rest = [[field.tolist() for field in batch] for batch in feed]
    assert state["step"] == 3
    assert rest == whole[3:]
    rows, ys, _ = whole[0]
    assert rows == [[*range(y % 5 + 1)] + [0] * (len(row) - y % 5 - 1) for row, y in zip(rows, ys, strict=True)]
