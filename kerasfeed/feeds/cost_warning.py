"""What the user is told where the order of a feed makes the reader decode far more than the scenes hold.

Invariant: only of what was measured. A feed whose cache holds the data never warns.
"""

from kerasfeed.loaders.base import LoaderStats
from kerasfeed.orders.base import Order, Sequential, Shuffled
from kerasfeed.orders.blocks import BlockShuffled
from kerasfeed.util.read_cost import ReadCost


def waste_text(cost: ReadCost, order: Order, stats: LoaderStats, *, boxes: bool = False) -> str:
    """The warning: what was measured, why, and the remedies, best first.

    Args:
        cost: What was measured.
        order: The order of the feed.
        stats: Of its loader.
        boxes: Whether scenes are `Patches` or `Windows`, which know their blocks, and not rows.
    """
    storage = cost.storage
    if storage.unit == "file":
        return _files_text(cost, order, stats)
    what = "shuffle=True" if isinstance(order, Shuffled) else f"order={order!r}"
    where = (
        f" by one of {stats.workers} worker processes" if stats.worker_type == "process" and stats.workers > 1 else ""
    )
    per_scene = max(1, round(cost.scene_bytes / storage.row_bytes))
    block = (
        f"file[{storage.short_name!r}].block_size" if per_scene == 1 else f"{max(1, storage.block_size // per_scene)}"
    )
    row = "scene" if per_scene == 1 and not boxes else "row"
    remedies = []
    if where and not isinstance(order, Shuffled):
        remedies.append("worker_type='thread', for threads share one cache and processes decode each for itself")
    if isinstance(order, BlockShuffled):
        if not boxes and (order.block_size is None or order.block_size * per_scene % storage.block_size):
            remedies.append(f"blocks that are chunks, order=kf.BlockShuffled({block})")
        remedies.append(f"a window of fewer than {order.window} blocks" if order.window > 1 else "smaller blocks")
    elif boxes and not isinstance(order, Sequential):
        remedies.append("order=kf.BlockShuffled(sequence), with which scenes that share chunks come together")
    elif not isinstance(order, Sequential):
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
        f"{what} is slow on this file: {cost}, measured{where} so far. A chunk holds {storage.block_size:,} "
        f"{row}s, "
        f"and the chunk cache of {storage.cache_bytes / 1e6:,.0f} MB does not hold the {storage.nbytes / 1e6:,.0f} MB "
        f"dataset, so chunks leave it before their other scenes are wanted. Remedies: {'; or '.join(remedies)}"
    )


def _files_text(cost: ReadCost, order: Order, stats: LoaderStats) -> str:
    storage = cost.storage
    what = "shuffle=True" if isinstance(order, Shuffled) else f"order={order!r}"
    several = stats.worker_type == "process" and stats.workers > 1
    remedies = []
    if not isinstance(order, BlockShuffled | Sequential):
        remedies.append("order=kf.BlockShuffled(files, window=4), which reads each file about once an epoch")
    if several:
        remedies.append("worker_type='thread', for threads share what is read and each process reads for itself")
    elif isinstance(order, BlockShuffled) and order.window > 1:
        remedies.append(f"a window of fewer than {order.window} files")
    remedies.append(
        "memory: larger cache_files and cache_bytes in FileSequence(...)"
        + (", for every worker process" if several else "")
    )
    return (
        f"{what} is slow on these files: {cost}, measured{' by one of the worker processes' if several else ''} so "
        f"far. A file holds about {storage.block_size:,} scenes, and leaves the cache before its other scenes are "
        "wanted, or is read forward only and was wanted from its beginning. Remedies: " + "; or ".join(remedies)
    )
