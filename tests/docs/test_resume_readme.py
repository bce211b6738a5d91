"""What the README's section on exact resume says, run as it stands there."""

import re

import keras
import pytest
from keras_fits import MARKS
from places import README
from resumable import chain_of, make_model, result_of, stream
from scenes_frameworks import Numbered

import kerasfeed as kf

pytestmark = MARKS


def snippets():
    section = README.read_text().split("\n## Exact resume\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_loop_goes_on_where_it_stood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _ = snippets()
    first, second = code.split("\n\n")
    seen = []
    with kf.Feed(Numbered(24), 6, shuffle=True, seed=0, workers=0) as feed:
        # Three batches, and then the process ends.
        three = [batch for _, batch in zip(range(3), feed, strict=False)]
        exec("import json\nfrom pathlib import Path\n" + first, {"feed": _Fed(feed, three)})
    with kf.Feed(Numbered(24), 6, shuffle=True, seed=0, workers=0) as feed:
        loop = second.replace("    ...", "    seen.append(batch)")
        exec("import json\nfrom pathlib import Path\n" + loop, {"feed": feed, "seen": seen})
        expected = list(feed.epoch(0))[3:]
    assert [labels.tolist() for _, labels in seen] == [labels.tolist() for _, labels in expected]


class _Fed:
    """A feed whose loop ends early."""

    def __init__(self, feed, batches):
        self.feed = feed
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def get_state(self):
        return self.feed.get_state()


@pytest.mark.heavy
@pytest.mark.parametrize("killed", [False, True])
def test_the_script_ends_as_if_it_had_not_been_killed(killed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = snippets()[1].replace("save_freq=100", "save_freq=4")
    model = make_model()
    names = {"Rooms": lambda _: Numbered(96), "kf": kf, "keras": keras, "model": model}
    if killed:
        monkeypatch.setattr(keras.Model, "reset_metrics", _dies_in_epoch_5(keras.Model.reset_metrics))
        with pytest.raises(SystemError):
            exec(code, dict(names))
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        names["model"] = model = make_model()
    exec(code, names)
    with names["feed"] as feed:
        assert result_of(model) == (chain_of(stream(feed, 30)), 30)


def _dies_in_epoch_5(original):
    calls = []

    def reset(model):
        calls.append(model)
        if len(calls) == 6:
            raise SystemError
        original(model)

    return reset
