"""A state of a stream of generators: what identifies the stream, which places are known, and what going on there costs.

Invariant: what is known of a place is the same whenever it is asked for, however far the generators have run since. A
state holds numbers and names, no scene. Two feeds give the same batches from a state on, where their generators do, if
their fingerprints and seeds agree; workers are no part of it.
"""

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.generators.generators import Generators
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.state import VERSION, changes
from kerasfeed.feeds.streams.pipeline import Function, StreamLoader, StreamPlan
from kerasfeed.feeds.streams.repetition import RepetitionLog
from kerasfeed.feeds.streams.source import Departure, StreamPlace
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.util.counted import counted
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.validate import check_integer

KIND = "stream"
_FIELDS = ("seed", "epoch", "step", "departures", "fingerprint")


def state_of(place: StreamPlace, seed: int, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a stream, as a dict for JSON; an epoch is a repetition.

    Args:
        place: The next batch.
        seed: The feed's seed, at least 0.
        fingerprint: What the batches depend on, as far as it can be told.
    """
    return {
        "version": VERSION, "kind": KIND, "seed": seed, "epoch": place.repetition, "step": place.step,
        "departures": [[each.n, each.items] for each in place.departures], "fingerprint": dict(fingerprint),
    }  # fmt: skip


def place_of(state: Mapping[str, Any], seed: int, fingerprint: Mapping[str, Any]) -> StreamPlace:
    """The next batch by a state, of a stream with this seed and fingerprint.

    Raises:
        TypeError, ValueError: It is no state, or that of another stream; the message says what differs.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a stream's state is the dict that get_state() gives, received a {type(state).__name__}")
    if state.get("version") != VERSION or state.get("kind") != KIND:
        raise ValueError(
            f"a stream's state has version {VERSION} and kind {KIND!r}, received {state.get('version')!r} and "
            f"{state.get('kind')!r}: it is of a kf.Feed, or of another kerasfeed"
        )
    missing = [name for name in _FIELDS if name not in state]
    if missing or not isinstance(state["fingerprint"], Mapping):
        raise ValueError(f"a stream's state has {', '.join(missing) or 'fingerprint'}; this one lacks it")
    was, epoch, step = (check_integer(f"{name} of the state", state[name], 0) for name in ("seed", "epoch", "step"))
    departures = _departures(state["departures"], state["fingerprint"].get("count"))
    found = changes({"seed": was, **state["fingerprint"]}, {"seed": seed, **fingerprint})
    if found:
        raise ValueError(
            f"the state is that of other batches, so nothing can go on from it: {'; '.join(found)}. Make the feed "
            "as it was, or begin anew without the state"
        )
    return StreamPlace(epoch, step, departures)


def _departures(given: Any, count: Any) -> tuple[Departure, ...]:
    try:
        found = tuple(Departure(operator.index(n), operator.index(items)) for n, items in given)
    except (TypeError, ValueError):
        found = None
    numbers = [] if found is None else [each.n for each in found]
    items = [] if found is None else [each.items for each in found]
    known = isinstance(count, int) and all(0 <= n < count for n in numbers) and len({*numbers}) == len(numbers)
    if found is None or not known or items != sorted(items) or min(items, default=0) < 0:
        raise ValueError(
            f"departures of the state must be pairs [n, scenes before] of integers, in their order, one for each of "
            f"the {count} generators at most, received {given!r}: restore the state as get_state() gave it"
        )
    return found


def fingerprint_of(
    generators: Generators, functions: Sequence[Function], plan: StreamPlan, shard: Shard, *, deterministic: bool
) -> dict[str, Any]:
    """What identifies a stream, for its state.

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


def known_place(epoch: Any, step: Any, logs: Iterable[RepetitionLog]) -> StreamPlace:
    """A place that a user gave; `logs`: what is known of the last repetitions.

    Raises:
        TypeError, ValueError: It is none, or nothing is known of it.
    """
    place = StreamPlace(check_integer("epoch", epoch, 0), check_integer("step", step, 0))
    logs = [log for log in logs if log.number == place.repetition]
    if place.step and not any(log.steps >= place.step for log in logs):
        raise ValueError(
            f"nothing is known of step {place.step} of repetition {place.repetition}: get_state() takes a place "
            "that this feed has come to, in one of its last repetitions"
        )
    return dataclasses.replace(place, departures=logs[-1].departures if logs else ())


def cut_place(place: StreamPlace, core: StreamLoader | None) -> StreamPlace:
    """A place with those generators alone that had left before the last item was read; the same at any time."""
    if not place.step or core is None:
        return dataclasses.replace(place, departures=tuple(place.departures) if place.step else ())
    joined = core.source.joined(place.step * core.plan.rows)
    kept: list[Departure] = [each for each in place.departures if each.items < joined]
    return dataclasses.replace(place, departures=tuple(kept))


def warn_of_cost(generators: Generators, place: StreamPlace | None = None, scenes: int = 0) -> None:
    """Warn that generators are run again from the beginning.

    Args:
        generators: They, which take no `start`.
        place: Where it goes on, now; None where it may later.
        scenes: How many scenes are then made and thrown away.
    """
    what = "to go on from this state, its generators are run again from the beginning of their repetition"
    if place is not None:
        what = (
            f"to go on at step {place.step:,} of repetition {place.repetition}, its generators are run again, and "
            f"the first {counted(scenes, 'scene')} thrown away"
        )
    warn_caller(
        f"make_generator ({generators.name}) has no parameter `start`: {what}, which takes as long as the first time. "
        "Give it one, the number of the scene to begin with, and nothing is made twice",
        FeedWarning,
    )
