"""The scenes that `kf.describe` reads, and its errors."""

import numpy as np
import pytest
import scenes
from described_scenes import described

import kerasfeed as kf


@pytest.mark.parametrize("choice", [10, [0, 5, -1], slice(3, 30), np.arange(37) % 9 == 0])
def test_the_scenes_that_are_chosen_are_read(choice):
    found = described(scenes.Clouds(37), choice)
    spread = np.unique(np.linspace(0, 36, 10).round().astype(int))
    expected = spread if isinstance(choice, int) else np.arange(37)[choice]
    assert sorted(found["1"].classes) == sorted(expected.tolist())
    assert (found.scenes, found.length) == (len(expected), 37)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (True, TypeError, "scenes must be a number of scenes, or indices, received True"),
        (0.5, TypeError, "scenes must be a number"),
        (0, ValueError, "scenes must be"),
        ([], ValueError, "scenes selects no scene"),
        ([40], IndexError, "40"),
    ],
)
def test_a_wrong_choice_of_scenes_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        described(scenes.Clouds(37), given)


def test_the_error_for_a_feed_suggests_its_sequence():
    with kf.Feed(scenes.Clouds(), 4, workers=0) as feed, pytest.raises(TypeError, match=r"pass feed\.sequence"):
        kf.describe(feed)
