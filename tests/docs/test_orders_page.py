"""The parts of `docs/understand/orders.md` besides its program: table, picture, and the benchmark of balancing."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import kerasfeed as kf

PAGE = ROOT / "docs/understand/orders.md"
ORDERS = [kf.Sequential, kf.Shuffled, kf.BlockShuffled, kf.Weighted, kf.Balanced, kf.Bucketed]


def test_every_order_of_the_table_is_public_and_in_the_picture():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    named = {name for row in rows for name in re.findall(r"`kf\.([A-Z]\w+)", row)}
    assert named == {order.__name__ for order in ORDERS}
    assert all(hasattr(kf, name) for name in named)
    assert (ROOT / "docs/images/orders.png").stat().st_size < 60_000
    assert "(../images/orders.png)" in PAGE.read_text()
    script = (ROOT / "docs/images/draw_orders.py").read_text()
    assert all(f"kf.{name}(" in script for name in named)


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
    spec = importlib.util.spec_from_file_location("draw_orders", ROOT / "docs/images/draw_orders.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert ROOT / "docs/images" == script.FOLDER
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.main()
    assert (tmp_path / "orders.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_the_benchmark_counts_one_read_for_each_scene_delivered(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.resample import measure

    row = measure("kf.Balanced", count=3000, deliver=9999, seconds=10.0)
    _, peer, scenes, read, _, shares, _, _ = (cell.strip() for cell in row.split("|"))
    assert (peer, scenes, read) == ("kf.Balanced", "3,000", "1.00")
    assert shares == "33.3% / 33.3% / 33.3%"
