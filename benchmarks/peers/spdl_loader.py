"""SPDL: a pipeline of one stage whose threads each read and stack whole batches, in order."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from spdl.pipeline import PipelineBuilder

from benchmarks.peers.job import Job


@contextmanager
def threads(job: Job) -> Iterator[Iterable[Any]]:
    """As many threads as workers."""
    builder: PipelineBuilder[Any, Any] = PipelineBuilder()
    pipeline = (
        builder.add_source(range(job.steps))
        .pipe(job.batch_of, concurrency=job.workers, output_order="input")
        .add_sink(10)
        .build(num_threads=job.workers)
    )
    with pipeline.auto_stop():
        yield pipeline
