"""The command line: `python -m benchmarks.migrate`."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.migrate.cases import CASES, Case, Side

TIMEOUT = 300


def rate(batches: Iterable[Any], seconds: float) -> float:
    """Scenes/s of a loop, after half a second to warm up."""
    began, delivered = 0.0, 0
    opened = time.perf_counter()
    for batch in batches:
        now = time.perf_counter()
        if not began:
            if now - opened > 0.5 and delivered:
                began, delivered = now, 0
            else:
                delivered = 1
            continue
        delivered += len(batch[1])
        if now - began > seconds:
            return delivered / (now - began)
    raise RuntimeError("the batches have ended")


def measure(side: Side, seconds: float) -> float:
    """Scenes/s of one side, in this process."""
    with tempfile.TemporaryDirectory(prefix="migrate-") as folder:
        found = side.bound(Path(folder), seconds)()
        return found if isinstance(found, float) else rate(found, seconds)


def in_a_process(case: Case, number: int, seconds: float) -> float | str:
    """Scenes/s of one side of a case, in its own process, or an error message."""
    command = [sys.executable, "-m", "benchmarks.migrate", "--case", case.name, "--side", str(number)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], capture_output=True, text=True, timeout=TIMEOUT, env=environment,
        check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("rate ")]
    return float(lines[-1].split()[1]) if lines else f"failed (exit code {done.returncode}): {done.stderr[-300:]}"


def row(case: Case, seconds: float, repeats: int) -> str:
    """One row of the table: today's best rate, kerasfeed's, and their ratio."""
    found: list[list[Any]] = [[in_a_process(case, k, seconds) for k in range(len(case.sides))] for _ in range(repeats)]
    best: list[Any] = []
    for rates in zip(*found, strict=True):
        numbers = [value for value in rates if isinstance(value, float)]
        best.append(max(numbers) if numbers else rates[0])
    cells = [f"{value:,.0f}" if isinstance(value, float) else value for value in best]
    today, *ours = best
    ratios = [f"{value / today:.2g}" if isinstance(value, float) and isinstance(today, float) else "" for value in ours]
    named = [
        f"{side.name}: {cell} ({ratio})" if ratio else f"{side.name}: {cell}"
        for side, cell, ratio in zip(case.sides[1:], cells[1:], ratios, strict=True)
    ]
    return f"| {case.name} | {case.sides[0].name}: {cells[0]} | {'; '.join(named)} |"


def main(arguments: list[str]) -> None:
    """Prints the table, or one figure with `--side`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.migrate", description="Compare tf.data code with kerasfeed."
    )
    parser.add_argument("--case", help="measure only cases whose names contain this text")
    parser.add_argument("--side", type=int, help="measure only this side, in this process")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement, s")
    parser.add_argument("--repeats", type=int, default=1, help="number of runs; the best one counts")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.case is None or options.case in case.name]
    if options.side is not None:
        exact = [case for case in cases if case.name == options.case]
        print(f"rate {measure(exact[0].sides[options.side], options.seconds)}", flush=True)
        os._exit(0)  # some threads of today's side never end
    print("| | today, scenes/s | kerasfeed, scenes/s (times today's) |")
    print("|---|---|---|", flush=True)
    for case in cases:
        print(row(case, options.seconds, options.repeats), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
