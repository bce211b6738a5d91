"""What a bar is: a figure with a goal, and the verdict on it.

Invariant: pure. A bar whose cases were not run is "not measured", never met.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import Figures


@dataclass(frozen=True)
class Bar:
    """A figure with a goal.

    Attributes:
        title: What is claimed.
        goal: The number to reach.
        at_least: Whether the figure has to be at least `goal`, or else less than it.
        unit: Unit of the figure, "x" for a ratio.
        measure: From the figures to the number, None when its cases were not run; and a remark.
    """

    title: str
    goal: float
    at_least: bool
    unit: str
    measure: Callable[[Figures], tuple[float | None, str]]


@dataclass(frozen=True)
class Verdict:
    """A bar and what came of it.

    Attributes:
        title: What is claimed.
        goal: The goal in words, such as ">= 5 x".
        measured: The figure in words, "not measured" without one.
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
        title: What is claimed.
        goal: The least ratio.
        ours: Name of a case.
        theirs: From names of cases to what a remark calls them.
    """

    def measure(figures: Figures) -> tuple[float | None, str]:
        ratios = {other: figures.ratio(ours, other) for other in theirs}
        known = {other: found for other, found in ratios.items() if found is not None}
        if not known:
            return None, ""
        nearest = min(known, key=lambda other: known[other])
        return known[nearest], f"nearest: {theirs[nearest]}"

    return Bar(title, goal, True, "x", measure)
