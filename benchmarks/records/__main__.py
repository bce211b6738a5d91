"""The command line: `python -m benchmarks.records`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.records.peers import READERS, WRITERS, count, kerasfeed_writes
from benchmarks.records.scenes import LENGTHS, Scenes

TIMEOUT = 300


def measure(kind: str, peer: str, length: int) -> float:
    """Scenes per second of one peer, its framework imported before the clock starts."""
    scenes = Scenes(kind, length)
    with tempfile.TemporaryDirectory(prefix="records-") as name:
        folder = Path(name)
        if peer in WRITERS:
            import_frameworks(peer)
            begin = time.perf_counter()
            return WRITERS[peer](scenes, folder) / (time.perf_counter() - begin)
        kerasfeed_writes(2, "process")(scenes, folder)
        count(READERS[peer](scenes, folder))  # an epoch to warm up
        begin = time.perf_counter()
        return count(READERS[peer](scenes, folder)) / (time.perf_counter() - begin)


def import_frameworks(peer: str) -> None:
    """Import the modules of a peer, as a program does before it writes."""
    if "tf." in peer:
        import tensorflow as _tf  # noqa: F401
    else:
        import kerasfeed.writers.tfrecord as _room  # noqa: F401


def main(arguments: list[str]) -> None:
    """Prints a table, or one figure with `--peer`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.records", description="Measure how TFRecords are written and read."
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(LENGTHS), help="kinds of scenes, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of scenes")
    parser.add_argument("--only", default="", help="measure only peers whose names contain this text")
    parser.add_argument("--peer", choices=[*WRITERS, *READERS], help="measure only this peer, in this process")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(",")
    peers = [peer for peer in (*WRITERS, *READERS) if options.only in peer]
    if options.peer is not None:
        rates = {kind: measure(kind, options.peer, max(10, round(options.scale * LENGTHS[kind]))) for kind in kinds}
        print(json.dumps(rates))
        return
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.repeats):
        for kind in kinds:
            for peer in peers if "-" not in kind else [peer for peer in peers if peer in WRITERS]:
                command = [sys.executable, "-m", "benchmarks.records", "--peer", peer, "--kinds", kind]
                done = subprocess.run(
                    [*command, "--scale", str(options.scale)], capture_output=True, text=True, timeout=TIMEOUT,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, check=False,
                )  # fmt: skip
                if done.returncode:
                    print(f"{peer}, {kind}: failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                    continue
                rate = json.loads(done.stdout.splitlines()[-1])[kind]
                found.setdefault((peer, kind), []).append(rate)
                print(f"{kind}, {peer}: {rate:,.0f} scenes/s", file=sys.stderr, flush=True)
    print(f"| scenes/s | {' | '.join(kinds)} |\n|{'---|' * (len(kinds) + 1)}")
    for peer in peers:
        rates = [f"{statistics.median(found[peer, kind]):,.0f}" if (peer, kind) in found else "" for kind in kinds]
        print(f"| {peer} | {' | '.join(rates)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
