"""A state of a stream of generators: what identifies the stream, which places are known, and what going on there costs.

Invariant: what is known of a place is the same whenever it is asked for, however far the generators have run since.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.generators.generators import Generators
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.streams.pipeline import Function, StreamLoader
from kerasfeed.feeds.streams.place import Departure, Place
from kerasfeed.feeds.streams.plan import StreamPlan
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.util.counted import counted
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.validate import check_integer


def fingerprint_of(
    generators: Generators, functions: Sequence[Function], plan: StreamPlan, shard: Shard, *, deterministic: bool
) -> dict[str, Any]:
    """What identifies a stream, for a `StreamState`.

    Raises:
        RuntimeError: It cannot be resumed.
    """
    if not deterministic and generators.count > 1:
        raise RuntimeError(
            "a stream with deterministic=False cannot be resumed: its scenes come from whichever generator has one "
            "ready, so nothing tells which were given. Make the feed with deterministic=True"
        )
    order = plan.order
    return {
        "make_generator": generators.name,
        "count": generators.count,
        "functions": [str(getattr(each, "__qualname__", type(each).__name__)) for each in functions],
        "copies": generators.copies,
        "batch_size": plan.batch_size,
        "drop_remainder": plan.drop_remainder,
        "pad_remainder": plan.pad_remainder,
        "shuffle_buffer": order.buffer_size if isinstance(order, BufferShuffled) else None,
        "shard": [shard.index, shard.count],
    }


def known_place(epoch: Any, step: Any, core: StreamLoader | None) -> Place:
    """A place that a user gave; `core` is None before the first batch.

    Raises:
        TypeError, ValueError: It is none, or nothing is known of it.
    """
    place = Place(check_integer("epoch", epoch, 0), check_integer("step", step, 0))
    logs = [log for log in (core.logs if core else ()) if log.place.repetition == place.repetition]
    if place.step and not any(log.steps >= place.step for log in logs):
        raise ValueError(
            f"nothing is known of step {place.step} of repetition {place.repetition}: get_state() takes a place "
            "that this feed has come to, in one of its last repetitions"
        )
    return dataclasses.replace(place, departures=logs[-1].departures if logs else ())


def cut_place(place: Place, core: StreamLoader | None) -> Place:
    """A place with those generators alone that had left before the last item was read; the same at any time."""
    if not place.step or core is None:
        return dataclasses.replace(place, departures=tuple(place.departures) if place.step else ())
    joined = core.source.joined(place.step * core.plan.rows)
    kept: list[Departure] = [each for each in place.departures if each.items < joined]
    return dataclasses.replace(place, departures=tuple(kept))


class ResumeCost:
    """What it costs to go on with generators at a place, told once."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self._told = False

    def tell(self, quick: bool, place: Place | None = None, scenes: int = 0) -> None:
        """Warn, the first time, of generators that are run again from the beginning.

        Args:
            quick: Whether the generators' items are made quickly, for functions make scenes of them.
            place: Where it goes on, now; None where it may later.
            scenes: How many scenes are then made and thrown away.
        """
        if quick or self._generators.takes_start or self._told or (place is not None and not place.step):
            return
        self._told = True
        what = "to go on from this state, its generators are run again from the beginning of their repetition"
        if place is not None:
            what = (
                f"to go on at step {place.step:,} of repetition {place.repetition}, its generators are run again, and "
                f"the first {counted(scenes, 'scene')} thrown away"
            )
        warn_caller(
            f"make_generator ({self._generators.name}) has no parameter `start`: {what}, which takes as long as the "
            "first time. Give it one, the number of the scene to begin with, and nothing is made twice",
            FeedWarning,
        )
