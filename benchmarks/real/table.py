"""The figures as tables in Markdown.

Invariant: pure functions.
"""

from benchmarks.catalog import PEERS, Case
from benchmarks.figures import Figures, Row
from benchmarks.harness import Outcome
from benchmarks.real.rows import ROWS, cases_of
from benchmarks.report import short, table

BEGIN = "<!-- real: written by `python -m benchmarks.real --markdown docs/performance/real.md` -->"
END = "<!-- end of real -->"


def tables(outcomes: list[Outcome]) -> str:
    """One line per workload, then one line per case."""
    figures = Figures(outcomes)
    cases = {name: [case for case in cases_of(row) if figures.find(case.name)] for name, row in ROWS.items()}
    found = {name: sorted(map(figures.row, measured), key=_rate, reverse=True) for name, measured in cases.items()}
    head = ("workload", "kerasfeed, best", "auto", "auto / best", "peers", "kerasfeed / best peer")
    summary = table(head, [_summary_line(figures, name, rows) for name, rows in found.items() if rows])
    reasons = {outcome.case: outcome.reason for outcome in outcomes if outcome.reason}
    head = ("workload", "reader", "scenes/s (min to max)", "CPU, ms a scene", "peak memory, MB", "epoch checked")
    lines = [_case_line(name, row, reasons.get(row.case, "")) for name, rows in found.items() for row in rows]
    return f"{summary}\n\n{table(head, lines)}"


def _rate(row: Row) -> float:
    return row.rate.median if row.rate else 0.0


def _ratio(figures: Figures, one: Case, other: Case) -> str:
    ratio = figures.ratio(one.name, other.name)
    return f"{ratio:.2f}" if ratio else ""


def _summary_line(figures: Figures, name: str, rows: list[Row]) -> tuple[str, ...]:
    measured = [row for row in rows if row.rate]
    ours = [row for row in measured if PEERS[row.case.peer].ours]
    theirs = [row for row in measured if not PEERS[row.case.peer].ours]
    peers = [row for row in theirs if not PEERS[row.case.peer].is_limit]
    words = ", ".join(f"{PEERS[row.case.peer].title} {short(_rate(row))}" for row in theirs)
    best = auto = share = ratio = ""
    if ours:
        best = f"{short(_rate(ours[0]))} ({PEERS[ours[0].case.peer].title.removeprefix('kerasfeed ')})"
        ratio = _ratio(figures, ours[0].case, peers[0].case) if peers else ""
    for row in ours:
        if row.case.peer == "kerasfeed_auto":
            auto, share = short(_rate(row)), _ratio(figures, row.case, ours[0].case)
    return ROWS[name].title, best, auto, share, words, ratio


def _case_line(name: str, row: Row, reason: str) -> tuple[str, ...]:
    peer = PEERS[row.case.peer]
    title = f"**{peer.title}**" if peer.ours else peer.title
    if not row.rate or not row.peak_mb or not row.cpu_ms:
        return ROWS[name].title, title, "", "", "", f"{row.status}: {reason}"
    rate = f"{short(row.rate.median)} ({short(row.rate.low)} to {short(row.rate.high)})"
    checked = "; ".join(["right", *row.notes])
    return ROWS[name].title, title, rate, short(row.cpu_ms.median), short(row.peak_mb.high), checked
