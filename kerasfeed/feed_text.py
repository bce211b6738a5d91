"""What a feed says of itself, as text and as HTML.

Invariant: never raises, whatever the sequence does.
"""

from collections.abc import Callable
from typing import Any

from kerasfeed.html import FieldRow, field_table
from kerasfeed.loaders import LoaderStats
from kerasfeed.order import Sequential
from kerasfeed.plan import Plan
from kerasfeed.spec import SceneSpec


def feed_text(sequence: Any, plan: Plan, stats: LoaderStats) -> str:
    """One line."""
    shard = f", shard {plan.shard_index} of {plan.shard_count}" if plan.shard_count > 1 else ""
    return (
        f"Feed({type(sequence).__name__}: {plan.length:,} scenes, batch_size={plan.batch_size}, "
        f"{plan.steps:,} steps{shard}, {_workers_text(stats)})"
    )


def feed_html(sequence: Any, plan: Plan, stats: LoaderStats, spec_of: Callable[[], SceneSpec]) -> str:
    """A table of the fields of a batch; `spec_of` gives the spec of a scene, or raises."""
    facts = [
        ("scenes", f"{plan.length:,}"),
        ("batch size", str(plan.batch_size)),
        ("steps in an epoch", f"{plan.steps:,}"),
        ("order", f"{plan.order}" + ("" if isinstance(plan.order, Sequential) else f", seed {plan.seed}")),
        ("workers", _workers_text(stats)),
    ]
    if stats.respawns:
        facts.append(("workers replaced", f"{stats.respawns:,}"))
    if stats.failed:
        facts.append(("failed scenes", f"{stats.failed:,}"))
    try:
        spec = spec_of()
    except Exception as error:  # noqa: BLE001 - a notebook must show the feed even when a scene cannot be read
        return field_table("Feed", [*facts, ("error", f"{type(error).__name__}: {error}")], [])
    rows = plan.rows if plan.is_uniform else None
    lead = () if plan.batch_size is None else (rows,)
    fields = [
        FieldRow(path, _shape_text((*lead, *field.shape)), str(field).split("[")[0], "")
        for path, field in zip(spec.paths, spec.fields, strict=True)
    ]
    return field_table(f"Feed of {type(sequence).__name__}", facts, fields)


def _workers_text(stats: LoaderStats) -> str:
    if stats.worker_type == "inline":
        return "no workers"
    return f"{stats.workers} {stats.worker_type} worker{'s' if stats.workers > 1 else ''}"


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
