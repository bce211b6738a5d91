"""The benchmarks: a case runs and ends alone, and the report matches the figures."""

import json

import pytest

psutil = pytest.importorskip("psutil", reason="needs the extra `bench`")
pytest.importorskip("matplotlib", reason="needs the extra `bench`")

from benchmarks import bars, chart, report  # noqa: E402
from benchmarks.catalog import Case, all_cases  # noqa: E402
from benchmarks.figures import Figures  # noqa: E402
from benchmarks.harness import Outcome, Settings, run_all  # noqa: E402

FIGURES = ("scenes_per_s", "first_batch_s", "epoch_s", "decodes_per_chunk", "open_s", "index_mb")
PLAIN = Case("tiny", "loop", "plain")
MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "memory_gb": 8.0,
    "system": "Linux",
    "python": "3.11",
    "packages": {"numpy": "2.0"},
}


def outcome(name, repeat, rate, **figures):
    case = Case(*name.split("/"))
    return Outcome(case, repeat, "ok", figures={"scenes_per_s": rate, **figures}, peak_mb=100.0)


@pytest.fixture
def figures():
    return Figures(
        [
            outcome("tiny/loop/kerasfeed_process", 0, 600.0, first_batch_s=0.4),
            outcome("tiny/loop/torch", 0, 100.0, first_batch_s=0.1),
            outcome("tiny/loop/plain", 0, 1000.0, first_batch_s=0.1),
            outcome("tiny/loop/kerasfeed_process", 1, 300.0, first_batch_s=0.5),
            outcome("tiny/loop/torch", 1, 50.0, first_batch_s=0.1),
            outcome("waiting-64/loop/range_map", 0, 192.0, first_batch_s=0.1),
            outcome("waiting-64/loop/kerasfeed_tf_thread", 0, 6080.0, first_batch_s=0.1),
            Outcome(Case("tiny", "loop", "keras_processes"), 0, "hung", "no figures within 60 s"),
        ]
    )


@pytest.mark.heavy
def test_a_case_runs_in_its_own_process_and_reports_figures():
    (result,) = run_all([PLAIN], Settings(seconds=0.1, repeats=1), lambda _: None)
    assert (result.status, result.reason) == ("ok", "")
    assert result.figures["scenes_per_s"] > 0
    assert result.peak_mb > 20


def test_a_case_that_does_not_end_is_reported_as_hung_and_killed():
    (result,) = run_all([PLAIN], Settings(seconds=1e6, repeats=1, timeout=0.2), lambda _: None)
    assert (result.status, result.reason) == ("hung", "no figures within 0.2 s")
    assert not [child for child in psutil.Process().children() if "benchmarks.case" in child.cmdline()]


def test_the_verdict_on_a_bar_follows_from_the_measured_ratios(figures):
    verdicts = {bar.title: bar for bar in bars.judge(figures)}
    over_torch = verdicts["tiny: processes over torch DataLoader"]
    assert (over_torch.goal, over_torch.measured, over_torch.verdict) == (">= 5 x", "6 x", "met")
    over_plain = verdicts["tiny: processes over the plain np.stack loop"]
    assert (over_plain.measured, over_plain.verdict) == ("0.6 x", "short")
    assert verdicts["tiny: processes over Keras PyDataset multiprocessing"].verdict == "not measured"
    assert verdicts["first batch from processes, Keras imported"].measured == "0.45 s"
    waiting = verdicts["waiting, 64 workers: to_tf_dataset over ideal"]
    assert waiting.measured == "0.95 x (range.map with 64 parallel calls: 0.03 x)"


def test_the_report_contains_every_case_as_table_json_and_chart(figures, tmp_path):
    settings, verdicts = Settings(repeats=2), bars.judge(figures)
    text = report.markdown(figures, verdicts, MACHINE, settings)
    assert "| **kerasfeed processes** | 450 (300 to 600) | 0.6 | 0.45 | 100 |  |" in text
    assert "| Keras PyDataset multiprocessing |  |  |  |  | hung; no figures within 60 s |" in text
    values = json.loads(json.dumps(report.as_json(figures, verdicts, MACHINE, settings)))
    assert values["cases"][0]["case"] == "tiny/loop/kerasfeed_process"
    chart.draw(figures, MACHINE, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 10_000


def test_every_bar_names_cases_that_are_run():
    everything = Figures(
        Outcome(
            case,
            0,
            "ok",
            figures=dict.fromkeys(FIGURES, 1.0),
            peak_mb=1.0,
            growth_mb=0.0,
        )
        for case in all_cases()
    )
    assert "not measured" not in {bar.verdict for bar in bars.judge(everything)}
