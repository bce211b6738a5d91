"""Infer the layout of a slot from a few scenes.

Invariant: the choice of scenes depends on the sequence's length, on the time that scenes take, and, if scenes may fail,
on the scenes that fail. If items are batches, the first one of an epoch is read first.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kerasfeed.errors import FeedWarning, SpecError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import FailedFirst, FirstScenes, SpecRequest
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.masking import check_maskable, check_weight_forms
from kerasfeed.loaders.failures.failure_log import MOST_STAND_INS, FailureLog, replacement
from kerasfeed.sequences.global_random import RandomWatch, random_warnings
from kerasfeed.sequences.held_random import Held
from kerasfeed.spec.collation import Stack
from kerasfeed.spec.field_forms import Form, row_bytes
from kerasfeed.spec.inference import merge
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec, as_others, with_open_rows

Specs = Sequence[tuple[int, SceneSpec]]


class NothingReadError(Exception):
    """Internal: no item of a stream could be read.

    The first error is its cause.
    """


Read = Callable[[SpecRequest], FirstScenes | FailedFirst]


def read_first_scenes(
    job: Job, failure_log: FailureLog, read: Read, epoch: int, least: int
) -> tuple[FirstScenes, Layout]:
    """Read a few scenes and return the layout for scenes like them.

    The scenes are spread over the sequence. If items are batches, the item of step 0 is read first. If scenes may fail,
    others are read in their place. If the job has a spec, no scene is read.

    Args:
        job: The job.
        failure_log: The policy and the record of failures.
        read: Reads scenes in a worker; stops at one that fails.
        epoch: The scenes are read as in this epoch.
        least: Minimum number of items to read if they are batches.

    Raises:
        Exception: The sequence's exception; SpecError; TooManyFailuresError; NothingReadError.
    """
    if job.spec is not None:
        index = int(job.plan.indices(epoch, 0)[0]) if job.plan.length else 0
        scenes = FirstScenes(((index, job.spec),))
        return scenes, layout_for(job, scenes.specs)
    request = _first_request(job, epoch, least)
    others = iter(job.plan.other_probes())
    attempts = {index: (index, 0) for index in request.indices}  # the original scene, and number of stand-ins tried
    first_error: BaseException | None = None
    while request.indices:
        result = read(request)
        if isinstance(result, FirstScenes):
            layout = _layout_of_most(job, result.specs, are_all=len(result.specs) == len(request.indices))
            if layout is not None:
                return result, layout
            request = replace(request, least=len(request.indices))
            continue
        index = _check_failure(failure_log, result)
        first_error = first_error or result.error
        original, attempt = attempts.pop(index)
        stand_in = None
        if not job.plan.length:
            stand_in = next(others, None)
        elif job.plan.length > 1 and attempt < MOST_STAND_INS:
            stand_in = replacement(job.plan.seed, 0, original, attempt + 1, job.plan.length)
        left = [each for each in request.indices if each != index]
        if stand_in is not None and stand_in not in left:
            attempts[stand_in] = original, attempt + 1
            left.insert(request.indices.index(index), stand_in)
        request = replace(request, indices=tuple(left), keeps=False)
    assert first_error is not None
    if job.plan.length:
        raise first_error
    raise NothingReadError from first_error


def _first_request(job: Job, epoch: int, least: int) -> SpecRequest:
    """Return the request for the first scenes."""
    plan, wanted = job.plan, job.plan.probe_indices()
    if not plan.length:
        return SpecRequest(tuple(wanted), len(wanted), epoch)
    if plan.batch_size is None:
        first = int(plan.indices(epoch, 0)[0])
        wanted = [wanted[-1], *wanted[:-1]]  # the last is often the smallest
        indices = (first, *(index for index in wanted if index != first))
        # Reading one item twice could exceed the timeout.
        compares = (job.workers > 1 or bool(job.auto)) and job.policy.timeout is None
        return SpecRequest(indices, least, epoch, keeps=True, compares=compares)
    ends = wanted[0], wanted[-1]
    indices = tuple(sorted(wanted, key=lambda index: index not in ends))
    return SpecRequest(indices, 2, epoch, compares=job.workers > 1 or bool(job.auto))


def _check_failure(failure_log: FailureLog, failed: FailedFirst) -> int:
    """Record that one of the first scenes failed; return its index.

    Raises:
        BaseException: The policy is to raise errors, or too many scenes have failed.
    """
    index, error = failed.index, failed.error
    failure_log.record(index, None, None, error)
    if index is None or failure_log.policy.on_error == "raise" or not isinstance(error, Exception):
        raise error
    refusal = failure_log.refusal(index, 0, error)
    if refusal is not None:
        raise refusal
    return index


def _layout_of_most(job: Job, specs: Specs, *, are_all: bool) -> Layout | None:
    """Return the layout that fits these scenes.

    If scenes may fail, it has to fit only most of them. None if more scenes must be read.

    Raises:
        SpecError: The scenes cannot be batched. The message names index and field.
    """
    error, layout = None, None
    try:
        layout = layout_for(job, specs)
    except SpecError as raised:
        error = raised
    same_sizes = isinstance(job.collate, Stack) and job.plan.batch_size is not None

    def fits(layout: Layout) -> bool:
        return not same_sizes or all(field.is_fixed or field.is_text for field in layout.spec.fields)

    if job.policy.on_error == "raise" or (layout is not None and fits(layout)):
        if error is not None:
            raise error
        return layout
    if not are_all:
        return None
    alike: list[Any] = []
    for one in specs:
        like = []
        for other in specs:
            with suppress(SpecError):
                if fits(layout_for(job, (one, other))):
                    like.append(other)
        alike = max(alike, like, key=len)
    # Sizes may differ on purpose: then all scenes but one must agree.
    if len(alike) > len(specs) / 2 and (error is not None or len(alike) == len(specs) - 1 > 1):
        return layout_for(job, tuple(alike))
    if error is not None:
        raise error
    return layout


def watched(job: Job, record_random: Callable[[int, Held], None], generators: list[Any], read: Read) -> Read:
    """Wrap `read` so that it reports the generators that scenes use.

    Use it for threads of this process. The wrapper watches the global generators and `generators`, which other threads
    may use too. So if a generator has changed during a read, the wrapper waits for four times the duration of the read,
    between 20 and 200 ms, and does not report generators that change again during this wait.
    """
    if not job.watches_random:
        return read

    def reading(request: SpecRequest) -> FirstScenes | FailedFirst:
        begun, held = time.perf_counter(), Held(generators)
        watch = RandomWatch(held)
        result = read(request)
        used = watch.used()
        if used:
            watch = RandomWatch(held)
            time.sleep(min(max(0.02, 4 * (time.perf_counter() - begun)), 0.2))
            used &= ~watch.used()
            if used:
                record_random(used, held)
        return result

    return reading


def warn_of_random(failure_log: FailureLog, used: int, held: Held, job: Job, *, seeded: bool) -> None:
    """Defer warnings of generators that scenes of `job` use; see `random_warnings`."""
    failure_log.used_random |= used
    for kind, text in random_warnings(used, held, job.sequence, job.maker, seeded=seeded, has_seed=job.has_seed):
        failure_log.deferred_warnings.defer(kind, text, FeedWarning)


def layout_for(job: Job, specs: Specs) -> Layout:
    """Return the layout for these scenes.

    Raises:
        SpecError: The scenes cannot be batched. The message names index and field.
    """
    by_index = dict(sorted(specs, key=lambda each: each[0]))
    spec, forms = job.collate.resolve(merge(list(by_index.items())))
    if (
        job.plan.batch_size is None
        and job.spec is None
        and (not job.plan.length or job.plan.length - 1 not in by_index)
    ):
        spec = with_open_rows(spec)  # the last batch is often smaller than the first
    if job.has_weights:
        check_maskable(spec, padded=job.plan.pad_remainder)
        check_weight_forms(spec, forms)
    largest = tuple(
        _largest(field, forms[number] if forms else None, [one.fields[number] for one in by_index.values()])
        for number, field in enumerate(spec.fields)
    )
    batched = job.plan.batch_size is not None and job.maker is None
    return Layout(spec, job.plan.rows, batched, largest, forms, min(by_index) if job.spec is None else None)


def _largest(field: ArraySpec, form: Form | None, fields: list[ArraySpec]) -> int:
    if form is None:
        return max(each.nbytes for each in fields)
    fields = [as_others(each, field) for each in fields]
    # A batch may hold the longest row of every axis.
    return row_bytes(form, field, [tuple(size or 0 for size in each.shape) for each in fields])
