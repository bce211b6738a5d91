"""The resources of the machine that a process may use."""

import os

from kerasfeed.util import resources as machine


def test_the_memory_of_this_machine_is_known():
    assert 1 << 26 < machine.memory() < 1 << 50


def test_memory_has_a_default_if_the_system_does_not_report_it(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert 0 < machine.memory() <= 4 << 30


def test_memory_respects_the_limit_of_a_container(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_LIMITS", (str(limit),))
    whole = machine.memory()
    limit.write_text("max\n")
    assert machine.memory() == whole
    limit.write_text("104857600\n")
    assert machine.memory() == 104857600


def test_cores_counts_only_the_cores_available_to_this_process():
    assert 1 <= machine.cores() <= os.cpu_count()
