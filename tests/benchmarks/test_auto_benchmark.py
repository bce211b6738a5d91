"""The benchmark of "auto": its runs report a rate and the choice."""

from benchmarks import auto


def test_a_run_of_one_configuration_gives_a_rate():
    assert auto.one("tiny", "thread", "1", 0.05)["rate"] > 0
    assert auto.one("stream", "process", "2", 0.05)["rate"] > 0


def test_a_run_of_auto_reports_its_choice():
    assert "takes" in auto.one("tiny", "auto", "auto", 0.05)["chosen"]


def test_every_workload_has_a_grid_of_both_types():
    for workload in auto.WORKLOADS.values():
        assert {"thread", "process"} <= {kind for kind, _ in workload.grid}
