"""From the outcomes of single runs to medians, spreads and ratios.

Invariant: pure functions over frozen values. A ratio of two cases is taken per repeat, between runs that were at most
minutes apart, and only then reduced to its median: a machine that slows down affects both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from benchmarks.catalog import WORKLOADS, Case
from benchmarks.harness import Outcome


@dataclass(frozen=True)
class Spread:
    """A figure over the repeats.

    Attributes:
        median: Median of `values`.
        low: Least of them.
        high: Greatest of them.
        values: One per repeat that succeeded, in order; never empty.
    """

    median: float
    low: float
    high: float
    values: tuple[float, ...]


def spread(values: Iterable[float]) -> Spread | None:
    """The spread of some values, None when there are none."""
    kept = tuple(values)
    return Spread(median(kept), min(kept), max(kept), kept) if kept else None


@dataclass(frozen=True)
class Row:
    """All figures of one case.

    Attributes:
        case: The case.
        status: "ok" if any repeat succeeded, otherwise the status of the last one.
        notes: Remarks for the reader, for example "hung 1 of 5".
        rate: Scenes per second in the steady state.
        ratio: `rate` over the rate of the reference (`reference_of`), None if the workload has none.
        first_batch: Seconds from creating the feed to its first batch.
        epoch: Wall time of an epoch of `fit`, or of a feed taken in whole epochs, in seconds.
        cpu_ms: Processor time per scene in the whole process tree, in milliseconds.
        peak_mb: Largest memory of the process tree, in megabytes.
        growth_mb: Growth of that memory over the steady state, in megabytes.
        decodes: Chunks decoded per epoch over chunks stored.
        opening: Seconds from opening a file to its first row.
        index_mb: Memory of the chunk index of that file, in megabytes.
    """

    case: Case
    status: str
    notes: tuple[str, ...] = ()
    rate: Spread | None = None
    ratio: Spread | None = None
    first_batch: Spread | None = None
    epoch: Spread | None = None
    cpu_ms: Spread | None = None
    peak_mb: Spread | None = None
    growth_mb: Spread | None = None
    decodes: Spread | None = None
    opening: Spread | None = None
    index_mb: Spread | None = None


class Figures:
    """The figures of one run of the benchmarks.

    Args:
        outcomes: The outcomes of the harness.
    """

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._outcomes: dict[Case, list[Outcome]] = {}
        for outcome in outcomes:
            self._outcomes.setdefault(outcome.case, []).append(outcome)

    @property
    def rows(self) -> list[Row]:
        """One row per case, in the order in which they first ran within their workload."""
        order = list(WORKLOADS)
        cases = sorted(self._outcomes, key=lambda case: (order.index(case.workload), case.consumer == "flat"))
        return [self.row(case) for case in cases]

    def row(self, case: Case) -> Row:
        """The figures of one case that was run."""
        outcomes = self._outcomes[case]
        good = [outcome for outcome in outcomes if outcome.status == "ok"]
        if not good:
            return Row(case, outcomes[-1].status, (outcomes[-1].reason,))
        return Row(
            case,
            "ok",
            _notes(outcomes),
            rate=self._spread(case, "scenes_per_s"),
            ratio=self._ratio_to_reference(case),
            first_batch=self._spread(case, "first_batch_s"),
            epoch=self._spread(case, "epoch_s"),
            cpu_ms=self._spread(case, "cpu_ms"),
            peak_mb=spread(outcome.peak_mb for outcome in good if outcome.peak_mb is not None),
            growth_mb=spread(outcome.growth_mb for outcome in good if outcome.growth_mb is not None),
            decodes=self._spread(case, "decodes_per_chunk"),
            opening=self._spread(case, "open_s"),
            index_mb=self._spread(case, "index_mb"),
        )

    def find(self, name: str) -> Row | None:
        """The row of the case with this name, or None."""
        case = Case(*name.split("/"))
        return self.row(case) if case in self._outcomes else None

    def ratio(self, name: str, other: str) -> float | None:
        """Median over the repeats of the ratio of two cases' rates; None if one is missing."""
        ours, theirs = (self._by_repeat(Case(*key.split("/")), "scenes_per_s") for key in (name, other))
        pairs = spread(ours[repeat] / theirs[repeat] for repeat in ours if repeat in theirs)
        return pairs.median if pairs else None

    def share_of_ideal(self, name: str) -> float | None:
        """Median rate of a case over the ideal rate of its workload; None if either is missing."""
        row, ideal = self.find(name), WORKLOADS[name.split("/")[0]].ideal
        return row.rate.median / ideal if row and row.rate and ideal else None

    def _by_repeat(self, case: Case, key: str) -> dict[int, float]:
        outcomes = self._outcomes.get(case, [])
        return {outcome.repeat: outcome.figures[key] for outcome in outcomes if key in outcome.figures}

    def _spread(self, case: Case, key: str) -> Spread | None:
        return spread(self._by_repeat(case, key).values())

    def _ratio_to_reference(self, case: Case) -> Spread | None:
        if case.workload not in WORKLOADS:
            return None
        reference, rates = reference_of(case), self._by_repeat(case, "scenes_per_s")
        if reference == "ideal":
            ideal = WORKLOADS[case.workload].ideal or 1.0
            return spread(rate / ideal for rate in rates.values())
        consumer = "loop" if case.consumer == "epoch" else case.consumer
        theirs = self._by_repeat(Case(case.workload, consumer, reference), "scenes_per_s")
        return spread(rates[repeat] / theirs[repeat] for repeat in rates if repeat in theirs)


def reference_of(case: Case) -> str:
    """The peer that tables compare a case with, or "ideal"."""
    workload = WORKLOADS[case.workload]
    if case.consumer == "fit" and workload.ideal is None:
        return workload.fit_reference
    return workload.reference


def _notes(outcomes: list[Outcome]) -> tuple[str, ...]:
    notes = []
    for status in ("hung", "failed"):
        count = sum(outcome.status == status for outcome in outcomes)
        if count:
            notes.append(f"{status} {count} of {len(outcomes)}")
    if any(outcome.figures.get("extrapolated") for outcome in outcomes):
        notes.append("epoch extrapolated from its first seconds")
    return tuple(notes)
