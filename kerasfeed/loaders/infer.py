"""The layout of a slot, inferred from a few scenes, whoever reads them.

Invariant: which scenes are read depends on the sequence's length alone, and, where scenes may fail, on which do.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kerasfeed.loaders import Job
from kerasfeed.loaders.blank import check_maskable
from kerasfeed.loaders.faults import MOST_STAND_INS, Faults, replacement
from kerasfeed.loaders.layout import Layout
from kerasfeed.spec import SceneSpec, merge, probe_indices


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


ReadProbes = Callable[[list[int]], list[Probe | BaseException]]


def probe_scenes(job: Job, faults: Faults, read: ReadProbes) -> list[Probe]:
    """Read a few scenes spread over the sequence; where scenes may fail, others in place of those that do.

    Args:
        job: What is to be loaded.
        faults: The policy, and where failures are noted.
        read: From indices to what reading each of them gave; may stop after an error where `on_error` is "raise".

    Raises:
        Exception: What the sequence raised; TooManyFailuresError.
    """
    found: list[Probe] = []
    wanted = [(index, index, 0) for index in probe_indices(job.plan.length)]
    first_error: BaseException | None = None
    while wanted:
        results = read([index for _, index, _ in wanted])
        again = []
        for (original, index, attempt), result in zip(wanted, results, strict=False):
            if isinstance(result, Probe):
                found.append(result)
                continue
            faults.note(index, None, None, result)
            first_error = first_error or result
            if faults.policy.on_error == "raise" or not isinstance(result, Exception):
                raise result
            refusal = faults.refusal(index, result)
            if refusal is not None:
                raise refusal
            if job.plan.length > 1 and attempt < MOST_STAND_INS:
                stand_in = replacement(job.plan.seed, 0, original, attempt + 1, job.plan.length)
                again.append((original, stand_in, attempt + 1))
        wanted = again
    if not found:
        assert first_error is not None
        raise first_error
    return found


def layout_for(job: Job, probes: list[Probe]) -> Layout:
    """Lay a slot out for scenes like these.

    Raises:
        SpecError: The scenes cannot be batched; the message names index and field.
    """
    by_index = {probe.index: probe.spec for probe in sorted(probes, key=lambda probe: probe.index)}
    merged = merge(list(by_index.items()))
    if job.policy.on_error == "mask":
        check_maskable(merged)
    sizes = zip(*([field.nbytes for field in spec.fields] for spec in by_index.values()), strict=True)
    return Layout(merged, job.plan.rows, job.plan.batch_size is not None, tuple(max(each) for each in sizes))
