"""`BaseStreamFeed`: generators and a loader, where a sequence cannot be had.

Invariant: scene k of a repetition is a function of the generators alone, whatever the workers, unless first come is
asked for. A state holds numbers and names, no scene, and is the same whenever it is asked for, however far the
generators have run since. Two feeds give the same batches from a state on, where their generators do, if their
fingerprints and seeds agree; workers are no part of it.
"""

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.generators.generators import Generators
from kerasfeed.feeds.generators.joined import JoinedGenerators
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.sharding import find_shard
from kerasfeed.feeds.state import VERSION, numbers_of, refuse_changes
from kerasfeed.feeds.stream_base import BaseStream
from kerasfeed.feeds.streams.repetition import Repetition
from kerasfeed.feeds.streams.source import Departure, Source, StreamPlace
from kerasfeed.feeds.streams.wrapped import DealtSource, ShuffledSource
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.util.counted import counted
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.validate import check_integer

_KIND = "stream"  # of states


class BaseStreamFeed(BaseStream):
    """Batches of what generators yield, for loops; see `kerasfeed.StreamFeed`."""

    _public = BaseStream._public | {
        "get_state", "load_state_dict", "mixing", "set_state", "shard", "state_dict",
    }  # fmt: skip

    def __init__(
        self,
        make_generator: Callable[..., Any],
        batch_size: int | None = None,
        *,
        count: int = 1,
        copies: bool = False,
        shuffle_buffer: int | None = None,
        output_signature: Any = None,
        seed: int | None = None,
        deterministic: bool = True,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        workers: int | Literal["auto"] = "auto",
        worker_type: Literal["auto", "process", "thread"] = "auto",
        max_queue_size: int = 10,
        max_memory: int | None = None,
        collate: Any = "stack",
        shard_index: int | None = None,
        shard_count: int = 1,
        shard: Any = None,
        on_error: Literal["raise", "mask", "skip"] = "raise",
        max_failures: int | float | None = None,
        timeout: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        **unknown: Any,
    ) -> None:
        options = FeedOptions.checked(BaseStreamFeed.__init__, locals(), type(self).__name__)
        self.shard = find_shard(shard, shard_index, shard_count)
        order = None
        if shuffle_buffer is not None:
            remedy = " (scenes; None does not shuffle)"
            order = BufferShuffled(check_integer("shuffle_buffer", shuffle_buffer, 1, remedy=remedy), self.shard.index)
        super().__init__(options, order, self.shard)
        self.deterministic = bool(deterministic)
        self.generators = Generators(make_generator, count, self.seed, copies=bool(copies))
        self._is_cost_told = False
        self._deals = self.generators.count < self.shard.count
        if self._deals and (seed is None or not self.deterministic):
            missing = "deterministic=True" if seed is not None else "a seed, the same for all: pass seed=0, for example"
            raise ValueError(
                f"{counted(self.generators.count, 'generator')} for {self.shard.count} shards: each shard runs all of "
                f"them, and scenes are dealt in turn, which needs {missing}. Otherwise some scenes would come twice "
                "and others not at all"
            )

    def _make_source(self) -> Source:
        plan, generators = self.plan, self.generators
        if self._deals:
            source: Source = DealtSource(
                self._joined(generators), self.shard, plan.rows, whole_batches=plan.drop_remainder
            )
        else:
            source = self._joined(generators.only(self.shard.index, self.shard.count))
        return ShuffledSource(source, plan.order, self.seed) if isinstance(plan.order, BufferShuffled) else source

    def _joined(self, generators: Generators) -> Source:
        options = self._options
        workers = len(generators.numbers) if options.given["workers"] == "auto" else options.workers
        return JoinedGenerators(
            generators, options.policy, workers=0 if self._functions else workers, worker_type=options.worker_type,
            deterministic=self.deterministic, max_memory=options.max_memory, environment=options.environment,
        )  # fmt: skip

    def mixing(self, length: int) -> float:
        """How well a repetition is mixed: 0 for the order of the generators, about 1 for a full shuffle.

        As `Order.mixing` tells it: the mean distance, in that order, of two scenes that come one after the other. A
        shuffle buffer has about three times its share of the scenes. `kerasfeed.show(feed.plan, length)` draws it.

        Args:
            length: Number of scenes of a repetition, on this shard.

        Returns:
            A number >= 0.

        Examples:
            >>> with kf.StreamFeed(lambda: iter(range(10)), 2, shuffle_buffer=1000, seed=0, workers=0) as feed:
            ...     print(f"{feed.mixing(10_000):.2f} {feed.mixing(1000):.2f}")
            0.28 1.00
        """
        return self.plan.order.mixing(check_integer("length", length, 1), seed=self.seed)

    # ---- state

    def get_state(self, *, epoch: int | None = None, step: int | None = None) -> dict[str, Any]:
        """The position of the consumer in the stream, as a small dict for JSON; give it to `set_state` to resume there.

        The position is after the last batch that was consumed, not after the last one that was made ahead. In a loop
        the batch in hand counts as consumed; in a callback of `fit`, the last batch that was trained on. An epoch is a
        repetition. The state holds numbers alone: what waits in a shuffle buffer is made again from them.

        Where `make_generator` has no parameter `start`, its generators can only be run again from the beginning of the
        repetition, as far as they were, which takes as long as the first time. A `kerasfeed.FeedWarning` says so, once.

        Args:
            epoch: Repetition of the next batch, from 0, one of the last 8. None is where the consumer is. Give both
                this and `step`, or neither: for whoever iterates over something made of `to_tf_dataset()`.
            step: Step of the next batch in it; at most one more than that of the last batch made so far.

        Returns:
            A dict with `version`, `kind`, `seed`, `epoch` and `step` of the next batch, the `departures` of generators
            that had ended or failed by then, and a `fingerprint` of the stream.

        Raises:
            RuntimeError: The stream cannot be resumed, or the position of the consumer is not known; the message says
                why, and what to do.
            TypeError, ValueError: Only one of `epoch` and `step` is given, or nothing is known of that place.

        Examples:
            >>> def numbers(*, start):
            ...     yield from range(start, 6)
            >>> with kf.StreamFeed(numbers, batch_size=2, seed=0, workers=0) as feed:
            ...     for batch in feed:
            ...         state = feed.get_state()
            ...         break
            >>> with kf.StreamFeed(numbers, batch_size=2, seed=0, workers=0) as feed:
            ...     feed.set_state(state)
            ...     print(list(feed))
            [array([2, 3]), array([4, 5])]
        """
        fingerprint = self._fingerprint()
        if (epoch is None) != (step is None):
            raise TypeError(f"get_state() takes epoch and step together, received epoch={epoch!r}, step={step!r}")
        place = self._consumed() if epoch is None else _known_place(epoch, step, self._repetitions.known)
        if place is None:
            raise RuntimeError(
                "only the consumer knows which batch is next: a dataset loads ahead. Say feed.get_state(epoch=..., "
                "step=...) of the next batch, where an epoch is a repetition, or pass the feed itself to fit"
            )
        self._warn_of_cost(
            "to go on from this state, its generators are run again from the beginning of their repetition"
        )
        departures = place.departures if place.step else ()
        if self._parts is not None:  # those that had left before the last item was read, the same at any time
            joined = self._parts.source.joined(place.step * self.plan.rows)
            departures = [each for each in departures if each.items < joined]
        return {
            "version": VERSION, "kind": _KIND, "seed": self.seed, "epoch": place.repetition, "step": place.step,
            "departures": [[each.n, each.items] for each in departures], "fingerprint": fingerprint,
        }  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the batch that is next by `state`.

        The next loop, `fit` or iteration of a dataset begins there, with what is left of that repetition. The workers
        and their type may differ from those of the feed that made `state`. With a parameter `start` of
        `make_generator`, no scene is made again but those of a shuffle buffer. Without it, all of that repetition are,
        and thrown away, and a `kerasfeed.FeedWarning` says how many.

        Args:
            state: What `get_state` returned, perhaps in another process.

        Raises:
            RuntimeError: The stream cannot be resumed; the message says why, and what to do.
            TypeError, ValueError: `state` is not a state, or belongs to a feed with other batches; the message says
                what differs.

        Examples:
            >>> def numbers(*, start):
            ...     yield from range(start, 6)
            >>> with kf.StreamFeed(numbers, batch_size=4, seed=0, workers=0) as feed:
            ...     batches = iter(feed)
            ...     batch, state = next(batches), feed.get_state()
            ...     feed.set_state(state)
            ...     print(list(feed))
            [array([4, 5])]
        """
        fingerprint = self._fingerprint()
        numbers = numbers_of(state, _KIND, "departures")
        departures = _departures(state["departures"], state["fingerprint"].get("count"))
        refuse_changes({"seed": numbers["seed"], **state["fingerprint"]}, {"seed": self.seed, **fingerprint})
        place = StreamPlace(numbers["epoch"], numbers["step"], departures)
        if place.step:
            scenes = place.step * self.plan.rows * (self.shard.count if self._deals else 1)
            self._warn_of_cost(
                f"to go on at step {place.step:,} of repetition {place.repetition}, its generators are run again, and "
                f"the first {counted(scenes, 'scene')} thrown away"
            )
        self.end_fit()
        self._place = place
        self._repetitions.resume(place)

    def state_dict(self) -> dict[str, Any]:
        """What `get_state()` returns, by the name that PyTorch's tools look for (Lightning, Accelerate, torchdata)."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """`set_state(state)`, by the name that PyTorch's tools look for."""
        self.set_state(state)

    def _warn_of_cost(self, what: str) -> None:
        """Warn once that generators are run again from the beginning; `what` says for what."""
        if self.generators.takes_start or self._functions or self._is_cost_told:  # with functions, items are quick
            return
        self._is_cost_told = True
        warn_caller(
            f"make_generator ({self.generators.name}) has no parameter `start`: {what}, which takes as long as the "
            "first time. Give it one, the number of the scene to begin with, and nothing is made twice",
            FeedWarning,
        )

    def _fingerprint(self) -> dict[str, Any]:
        """What identifies the stream.

        Raises:
            RuntimeError: It cannot be resumed.
        """
        generators, plan, order = self.generators, self.plan, self.plan.order
        if not self.deterministic and generators.count > 1:
            raise RuntimeError(
                "a stream with deterministic=False cannot be resumed: its scenes come from whichever generator has one "
                "ready, so nothing tells which were given. Make the feed with deterministic=True"
            )
        return {
            "make_generator": generators.name,
            "count": generators.count,
            "functions": [str(getattr(each, "__qualname__", type(each).__name__)) for each in self._functions],
            "copies": generators.copies,
            "batch_size": plan.batch_size,
            "drop_remainder": plan.drop_remainder,
            "pad_remainder": plan.pad_remainder,
            "shuffle_buffer": order.buffer_size if isinstance(order, BufferShuffled) else None,
            "shard": [self.shard.index, self.shard.count],
        }

    # ---- life

    def close(self) -> None:
        """Stop the workers and free their memory. Batches already delivered stay valid. May be called again."""
        self._stop()

    def __reduce__(self) -> Any:
        asked = self._options.given["shard"]
        arguments = {
            **self._options.given, "seed": self.seed, "shard_index": None, "shard_count": 1,
            "shard": asked if isinstance(asked, str) else self.shard,
        }  # fmt: skip
        return _restore, (
            type(self), self.generators.make_generator, self.plan.batch_size, arguments, self._functions,
        )  # fmt: skip

    def _facts(self) -> list[tuple[str, str]]:
        generators = self.generators
        facts = [("generators", f"{generators.count} of {generators.name}")]
        if self.shard.count > 1 or self.shard.source:
            own = generators.numbers[self.shard.index :: self.shard.count]
            what = "scenes dealt in turn" if self._deals else f"{counted(len(own), 'generator')} of its own"
            facts.append(("shard", f"{self.shard}, {what}"))
        if isinstance(self.plan.order, BufferShuffled):
            facts.append(("shuffle buffer", f"{self.plan.order.buffer_size:,} scenes"))
        if not generators.takes_start:
            facts.append(("resume", "runs the generators again"))
        return [*facts, *super()._facts()]


def _departures(given: Any, count: Any) -> tuple[Departure, ...]:
    with suppress(TypeError, ValueError):
        found = tuple(Departure(operator.index(n), operator.index(items)) for n, items in given)
        numbers, items = {each.n for each in found if 0 <= each.n < count}, [0, *(each.items for each in found)]
        if len(numbers) == len(found) and items == sorted(items):
            return found
    raise ValueError(
        f"departures of the state must be pairs [n, scenes before] of integers, in their order, one for each of the "
        f"{count} generators at most, received {given!r}: restore the state as get_state() gave it"
    )


def _known_place(epoch: Any, step: Any, known: Iterable[Repetition]) -> StreamPlace:
    """A place that a user gave, in one of the `known` repetitions.

    Raises:
        TypeError, ValueError: It is none, or nothing is known of it.
    """
    epoch, step = check_integer("epoch", epoch, 0), check_integer("step", step, 0)
    known = [each for each in known if each.number == epoch]
    if step and not any(each.steps >= step for each in known):
        raise ValueError(
            f"nothing is known of step {step} of repetition {epoch}: get_state() takes a place "
            "that this feed has come to, in one of its last repetitions"
        )
    return StreamPlace(epoch, step, known[-1].departures if known else ())


def _restore(
    kind: Any, make_generator: Any, batch_size: int | None, arguments: dict[str, Any], functions: tuple[Any, ...]
) -> Any:
    feed = kind(make_generator, batch_size, **arguments)
    for function in functions:
        feed = feed.map(function)
    return feed


BaseStreamFeed.__init__.__qualname__ = "StreamFeed.__init__"  # what Python's own messages call it
