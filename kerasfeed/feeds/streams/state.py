"""`StreamState`: a place in a stream of generators, and what identifies the stream, in a form for JSON.

Invariant: a state holds numbers and names, no scene. Two feeds give the same batches from a state on, where their
generators do, if their fingerprints and seeds agree; workers are no part of it.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerasfeed.feeds.state import VERSION, changes
from kerasfeed.feeds.streams.place import Departure, Place
from kerasfeed.util.validate import check_integer

KIND = "stream"
_FIELDS = ("seed", "epoch", "step", "departures", "fingerprint")


@dataclass(frozen=True)
class StreamState:
    """A place in a stream.

    Attributes:
        seed: The feed's seed, at least 0.
        place: The next batch.
        fingerprint: What the batches depend on, as far as it can be told.
    """

    seed: int
    place: Place
    fingerprint: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """This state as a dict for JSON; an epoch is a repetition."""
        place = self.place
        return {
            "version": VERSION, "kind": KIND, "seed": self.seed, "epoch": place.repetition, "step": place.step,
            "departures": [[each.n, each.items] for each in place.departures], "fingerprint": self.fingerprint,
        }  # fmt: skip

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "StreamState":
        """The state of a dict.

        Raises:
            TypeError, ValueError: It is none.
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
        seed, epoch, step = (
            check_integer(f"{name} of the state", state[name], 0) for name in ("seed", "epoch", "step")
        )
        departures = _departures(state["departures"], state["fingerprint"].get("count"))
        return cls(seed, Place(epoch, step, departures), dict(state["fingerprint"]))

    def check(self, seed: int, fingerprint: Mapping[str, Any]) -> None:
        """Refuse a feed of another seed or fingerprint.

        Raises:
            ValueError: They differ; the message says in what.
        """
        found = changes({"seed": self.seed, **self.fingerprint}, {"seed": seed, **fingerprint})
        if found:
            raise ValueError(
                f"the state is that of other batches, so nothing can go on from it: {'; '.join(found)}. Make the feed "
                "as it was, or begin anew without the state"
            )


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
