"""The benchmark of existing code: both sides deliver the same scenes."""

from itertools import islice

import numpy as np
import pytest

from benchmarks.migrate import scenes, today, with_kerasfeed
from benchmarks.migrate.__main__ import rate, row
from benchmarks.migrate.cases import CASES, Case

PAIRS = {
    "one generator": (
        lambda: today.from_generator("instant"),
        lambda: with_kerasfeed.one_generator("instant", "thread"),
    ),
    "four": (lambda: today.interleave("instant"), lambda: with_kerasfeed.four_generators("instant", 2, "thread")),
    "by number": (lambda: today.range_map("instant"), lambda: with_kerasfeed.by_number("instant", 2, "thread")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_both_sides_of_the_migration_benchmark_deliver_the_same_scenes(name):
    theirs, ours = ([[np.array(field) for field in batch] for batch in islice(make(), 3)] for make in PAIRS[name])
    expected = [scenes.load("instant", index) for index in range(96)]
    for batches in (theirs, ours):
        assert np.concatenate([points for points, _ in batches]).tobytes() == b"".join(
            points.tobytes() for points, _ in expected
        )
        assert np.concatenate([labels for _, labels in batches]).tolist() == [label for _, label in expected]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_side_accepts_its_arguments(case, tmp_path):
    assert [side.room for side in case.sides] == ["today", *["with_kerasfeed"] * (len(case.sides) - 1)]
    for side in case.sides:
        assert callable(side.bound(tmp_path, 1.0))


def test_a_rate_counts_scenes_and_excludes_the_warm_up(monkeypatch):
    now = [0.0]

    def batches():
        for number in range(1000):
            now[0] += 0.5 if number < 2 else 0.01
            yield None, np.zeros(20)

    monkeypatch.setattr("benchmarks.migrate.__main__.time.perf_counter", lambda: now[0])
    assert rate(batches(), 0.2) == pytest.approx(2000)
    with pytest.raises(RuntimeError, match="ended"):
        rate([(None, np.zeros(20))], 1.0)


def test_a_row_contains_rates_ratios_and_failures(monkeypatch):
    answers = iter([100.0, 250.0, "failed (exit code 1): no", 120.0, 240.0, "failed (exit code 1): no"])
    monkeypatch.setattr("benchmarks.migrate.__main__.in_a_process", lambda *_: next(answers))
    sides = CASES[0].sides[:3]
    line = row(Case("x", sides), 1.0, 2)
    names = [side.name for side in sides]
    assert line == f"| x | {names[0]}: 120 | {names[1]}: 250 (2.1); {names[2]}: failed (exit code 1): no |"
