"""Plans that cannot be: those of which a shard would have nothing to do, and filler where it cannot be.

Invariant: every refusal says what was needed, what came and what to write instead.
"""

from typing import Any

from kerasfeed.orders.plan import Plan
from kerasfeed.util.counted import counted


def check_plan(plan: Plan, on_error: Any) -> None:
    """Refuse plans in which a shard, or every shard, would have nothing to do, and filler where it cannot be.

    Raises:
        ValueError: The message says which.
    """
    if plan.pad_remainder:
        _check_padding(plan, on_error)
    if plan.batch_size is None and plan.cut.full > plan.shard_count:
        raise ValueError(
            f"order={plan.order!r} makes batches of up to {plan.cut.full // plan.shard_count} items, and with "
            "batch_size=None every item of the sequence is a batch already: give a batch_size, or leave batch_sizes out"
        )
    if plan.steps == 0:
        raise ValueError(
            f"drop_remainder=True drops everything: an epoch has {counted(plan.scenes, 'scene')} and a step takes "
            f"{plan.cut.full} (batch_size {plan.cut.full // plan.shard_count} x shard_count {plan.shard_count}). Use a "
            "smaller batch_size or drop_remainder=False"
        )
    if not plan.pad_remainder and plan.cut.smallest < plan.shard_count:
        which = "the last step" if plan.cut.is_even else "the short step of a bucket"
        raise ValueError(
            f"{which} has {counted(plan.cut.smallest, 'scene')} for {plan.shard_count} shards: one would have none, "
            "and the shards would disagree on the number of steps. Use drop_remainder=True, pad_remainder=True (which "
            "fills up), or a batch_size that leaves at least "
            f"{plan.shard_count} of {plan.scenes} scenes for {which}"
        )


def _check_padding(plan: Plan, on_error: Any) -> None:
    if plan.drop_remainder:
        raise ValueError(
            "drop_remainder=True and pad_remainder=True are two answers to one question: short batches are dropped, or "
            "filled up with scenes of sample_weight 0. Give either"
        )
    if plan.batch_size is None:
        raise ValueError(
            "pad_remainder=True needs a batch_size: where items are batches already, only the sequence can fill them up"
        )
    if on_error == "skip":
        raise ValueError(
            "pad_remainder=True gives every batch the same number of rows, and on_error='skip' leaves rows out: use "
            "on_error='mask', which gives failed scenes sample_weight 0 too, or 'replace'"
        )
