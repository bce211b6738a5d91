"""Check the arguments of a feed, except its sequence.

Invariant: every error states what was needed, what was received and what to write instead.
"""

from typing import Any

import numpy as np

from kerasfeed.loaders.failures.failure_log import ON_ERROR, FailurePolicy
from kerasfeed.loaders.hosts.ray_hosts import RayHosts
from kerasfeed.orders.base import Order, Sequential, Shuffled
from kerasfeed.orders.custom import CustomOrder
from kerasfeed.orders.plan import Plan
from kerasfeed.spec.collation import Collation, Custom, Pad, Ragged, Stack
from kerasfeed.util.error_text import pluralize
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_flag, check_integer, check_number, local_path, refuse_class

_COLLATIONS: dict[str, Any] = {"stack": Stack, "pad": Pad, "ragged": Ragged}
_MORE = " (or kf.Pad(...), kf.Ragged(...), or a function from a list of scenes to a batch)"
WORKER_TYPES = ("auto", "process", "thread")


def check_workers(workers: Any, worker_type: Any) -> int:
    """Return the number of workers of a feed: the cores for "auto".

    Raises:
        TypeError: `workers` is neither an integer nor "auto".
        ValueError: `workers` is below 0, or `worker_type` is unknown.
    """
    if worker_type not in WORKER_TYPES:
        raise ValueError(f"worker_type must be one of {', '.join(WORKER_TYPES)}, received {worker_type!r}")
    remedy = ' (0 loads in the calling thread, "auto" chooses for these scenes)'
    return cores() if workers == "auto" else check_integer("workers", workers, 0, remedy=remedy)


def check_hosts(hosts: Any, workers: int, worker_type: str) -> RayHosts | None:
    """Return the hosts of a feed, or None.

    Raises:
        TypeError: `hosts` has another type.
        ValueError: The other arguments exclude worker processes, which each host needs.
    """
    if hosts is None:
        return None
    refuse_class("hosts", hosts, RayHosts, "kf.{}()")
    if not isinstance(hosts, RayHosts):
        raise TypeError(f"hosts must be kf.RayHosts(...), received {hosts!r} of type {type(hosts).__name__}")
    if not workers or worker_type == "thread":
        which = "workers=0 loads in the calling thread" if not workers else "threads live in this process"
        raise ValueError(
            f"{which}, but each host loads in its own worker processes: pass workers=8 (per host), for example, and "
            "leave worker_type out"
        )
    return hosts


def refuse_skip(policy: FailurePolicy, where: str, *, replaceable: bool = True) -> None:
    """Refuse to skip scenes if batches must have one shape.

    Args:
        policy: The feed's policy.
        where: Name of the caller for the message; the caller needs batches of one shape.
        replaceable: Whether other scenes can be loaded instead.

    Raises:
        ValueError: `on_error` is "skip".
    """
    if policy.on_error == "skip":
        other = "'replace', or " if replaceable else ""
        raise ValueError(
            f"on_error='skip' changes the shape and the number of batches, so it works only in plain loops, not in "
            f"{where}: use on_error={other}'mask', which gives failed scenes sample_weight 0"
        )


