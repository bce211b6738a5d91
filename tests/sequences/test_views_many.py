"""Views of very many sequences, and views of views of views."""

import itertools
import threading
import time

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.sequences.turn import Turn


class Rooms(kf.SceneSequence):
    def __init__(self, first=0):
        self.first = first

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.float32(self.first + index)


@pytest.mark.parametrize(
    "view", [lambda parts: kf.Concat(parts), lambda parts: kf.Zip(*parts), lambda parts: kf.Mixture(parts, [1] * 1200)]
)
def test_a_view_of_1200_sequences_is_read_in_the_calling_thread(view):
    sequence = view([Rooms(3 * number) for number in range(1200)])
    with BaseFeed(sequence, 2, workers=0) as feed:
        batch = feed.submit(0, 0).result()
    scenes = list(sequence[:2])
    if isinstance(batch, tuple):
        assert [list(column) for column in zip(*scenes, strict=True)] == [field.tolist() for field in batch]
    else:
        assert batch.tolist() == scenes
        assert kf.describe(sequence[:2], workers=0, progress=False)["scene"].max == max(scenes)


def test_nested_maps_and_nested_subsets_become_one_view():
    mapped = subset = numbers = np.arange(1000)
    for _ in range(400):
        mapped = kf.Map(mapped, lambda scene: scene + 1)
        subset = kf.Subset(subset, range(len(subset) - 1, -1, -1))
    assert mapped.sequence is numbers
    assert subset.sequence is numbers
    assert mapped[7] == 407
    assert subset[7] == 7
    with BaseFeed(kf.Zip(mapped, subset), 4, workers=0) as feed:
        assert [field.tolist() for field in feed[2]] == [[408, 409, 410, 411], [8, 9, 10, 11]]


PICKS = [
    slice(2, 9), slice(8, None, -3), slice(5, 5), slice(None, None, -1), [4, 4, 0], range(3, 0, -1), range(1, 5, 2),
    lambda count: np.arange(count) % 2 == 0,
]  # fmt: skip


@pytest.mark.parametrize(("inner", "outer"), list(itertools.product(PICKS, repeat=2)))
def test_a_subset_of_a_subset_has_the_scenes_of_both(inner, outer):
    plain = list(range(20))

    def chosen(picks, values):
        picks = picks(len(values)) if callable(picks) else picks
        if isinstance(picks, list | range):
            picks = [index for index in picks if index < len(values)]
        return picks, np.array(values, int)[picks].tolist()

    picks, first = chosen(inner, plain)
    again, expected = chosen(outer, first)
    found = kf.Subset(kf.Subset(plain, picks), again)
    assert list(found) == expected
    assert found.sequence is plain


def test_functions_of_nested_maps_draw_in_order_and_are_named_in_errors():
    def draw(scene, rng):
        return scene, rng.random()

    def draw_again(scene, rng):
        return (*scene, rng.random())

    def fail(scene):
        raise ValueError("bad")

    with BaseFeed(kf.Map(kf.Map(range(3), draw), draw_again), 3, seed=0, workers=0) as feed:
        _, first, second = feed[0]
    assert (first != second).all()
    with pytest.raises(ValueError, match="bad") as caught:
        kf.Map(kf.Map([1], float), fail)[0]
    assert caught.value.__notes__[0].endswith("fail, given scene 0 of Map")


def test_more_scenes_than_len_can_return_are_refused():
    half = range(1 << 62)
    with pytest.raises(ValueError, match=r"kf.Concat would have 9,223,372,036,854,775,808 scenes, but"):
        kf.Concat(half, half)


def test_overlapping_turns_are_exclusive_and_end_with_an_interrupt():
    rooms = [Rooms() for _ in range(3)]
    turns = [Turn(*pair) for pair in itertools.combinations(rooms, 2)]
    running, most = [], []

    def call():
        running.append(1)
        most.append(len(running))
        time.sleep(0.001)
        running.pop()

    threads = [threading.Thread(target=lambda turn=turn: [turn.run(call) for _ in range(10)]) for turn in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 30

    def interrupted():
        assert turns[0].is_mine
        assert turns[1].run(lambda: turns[0].run(lambda: 5)) == 5  # a turn within another turn
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns[0].run(interrupted)
    assert not turns[0].is_mine
    done = threading.Thread(target=turns[2].run, args=(lambda: None,))
    done.start()
    done.join(10)
    assert not done.is_alive()
