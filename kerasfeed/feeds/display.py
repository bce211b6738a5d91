"""What a feed says of itself, as text and as HTML, and of an order that makes its reader decode too much.

Invariant: never raises, whatever the sequence does. Of reading only what was measured is told.
"""

from itertools import takewhile
from typing import Any

import optree

from kerasfeed.feeds.sharding import Shard
from kerasfeed.loaders.auto_workers import Choice
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.orders.base import Order
from kerasfeed.spec.array_pictures import FIELD_COLUMNS, field_cells
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import summary
from kerasfeed.util.read_cost import ReadCost
from kerasfeed.util.report import Report, Table

_PACKAGE = __name__.split(".")[0]


def feed_text(feed: Any) -> str:
    """A `BaseFeed` in one line."""
    plan = feed.plan
    length = counted(plan.length, "scene") if plan.batch_size else counted(plan.length, "batch", "batches")
    parts = [f"{type(feed.sequence).__name__}: {length}", f"batch_size={plan.batch_size}", counted(plan.steps, "step")]
    parts += [] if plan.order.is_sequential else [str(plan.order)]
    parts += [f"shard {feed.shard}"] if _has_shards(feed.shard) else []
    return f"Feed({', '.join([*parts, workers_text(feed.stats(), feed.worker_choice)])})"


def public_names(feed: Any, public: frozenset[str]) -> list[str]:
    """What `dir(feed)` lists: the `public` names, those that a user's subclass adds, and Python's own."""
    of_users = takewhile(lambda kind: not kind.__module__.startswith(f"{_PACKAGE}."), type(feed).__mro__)
    added = {name for kind in of_users for name in vars(kind) if not name.startswith("_")}
    return sorted(added | {name for name in object.__dir__(feed) if name in public or name.startswith("__")})


def feed_html(feed: Any) -> str:
    """A `BaseFeed` as a table of the fields of a batch; where a scene cannot be read, the error."""
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
    """A table of the fields of a batch of a stream; `spec`, its nesting of `ArraySpec`s, is None as long as unknown."""
    return Report(kind, facts, [] if spec is None else [_fields(spec)]).html


def _fields(spec: Any) -> Table:
    leaves, treespec = optree.tree_flatten(spec, is_leaf=lambda node: isinstance(node, RaggedArray))
    named = zip(field_paths(treespec), leaves, strict=True)
    return Table(FIELD_COLUMNS, [field_cells(*part) for path, leaf in named for part in _parts(path, leaf)])


def _has_shards(shard: Shard) -> bool:
    return shard.count > 1 or bool(shard.source)


def _parts(path: str, field: Any) -> list[tuple[str, ArraySpec]]:
    if isinstance(field, RaggedArray):
        return [part for name in field._fields for part in _parts(f"{path}.{name}", getattr(field, name))]
    return [(path, field)]


def workers_text(stats: LoaderStats, choice: Choice | None = None) -> str:
    """Number and kind of the workers, in words, and why these where scenes were measured to choose them."""
    if stats.worker_type == "inline":
        return "no workers"
    why = "" if choice is None or not choice.measured else f" (auto: {choice.reason})"
    workers = counted(stats.workers, f"{stats.worker_type} worker") + why
    return workers if stats.hosts is None else f"{workers} on each of {counted(stats.hosts.wanted, 'host')}"


def waste_text(cost: ReadCost, order: Order, stats: LoaderStats, *, boxes: bool = False) -> str:
    """The warning: what was measured, why, and the remedies, best first.

    Args:
        cost: What was measured.
        order: The order of the feed.
        stats: Of its loader.
        boxes: Whether scenes are `Patches` or `Windows`, which know their blocks, and not rows.
    """
    storage = cost.storage
    what = order.argument
    several = stats.worker_type == "process" and stats.workers > 1
    where = f" by one of {stats.workers} worker processes" if several else ""
    if storage.unit == "file":
        return _files_text(cost, order, what, where)
    per_scene = max(1, round(cost.scene_bytes / storage.row_bytes))
    block = (
        f"file[{storage.short_name!r}].block_size" if per_scene == 1 else f"{max(1, storage.block_size // per_scene)}"
    )
    row = "scene" if per_scene == 1 and not boxes else "row"
    remedies = []
    if several and what != "shuffle=True":
        remedies.append("worker_type='thread', for threads share one cache and processes decode each for itself")
    if order.window is not None:
        size = getattr(order, "block_size", None)
        if not boxes and (size is None or size * per_scene % storage.block_size):
            remedies.append(f"blocks that are chunks, order=kf.BlockShuffled({block})")
        remedies.append(f"a window of fewer than {order.window} blocks" if order.window > 1 else "smaller blocks")
    elif boxes and not order.is_sequential:
        remedies.append("order=kf.BlockShuffled(sequence), with which scenes that share chunks come together")
    elif not order.is_sequential:
        remedies.append(
            f"order=kf.BlockShuffled({block}) instead of {what}, which reads each chunk about once an epoch"
        )
    remedies.append(
        f"memory: kf.HDF5File(path, chunk_cache={storage.nbytes:_}) holds the whole dataset"
        + (", in every worker process" if stats.worker_type == "process" else "")
    )
    if storage.block_size * storage.row_bytes > 1 << 14:  # what `rechunk` makes at least
        remedies.append(f"once and for all, a file of small chunks: kf.rechunk(path, out, {storage.short_name!r})")
    return (
        f"{what} is slow on this file: {cost}, measured{where} so far. A chunk holds {storage.block_size:,} {row}s, "
        f"and the chunk cache of {storage.cache_bytes / 1e6:,.0f} MB does not hold the {storage.nbytes / 1e6:,.0f} MB "
        f"dataset, so chunks leave it before their other scenes are wanted. Remedies: {'; or '.join(remedies)}"
    )


def _files_text(cost: ReadCost, order: Order, what: str, where: str) -> str:
    """What `waste_text` says of files; `what` is slow, and `where` says by which worker process that was measured."""
    remedies = []
    if order.window is None and not order.is_sequential:
        remedies.append("order=kf.BlockShuffled(files, window=4), which reads each file about once an epoch")
    if where:
        remedies.append("worker_type='thread', for threads share what is read and each process reads for itself")
    elif (order.window or 0) > 1:
        remedies.append(f"a window of fewer than {order.window} files")
    remedies.append(
        "memory: larger cache_files and cache_bytes in FileSequence(...)"
        + (", for every worker process" if where else "")
    )
    return (
        f"{what} is slow on these files: {cost}, measured{where} so far. A file holds about "
        f"{cost.storage.block_size:,} scenes, and leaves the cache before its other scenes are "
        "wanted, or is read forward only and was wanted from its beginning. Remedies: " + "; or ".join(remedies)
    )
