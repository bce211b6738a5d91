"""The state of a feed: the next batch and a fingerprint.

Invariant: a state survives JSON unchanged. Two feeds give the same batches after a state if their fingerprints and
seeds agree and their sequences give the same scenes. A state does not contain workers or shards.
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
    """A position in a feed, and a fingerprint of the feed.

    Attributes:
        seed: The feed's seed, at least 0.
        epoch: Epoch of the next batch, at least 0.
        step: Step of the next batch, in [0, steps); with `shuffled_steps`, its position in the epoch.
        shuffled_steps: Whether `fit` has shuffled the steps of that epoch.
        fingerprint: See `fingerprint_of`.
    """

    seed: int
    epoch: int
    step: int
    shuffled_steps: bool
    fingerprint: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return this state as a dict for JSON."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "FeedState":
        """Return the state of a dict.

        Raises:
            TypeError, ValueError: The dict is not a state.
        """
        numbers = numbers_of(state, "feed", "shuffled_steps")
        return cls(**numbers, shuffled_steps=bool(state["shuffled_steps"]), fingerprint=dict(state["fingerprint"]))

    def check(self, feed: "FeedState", steps: int) -> None:
        """Refuse a feed whose batches differ from the batches of this state.

        Args:
            feed: A state of the feed.
            steps: Batches of an epoch.

        Raises:
            ValueError: The batches differ; the message names the differences.
        """
        refuse_changes({"seed": self.seed, **self.fingerprint}, {"seed": feed.seed, **feed.fingerprint})
        check_step(self.step, steps)


def numbers_of(state: Any, kind: str, *more: str) -> dict[str, int]:
    """Return seed, epoch and step of a user's state.

    Args:
        state: The user's argument.
        kind: Kind of the feed, "feed" or "stream".
        more: Names of further entries that a state of this kind needs.

    Raises:
        TypeError, ValueError: The argument is not a state of this kind.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a feed's state is the dict that get_state() returns, received a {type(state).__name__}")
    version, state_kind = state.get("version"), state.get("kind", "feed")
    if version != VERSION:
        raise ValueError(
            f"a feed's state has version {VERSION}, received {version!r}: another version of kerasfeed made it"
        )
    if state_kind != kind:
        own = "kf.Feed" if kind == "feed" else "kf.StreamFeed"
        raise ValueError(
            f"a {own} has a state of kind {kind!r}, received {state_kind!r}: pass the state to the feed that made it"
        )
    missing = [name for name in (*_NUMBERS, *more, "fingerprint") if name not in state]
    if missing or not isinstance(state["fingerprint"], Mapping):
        raise ValueError(f"a feed's state needs {', '.join(missing) or 'fingerprint'}, received {state!r}")
    return {name: check_integer(f"{name} of the state", state[name], 0) for name in _NUMBERS}


def fingerprint_of(sequence: Any, plan: Plan, spec: SceneSpec) -> dict[str, Any]:
    """Return the properties that determine the batches, without reading all scenes.

    Returns:
        `class` (for a view, with the classes of the sequences inside it), `length` and `spec` of the sequence, `order`,
        `global_batch_size` (scenes of all shards; a list if buckets differ; None if items are already batches) and
        `steps` of an epoch.
    """
    sizes = plan.batches.rows
    return {
        "class": identity_of(sequence),
        "length": plan.length,
        "spec": {path: str(field) for path, field in zip(spec.paths, spec.fields, strict=True)},
        "order": plan.order.identity(),
        "global_batch_size": None if plan.batch_size is None else sizes[0] if len(set(sizes)) == 1 else list(sizes),
        "steps": plan.steps,
    }


def state_of(feed: Any, number: int) -> FeedState:
    """Return a feed's state before batch `number`, counted over all epochs."""
    clock = feed.clock
    epoch, step = divmod(number, clock.steps)
    shuffled = clock.is_shuffled(number, clock.shuffled)
    if feed.fingerprint is None:  # slow: it hashes every index of a view
        feed.fingerprint = fingerprint_of(feed.sequence, feed.plan, feed.scene_spec)
    return FeedState(feed.seed, epoch, step, shuffled, feed.fingerprint)


def number_of(epoch: int | None, step: int | None, steps: int) -> int | None:
    """Return the number of the batch at `epoch` and `step`.

    Return None if both are None.

    Raises:
        TypeError, ValueError: They are not a position in a feed of `steps` batches an epoch.
    """
    if (epoch is None) != (step is None):
        raise TypeError(f"get_state() takes epoch and step together, received epoch={epoch!r}, step={step!r}")
    if epoch is None:
        return None
    number: int = check_integer("epoch", epoch, 0) * steps + check_step(step, steps)
    return number


def check_step(step: Any, steps: int) -> int:
    """Return `step` if it is in [0, steps].

    `steps` is the end of an epoch.

    Raises:
        TypeError, ValueError: The step is not an integer, or is out of range.
    """
    number: int = check_integer("step", step, 0)
    if number > steps:
        raise ValueError(f"step must be at most {steps}, the steps of an epoch, received {number}")
    return number


def warn_of_hooks(sequence: Any, has_hooks: bool, state: FeedState) -> None:
    """Warn that the feed's state does not cover changes by hooks."""
    if has_hooks and (state.epoch or state.step):
        name = type(sequence).__name__
        warn_caller(
            f"{name} has on_epoch_begin or on_epoch_end. The feed's state does not contain the changes that they make: "
            f"restore the changes of epoch {state.epoch} yourself, or draw from self.rng in __getitem__ instead",
            FeedWarning,
        )


def refuse_changes(were: Mapping[str, Any], are: Mapping[str, Any]) -> None:
    """Refuse a feed whose values differ from the values in a state.

    Raises:
        ValueError: The values differ; the message names the differences.
    """
    changes = []
    for name in {**were, **are}:
        was, now = were.get(name), are.get(name)
        pairs = [(name, was, now)]
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            pairs = [(f"field {path!r}", was.get(path), now.get(path)) for path in {**was, **now}]
        changes += [f"{label} was {_shown(one)}, is {_shown(other)}" for label, one, other in pairs if one != other]
    if changes:
        raise ValueError(
            f"the state belongs to a feed with other batches: {'; '.join(changes)}. Make the feed as it was, or start "
            "again without the state"
        )


def _shown(value: Any) -> str:
    return "absent" if value is None else f"{value:,}" if type(value) is int else str(value)
