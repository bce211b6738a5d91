"""Bars: figures with goals, and their verdicts.

Invariant: pure. A bar whose cases were not run is "not measured", never met.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import Figures


@dataclass(frozen=True)
class Bar:
    """A figure with a goal.

    Attributes:
        title: The claim.
        goal: The number to reach.
        at_least: Whether the figure must be at least `goal`; else it must be less.
        unit: Unit of the figure, "x" for a ratio.
        measure: Function from the figures to the number and a remark; the number is None if its cases were not run.
    """

    title: str
    goal: float
    at_least: bool
    unit: str
    measure: Callable[[Figures], tuple[float | None, str]]


@dataclass(frozen=True)
class Verdict:
    """A bar with its result.

    Attributes:
        title: The claim.
        goal: The goal in words, such as ">= 5 x".
        measured: The figure in words, or "not measured".
        verdict: "met", "short" or "not measured".
    """

    title: str
    goal: str
    measured: str
    verdict: str


def verdict(bar: Bar, figures: Figures) -> Verdict:
    """Whether the figures meet a bar."""
    goal = f"{'>=' if bar.at_least else '<'} {bar.goal:g} {bar.unit}"
    value, remark = bar.measure(figures)
    if value is None:
        return Verdict(bar.title, goal, "not measured", "not measured")
    met = value >= bar.goal if bar.at_least else value < bar.goal
    measured = f"{value:.3g} {bar.unit}" + (f" ({remark})" if remark else "")
    return Verdict(bar.title, goal, measured, "met" if met else "short")


def ratio(title: str, goal: float, ours: str, theirs: str) -> Bar:
    """At least `goal` times the rate of another case, the median over the repeats."""
    return Bar(title, goal, True, "x", lambda figures: (figures.ratio(ours, theirs), ""))


def ratio_to_best(title: str, goal: float, ours: str, theirs: dict[str, str]) -> Bar:
    """At least `goal` times the rate of the fastest of some cases.

    Args:
        title: The claim.
        goal: The least ratio.
        ours: Name of a case.
        theirs: The names of the other cases, with their names in remarks.
    """

    def measure(figures: Figures) -> tuple[float | None, str]:
        ratios = {other: figures.ratio(ours, other) for other in theirs}
        known = {other: found for other, found in ratios.items() if found is not None}
        if not known:
            return None, ""
        nearest = min(known, key=lambda other: known[other])
        return known[nearest], f"nearest: {theirs[nearest]}"

    return Bar(title, goal, True, "x", measure)
