"""The process of one case: `python -m benchmarks.case NAME SECONDS`.

Invariant: the frameworks are imported and the data made first; then it prints `ready` and waits for a line on
standard input, so that the parent may prepare several cases at once and measure them one by one. Each line
for the parent is JSON after `MARK`; a framework may print what else it likes.
"""

import importlib
import json
import os
import sys
from typing import Any

from benchmarks.catalog import LOOP_SCENES, PEERS, WORKLOADS, Case
from benchmarks.hdf5.measure import epoch_figures, open_figures
from benchmarks.measure import flat_figures, loop_figures
from benchmarks.peers.job import Job

MARK = "benchmarks: "


def tell(event: str, **values: Any) -> None:
    """Sends one event to the parent."""
    print(MARK + json.dumps({"event": event, **values}), flush=True)


def make_job(case: Case) -> Job:
    """The data of a case, in memory or in a file, with one scene already read."""
    workload, peer = WORKLOADS[case.workload], PEERS[case.peer]
    for_fit = case.consumer == "fit"
    length = workload.fit_scenes if for_fit else LOOP_SCENES
    ours = peer.ours and workload.make_ours is not None
    sequence = workload.make_ours(length, peer.hides) if ours else workload.make(length)
    return Job(sequence, sequence[0], workload.batch_size, peer.workers or workload.workers, for_fit)


def run(case: Case, seconds: float) -> dict[str, float]:
    """Prepares a case, waits for the parent, and measures."""
    peer = PEERS[case.peer]
    opener = getattr(importlib.import_module(f"benchmarks.peers.{peer.module}"), peer.function)
    job = make_job(case)
    if case.consumer in ("epoch", "open"):
        _wait_for_parent()
        return open_figures(opener, job) if case.consumer == "open" else epoch_figures(opener, job, seconds)
    if case.consumer == "fit":
        from benchmarks import fit

        model = fit.dense_model(job.scene, WORKLOADS[case.workload].fit_steps_per_call)
        _wait_for_parent()
        return fit.fit_figures(model, opener, job, seconds)
    _wait_for_parent()
    if case.consumer == "flat":
        return flat_figures(opener, job, lambda: tell("steady"))
    return loop_figures(opener, job, seconds, case.warm_up, lambda: tell("steady"))


def _wait_for_parent() -> None:
    tell("ready")
    if not sys.stdin.readline():
        raise SystemExit("the parent process is gone")


def main() -> None:
    """Runs the case named on the command line and reports its figures or its error."""
    name, seconds = sys.argv[1], float(sys.argv[2])
    try:
        figures = run(Case(*name.split("/")), seconds)
    except Exception as error:
        tell("error", error=f"{type(error).__name__}: {error}")
        raise
    tell("figures", figures=figures)
    os._exit(0)  # the peer is closed; taking TensorFlow down in good order takes seconds


if __name__ == "__main__":
    main()
