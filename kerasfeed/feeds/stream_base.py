"""`BaseStream`: what feeds without random access have in common.

Invariant: batches come in the order of their items, through one loader. Nothing is started before the first batch, or
the spec, is asked for.
"""

import dataclasses
import threading
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.feeds.cursor import batches_of, wait_for_background
from kerasfeed.feeds.display import stream_html, workers_text
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.sharding import ONE_SHARD, Shard
from kerasfeed.feeds.stream_cursor import EMPTY, StreamCursor
from kerasfeed.feeds.streams.pipeline import Function, StreamLoader, StreamPlan
from kerasfeed.feeds.streams.repetition import Repetition, Repetitions
from kerasfeed.feeds.streams.source import Source, StreamPlace
from kerasfeed.loaders.arguments import NO_METHODS_OF_STREAMS, check_collate, check_seed
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.table import FailureTable
from kerasfeed.orders.base import Order, Sequential
from kerasfeed.pool.base import CLOSED
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec


class BaseStream(AnyFeed):
    """Batches of a `Source`, for loops: what `kerasfeed.StreamFeed` is without Keras."""

    plan: StreamPlan
    _place: StreamPlace | None
    _no_methods = NO_METHODS_OF_STREAMS
    _instead_of_overriding = (
        "kf.StreamFeed(...).map(function) changes scenes, as kf.Map does for a kf.Feed, and collate=function makes the "
        "batches"
    )
    _public = frozenset([
        "close", "element_spec", "failures", "map", "num_batches", "plan", "scene_spec", "seed", "stats",
        "to_jax", "to_tf_dataset", "to_torch",
    ])  # fmt: skip

    def __init__(self, options: FeedOptions, order: Order | None = None, shard: Shard = ONE_SHARD) -> None:
        given, on_error = options.given, options.policy.on_error
        if given["pad_remainder"] and (given["drop_remainder"] or options.batch_size is None or on_error == "skip"):
            raise ValueError(
                "pad_remainder=True fills the last batch up with scenes of sample_weight 0, so that all have one size: "
                "it needs a batch_size, and goes neither with drop_remainder=True nor with on_error='skip'"
            )
        if on_error == "replace":
            raise ValueError(
                "on_error='replace' draws another scene by its index, and a stream has none: use on_error='skip', or "
                "'mask', which gives failed scenes sample_weight 0"
            )
        self.plan = StreamPlan(
            batch_size=options.batch_size, order=order or Sequential(), seed=check_seed(given["seed"], Sequential(), 1),
            shard_index=shard.index, shard_count=shard.count, drop_remainder=bool(given["drop_remainder"]),
            pad_remainder=bool(given["pad_remainder"]),
        )  # fmt: skip
        self._collation = check_collate(given["collate"], self.plan, on_error)
        signature = given["output_signature"]
        self._spec = None if signature is None else as_scene_spec(signature)
        self._functions: tuple[Function, ...] = ()
        super().__init__(options)
        self._init_framework(options.ahead)

    def _consumed(self) -> StreamPlace | None:
        """Where the consumer stands."""
        return self._place

    def note_place(self, place: StreamPlace | None) -> None:
        """Whoever takes batches now stands at `place`; None where only it knows."""
        self._place = place

    def _reset_state(self) -> None:
        super()._reset_state()
        self.plan = dataclasses.replace(self.plan)
        self._lock = threading.RLock()
        self._parts: StreamLoader | None = None
        self._repetitions = Repetitions()
        self._place = StreamPlace()  # of the consumer; None where only it knows
        self._closed = False

    # ---- what subclasses say

    @abstractmethod
    def _make_source(self) -> Source:
        """The source, made when the first batch is asked for."""

    # ---- the parts

    def map(self, function: Function) -> Self:
        """Apply a function to each item of this feed, in the workers, in the order of the items.

        For a generator that yields quickly (names or parameters, of any type that can be pickled) and a function that
        does the work and returns a scene. The generators then run in one thread of this process, and `workers` is the
        number of concurrent calls of the function. Several `map`s apply one function after the other.

        Args:
            function: Takes one item and returns a scene. Worker processes need one that can be pickled (with
                `cloudpickle`). In it, `kerasfeed.current_rng()` depends only on (seed, repetition, number of the item).

        Returns:
            A new feed. Iterate over this one, not over the one that `map` was called on.

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
        if self._parts is not None or self._closed:
            raise RuntimeError("map() comes before the first batch: this feed has begun, or is closed. Make a new one")
        mapped = object.__new__(type(self))
        mapped.__dict__.update(self.__dict__)
        mapped._functions = (*self._functions, function)
        mapped._reset_state()
        return mapped

    def _core(self) -> StreamLoader:
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
            if self._parts is None:
                self._parts = StreamLoader(
                    self._options, self.plan, self._collation, self._make_source(), self._functions, self._given_spec()
                )
                self.job, self._loader = self._parts.job, self._parts.loader
                weakref.finalize(self, _close, self._repetitions, self._parts)
            return self._parts

    def _given_spec(self) -> SceneSpec | None:
        return self._spec

    # ---- repetitions

    def begin_repetition(self, *, chained: bool = False, timeout: float | None = None) -> Repetition:
        """The next repetition, or what is kept of one: of any, if `chained`, else of one of which nothing was used.

        Raises:
            NotYet: What is kept of one has told nothing for `timeout` s.
        """
        core = self._core()
        wait_for_background()  # what an iterator that was let go of had taken comes again
        self.cursors.wait()
        return self._repetitions.begin(core, chained=chained, timeout=timeout)

    def pass_end(self) -> bool:
        """Whether of the repetition that is resumed nothing is left, so that the next one begins."""
        number = self._repetitions.resumed_number
        repetition = self.begin_repetition()
        self.keep_repetition(repetition)
        passed = number is not None and repetition.number != number
        if passed:
            self._place = StreamPlace(repetition.number)
        return passed

    def end_fit(self) -> None:
        """Have a fit that was stopped give back the batches that it still holds."""

    def keep_repetition(self, repetition: Repetition, *, chained: bool = False, whole: bool = True) -> None:
        """Whoever has begun a repetition leaves it; see `Repetitions.keep`."""
        self._repetitions.keep(repetition, chained=chained, whole=whole)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next repetition, loaded ahead.

        Examples:
            >>> with kf.StreamFeed(lambda: iter([1.0, 2.0, 3.0]), batch_size=2, workers=0) as feed:
            ...     print(list(feed))
            [array([1., 2.]), array([3.])]
        """
        return batches_of(self.begin_loop)

    def begin_loop(self, epochs: int = 1) -> StreamCursor:
        """The batches of the next repetitions, for a loop."""
        self.end_fit()
        return StreamCursor(weakref.ref(self), epochs)

    @property
    def reads_ahead(self) -> bool:
        """Whether others make batches, and not whoever takes them."""
        return bool(self._options.workers)

    def __len__(self) -> int:
        raise TypeError(
            f"a {type(self).__name__} has no length: nobody knows how many scenes will come. It is a "
            "feed by itself: loop over it, or pass it to fit. What can be indexed is better fed by a kerasfeed.Feed"
        )

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, step: int) -> Any:
        """Streams have no index: always raises.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"a {type(self).__name__} has no random access: loop over it, or pass it to fit. What can be indexed is "
            "better fed by a kerasfeed.Feed"
        )

    def issue_warnings(self) -> None:
        """See `AnyFeed.issue_warnings`."""
        core = self._parts
        if core is not None:
            core.loader.failure_log.deferred_warnings.issue()
            core.source.deferred_warnings.issue()

    # ---- the spec

    @property
    def scene_spec(self) -> SceneSpec:
        """Spec of a scene. The first use waits for the first batch, which is kept for the next loop.

        Raises:
            ValueError: The stream is empty, and no `spec` was given.
        """
        core = self._core()
        if not core.inferred:
            repetition = self.begin_repetition(chained=True)
            try:
                repetition.peek()
            finally:
                self.keep_repetition(repetition, chained=True)
            if not core.inferred:
                raise ValueError(EMPTY)
        return core.loader.spec

    # ---- life

    @property
    def failures(self) -> FailureTable:
        """The scenes that have failed so far, with index, epoch, step, exception and count; a table in a notebook."""
        core = self._parts
        return FailureTable([]) if core is None else core.failures()

    def stats(self) -> LoaderStats:
        """The feed's counters at this moment; see [LoaderStats][kerasfeed.loaders.base.LoaderStats].

        Returns:
            Batches and buffers of this feed, and the workers of its generators or of `map`.
        """
        core = self._parts
        return LoaderStats("inline", 0, 0, 0, 0, 0) if core is None else core.stats()

    def _facts(self) -> list[tuple[str, str]]:
        """What the feed says of itself, name and value."""
        functions = [("functions", str(len(self._functions)))] if self._functions else []
        has_workers = self._parts is not None or not self._options.workers  # else they are made with the first batch
        workers = [("workers", workers_text(self.stats()))] if has_workers else []
        return [("batch size", str(self.plan.batch_size)), *functions, *workers]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}: {value}' for name, value in self._facts())})"

    def _repr_html_(self) -> str:
        core = self._parts
        known = core is not None and core.inferred and not self._closed
        return stream_html(type(self).__name__, self._facts(), self.element_spec if known else None)

    def _stop(self) -> None:
        """Stop the workers and free what they hold; idempotent."""
        with self._lock:
            self._closed = True
            core = self._parts
        if core is not None:
            _close(self._repetitions, core)
            core.loader.failure_log.deferred_warnings.issue_last()


def _close(repetitions: Repetitions, core: StreamLoader) -> None:
    repetitions.close()
    core.close()
