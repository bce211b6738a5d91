"""`kf.profile`: the speed of a feed's workers and of others."""

import json
import re
import time

import h5py
import numpy as np
import pytest
import scenes_costs

import kerasfeed as kf
from kerasfeed.explore.profile.result import Profile, SetupRate
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders.auto_workers import Setup

ONE = SetupRate(Setup(1, "process"), 95.0, 100.0)
FOUR = SetupRate(Setup(4, "process"), 380.0, 400.0)
NONE = SetupRate(Setup(0, "inline"), 90.0, 99.0)


@pytest.fixture(scope="module")
def waiting():
    with BaseFeed(scenes_costs.Waits(), 8, shuffle=True, seed=0, workers=1, worker_type="thread") as feed:
        before = feed.get_state()
        for _ in range(8):  # measurements on a busy machine are sometimes wrong
            found = kf.profile(feed, seconds=1.5)
            if found.waiting_seconds > 0.8 * found.scene_seconds and found.recommended:
                break
        assert feed.get_state() == before
        assert feed.stats().batches == 0
        yield found


@pytest.mark.heavy
def test_profile_recommends_many_threads_for_waiting_scenes(waiting):
    assert waiting.waiting_seconds > 0.8 * waiting.scene_seconds
    assert waiting.recommended.setup.workers > 2
    assert waiting.recommended.least > 2 * waiting.present.most
    assert len(waiting.alternatives) == 3
    assert waiting.verdict.startswith("1 thread loads")
    assert "and waits for" in waiting.verdict


@pytest.mark.heavy
def test_a_profile_converts_to_text_a_picture_and_numbers(waiting):
    text, picture = str(waiting), waiting._repr_html_()
    assert text.startswith("Waits: 1 thread load")
    for each in waiting.alternatives:
        assert each.change in text
    assert picture.count("background-color") == 1 + len(waiting.alternatives)
    assert picture.count("<div") == picture.count("</div>")
    found = json.loads(json.dumps(waiting.to_dict()))
    assert found["verdict"] == waiting.verdict
    assert found["waiting_seconds"] > 0
    assert found["alternatives"][0]["most"] == waiting.alternatives[0].most


def _profile(present, *alternatives, name="Rooms"):
    return Profile(name, present, 10e-3, 9e-3, alternatives)


def test_the_picture_escapes_user_text():
    assert "<Rooms>" not in _profile(ONE, FOUR, name="<Rooms>")._repr_html_()


def test_no_bar_is_longer_than_its_picture():
    found = _profile(SetupRate(Setup(2, "process"), 9e5, 1e6), FOUR)
    assert max(map(len, str(found).splitlines())) < 160
    widths = [float(width) for width in re.findall(r"width:([0-9.]+)px", found._repr_html_())]
    assert max(widths) <= 160


def test_the_verdict_names_the_bottleneck_and_a_faster_setup():
    assert _profile(ONE, FOUR).verdict == (
        "1 worker process loads 100 scenes/s; a scene takes 10 ms and waits for 9.0 ms of it; "
        "4 worker processes load 400"
    )
    assert _profile(ONE).verdict.endswith("no alternative is surely faster")
    assert _profile(FOUR).verdict.startswith("4 worker processes load 400 scenes/s; ")


def test_only_a_setup_that_is_surely_faster_is_recommended():
    assert _profile(ONE, NONE, FOUR).recommended is FOUR
    assert _profile(ONE, NONE).recommended is None
    assert _profile(ONE, SetupRate(Setup(2, "process"), 99.0, 250.0)).recommended is None
    assert _profile(SetupRate(Setup(1, "process"), 100.0, 500.0), FOUR).recommended is None


def test_a_range_is_shown_if_runs_scatter():
    found = _profile(SetupRate(Setup(2, "process"), 60.0, 100.0), FOUR)
    for shown in (str(found), found._repr_html_()):
        assert "60 to 100" in shown
        assert "runs of one set-up differ" in shown
    assert "scatter" not in str(_profile(ONE, FOUR))


def test_profile_refuses_other_objects_and_invalid_seconds():
    with pytest.raises(TypeError, match=r"needs a kerasfeed.Feed, received a list"):
        kf.profile([1, 2, 3])
    with BaseFeed(scenes_costs.Waits(), 8, workers=0) as feed:
        for seconds in (0, "1", float("inf"), True):
            with pytest.raises((TypeError, ValueError), match="seconds must be a number of at least 1"):
                kf.profile(feed, seconds=seconds)


def test_the_error_for_raising_scenes_names_a_remedy():
    with (
        BaseFeed(scenes_costs.Fails(), 200, workers=0) as feed,
        pytest.raises(RuntimeError, match="a scene raised while the feed was profiled: loop over the feed"),
    ):
        kf.profile(feed, seconds=1)
    assert len(feed.failures) == 0


@pytest.mark.heavy
def test_profile_does_not_change_the_sequence_of_the_user(tmp_path, few_processes):
    path = str(tmp_path / "lazy.h5")
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)

    class Lazy:
        """Opens its file at the first read, like many classes."""

        file = None

        def __len__(self):
            return 64

        def __getitem__(self, index):
            if self.file is None:
                self.file = h5py.File(path)
            return np.full(3, index)

    scenes, method = Lazy(), Lazy.__getitem__
    for workers in ({"workers": 1, "worker_type": "process"}, {}):
        with BaseFeed(scenes, 8, **workers) as feed:
            found = kf.profile(feed, seconds=1)
        assert scenes.file is None
        assert Lazy.__getitem__ is method
    assert {each.setup.worker_type for each in (found.present, *found.alternatives)} > {"process"}


class FailsNowAndThen(scenes_costs.Costly):
    def scene(self, index):
        time.sleep(0.001)
        if index % 8 == 3:
            raise OSError(f"{index}.npy is cut off")
        return super().scene(index)


@pytest.mark.heavy
@pytest.mark.parametrize("on_error", ["skip", "replace", "mask"])
def test_profile_leaves_out_failed_scenes_without_counting_or_logging_them(on_error, tmp_path, few_processes):
    log = tmp_path / "errors.jsonl"
    options = {"workers": 1, "worker_type": "thread", "on_error": on_error, "max_failures": 3, "error_log": log}
    with BaseFeed(FailsNowAndThen(), 8, shuffle=True, seed=0, **options) as feed:
        found = kf.profile(feed, seconds=1)
        assert found.present.least > 0
        assert any(each.setup.worker_type == "process" for each in found.alternatives)
        assert len(feed.failures) == 0
    assert not log.exists()
