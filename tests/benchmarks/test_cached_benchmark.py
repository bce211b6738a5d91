"""The benchmark of the cache against scenes in arrays."""

import pytest

from benchmarks import cached


@pytest.mark.heavy
def test_the_cache_benchmark_reports_ratios_and_the_number_of_reads(tmp_path):
    ratios, read = cached.measure((4,), 64, 2, 1, tmp_path / "log")
    assert len(ratios) == 2
    assert min(ratios) > 0
    assert 64 <= read < 2 * 64
