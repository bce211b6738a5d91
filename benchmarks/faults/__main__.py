"""The command line: `python -m benchmarks.faults`."""

import argparse
import importlib.metadata
import sys
import time
from pathlib import Path

try:
    import psutil as _psutil  # noqa: F401
except ImportError as error:
    raise SystemExit(f"{error.name} is missing: the fault table needs `pip install -e '.[bench]'`") from error

from benchmarks.faults import table
from benchmarks.faults.catalog import LIBRARIES, Case, select_cases
from benchmarks.faults.harness import run_all
from benchmarks.faults.observation import Observation, words


def _globs(text: str) -> list[str]:
    return [glob.strip() for glob in text.split(",") if glob.strip()]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults", description="Show how kerasfeed and other loaders react to faults."
    )
    parser.add_argument("--faults", default="*", help="globs of faults, for example 'segfault*,raise'")
    parser.add_argument("--libraries", default="*", help="globs of libraries, for example 'torch,kerasfeed_*'")
    parser.add_argument("--lanes", type=int, default=2, help="number of cases to run at once (default 2)")
    parser.add_argument("--json", type=Path, help="write the observations to this file")
    parser.add_argument(
        "--merge", type=Path, action="append", default=[], help="add the results of an earlier --json to the tables"
    )
    parser.add_argument(
        "--markdown",
        nargs="?",
        const="-",
        help="write the tables to standard output, or into a document between its markers",
    )
    parser.add_argument("--list", action="store_true", help="list the names of all cases and exit")
    return parser.parse_args(arguments)


def tell(case: Case, seen: Observation) -> None:
    """One line on the terminal for one case."""
    text = words(seen, case.fault, case.peer.replaces)
    detail = seen.message or seen.last_words
    print(f"{case.name:<50} {text}" + (f"\n    {detail[:160]}" if detail else ""), file=sys.stderr, flush=True)


def _versions() -> dict[str, str]:
    found = {}
    for package in {library.package for library in LIBRARIES.values()}:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    options = parse(arguments)
    cases = select_cases(_globs(options.faults), _globs(options.libraries))
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases and not options.merge:
        raise SystemExit("no case matches; `--list` names them all")
    if options.lanes < 1:
        raise SystemExit(f"--lanes must be at least 1, not {options.lanes}")
    begin = time.monotonic()
    merged, versions = table.load(path.read_text() for path in options.merge)
    results = {**merged, **run_all(cases, options.lanes, tell)}
    versions |= _versions()
    if options.json:
        options.json.write_text(table.dump(results, versions))
    if options.markdown == "-":
        print(table.markdown(results, versions))
    elif options.markdown:
        document = Path(options.markdown)
        document.write_text(table.spliced(document.read_text(), table.markdown(results, versions)))
    print(f"{len(cases)} cases in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
