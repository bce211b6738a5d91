"""The outcomes as tables in Markdown.

Invariant: pure functions. A ratio is taken between runs of one turn, and only then reduced to its median.
"""

from collections.abc import Iterable
from statistics import median

from benchmarks.figures import spread
from benchmarks.harness import Outcome
from benchmarks.real.rows import PEERS, ROWS, Cell, cells_of
from benchmarks.report import short, table

BEGIN = "<!-- real: written by `python -m benchmarks.real --markdown docs/performance/real.md` -->"
END = "<!-- end of real -->"


class Tables:
    """The tables of one run.

    Args:
        outcomes: What the harness returned.
    """

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._outcomes: dict[Cell, list[Outcome]] = {}
        for outcome in outcomes:
            self._outcomes.setdefault(outcome.case, []).append(outcome)

    def _values(self, cell: Cell, figure: str) -> dict[int, float]:
        found = self._outcomes.get(cell, [])
        return {outcome.repeat: outcome.figures[figure] for outcome in found if figure in outcome.figures}

    def _rate(self, cell: Cell) -> float:
        return median(self._values(cell, "scenes_per_s").values() or [0.0])

    def _ratio(self, one: Cell, other: Cell) -> str:
        rates, others = self._values(one, "scenes_per_s"), self._values(other, "scenes_per_s")
        ratios = [rates[repeat] / others[repeat] for repeat in rates.keys() & others.keys()]
        return f"{median(ratios):.2f}" if ratios else ""

    def summary(self) -> str:
        """A line for each workload: kerasfeed's best set-up, its own choice, and its peers."""
        lines = [self._summary_line(name) for name in ROWS if any(cell.row == name for cell in self._outcomes)]
        head = ("workload", "kerasfeed, best", "auto", "auto / best", "peers", "kerasfeed / best peer")
        return table(head, lines)

    def _summary_line(self, name: str) -> tuple[str, ...]:
        cells = sorted(cells_of(ROWS[name]), key=self._rate, reverse=True)
        measured = [cell for cell in cells if self._rate(cell)]
        ours = [cell for cell in measured if cell.is_ours]
        theirs = [cell for cell in measured if not cell.is_ours]
        peers = [cell for cell in theirs if not PEERS[cell.peer].is_limit]
        auto = Cell(name, "auto")
        words = ", ".join(f"{cell.title} {short(self._rate(cell))}" for cell in theirs)
        if not ours:
            return ROWS[name].title, "", "", "", words, ""
        best = f"{short(self._rate(ours[0]))} ({ours[0].title})"
        ratio = self._ratio(ours[0], peers[0]) if peers else ""
        return ROWS[name].title, best, short(self._rate(auto)), self._ratio(auto, ours[0]), words, ratio

    def details(self) -> str:
        """A line for each cell."""
        cells = sorted(self._outcomes, key=lambda cell: (list(ROWS).index(cell.row), -self._rate(cell)))
        head = ("workload", "reader", "scenes/s (min to max)", "CPU, ms a scene", "peak memory, MB", "epoch checked")
        return table(head, map(self._detail_line, cells))

    def _detail_line(self, cell: Cell) -> tuple[str, ...]:
        outcomes = self._outcomes[cell]
        rates, peaks = self._values(cell, "scenes_per_s").values(), [each.peak_mb for each in outcomes if each.peak_mb]
        reasons = sorted({f"{outcome.status}: {outcome.reason}" for outcome in outcomes if outcome.status != "ok"})
        title = f"**kerasfeed**, {cell.title}" if cell.is_ours else cell.title
        found = spread(rates)
        if found is None:
            return ROWS[cell.row].title, title, "", "", "", "; ".join(reasons)
        rate = f"{short(found.median)} ({short(found.low)} to {short(found.high)})"
        cpu = short(median(self._values(cell, "cpu_ms").values()))
        return ROWS[cell.row].title, title, rate, cpu, short(max(peaks)), "; ".join(["right", *reasons])
