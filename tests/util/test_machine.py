"""The resources of the machine that a process may use."""

import os

from kerasfeed.util import resources as machine


def test_the_memory_of_this_machine_is_known():
    assert 1 << 26 < machine.memory() < 1 << 50


def test_where_the_system_does_not_tell_its_memory_some_is_assumed(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert 0 < machine.memory() <= 4 << 30


def test_a_container_held_to_less_memory_counts(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_LIMITS", (str(limit),))
    whole = machine.memory()
    limit.write_text("max\n")
    assert machine.memory() == whole
    limit.write_text("104857600\n")
    assert machine.memory() == 104857600


def test_only_the_cores_this_process_may_run_on_count():
    assert 1 <= machine.cores() <= os.cpu_count()
