"""The layout of a slot, inferred from a few scenes, whoever reads them.

Invariant: which scenes are read depends on the sequence's length alone, and, where scenes may fail, on which do.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from kerasfeed.errors import FeedWarning
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.masking import check_maskable, check_weight_forms
from kerasfeed.loaders.failures.failure_log import MOST_STAND_INS, FailureLog, replacement
from kerasfeed.sequences.global_random import WARNING_KIND, GlobalRandomWatch, warning_text
from kerasfeed.spec.field_forms import Form, row_bytes
from kerasfeed.spec.inference import merge
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec, as_others, with_open_rows


@dataclass(frozen=True)
class Probe:
    """One scene that was read to infer the spec.

    Attributes:
        index: Its index.
        spec: Its spec.
        seconds: Time it took, s.
    """

    index: int
    spec: SceneSpec
    seconds: float


class NothingReadError(Exception):
    """Internal: none of the items of a stream that might be read could be; the cause is what the first raised."""


ReadProbes = Callable[[list[int]], list[Probe | BaseException]]


def probe_scenes(job: Job, failure_log: FailureLog, read: ReadProbes) -> list[Probe]:
    """Read a few scenes spread over the sequence; where scenes may fail, others in place of those that do.

    Args:
        job: What is to be loaded.
        failure_log: The policy, and where failures are noted.
        read: From indices to what reading each of them gave; may stop after an error where `on_error` is "raise".

    Raises:
        Exception: What the sequence raised; TooManyFailuresError; NothingReadError.
    """
    if job.spec is not None:
        return [Probe(0, job.spec, 0.0)]
    found = _probes(job, failure_log, read)
    try:
        if isinstance(found, BaseException):
            raise found
        return found
    finally:
        del found  # the traceback of what was raised holds this frame: only the collector would free them


def _probes(job: Job, failure_log: FailureLog, read: ReadProbes) -> list[Probe] | BaseException:
    """What `probe_scenes` returns or raises."""
    found: list[Probe] = []
    wanted = [(index, index, 0) for index in job.plan.probe_indices()]
    others = iter(job.plan.other_probes())
    result: Probe | BaseException | None = None
    first_error: BaseException | None = None
    refusal: BaseException | None = None
    nothing: BaseException | None = None
    try:
        while wanted:
            again = []
            for (original, index, attempt), result in zip(wanted, read([place[1] for place in wanted]), strict=False):
                if isinstance(result, Probe):
                    found.append(result)
                    continue
                failure_log.note(index, None, None, result)
                first_error = first_error or result
                if failure_log.policy.on_error == "raise" or not isinstance(result, Exception):
                    return result
                refusal = failure_log.refusal(index, 0, result)
                if refusal is not None:
                    return refusal
                if not job.plan.length:
                    again += [(original, other, attempt) for other in itertools.islice(others, 1)]
                elif job.plan.length > 1 and attempt < MOST_STAND_INS:
                    stand_in = replacement(job.plan.seed, 0, original, attempt + 1, job.plan.length)
                    again.append((original, stand_in, attempt + 1))
            wanted = again
        if found or first_error is None or job.plan.length:
            return found or first_error or []
        nothing = NothingReadError()
        nothing.__cause__ = first_error
        return nothing
    finally:
        result = first_error = refusal = nothing = None  # a scene read in this thread has a traceback that ends here


def watched(job: Job, failure_log: FailureLog, read: ReadProbes) -> ReadProbes:
    """`read`, in threads of this process, with a warning where scenes use the global random generators.

    Other threads may use them too. Where they go on changing while no scene is read, for four times as long and 20 to
    200 ms, that is put down to those.
    """
    if not job.watches_random:
        return read

    def reading(indices: list[int]) -> list[Probe | BaseException]:
        begun, watch = time.perf_counter(), GlobalRandomWatch()
        results = read(indices)
        used = watch.used()
        if used and not failure_log.deferred_warnings.is_known(WARNING_KIND):
            watch = GlobalRandomWatch()
            time.sleep(min(max(0.02, 4 * (time.perf_counter() - begun)), 0.2))
            used &= ~watch.used()
            if used:
                failure_log.deferred_warnings.defer(WARNING_KIND, warning_text(used, seeded=False), FeedWarning)
        try:
            return results
        finally:
            del results  # see `probe_scenes`

    return reading


def layout_for(job: Job, probes: list[Probe]) -> Layout:
    """Lay a slot out for scenes like these.

    Raises:
        SpecError: The scenes cannot be batched; the message names index and field.
    """
    by_index = {probe.index: probe.spec for probe in sorted(probes, key=lambda probe: probe.index)}
    spec, forms = job.collate.resolve(merge(list(by_index.items())))
    if job.plan.batch_size is None and not job.plan.length and job.spec is None:
        spec = with_open_rows(spec)  # the last batch of a stream is often smaller than the first
    if job.weighs:
        check_maskable(spec, padded=job.plan.pad_remainder)
        check_weight_forms(spec, forms)
    largest = tuple(
        _largest(field, forms[number] if forms else None, [found.fields[number] for found in by_index.values()])
        for number, field in enumerate(spec.fields)
    )
    batched = job.plan.batch_size is not None and job.maker is None
    return Layout(spec, job.plan.rows, batched, largest, forms, min(by_index))


def _largest(field: ArraySpec, form: Form | None, found: list[ArraySpec]) -> int:
    if form is None:
        return max(each.nbytes for each in found)
    found = [as_others(each, field) for each in found]
    # A batch may hold the longest row of every axis.
    return row_bytes(form, field, [tuple(size or 0 for size in each.shape) for each in found])
