"""The benchmark of the cache against scenes in arrays."""

import pytest

from benchmarks import cached


@pytest.mark.heavy
def test_the_benchmark_of_the_cache_tells_a_ratio_of_each_turn_and_how_often_scenes_were_read(tmp_path):
    ratios, read = cached.measure((4,), 64, 2, 1, tmp_path / "log")
    assert len(ratios) == 2
    assert min(ratios) > 0
    assert 64 <= read < 2 * 64
