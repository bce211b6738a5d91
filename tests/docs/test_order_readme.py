"""What the README says of orders is true: its snippet runs, its picture is that of the script, its benchmark counts."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import kerasfeed as kf

SECTION = (ROOT / "README.md").read_text().split("\n## Orders\n")[1].split("\n## ")[0]


class Rooms(kf.SceneSequence):
    """Clouds of 50 to 600 points with one of three labels."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return np.zeros((50 + index * 37 % 550, 3), np.float32), np.int64(index % 10 // 4)


@pytest.mark.heavy
def test_the_snippet_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kf, "labels_of", lambda *given, **named: _labels_of(*given, **named, workers=0))
    names = {"kf": kf, "np": np, "rooms": Rooms()}
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    exec(code, names)
    with names["feed"] as feed:
        classes = np.bincount(names["labels"][feed.plan.order.indices(0, 200, length=200, seed=0, epoch=0)])
        assert np.ptp(classes) <= 1
    assert Path("labels.npz").is_file()
    printed = capsys.readouterr().out
    assert re.search(r"padding \(full shuffle in batches of 32: \d", printed)
    assert "reads per epoch 4 (full shuffle" in printed
    assert sorted(names["short_ones"](200, 0, 0)) == sorted(np.argsort(names["lengths"])[:100])


_labels_of = kf.labels_of


def test_every_order_of_the_table_is_public_and_in_the_picture():
    named = set(re.findall(r"`kf\.([A-Z]\w+)", SECTION))
    assert named == {"Sequential", "Shuffled", "BlockShuffled", "Weighted", "Balanced", "Bucketed"}
    assert (ROOT / "notebooks/images/orders.png").stat().st_size < 60_000
    script = (ROOT / "notebooks/draw_orders.py").read_text()
    assert all(f"kf.{name}(" in script for name in named)


ORDERS = [kf.Sequential, kf.Shuffled, kf.BlockShuffled, kf.Weighted, kf.Balanced, kf.Bucketed]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_a_docstring_tells_how_to_draw_the_order_and_the_call_draws_it(order):
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    (call,) = re.findall(r"`(kf\.show\(.*\))`", order.__doc__)
    numbers = np.arange(1, 101)
    names = {"kf": kf, "weights": numbers, "labels": numbers % 3, "lengths": numbers, "boundaries": [30, 60]}
    assert f"kf.{order.__name__}(" in call
    assert type(eval(call, names)).__name__ == "Picture"


@pytest.mark.heavy
def test_the_picture_is_drawn_by_its_script(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    spec = importlib.util.spec_from_file_location("draw_orders", ROOT / "notebooks/draw_orders.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(script, "__file__", str(tmp_path / "draw_orders.py"))
    script.main()
    assert (tmp_path / "images/orders.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_the_benchmark_counts_one_read_for_each_scene_delivered(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.resample import measure

    row = measure("kf.Balanced", count=3000, deliver=9999, seconds=10.0)
    _, peer, scenes, read, _, shares, _, _ = (cell.strip() for cell in row.split("|"))
    assert (peer, scenes, read) == ("kf.Balanced", "3,000", "1.00")
    assert shares == "33.3% / 33.3% / 33.3%"
