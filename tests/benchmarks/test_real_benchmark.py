"""The benchmark of real workloads: kerasfeed delivers each scene once, with its values."""

import dataclasses
import sys
from contextlib import nullcontext

import pytest
from places import ROOT

pytest.importorskip("psutil", reason="needs the extra `bench`")
pytest.importorskip("PIL", reason="needs the extra `bench`")

from benchmarks.catalog import PEERS, Case
from benchmarks.harness import Outcome, Settings, run_all
from benchmarks.hdf5 import files
from benchmarks.peers import plain
from benchmarks.real.program import check_epoch, make_job
from benchmarks.real.rows import ROWS, cases_of
from benchmarks.real.table import tables
from kerasfeed.feeds.base import BaseFeed

SMALL = {"images": 2, "images-fit": 2, "clouds": 2, "clouds-64": 2}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(files.FOLDER_VARIABLE, str(tmp_path_factory.mktemp("data")))
        yield


def inline_without_keras(job):
    return BaseFeed(job.sequence, job.batch_size, workers=0, **job.options)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_an_epoch_of_kerasfeed_contains_each_scene_once_unchanged(row, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecodecs", None)  # the row without the extra does this, and does not undo it
    scenes = row.make(**row.tiny)
    job = make_job(row, PEERS["kerasfeed_inline"], scenes)
    job = dataclasses.replace(job, for_fit=False, batch_size=SMALL.get(row.name, row.batch_size))
    check_epoch(inline_without_keras, job, scenes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda batches: batches[1:], "4 scenes of an epoch are missing, 0 came repeatedly"),
        (lambda batches: batches[:-1] + batches[:1], "4 scenes of an epoch are missing, 4 came repeatedly"),
        (lambda batches: [(x + 1, indices) for x, indices in batches], "holds wrong values"),
    ],
)
def test_the_check_refuses_batches_that_lack_repeat_or_change_scenes(spoil, message):
    scenes = ROWS["table"].make(length=16)
    job = dataclasses.replace(make_job(ROWS["table"], PEERS["plain"], scenes), batch_size=4)
    with pytest.raises(ValueError, match=message):
        check_epoch(lambda job: nullcontext(spoil([job.batch_of(step) for step in range(4)])), job, scenes)


def test_the_check_refuses_packed_texts_that_are_cut_or_changed():
    scenes = ROWS["packing"].make(length=64)
    with plain.first_fit(make_job(ROWS["packing"], PEERS["plain_first_fit"], scenes)) as batches:
        batch = next(iter(batches))
    assert sorted(scenes.indices_in(batch)) == list(range(64))
    for name in batch:
        spoiled = {**batch, name: batch[name].copy()}
        spoiled[name][0, 5] = 0
        with pytest.raises(ValueError, match="holds wrong values"):
            scenes.indices_in(spoiled)


def outcome(peer, repeat, rate):
    figures = {"scenes_per_s": rate, "cpu_ms": 2.0}
    return Outcome(Case("images", "loop", peer), repeat, "ok", figures=figures, peak_mb=300.0)


def test_the_table_names_the_best_setup_and_peer_and_the_median_ratio():
    rates = {"kerasfeed_auto": (600, 330), "kerasfeed_process": (800, 440), "spdl": (1000, 550), "plain": (5000, 2500)}
    outcomes = [outcome(peer, repeat, rate) for peer, both in rates.items() for repeat, rate in enumerate(both)]
    absent = Outcome(Case("images", "loop", "grain_threads"), 0, "skipped", "grain is not installed")
    text = tables([*outcomes, absent])
    assert text.splitlines()[2] == (
        "| JPEG files: crop, flip, normalise | 620 (processes) | 465 | 0.75 "
        "| plain loop (NumPy) 3,750, SPDL threads 775 | 0.80 |"
    )
    assert "| **kerasfeed processes** | 620 (440 to 800) | 2 | 300 | right |" in text
    assert "| Grain threads |  |  |  | skipped: grain is not installed |" in text


@pytest.mark.heavy
def test_a_case_runs_in_its_own_process_and_reports_rate_cpu_time_and_memory():
    settings = Settings(seconds=0.1, repeats=1, program="benchmarks.real.program")
    (result,) = run_all([Case("tokens", "loop", "plain")], settings, lambda _: None)
    assert (result.status, result.reason) == ("ok", "")
    assert result.figures["scenes_per_s"] > 0
    assert result.figures["cpu_ms"] > 0
    assert result.peak_mb > 20


def test_every_case_names_an_existing_function_of_a_peer():
    for case in [case for row in ROWS.values() for case in cases_of(row)]:
        peer = PEERS[case.peer]
        assert f"def {peer.function}(" in (ROOT / f"benchmarks/peers/{peer.module}.py").read_text()
