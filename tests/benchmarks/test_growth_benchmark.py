"""The benchmark of growth measures, judges by laws, and writes its table."""

import pytest

pytest.importorskip("psutil", reason="needs the extra `bench`")

from benchmarks import growth
from benchmarks.growth import BEGIN, END, ROWS, Growth, verdict


def test_the_smallest_sizes_produce_a_table_with_costs_and_verdicts(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "ROUNDS", 1)
    monkeypatch.setattr(growth, "ROUND_SECONDS", 0.0)
    page = tmp_path / "page.md"
    page.write_text(f"# Growth\n\n{BEGIN}\n{END}\n")
    rows = "scenes*,batch,fields,bytes,depth,parts*,files,feeds"
    assert growth.main(["--rows", rows, "--smallest", "1", "--markdown", str(page)]) == 0
    text = page.read_text()
    assert [ROWS[name].title in text for name in ROWS].count(True) == 10
    assert text.count("| holds |") == 10


@pytest.mark.parametrize(
    ("law", "costs", "words"),
    [
        ("constant", [1.0, 1.9, 1.5], "holds"),
        ("constant", [1.0, 1.0, 3.0], "3 times the law from 10 to 100"),
        ("linear", [5.0, 40.0, 390.0], "holds"),
        ("linear", [5.0, 50.0, 5000.0], "10 times the law from 10 to 100"),
        ("logarithmic", [1.0, 4.0, 8.0], "holds"),
    ],
)
def test_a_cost_is_judged_by_its_law_from_each_size_to_each_larger_one(law, costs, words):
    assert verdict(Growth("name", "title", law, (1, 10, 100), float), costs) == words


def test_rows_that_do_not_exist_are_refused():
    with pytest.raises(SystemExit, match="no row matches; there are scenes, "):
        growth.main(["--rows", "nothing"])
