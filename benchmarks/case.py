"""The process of one case: `python -m benchmarks.case NAME SECONDS`.

Invariant: the process first imports the frameworks and makes the data. Then it waits for its parent
(`benchmarks.events`).
"""

import importlib
import sys

from benchmarks.catalog import LOOP_SCENES, PEERS, WORKLOADS, Case
from benchmarks.events import serve, tell, wait_for_parent
from benchmarks.hdf5.measure import epoch_figures, open_figures
from benchmarks.measure import flat_figures, loop_figures
from benchmarks.peers.job import Job


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
        wait_for_parent()
        return open_figures(opener, job) if case.consumer == "open" else epoch_figures(opener, job, seconds)
    if case.consumer == "fit":
        from benchmarks import fit

        model = fit.dense_model(job.scene, WORKLOADS[case.workload].fit_steps_per_call)
        wait_for_parent()
        return fit.fit_figures(model, opener, job, seconds)
    wait_for_parent()
    if case.consumer == "flat":
        return flat_figures(opener, job, lambda: tell("steady"))
    return loop_figures(opener, job, seconds, case.warm_up, lambda: tell("steady"))


def main() -> None:
    """Runs the case named on the command line and reports its figures or its error."""
    name, seconds = sys.argv[1], float(sys.argv[2])
    serve(lambda: run(Case(*name.split("/")), seconds))


if __name__ == "__main__":
    main()