def check_policy(
    on_error: Any, max_failures: Any, timeout: Any, error_log: Any, *, batched: bool, workers: int
) -> FailurePolicy:
    """Return the policy that these arguments of a feed describe.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or two exclude each other.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error must be one of {', '.join(map(repr, ON_ERROR))}, received {on_error!r}")
    if on_error == "mask" and not batched:
        raise ValueError("on_error='mask' needs a batch_size: if items are batches already, use on_error='replace'")
    if isinstance(max_failures, float | np.floating):
        if not 0 < max_failures <= 1:
            raise ValueError(
                f"max_failures must be an integer of at least 1, or a share in (0, 1], received {max_failures!r}"
            )
        max_failures = float(max_failures)
    elif max_failures is not None:
        max_failures = check_integer("max_failures", max_failures, 1, remedy=" (a share of the scenes is a float)")
    if timeout is not None:
        timeout = check_number("timeout", timeout, "a positive number of seconds, or None for no limit")
        if not workers:
            raise ValueError(
                "timeout needs workers: with workers=0 the calling thread loads and cannot be interrupted. Use "
                "workers=1, worker_type='process'"
            )
    if error_log is not None:
        path = local_path("error_log", error_log).absolute()
        if path.is_dir() or not path.parent.is_dir():
            what = "is a folder" if path.is_dir() else f"is in a folder that does not exist ({path.parent})"
            raise ValueError(f"error_log={str(error_log)!r} {what}; name a file in an existing folder")
        error_log = str(path)
    return FailurePolicy(on_error, max_failures, timeout, error_log)


def check_order(order: Any, shuffle: bool) -> Order:
    """Return the order that `order` and `shuffle` of a feed describe.

    Raises:
        TypeError: `order` is neither an `Order` nor a function, or `shuffle` is not a bool.
        ValueError: Both are given.
    """
    shuffle = check_flag("shuffle", shuffle, ". A feed shuffles all scenes, and needs no buffer")
    if order is None:
        return Shuffled() if shuffle else Sequential()
    refuse_class("order", order, Order)
    if not isinstance(order, Order) and not callable(order):
        remedy = ""
        if isinstance(order, list | tuple | range | np.ndarray):
            remedy = ". For these scenes, use kf.Subset(sequence, indices)"
        elif hasattr(order, "weights"):
            remedy = ". For its weights, use kf.Weighted(sampler.weights)"
        raise TypeError(
            "order must be kf.Sequential(), kf.Shuffled(), kf.BlockShuffled(block_size), kf.Weighted(weights), "
            "kf.Balanced(labels), kf.Bucketed(lengths, boundaries), or a function (length, seed, epoch) -> indices, "
            f"received {order!r:.60} of type {type(order).__name__}{remedy}"
        )
    if shuffle:
        raise ValueError(
            f"order={order!r} and shuffle=True exclude each other; leave shuffle out (shuffle=True means "
            "order=kf.Shuffled())"
        )
    return order if isinstance(order, Order) else CustomOrder(order)


def check_seed(seed: Any, order: Order, shard_count: int) -> int:
    """Return the seed of a feed; draw one if none is given.

    Raises:
        TypeError: `seed` is not an integer.
        ValueError: `seed` is negative, or it is missing and every shard would draw a different order.
    """
    if seed is not None:
        return check_integer("seed", seed, 0)
    if shard_count > 1 and order.needs_seed:
        raise ValueError(
            f"{shard_count} shards of a shuffled epoch need the same seed: otherwise each draws a different order, and "
            "some scenes come twice and others not at all. Pass seed=0, for example"
        )
    return int(np.random.SeedSequence().generate_state(1)[0])


def check_collate(collate: Any, plan: Plan, on_error: str) -> Collation:
    """Return the collation that `collate` of a feed describes.

    Raises:
        TypeError: `collate` has none of the allowed types.
        ValueError: It is an unknown name, or it excludes another argument.
    """
    refuse_class("collate", collate, (Pad, Ragged), "kf.{}()")
    collation = _COLLATIONS[collate]() if isinstance(collate, str) and collate in _COLLATIONS else collate
    if isinstance(collation, str):
        raise ValueError(f"collate must be one of {', '.join(map(repr, _COLLATIONS))}, received {collation!r}{_MORE}")
    if plan.batch_size is None and not isinstance(collation, Stack):
        raise ValueError(
            f"batch_size=None means that items are batches already, and collate={collate!r} makes batches of scenes: "
            "give a batch_size, or leave collate out"
        )
    if isinstance(collation, Stack | Pad | Ragged):
        return collation
    if not callable(collation):
        raise TypeError(f"collate must be a str, received {collation!r} of type {type(collation).__name__}{_MORE}")
    if on_error == "mask" or plan.pad_remainder:
        which = "on_error='mask'" if on_error == "mask" else "pad_remainder=True"
        raise ValueError(
            f"{which} gives single rows sample_weight 0, but only the collate function knows the rows of its batches: "
            "use collate='pad' or 'ragged', or "
            + ("on_error='replace'" if on_error == "mask" else "drop_remainder=True")
        )
    sizes = set(plan.sizes())  # numbers of scenes, because the shape of a batch may depend on them
    if on_error == "skip":
        sizes.add(max(1, plan.rows - 1))
    return Custom(collation, tuple(sorted(sizes)))


def check_plan(plan: Plan, on_error: Any) -> None:
    """Refuse plans that leave a shard without scenes, and impossible padding.

    Raises:
        ValueError: The message names the reason.
    """
    if plan.pad_remainder:
        _check_padding(plan, on_error)
    if plan.batch_size is None and plan.batches.full > plan.shard_count:
        raise ValueError(
            f"order={plan.order!r} makes batches of up to {plan.batches.full // plan.shard_count} items, but with "
            "batch_size=None every item of the sequence is a batch already: give a batch_size, or leave batch_sizes out"
        )
    if plan.steps == 0:
        raise ValueError(
            f"drop_remainder=True drops every scene: an epoch has {pluralize(plan.scenes, 'scene')} and a step takes "
            f"{plan.batches.full} (batch_size {plan.batches.full // plan.shard_count} x shard_count "
            f"{plan.shard_count}). Use a smaller batch_size or drop_remainder=False"
        )
    if not plan.pad_remainder and plan.batches.smallest < plan.shard_count:
        which = "the last step" if plan.batches.is_even else "the short step of a bucket"
        raise ValueError(
            f"{which} has {pluralize(plan.batches.smallest, 'scene')} for {plan.shard_count} shards: one would have "
            "none, and the shards would disagree on the number of steps. Use drop_remainder=True, pad_remainder=True "
            "(which fills short batches up), or a batch_size that leaves at least "
            f"{plan.shard_count} of {plan.scenes} scenes for {which}"
        )


def _check_padding(plan: Plan, on_error: Any) -> None:
    if plan.drop_remainder:
        raise ValueError(
            "drop_remainder=True and pad_remainder=True exclude each other: the first drops short batches, and the "
            "second fills them up with scenes of sample_weight 0. Give one of them"
        )
    if plan.batch_size is None:
        raise ValueError(
            "pad_remainder=True needs a batch_size: if items are batches already, only the sequence can fill them up"
        )
    if on_error == "skip":
        raise ValueError(
            "pad_remainder=True gives every batch the same number of rows, and on_error='skip' removes rows: use "
            "on_error='mask', which also gives failed scenes sample_weight 0, or 'replace'"
        )


# Methods that users know from tf.data, PyTorch or other classes of kerasfeed, and what to write on a feed instead.
NO_METHODS = {
    "map": "Change scenes before they are batched: kf.Feed(kf.Map(sequence, function), ...)",
    "filter": "Choose scenes by index: kf.Feed(sequence[indices], ...)",
    "shuffle": "Give shuffle=True, or order=, when the feed is made",
    "batch": "Give batch_size= when the feed is made",
    "prefetch": "A feed loads ahead by itself: max_queue_size= batches",
    "cache": "Keep scenes: kf.Feed(kf.Cached(sequence), ...)",
    "repeat": "Each loop over a feed is the next epoch; fit(epochs=N), feed.to_torch(epochs=N)",
    "take": "Loop over itertools.islice(feed, count), or feed some scenes, kf.Feed(sequence[:count], ...)",
    "skip": "Resume at a position with feed.set_state(...), or feed some scenes, kf.Feed(sequence[count:], ...)",
    "set_epoch": "Each loop over a feed is the next epoch by itself; feed.epoch(number) gives the batches of one",
}
NO_METHODS_OF_STREAMS = NO_METHODS | {
    "filter": "Leave items out in the generator",
    "shuffle": "Give shuffle_buffer= to a kf.StreamFeed; a kf.Feed shuffles a sequence by index",
    "cache": "Write scenes to files first, kf.write_tfrecords(...), or index them: kf.Feed(kf.Cached(sequence), ...)",
    "take": "Loop over itertools.islice(feed, count), or end the generator earlier",
    "skip": "Loop over itertools.islice(feed, count, None), or start the generator later",
    "set_epoch": "Each loop over a feed is the next repetition by itself",
    "start": "A stream begins to load with its first batch; element_spec waits for that batch",
}
