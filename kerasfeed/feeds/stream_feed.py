"""`BaseStreamFeed`: batches of generators, for data that cannot be indexed.

Invariant: batches come in the order of their items, through one loader. Nothing starts before the caller requests the
first batch or the spec. With `deterministic=True`, scene k of a repetition depends only on the generators, not on the
workers. A state holds numbers and names, but no scenes, and does not depend on how far the generators have run ahead.
Two feeds give the same batches after a state if their generators, fingerprints and seeds agree; their workers may
differ.
"""

import dataclasses
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self

from kerasfeed.errors import FeedClosedError, FeedWarning
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.feeds.cursor import EndOfData, batches_of
from kerasfeed.feeds.display import stream_html, workers_text
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.sharding import find_shard
from kerasfeed.feeds.state import VERSION, numbers_of, refuse_changes
from kerasfeed.feeds.stream_cursor import EMPTY, Repetition, StreamCursor
from kerasfeed.feeds.stream_loader import Function, StreamLoader, StreamPlan
from kerasfeed.feeds.stream_merge import StreamPosition
from kerasfeed.loaders.arguments import NO_METHODS_OF_STREAMS, check_collate, check_seed
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.table import FailureTable
from kerasfeed.loaders.generators import Generators
from kerasfeed.orders.base import Sequential
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.pool.base import CLOSED
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import pluralize
from kerasfeed.util.known_words import with_known_words
from kerasfeed.util.validate import check_flag, check_integer

_KIND = "stream"  # of states


