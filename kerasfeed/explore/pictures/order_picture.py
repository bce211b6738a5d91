"""An order as a picture, index against position.

Invariant: reads no scene, and looks at a few thousand positions however long the epoch is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order
from kerasfeed.orders.custom import CustomOrder
from kerasfeed.orders.plan import Plan
from kerasfeed.util.validate import check_integer

_MOST_POINTS = 4_000
_FEWEST_STEPS = 50  # looked at, however large they are
_LENGTH = 1_000
_COLOURS = ("#4a90d9", "#d9784a")  # of batches in turn; readable on white and on a notebook's dark grey
_MOST_STEPS_TOLD_APART = 60


@dataclass(frozen=True, eq=False)
class PlotPoints:
    """What is drawn.

    Attributes:
        positions: int64[points], scenes of the epoch before each.
        indices: int64[points], the scene that stands there.
        steps: int64[points], the batch that it is part of; 0 without batches.
    """

    positions: NDArray[np.int64]
    indices: NDArray[np.int64]
    steps: NDArray[np.int64]


def draw_order(plan: Plan, batched: bool, epoch: int, axes: Any) -> None:
    """Draw a plan, in batches where it is `batched`, into matplotlib axes."""
    points = points_of(plan, epoch, batched)
    told_apart = batched and plan.steps <= _MOST_STEPS_TOLD_APART
    colours = np.array(_COLOURS)[points.steps % 2] if told_apart else _COLOURS[0]
    size = min(16.0, max(1.5, 8_000 / len(points.positions)))
    axes.scatter(points.positions, points.indices, s=size, c=colours, linewidths=0, rasterized=True)
    axes.set_title(_title(plan, epoch), fontsize="medium")
    axes.set_xlabel(f"position in epoch {epoch}")
    axes.set_ylabel("index")
    axes.set_ylim(-0.02 * plan.length, 1.02 * plan.length)


def points_of(plan: Plan, epoch: int, batched: bool) -> PlotPoints:
    """The points that stand for an epoch: of its steps where it is `batched`, else of its order."""
    if batched:
        return _points_of_steps(plan, epoch)
    count = plan.scenes
    positions = np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).astype(np.int64))
    if count <= _MOST_POINTS:
        indices = plan.order.indices(0, count, length=plan.length, seed=plan.seed, epoch=epoch)
    else:
        parts = [
            plan.order.indices(position, position + 1, length=plan.length, seed=plan.seed, epoch=epoch)
            for position in positions.tolist()
        ]
        indices = np.concatenate(parts)
    return PlotPoints(positions, indices, np.zeros_like(positions))


def _points_of_steps(plan: Plan, epoch: int) -> PlotPoints:
    """The scenes of every step, or of steps spread over the epoch."""
    if plan.steps * plan.rows <= _MOST_POINTS:
        steps = np.arange(plan.steps)
    else:
        count = max(_FEWEST_STEPS, _MOST_POINTS // plan.rows)
        steps = np.unique(np.linspace(0, plan.steps - 1, count).astype(np.int64))
    batches = []
    for step in steps.tolist():
        indices = plan.indices(epoch, step)
        batches.append(indices[: len(indices) - plan.filler(epoch, step)])
    counts = np.array([len(indices) for indices in batches])
    if len(steps) == plan.steps:
        begins = np.cumsum(counts) - counts
    else:
        begins = (steps * (plan.cut.kept / (plan.cut.steps * plan.shard_count))).astype(np.int64)
    positions = [begin + np.arange(count) for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)]
    drawn = slice(None, None, -(-int(counts.sum()) // _MOST_POINTS))
    return PlotPoints(np.concatenate(positions)[drawn], np.concatenate(batches)[drawn], np.repeat(steps, counts)[drawn])


def plan_of(order: Any, length: int | None, batch_size: int | None, seed: int) -> tuple[Plan, bool]:
    """The plan to draw for an order or a plan, and whether in batches.

    Raises:
        TypeError: `order` is neither, or an argument is given that the plan already tells.
        ValueError: The order does not fit the length.
    """
    if isinstance(order, Plan) and not order.length:  # that of a stream, of which nobody knows how long it is
        order, seed = order.order, order.seed
    if isinstance(order, Plan):
        if length is not None or batch_size is not None or seed:
            raise TypeError(
                "a plan has its length, batch_size and seed: write kf.show(feed.plan), or kf.show(order, ...)"
            )
        return order, order.batch_size is not None
    seed = check_integer("seed", seed, 0)
    if not isinstance(order, Order):
        if isinstance(order, type) or not callable(order):
            raise TypeError(
                "kf.show draws a sequence of scenes, a feed, or an order such as kf.Shuffled(); received "
                f"{order!r:.80} of type {type(order).__name__}"
            )
        order = CustomOrder(order, seed)
    count = (order.made_for or _LENGTH) if length is None else check_integer("length", length, 1)
    size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
    plan = Plan(count, size, order, seed)
    _ = plan.scenes  # refuses a length that does not fit
    return plan, size is not None


def _title(plan: Plan, epoch: int) -> str:
    text = str(plan.order)
    batches = "" if plan.batch_size is None else f", {plan.steps:,} batches"
    shard = f", shard {plan.shard_index} of {plan.shard_count}" if plan.shard_count > 1 else ""
    mixing = plan.order.mixing(plan.length, seed=plan.seed, epoch=epoch)
    return f"{text[:1].upper()}{text[1:]}{batches}{shard}; mixing {mixing:.2f}"
