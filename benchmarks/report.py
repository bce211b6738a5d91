"""The figures as Markdown and as JSON.

Invariant: pure functions from values to text; nothing is measured or written here.
"""

from collections.abc import Iterable
from typing import Any

from benchmarks.bars import Verdict
from benchmarks.catalog import PEERS, WORKLOADS, Case
from benchmarks.figures import Figures, Row, Spread, reference_of
from benchmarks.harness import Settings

CONSUMERS = {
    "loop": "in a loop",
    "epoch": "in whole epochs",
    "fit": "in model.fit",
    "flat": "memory over 2,000 batches",
    "open": "until it is read",
}


def markdown(figures: Figures, verdicts: list[Verdict], machine: dict[str, Any], settings: Settings) -> str:
    """The whole report: the machine, the bars, and one table per workload and consumer."""
    parts = ["# Benchmarks", machine_lines(machine, settings), "## Bars", bar_table(verdicts)]
    for workload in WORKLOADS.values():
        for consumer, words in CONSUMERS.items():
            rows = [row for row in figures.rows if row.case.workload == workload.name and row.case.consumer == consumer]
            if rows:
                parts += [f"## {workload.title}, {words}", _caption(rows[0].case), case_table(rows)]
    return "\n\n".join(parts) + "\n"


def bar_table(verdicts: list[Verdict]) -> str:
    """The bars as a Markdown table."""
    lines = [(bar.title, bar.goal, bar.measured, bar.verdict) for bar in verdicts]
    return table(("bar", "goal", "measured", "verdict"), lines)


def case_table(rows: list[Row]) -> str:
    """One line per case: rate, ratio, first batch or epoch, memory, notes; the fastest first."""
    ordered = sorted(rows, key=lambda row: -(row.rate.median if row.rate else 0.0))
    consumer = rows[0].case.consumer
    if consumer == "flat":
        return table(
            ("case", "growth, MB", "peak memory, MB", "notes"),
            [(_title(row), _span(row.growth_mb), _span(row.peak_mb), _notes(row)) for row in ordered],
        )
    if consumer == "open":
        return table(
            ("case", "time, s (min to max)", "chunk index, MB", "peak memory, MB", "notes"),
            [
                (_title(row), _span(row.opening), _number(row.index_mb), _number(row.peak_mb), _notes(row))
                for row in ordered
            ],
        )
    by_epoch = consumer in ("fit", "epoch")
    third = "wall time an epoch, s" if by_epoch else "first batch, s"
    head = ("case", "scenes/s (min to max)", "ratio (min to max)", third, "peak memory, MB", "notes")
    lines = [
        (
            _title(row),
            _span(row.rate),
            _span(row.ratio),
            _number(row.epoch if by_epoch else row.first_batch),
            _number(row.peak_mb),
            _notes(row),
        )
        for row in ordered
    ]
    return table(head, lines)


def as_json(figures: Figures, verdicts: list[Verdict], machine: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The same as plain values, with every repeat."""
    return {
        "machine": machine,
        "settings": {"seconds": settings.seconds, "repeats": settings.repeats, "timeout_s": settings.timeout},
        "bars": [vars(bar) for bar in verdicts],
        "cases": [_row_values(row) for row in figures.rows],
    }


def _row_values(row: Row) -> dict[str, Any]:
    spreads = {
        "scenes_per_s": row.rate,
        "ratio": row.ratio,
        "first_batch_s": row.first_batch,
        "epoch_s": row.epoch,
        "peak_mb": row.peak_mb,
        "growth_mb": row.growth_mb,
        "decodes_per_chunk": row.decodes,
        "open_s": row.opening,
        "index_mb": row.index_mb,
    }
    return {
        "case": row.case.name,
        "title": PEERS[row.case.peer].title,
        "workers": PEERS[row.case.peer].workers or WORKLOADS[row.case.workload].workers,
        "reference": reference_of(row.case),
        "status": row.status,
        "notes": list(row.notes),
        **{
            name: {"median": value.median, "min": value.low, "max": value.high, "values": list(value.values)}
            for name, value in spreads.items()
            if value is not None
        },
    }


def machine_lines(machine: dict[str, Any], settings: Settings) -> str:
    """The machine, and the settings of the run."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, "
        f"Python {machine['python']}; {versions}.\n\n"
        f"Each case ran in its own process, {settings.repeats} time(s), interleaved with all others, "
        f"with at least {settings.seconds:g} s of steady state each time. Figures are medians, spreads are "
        "least to greatest. "
        "Memory is measured over the whole process tree; pages of code count once."
    )


def _caption(case: Case) -> str:
    workload = WORKLOADS[case.workload]
    if case.workload == "hdf5-groups":
        return "The file is in the page cache; opened once, and every dataset read in one thread."
    if case.consumer == "open":
        return "The file is in the page cache; kerasfeed reads the whole chunk index, h5py a part for the first row."
    if case.consumer == "flat":
        return f"Batches of {workload.batch_size}; growth between the first and the last quarter of the batches."
    reference = reference_of(case)
    words = f"{workload.ideal:g} scenes/s" if reference == "ideal" else PEERS[reference].title
    workers = "" if workload.make_ours else f", {workload.workers} workers"
    parts = [f"Batches of {workload.batch_size}{workers}; ratio to {words}"]
    if case.consumer == "fit":
        calls = workload.fit_steps_per_call
        parts.append(f"epochs of {workload.fit_scenes} scenes, steps_per_execution={calls} for all")
    return "; ".join(parts) + "."


def _title(row: Row) -> str:
    peer = PEERS[row.case.peer]
    return f"**{peer.title}**" if peer.ours else peer.title


def _notes(row: Row) -> str:
    decodes = (f"{row.decodes.median:.3g} decodes a chunk and epoch",) if row.decodes else ()
    return "; ".join((*row.notes, *decodes) if row.status == "ok" else (row.status, *row.notes))


def _number(value: Spread | None) -> str:
    return "" if value is None else short(value.median)


def _span(value: Spread | None) -> str:
    if value is None:
        return ""
    if len(value.values) == 1:
        return short(value.median)
    return f"{short(value.median)} ({short(value.low)} to {short(value.high)})"


def short(value: float) -> str:
    """A number with three significant digits and separated thousands."""
    if abs(value) >= 100:
        digits = max(0, len(str(int(abs(value)))) - 3)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"

    return "\n".join([line(head), "|" + " --- |" * len(head), *map(line, lines)])