class BaseStreamFeed(AnyFeed):
    """Batches of the scenes of generators, for loops; see `kerasfeed.StreamFeed`."""

    plan: StreamPlan
    position: StreamPosition | None  # of the consumer; None if only the consumer knows it
    _no_methods = NO_METHODS_OF_STREAMS
    _instead_of_overriding = (
        "kf.StreamFeed(...).map(function) changes scenes, as kf.Map does for a kf.Feed, and collate=function makes the "
        "batches"
    )
    _public = frozenset([
        "close", "element_spec", "failures", "get_state", "load_state_dict", "map", "mixing", "num_batches", "plan",
        "scene_spec", "seed", "set_state", "shard", "state_dict", "stats", "to_jax", "to_tf_dataset", "to_torch",
    ])  # fmt: skip

    @with_known_words("StreamFeed")
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
    ) -> None:
        options = FeedOptions.checked(BaseStreamFeed.__init__, locals())
        self.shard = find_shard(shard, shard_index, shard_count)
        order: Sequential | BufferShuffled = Sequential()
        if shuffle_buffer is not None:
            remedy = " (scenes; None does not shuffle)"
            order = BufferShuffled(check_integer("shuffle_buffer", shuffle_buffer, 1, remedy=remedy), self.shard.index)
        if pad_remainder and (drop_remainder or options.batch_size is None or on_error == "skip"):
            raise ValueError(
                "pad_remainder=True fills the last batch up with scenes of sample_weight 0, so that all have one size: "
                "it needs a batch_size, and cannot be combined with drop_remainder=True or on_error='skip'"
            )
        if options.policy.on_error == "replace":
            raise ValueError(
                "on_error='replace' draws another scene by its index, and a stream has none: use on_error='skip', or "
                "'mask', which gives failed scenes sample_weight 0"
            )
        self.plan = StreamPlan(
            batch_size=options.batch_size, order=order, seed=check_seed(seed, Sequential(), 1),
            shard_index=self.shard.index, shard_count=self.shard.count,
            drop_remainder=check_flag("drop_remainder", drop_remainder),
            pad_remainder=check_flag("pad_remainder", pad_remainder),
        )  # fmt: skip
        self._collation = check_collate(collate, self.plan, on_error)
        self._spec = None if output_signature is None else as_scene_spec(output_signature)
        self._functions: tuple[Function, ...] = ()
        super().__init__(options)
        self.deterministic = check_flag("deterministic", deterministic)
        self.generators = Generators(make_generator, count, self.seed, copies=check_flag("copies", copies))
        self._deals = self.generators.count < self.shard.count
        if self._deals and (seed is None or not self.deterministic):
            missing = "deterministic=True" if seed is not None else "a seed, the same for all: pass seed=0, for example"
            raise ValueError(
                f"{pluralize(self.generators.count, 'generator')} for {self.shard.count} shards: each shard runs all "
                f"of them, and scenes are dealt in turn, which needs {missing}. Otherwise some scenes would come twice "
                "and others not at all"
            )

    def _consumed(self) -> StreamPosition | None:
        """The position of the consumer; None if only the consumer knows it."""
        return self.position

    def _reset_state(self) -> None:
        super()._reset_state()
        self.plan = dataclasses.replace(self.plan)
        self._lock = threading.RLock()
        self._failure_log = FailureLog(self._options.policy, 0, self.plan.shard_count)
        self._stream_loader: StreamLoader | None = None
        self._repetitions: list[Repetition] = []  # the current repetition; empty after close()
        self._is_unused = False  # whether it has delivered no batch, so that the next loop takes it
        self._next_start = self.position = StreamPosition()
        self._closed = False
        self._init_framework(self._options.ahead)

    # ---- the parts

    def map(self, function: Function) -> Self:
        """Apply a function to each item in the workers, in order.

        Use it if the generator yields quickly (names or parameters, of any type that can be pickled) and the function
        does the work and returns a scene. The generators then run in one thread of this process, and `workers` is the
        number of concurrent calls of the function. Several calls of `map` apply their functions in turn.

        Args:
            function: Takes one item and returns a scene. Worker processes need a function that `cloudpickle` can
                pickle. In it, `kerasfeed.current_rng()` depends only on (seed, repetition, number of the item).

        Returns:
            A new feed. Iterate over the new feed, not over the original.

        Raises:
            TypeError: `function` cannot be called.
            RuntimeError: Batches have been requested already.

        Examples:
            >>> def names():
            ...     yield from ["a", "bb", "ccc"]
            >>> with kf.StreamFeed(names, batch_size=3, workers=0).map(lambda name: (len(name), name)) as feed:
            ...     for lengths, texts in feed:
            ...         print(lengths, texts)
            [1 2 3] ['a' 'bb' 'ccc']
        """
        if not callable(function):
            raise TypeError(f"map needs a function from an item to a scene, received a {type(function).__name__}")
        if self._stream_loader is not None or self._closed:
            raise RuntimeError(
                "call map() before the first batch: this feed has started, or is closed. Make a new feed"
            )
        mapped = object.__new__(type(self))
        mapped.__dict__.update(self.__dict__)
        mapped._functions = (*self._functions, function)
        mapped._reset_state()
        return mapped

    def _started_loader(self) -> StreamLoader:
        """Return the loader; the first call starts the workers."""
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
            if self._stream_loader is None:
                shard = self.shard
                generators = self.generators if self._deals else self.generators.for_shard(shard.index, shard.count)
                self._stream_loader = StreamLoader(
                    self._options, self.plan, self._collation, generators, self._functions, self._spec,
                    shard if self._deals else None, self._failure_log,
                )  # fmt: skip
                self.job, self._loader = self._stream_loader.job, self._stream_loader.batch_loader
                weakref.finalize(self, _close, self._repetitions, self._stream_loader)
            return self._stream_loader

    def mixing(self, length: int) -> float:
        """Measure the shuffling, from 0 (none) to about 1 (full).

        As in `Order.mixing`, the measure is the mean distance, in the order of the generators, between consecutive
        scenes. For a shuffle buffer it is about three times the buffer's share of the scenes.
        `kerasfeed.show(feed.plan, length)` draws it.

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

    # ---- repetitions

    def begin_repetition(self) -> Repetition:
        """Return the current repetition if it is unused, else begin the next.

        Raises:
            FeedClosedError: The feed is closed.
            RuntimeError: The previous repetition does not end.
        """
        loader = self._started_loader()
        self.cursors.wait()  # else two threads could run the user's code at once
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
            if not self._is_unused:
                for previous in self._repetitions:
                    previous.close()
                    if previous.is_stuck:
                        raise RuntimeError(
                            "the stream cannot begin again: the previous repetition still waits for its generators, "
                            "which do not return. Give generators a timeout, or make a new feed"
                        )
                self._repetitions[:] = [Repetition(loader, self._next_start)]
                self._next_start = StreamPosition(self._next_start.repetition + 1)
                self._repetitions[0].begin()
            self._is_unused = False
            return self._repetitions[0]

    def keep(self, repetition: Repetition) -> bool:
        """Keep an unused repetition for the next loop.

        Return False if it is closed, or not the current repetition.
        """
        with self._lock:
            repetition.peeked = 0
            self._is_unused = repetition in self._repetitions and not repetition.closed
            return self._is_unused

    def is_at_end(self) -> bool:
        """Whether the resumed repetition has no batches left.

        If so, the next loop begins the next repetition. Otherwise it begins with the batch that this call waited for.

        Raises:
            Exception: The spec cannot be inferred.
        """
        repetition = self.begin_repetition()
        try:
            repetition.take(None, peeks=True)
        except EndOfData:
            repetition.close()
            self.position = StreamPosition(repetition.start.repetition + 1)
            return True
        except Exception:
            if not self._started_loader().inferred:
                raise
        self.keep(repetition)  # with an error, which the next loop raises
        return False

    def end_fit(self) -> None:
        """End a stopped fit that still takes batches."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of the next repetition, loaded ahead.

        Examples:
            >>> with kf.StreamFeed(lambda: iter([1.0, 2.0, 3.0]), batch_size=2, workers=0) as feed:
            ...     print(list(feed))
            [array([1., 2.]), array([3.])]
        """
        return batches_of(self.begin_loop)

    def begin_loop(self, epochs: int = 1) -> StreamCursor:
        """Return a cursor for a loop over the next repetitions."""
        self.end_fit()
        return StreamCursor(weakref.ref(self), epochs)

    def __len__(self) -> int:
        raise TypeError(
            f"a {type(self).__name__} has no length, because the number of scenes is unknown: loop over it, or pass it "
            "to fit. For data with an index use a kerasfeed.Feed"
        )

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, step: int) -> Any:
        """Raise TypeError: a stream has no index.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"a {type(self).__name__} has no random access: loop over it, or pass it to fit. For data with an index "
            "use a kerasfeed.Feed"
        )

    def issue_warnings(self) -> None:
        """See `AnyFeed.issue_warnings`."""
        self._failure_log.deferred_warnings.issue()

    # ---- the spec

    @property
    def scene_spec(self) -> SceneSpec:
        """Spec of a scene.

        The first use waits for the first batch, and keeps it for the next loop.

        Raises:
            ValueError: The stream is empty, and no `output_signature` was given.
        """
        loader = self._started_loader()
        if not loader.inferred:
            self.is_at_end()
            if not loader.inferred:
                raise ValueError(EMPTY)
        return self._loader.spec

    # ---- state

    def get_state(self, *, epoch: int | None = None, step: int | None = None) -> dict[str, Any]:
        """Return the consumer's position as a small dict for JSON.

        Pass the dict to `set_state` to resume there. The position is after the last batch that was consumed, not after
        the last batch that was loaded ahead. In a loop the current batch counts as consumed; in a callback of `fit`,
        the last trained batch does. An epoch is a repetition. The state holds no scenes: the feed refills a shuffle
        buffer from the generators. If a generator raises, the batch before the error may be short. The position stays
        before this batch, so that the complete batch comes again.

        If `make_generator` has no parameter `start`, resuming runs its generators again from the beginning of the
        repetition, which takes as long as the first time.

        Args:
            epoch: Repetition of the next batch, from 0. Unless `step` is 0, it must be the last repetition that began.
                None uses the consumer's position. Pass both `epoch` and `step` in loops over a dataset of
                `to_tf_dataset()`, otherwise neither.
            step: Step of the next batch in that repetition; at most one past the last batch made so far.

        Returns:
            A dict with `version`, `kind`, `seed`, `epoch` and `step` of the next batch, `ended` with the number and the
            scene count of each generator that had ended or failed by then, and a `fingerprint` of the stream.

        Raises:
            RuntimeError: The stream cannot be resumed, or the position of the consumer is unknown; the message gives
                the reason and the remedy.
            TypeError, ValueError: Only one of `epoch` and `step` is given, or the feed has not reached that position.

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
        position = self._consumed() if epoch is None else self._position_at(epoch, step)
        if position is None:
            raise RuntimeError(
                "only the consumer knows which batch is next: a dataset loads ahead. Call feed.get_state(epoch=..., "
                "step=...) of the next batch (an epoch is a repetition), or pass the feed itself to fit"
            )
        return {
            "version": VERSION, "kind": _KIND, "seed": self.seed, "epoch": position.repetition, "step": position.step,
            "ended": [list(each) for each in position.ended if position.step], "fingerprint": fingerprint,
        }  # fmt: skip

    def _position_at(self, epoch: Any, step: Any) -> StreamPosition:
        """Return the position of the user's `epoch` and `step`.

        Raises:
            TypeError, ValueError: They are not integers, or the position is neither at the beginning of a repetition
                nor in the last repetition.
        """
        epoch, step = check_integer("epoch", epoch, 0), check_integer("step", step, 0)
        read = [each.read for each in self._repetitions if each.start.repetition == epoch and each.read.step >= step]
        if step and not read:
            raise ValueError(
                f"step {step} of repetition {epoch} is unknown: get_state() takes a position that this feed has "
                "reached, in its last repetition"
            )
        return StreamPosition(epoch, step, read[0].ended if read else ())  # later ends are harmless

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`.

        The next loop, `fit` or iteration of a dataset begins there, with the remaining batches of that repetition. The
        number and type of the workers may differ from the feed that made `state`. If `make_generator` has a parameter
        `start`, the feed makes only the scenes of a shuffle buffer again. Without `start`, it makes all earlier scenes
        of that repetition again and drops them; a `kerasfeed.FeedWarning` gives their number.

        Args:
            state: A dict from `get_state`, perhaps of another process.

        Raises:
            RuntimeError: The stream cannot be resumed; the message gives the reason and the remedy.
            TypeError, ValueError: `state` is not a state, or belongs to a feed with other batches; the message names
                the differences.

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
        numbers = numbers_of(state, _KIND, "ended")
        refuse_changes({"seed": numbers["seed"], **state["fingerprint"]}, {"seed": self.seed, **fingerprint})
        ended = _checked_ends(state["ended"], self.generators.count)
        position = StreamPosition(numbers["epoch"], numbers["step"], ended)
        if position.step and not (self.generators.takes_start or self._functions):  # with map(), items are quick
            scenes = position.step * self.plan.rows * (self.shard.count if self._deals else 1)
            warn_caller(
                f"make_generator ({self.generators.name}) has no parameter `start`: to continue at step "
                f"{position.step:,} of repetition {position.repetition}, its generators run again, and the first "
                f"{pluralize(scenes, 'scene')} are dropped. Add the parameter, which receives the number of the first "
                "scene to yield, to avoid this",
                FeedWarning,
            )
        self.end_fit()
        with self._lock:
            self._next_start = self.position = position
            self._is_unused = False

    def state_dict(self) -> dict[str, Any]:
        """`get_state()`, under the name that PyTorch tools use (Lightning, Accelerate, torchdata)."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """`set_state(state)`, under the name that PyTorch tools use."""
        self.set_state(state)

    def _fingerprint(self) -> dict[str, Any]:
        """Return the properties that identify the stream.

        Raises:
            RuntimeError: The stream cannot be resumed.
        """
        generators, plan, order = self.generators, self.plan, self.plan.order
        if not self.deterministic and generators.count > 1:
            raise RuntimeError(
                "a stream with deterministic=False cannot be resumed: its scenes come from any generator that has one "
                "ready, so their order is unknown. Make the feed with deterministic=True"
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

    @property
    def failures(self) -> FailureTable:
        """Failed scenes: index, epoch, step, exception and count, as a table."""
        return self._failure_log.table()

    def stats(self) -> LoaderStats:
        """Return the feed's current counters; see [LoaderStats][kerasfeed.loaders.base.LoaderStats].

        Returns:
            Batches and buffers of this feed, and the workers of its generators or of `map`.
        """
        loader = self._stream_loader
        return LoaderStats("inline", 0, 0, 0, 0, 0) if loader is None else loader.stats()

    def _facts(self) -> list[tuple[str, str]]:
        """Name and value of each property for `repr`."""
        generators = self.generators
        facts = [("generators", f"{generators.count} of {generators.name}")]
        if self.shard.count > 1 or self.shard.source:
            own = generators.numbers[self.shard.index :: self.shard.count]
            what = "scenes dealt in turn" if self._deals else f"{pluralize(len(own), 'generator')} of its own"
            facts.append(("shard", f"{self.shard}, {what}"))
        if isinstance(self.plan.order, BufferShuffled):
            facts.append(("shuffle buffer", f"{self.plan.order.buffer_size:,} scenes"))
        if not generators.takes_start:
            facts.append(("resume", "runs the generators again"))
        facts.append(("batch size", str(self.plan.batch_size)))
        if self._functions:
            facts.append(("functions", str(len(self._functions))))
        if self._stream_loader is not None or not self._options.workers:  # else the first batch starts them
            facts.append(("workers", workers_text(self.stats())))
        return facts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}: {value}' for name, value in self._facts())})"

    def _repr_html_(self) -> str:
        loader = self._stream_loader
        known = loader is not None and loader.inferred and not self._closed
        return stream_html(type(self).__name__, self._facts(), self.element_spec if known else None)

    def close(self) -> None:
        """Stop the workers and free their memory.

        Delivered batches stay valid. May be called again.
        """
        with self._lock:
            self._closed = True
            loader = self._stream_loader
        if loader is not None:
            _close(self._repetitions, loader)
        self._failure_log.deferred_warnings.issue_last()

    def __reduce__(self) -> Any:
        arguments = self._options.arguments_again(self.seed, self.shard)
        make = partial(type(self), self.generators.make_generator, self.plan.batch_size, **arguments)
        return make, (), {"_functions": self._functions}


def _close(repetitions: list[Repetition], loader: StreamLoader) -> None:
    while repetitions:
        repetitions.pop().close()
    loader.close()


def _checked_ends(given: Any, count: int) -> tuple[tuple[int, int], ...]:
    with suppress(TypeError, ValueError):
        ended = tuple((operator.index(n), operator.index(scenes)) for n, scenes in given)
        numbers = {n for n, scenes in ended if 0 <= n < count and scenes >= 0}
        if len(numbers) == len(ended):
            return ended
    raise ValueError(
        f"ended of the state must be pairs [n, scenes] of integers, one for each of the {count} generators at most, "
        f"received {given!r}: pass the state that get_state() returned"
    )
