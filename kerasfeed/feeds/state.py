"""The state of a feed: which batch is next, and of what.

Invariant: a state is a value that survives JSON unchanged. Two feeds give the same batches from a state on, bit for bit
where their sequences do, if their fingerprints and seeds agree; workers and shards are no part of it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.orders.plan import Plan
from kerasfeed.sequences.view_base import identity_of
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.validate import check_integer

VERSION = 1
_NUMBERS = ("seed", "epoch", "step")


@dataclass(frozen=True)
class FeedState:
    """A place in a feed, and what identifies the feed.

    Attributes:
        seed: The feed's seed, at least 0.
        epoch: Epoch of the next batch, at least 0.
        step: Step of the next batch, in [0, steps); its place in the epoch, where `shuffled_steps`.
        shuffled_steps: Whether `fit` has shuffled the steps of that epoch.
        fingerprint: What the batches depend on; see `fingerprint_of`.
    """

    seed: int
    epoch: int
    step: int
    shuffled_steps: bool
    fingerprint: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """This state as a dict for JSON."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "FeedState":
        """The state of a dict.

        Raises:
            TypeError, ValueError: It is none.
        """
        numbers = numbers_of(state, "feed", "shuffled_steps")
        return cls(**numbers, shuffled_steps=bool(state["shuffled_steps"]), fingerprint=dict(state["fingerprint"]))

    def check(self, feed: "FeedState", steps: int) -> None:
        """Refuse a feed, known by its own state, whose batches are not those of this one.

        Raises:
            ValueError: They differ; the message says in what.
        """
        refuse_changes({"seed": self.seed, **self.fingerprint}, {"seed": feed.seed, **feed.fingerprint})
        check_step(self.step, steps)


def numbers_of(state: Any, kind: str, *more: str) -> dict[str, int]:
    """Seed, epoch and step of a state that a user gave.

    Args:
        state: What came.
        kind: Of the feed that is to take it, "feed" or "stream".
        more: Names of what the states of that kind have, beside these and `fingerprint`.

    Raises:
        TypeError, ValueError: It is no state of this kind.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a feed's state is the dict that get_state() gives, received a {type(state).__name__}")
    version, found = state.get("version"), state.get("kind", "feed")
    if version != VERSION:
        raise ValueError(f"a feed's state has version {VERSION}, received {version!r}: it is of another kerasfeed")
    if found != kind:
        own = "kf.Feed" if kind == "feed" else "kf.StreamFeed"
        raise ValueError(f"the state is of kind {found!r}, and not that of a {own}: give it to the feed that made it")
    missing = [name for name in (*_NUMBERS, *more, "fingerprint") if name not in state]
    if missing or not isinstance(state["fingerprint"], Mapping):
        raise ValueError(f"a feed's state has {', '.join(missing) or 'fingerprint'}; this one lacks it: {state!r}")
    return {name: check_integer(f"{name} of the state", state[name], 0) for name in _NUMBERS}


def fingerprint_of(sequence: Any, plan: Plan, spec: SceneSpec) -> dict[str, Any]:
    """What the batches of a feed depend on, as far as it can be told without reading them all.

    Returns:
        `class` (of a view with what is inside it), `length` and `spec` of the sequence, `order`, `global_batch_size`
        (scenes of all shards, a list where buckets differ; None where items are batches already) and `steps` of an
        epoch.
    """
    sizes = plan.cut.rows
    return {
        "class": identity_of(sequence),
        "length": plan.length,
        "spec": {path: str(field) for path, field in zip(spec.paths, spec.fields, strict=True)},
        "order": plan.order.identity(),
        "global_batch_size": None if plan.batch_size is None else sizes[0] if len(set(sizes)) == 1 else list(sizes),
        "steps": plan.steps,
    }


def state_of(feed: Any, number: int) -> FeedState:
    """The state of a feed before batch `number` of all its epochs one after the other."""
    clock = feed.clock
    epoch, step = divmod(number, clock.steps)
    shuffled = clock.is_shuffled(number, clock.shuffled)
    if feed.fingerprint is None:  # it takes the digest of every index that a view holds
        feed.fingerprint = fingerprint_of(feed.sequence, feed.plan, feed.scene_spec)
    return FeedState(feed.seed, epoch, step, shuffled, feed.fingerprint)


def number_of(epoch: int | None, step: int | None, steps: int) -> int | None:
    """Number of the batch at a place that a user gave; None where none was given.

    Raises:
        TypeError, ValueError: It is none.
    """
    if (epoch is None) != (step is None):
        raise TypeError(f"get_state() takes epoch and step together, received epoch={epoch!r}, step={step!r}")
    if epoch is None:
        return None
    number: int = check_integer("epoch", epoch, 0) * steps + check_step(step, steps)
    return number


def check_step(step: Any, steps: int) -> int:
    """A step at which one may stand, `steps` for the end of an epoch.

    Raises:
        TypeError, ValueError: It is none.
    """
    number: int = check_integer("step", step, 0)
    if number > steps:
        raise ValueError(f"step must be at most {steps}, the steps of an epoch, received {number}")
    return number


def warn_of_hooks(sequence: Any, has_hooks: bool, state: FeedState) -> None:
    """Tell that a sequence may hold a state of its own."""
    if has_hooks and (state.epoch or state.step):
        name = type(sequence).__name__
        warn_caller(
            f"{name} has on_epoch_begin or on_epoch_end: what they change in it is no part of the feed's state. "
            f"Restore it to what it was in epoch {state.epoch} yourself, or let __getitem__ draw from self.rng instead",
            FeedWarning,
        )


def refuse_changes(were: Mapping[str, Any], are: Mapping[str, Any]) -> None:
    """Refuse a feed of which these values by name are not what they were.

    Raises:
        ValueError: They differ; the message says in what.
    """
    found = []
    for name in {**were, **are}:
        was, now = were.get(name), are.get(name)
        pairs = [(name, was, now)]
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            pairs = [(f"field {path!r}", was.get(path), now.get(path)) for path in {**was, **now}]
        found += [f"{what} was {_shown(one)}, is {_shown(other)}" for what, one, other in pairs if one != other]
    if found:
        raise ValueError(
            f"the state is that of other batches, so nothing can go on from it: {'; '.join(found)}. Make the feed as "
            "it was, or begin anew without the state"
        )


def _shown(value: Any) -> str:
    return "absent" if value is None else f"{value:,}" if type(value) is int else str(value)
