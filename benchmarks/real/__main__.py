"""The command line: `python -m benchmarks.real`."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

try:
    import PIL as _PIL  # noqa: F401
    import psutil as _psutil  # noqa: F401
except ImportError as error:
    raise SystemExit(f"{error.name} is missing: the benchmarks need `pip install -e '.[bench]'`") from error

from benchmarks import machine, report
from benchmarks.faults.table import spliced
from benchmarks.harness import Outcome, Settings, run_all
from benchmarks.real.rows import ROWS, cases_of
from benchmarks.real.table import BEGIN, END, tables


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real", description="Measure real workloads side by side."
    )
    parser.add_argument("--cases", default="*", help="globs of workload/consumer/reader: 'images*,*/spdl'")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of steady state to measure (default 3)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each row is measured (default 3)")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds after which a case counts as hung")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables into this document, between its markers")
    parser.add_argument("--list", action="store_true", help="list the names of all cases and exit")
    return parser.parse_args(arguments)


def tell(outcome: Outcome) -> None:
    """One line on the terminal for one run of one case."""
    rate = outcome.figures.get("scenes_per_s")
    words = f"{report.short(rate)} scenes/s" if rate else f"{outcome.status}: {outcome.reason}"
    print(f"[{outcome.repeat + 1}] {outcome.case.name:<32} {words}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code, 1 if no case gave a figure."""
    options = parse(arguments)
    globs = [glob if "/" in glob else f"{glob}/*" for glob in options.cases.split(",")]
    rows = [
        [case for case in cases_of(row) if any(fnmatch(case.name, glob) for glob in globs)] for row in ROWS.values()
    ]
    if not any(rows):
        raise SystemExit("no case matches; `--list` names them all")
    if options.list:
        print("\n".join(case.name for cases in rows for case in cases))
        return 0
    settings = Settings(options.seconds, options.repeats, options.timeout, "benchmarks.real.program")
    load = os.getloadavg()[0]
    outcomes = [outcome for cases in rows for outcome in run_all(cases, settings, tell)]
    described = machine.describe()
    lines = f"{report.machine_lines(described, settings)} Load of the machine before: {load:.1f}."
    text = f"{lines}\n\n{tables(outcomes)}"
    print(text)
    if options.json:
        values = {"machine": described, "load": load, "outcomes": [asdict(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(values, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(spliced(options.markdown.read_text(), text, BEGIN, END))
    return 0 if any(outcome.status == "ok" for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
