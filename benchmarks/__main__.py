"""The command line: `python -m benchmarks`."""

import argparse
import json
import sys
import time
from pathlib import Path

try:
    import matplotlib as _matplotlib  # noqa: F401
    import psutil as _psutil  # noqa: F401
except ImportError as error:
    raise SystemExit(f"{error.name} is missing: the benchmarks need `pip install -e '.[bench]'`") from error

from benchmarks import bars, chart, machine, report
from benchmarks.catalog import select_cases
from benchmarks.figures import Figures
from benchmarks.harness import Outcome, Settings, run_all

QUICK = Settings(seconds=0.5, repeats=1)


def _globs(text: str) -> list[str]:
    return [glob.strip() for glob in text.split(",") if glob.strip()]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure kerasfeed and other loaders side by side."
    )
    parser.add_argument("--quick", action="store_true", help="one repeat of 0.5 s for each case: fast, and noisy")
    parser.add_argument("--workloads", default="*", help="globs of workloads, for example 'tiny,waiting-*'")
    parser.add_argument("--cases", default="*", help="globs of workload/consumer/peer, such as 'tiny/loop/*'")
    parser.add_argument("--repeats", type=int, help=f"how often each case runs (default {Settings.repeats})")
    parser.add_argument(
        "--seconds", type=float, help=f"seconds of steady state to measure (default {Settings.seconds})"
    )
    parser.add_argument(
        "--timeout", type=float, default=Settings.timeout, help="seconds after which a case counts as hung"
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder for the report")
    parser.add_argument("--list", action="store_true", help="list the names of all cases and exit")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for."""
    base = QUICK if options.quick else Settings()
    seconds = base.seconds if options.seconds is None else options.seconds
    repeats = base.repeats if options.repeats is None else options.repeats
    if repeats < 1 or seconds <= 0:
        raise SystemExit(f"--repeats must be at least 1 and --seconds positive, not {repeats} and {seconds}")
    return Settings(seconds, repeats, options.timeout)


def tell(outcome: Outcome) -> None:
    """One line on the terminal for one run of one case."""
    figures = outcome.figures
    words = f"{outcome.status}: {outcome.reason}"
    if "scenes_per_s" in figures:
        words = f"{report.short(figures['scenes_per_s'])} scenes/s"
    elif "open_s" in figures:
        words = f"{figures['open_s']:.3g} s"
    elif outcome.growth_mb is not None:
        words = f"{outcome.growth_mb:+.1f} MB"
    print(f"[{outcome.repeat + 1}] {outcome.case.name:<44} {words}", flush=True)


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code, 1 if no case gave a figure."""
    options = parse(arguments)
    cases = select_cases(_globs(options.workloads), _globs(options.cases))
    if not cases:
        raise SystemExit("no case matches; `--list` names them all")
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    settings = settings_of(options)
    begin = time.monotonic()
    outcomes = run_all(cases, settings, tell)
    figures = Figures(outcomes)
    verdicts = bars.judge(figures)
    described = machine.describe()
    options.output.mkdir(parents=True, exist_ok=True)
    text = report.markdown(figures, verdicts, described, settings)
    (options.output / "benchmarks.md").write_text(text)
    values = report.as_json(figures, verdicts, described, settings)
    (options.output / "benchmarks.json").write_text(json.dumps(values, indent=1) + "\n")
    chart.draw(figures, described, options.output / "benchmarks.png")
    print("\n" + report.bar_table(verdicts))
    print(f"\n{time.monotonic() - begin:.0f} s; report in {options.output}")
    return 0 if any(outcome.status == "ok" for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
