"""The process of one case: `python -m benchmarks.real.program NAME SECONDS`.

Invariant: an epoch is checked before the parent gets `ready`.
"""

import dataclasses
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.catalog import PEERS, START_SECONDS, Case
from benchmarks.events import serve, tell, wait_for_parent
from benchmarks.kinds import Peer
from benchmarks.measure import Opener, loop_figures
from benchmarks.peers.job import Job
from benchmarks.real.rows import ROWS, Row
from benchmarks.real.scenes import whole

MANY = 1_000_000  # epochs
AUTO_SECONDS = 3.0  # of warm-up: under "auto" a thread loads until the worker processes are up


def make_job(row: Row, peer: Peer, scenes: Any) -> Job:
    """One epoch of a peer's job."""
    sequence, options = scenes, {}
    if peer.ours:
        sequence, more = getattr(importlib.import_module("benchmarks.real.ours"), row.ours)(scenes)
        options = {"drop_remainder": False, **more}
    collate = row.torch_collate if peer.requires == "torch" else row.collate
    return Job(
        sequence, scenes[0], row.batch_size, row.workers, row.for_fit, shuffle=True, options=options,
        collate=collate or row.collate, scenes_in=row.scenes_in,
    )  # fmt: skip


def check_epoch(opener: Opener, job: Job, scenes: Any) -> None:
    """Raise ValueError unless the batches of an epoch hold each scene once, with its values."""
    found: list[np.ndarray] = []

    def take(batch: Any) -> None:
        found.append(np.array(scenes.indices_in(batch)))

    with opener(job) as batches:
        if job.for_fit:
            _fit(batches, take)
        else:
            left = len(scenes)
            iterator = iter(batches)
            while left > 0 and (batch := next(iterator, None)) is not None:
                take(batch)
                left -= len(found[-1])
            del iterator
    whole.cache_clear()
    times = np.bincount(np.concatenate(found), minlength=len(scenes))
    if len(times) > len(scenes) or np.any(times != 1):
        raise ValueError(f"{np.sum(times == 0)} scenes of an epoch are missing, {np.sum(times > 1)} came repeatedly")


def _fit(batches: Any, take: Callable[[Any], None]) -> None:
    """Call `take` with each batch of one epoch of `fit`, which runs eagerly, once per batch."""
    import keras

    class Showing(keras.Model):
        def train_step(self, batch: Any) -> Any:
            take(batch)
            return {"loss": 0.0}

    model = Showing()
    model.compile("sgd", run_eagerly=True)
    model.fit(batches, epochs=1, verbose=0, shuffle=False)


def run(case: Case, seconds: float) -> dict[str, float]:
    """Checks an epoch of a case, waits for the parent, and measures."""
    row, peer = ROWS[case.workload], PEERS[case.peer]
    opener = getattr(importlib.import_module(f"benchmarks.peers.{peer.module}"), peer.function)
    scenes = row.make()
    job = make_job(row, peer, scenes)
    check_epoch(opener, job, scenes)
    job = make_job(row, peer, scenes)  # "auto" would measure quicker scenes with the caches of the old job
    if row.for_fit:
        from benchmarks import fit

        model = fit.dense_model(job.scene, 1)
        wait_for_parent()
        return fit.fit_figures(model, opener, job, seconds, float("inf"))
    wait_for_parent()
    many = dataclasses.replace(job, epochs=MANY)
    warm_up = AUTO_SECONDS if case.peer == "kerasfeed_auto" else row.workers * START_SECONDS
    return loop_figures(opener, many, seconds, warm_up, lambda: tell("steady"))


if __name__ == "__main__":
    serve(lambda: run(Case(*sys.argv[1].split("/")), float(sys.argv[2])))
