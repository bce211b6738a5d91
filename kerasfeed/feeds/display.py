"""Feeds as text and as HTML, and the warning about wasteful orders.

Invariant: nothing here raises, even if the sequence does. The warning reports measurements only.
"""

from itertools import takewhile
from typing import Any

import optree

from kerasfeed.feeds.sharding import Shard
from kerasfeed.loaders.auto_workers import Choice
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.orders.base import Order
from kerasfeed.readers.read_cost import ReadCost
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.error_text import pluralize, summary
from kerasfeed.util.report import Report, Table

_PACKAGE = __name__.split(".")[0]


def feed_text(feed: Any) -> str:
    """Return a `BaseFeed` as one line of text."""
    plan = feed.plan
    length = pluralize(plan.length, "scene") if plan.batch_size else pluralize(plan.length, "batch", "batches")
    parts = [
        f"{type(feed.sequence).__name__}: {length}",
        f"batch_size={plan.batch_size}",
        pluralize(plan.steps, "step"),
    ]
    parts += [] if plan.order.is_sequential else [str(plan.order)]
    parts += [f"shard {feed.shard}"] if _has_shards(feed.shard) else []
    return f"Feed({', '.join([*parts, workers_text(feed.stats(), feed.worker_choice)])})"


def public_names(feed: Any, public: frozenset[str]) -> list[str]:
    """Return the names for `dir(feed)`.

    These are `public`, the additions of a user's subclass, and Python's special names.
    """
    of_users = takewhile(lambda kind: not kind.__module__.startswith(f"{_PACKAGE}."), type(feed).__mro__)
    added = {name for kind in of_users for name in vars(kind) if not name.startswith("_")}
    return sorted(added | {name for name in object.__dir__(feed) if name in public or name.startswith("__")})


def feed_html(feed: Any) -> str:
    """Return a `BaseFeed` as an HTML table of its fields.

    If a scene cannot be read, the table shows the error.
    """
    plan, stats = feed.plan, feed.stats()
    facts = [
        ("scenes" if plan.batch_size else "batches", f"{plan.length:,}"),
        ("batch size", str(plan.batch_size)),
        ("steps in an epoch", f"{plan.steps:,}"),
        ("order", f"{plan.order}" + (f", seed {plan.seed}" if plan.order.needs_seed else "")),
        ("workers", workers_text(stats, feed.worker_choice)),
    ]
    if _has_shards(feed.shard):
        facts.append(("shard", str(feed.shard)))
    if plan.pad_remainder:
        facts.append(("short batches", "filled up, with weight 0"))
    if stats.respawns:
        facts.append(("workers replaced", f"{stats.respawns:,}"))
    if stats.failed:
        facts.append(("failed scenes", f"{stats.failed:,}"))
    try:
        spec = feed.element_spec
    except Exception as error:  # noqa: BLE001 - a notebook must show the feed even when a scene cannot be read
        return Report("Feed", [*facts, ("error", summary(error))]).html
    return Report(f"Feed of {type(feed.sequence).__name__}", facts, [_fields(spec)]).html


def stream_html(kind: str, facts: list[tuple[str, str]], spec: Any | None) -> str:
    """Return a stream as an HTML table of its fields.

    `spec` is the nesting of `ArraySpec`s of a batch, None while unknown.
    """
    return Report(kind, facts, [] if spec is None else [_fields(spec)]).html


def _fields(spec: Any) -> Table:
    leaves, treespec = optree.tree_flatten(spec, is_leaf=lambda node: isinstance(node, RaggedArray))
    named = zip(field_paths(treespec), leaves, strict=True)
    rows = []
    for path, field in (part for name, leaf in named for part in _parts(name, leaf)):
        dtype, _, shape = str(field).partition("[")
        rows.append((path, f"[{shape}", dtype))
    return Table(("field", "shape", "dtype"), rows)


def _has_shards(shard: Shard) -> bool:
    return shard.count > 1 or bool(shard.source)


def _parts(path: str, field: Any) -> list[tuple[str, ArraySpec]]:
    if isinstance(field, RaggedArray):
        return [part for name in field._fields for part in _parts(f"{path}.{name}", getattr(field, name))]
    return [(path, field)]


def workers_text(stats: LoaderStats, choice: Choice | None = None) -> str:
    """Describe number and type of the workers, and the reason of "auto"."""
    why = "" if choice is None else f" (auto: {choice.reason})"
    if stats.worker_type == "inline":
        return f"no workers{why}"
    workers = pluralize(stats.workers, f"{stats.worker_type} worker") + why
    return workers if stats.hosts is None else f"{workers} on each of {pluralize(stats.hosts.wanted, 'host')}"


def waste_text(cost: ReadCost, order: Order, stats: LoaderStats, *, boxes: bool = False) -> str:
    """Return the warning: measured cost, cause, and remedies, best first.

    Args:
        cost: The measured cost of reading.
        order: The order of the feed.
        stats: Counters of its loader.
        boxes: Whether scenes are `Patches` or `Windows`, which know their blocks, instead of rows.
    """
    storage, unit = cost.storage, cost.storage.unit
    what = order.argument
    per_scene = max(1, round(cost.scene_bytes / storage.row_bytes)) if unit == "chunk" else 1
    blocks = f"file[{storage.short_name!r}].block_size"
    if unit == "file":
        blocks = "files"
    elif boxes:
        blocks = "sequence"
    elif per_scene > 1:
        blocks = str(max(1, storage.block_size // per_scene))
    remedies = []
    if order.window is not None:
        remedies.append(f"order=kf.BlockShuffled({blocks}, window=1)")
    elif not order.is_sequential:
        remedies.append(f"order=kf.BlockShuffled({blocks}), which reads each {unit} about once an epoch")
    if stats.worker_type == "process" and stats.workers > 1:
        remedies.append("worker_type='thread': threads share one cache")
    if unit == "file":
        remedies.append("larger cache_files and cache_bytes in FileSequence(...)")
    else:
        remedies.append(f"kf.HDF5File(path, chunk_cache={storage.nbytes:_}), which holds the whole dataset")
        if storage.block_size * storage.row_bytes > 1 << 14:  # smaller chunks would be read no faster
            remedies.append("a file of small chunks: kf.write_hdf5(scenes, path, scenes_per_chunk=1)")
    return (
        f"{what} is slow on {'this file' if unit == 'chunk' else 'these files'}: {cost}, measured so far. A {unit} "
        f"holds {storage.block_size:,} {'rows' if boxes or per_scene > 1 else 'scenes'}, and leaves the cache before "
        f"its other scenes are read. Remedies: {'; or '.join(remedies)}"
    )
