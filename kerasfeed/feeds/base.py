"""`BaseFeed`: a sequence, a plan and a loader, without a framework.

Invariant: a feed decides nothing about data. Every batch comes from `Loader.submit(epoch, step)`, and does not depend
on the order of the requests.
"""

import dataclasses
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import ReadCostWarning, SceneError
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.feeds.cursor import batches_of
from kerasfeed.feeds.display import feed_html, feed_text, waste_text
from kerasfeed.feeds.epoch_clock import EpochClock
from kerasfeed.feeds.feed_cursor import EarlyBatches, FeedCursor
from kerasfeed.feeds.hooks import Refreshes, SequenceHooks
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.sharding import find_shard
from kerasfeed.feeds.state import FeedState, number_of, state_of, warn_of_hooks
from kerasfeed.loaders.arguments import check_collate, check_order, check_plan, check_seed
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.table import FailureTable
from kerasfeed.loaders.hosts.ray_hosts import RayHosts
from kerasfeed.loaders.loader import make_loader
from kerasfeed.loaders.sequence_argument import check_sequence, refuse_other_items
from kerasfeed.orders.base import Order
from kerasfeed.orders.plan import Plan
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.optional_methods import length_of
from kerasfeed.sequences.patches import is_of_boxes
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.known_words import with_known_words
from kerasfeed.util.validate import check_flag, check_integer


class BaseFeed(AnyFeed):
    """Batches of a sequence, for loops: `kerasfeed.Feed` without Keras.

    See `kerasfeed.Feed` for the arguments and exceptions.

    Attributes:
        sequence: The sequence.
        shard: Number of this shard, number of shards, and their source.
        collation: How scenes become a batch.
        clock: The position of the feed, counted over all epochs.
        fingerprint: The fingerprint of its state; None until first needed.
        hooks: The sequence's `on_epoch_begin` and `on_epoch_end`; if it has either, an epoch is loaded only after the
            previous one.
        refreshes: How often the sequence, or a sequence inside it, was refreshed.
    """

    _public = frozenset([
        "close", "element_spec", "epoch", "failures", "get_state", "indices", "load_state_dict", "num_batches", "plan",
        "scene_spec", "seed", "sequence", "set_state", "shard", "start", "state_dict", "stats", "submit", "to_jax",
        "to_tf_dataset", "to_torch",
    ])  # fmt: skip

    @with_known_words("Feed")
    def __init__(
        self,
        sequence: Any,
        batch_size: int | None,
        *,
        shuffle: bool = False,
        order: Order | Callable[[int, int, int], Any] | None = None,
        seed: int | None = None,
        drop_remainder: bool = False,
        workers: int | Literal["auto"] = "auto",
        worker_type: Literal["auto", "process", "thread"] = "auto",
        max_queue_size: int = 10,
        max_memory: int | None = None,
        collate: Any = "stack",
        shard_index: int | None = None,
        shard_count: int = 1,
        shard: Any = None,
        pad_remainder: bool = False,
        on_error: Literal["raise", "replace", "mask", "skip"] = "raise",
        max_failures: int | float | None = None,
        timeout: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        hosts: RayHosts | None = None,
        output_signature: Any = None,
    ) -> None:
        before = frozenset(vars(self))  # attributes set by a subclass
        super().__init__(FeedOptions.checked(BaseFeed.__init__, locals()))
        options = self._options
        sequence = as_sequence(sequence)
        length = check_sequence(sequence)
        if options.batch_size is not None:
            refuse_other_items(sequence, options.batch_size)
        self.shard = find_shard(shard, shard_index, shard_count)
        chosen = check_order(order, shuffle)
        seed = check_seed(seed, chosen, self.shard.count)
        chosen = chosen.seeded(seed)
        self.plan = Plan(
            length, options.batch_size, chosen, seed, check_flag("drop_remainder", drop_remainder), self.shard.index,
            self.shard.count, check_flag("pad_remainder", pad_remainder),
        )  # fmt: skip
        check_plan(self.plan, on_error)
        self.collation = check_collate(collate, self.plan, on_error)
        self.sequence = sequence
        self.fingerprint: dict[str, Any] | None = None
        self.refreshes = Refreshes(sequence)
        spec = None if output_signature is None else as_scene_spec(output_signature)
        job = options.job(sequence, self.plan, self.collation, auto=options.auto, spec=spec)
        self.job = dataclasses.replace(job, look_ahead=max(options.ahead, job.ahead_for(options.workers)))
        self._start_loader()
        self.clock = EpochClock(self.plan.steps, seed)
        self.hooks = SequenceHooks(sequence, partial(_refresh, weakref.ref(self)))
        self._loops: weakref.WeakSet[FeedCursor] = weakref.WeakSet()  # cursors of loops; closed with the feed
        self._early: EarlyBatches | None = None
        # The chosen order pickles even if the user's function does not.
        self._arguments = options.arguments_again(seed, self.shard) | {"order": None if order is None else chosen}
        self._init_framework(self.job.look_ahead)
        self._made = frozenset(vars(self)) - before

    def _start_loader(self, failure_log: FailureLog | None = None) -> None:
        self._loader = make_loader(self.job, self._options.worker_type, failure_log)
        self._has_warned_of_waste = False

    def follow_sequence(self) -> None:
        """Adopt a refreshed sequence and restart the workers, before an epoch.

        Raises:
            RuntimeError: The feed would resume an epoch whose batches have changed, or a view of the refreshed sequence
                keeps its first length.
            ValueError: The order or the batch size does not fit the new length.
        """
        generations = self.refreshes.present()
        if generations == self.refreshes.planned:
            return
        self.refreshes.check_length()
        plan = dataclasses.replace(self.plan, length=check_sequence(self.sequence))
        check_plan(plan, self._options.policy.on_error)
        if not self.clock.change_steps(plan.steps):
            self.refreshes.refuse()
        self._end_early()
        self._give_up_ahead()
        for cursor in list(self._loops):
            cursor.close()
        self.hooks.leave()
        self._loader.close()
        self.refreshes.planned = generations
        self.plan = plan
        self.job = dataclasses.replace(self.job, plan=plan)
        self.fingerprint = None
        self._loader.failure_log.renew(plan.length)
        self._start_loader(self._loader.failure_log)

    # ---- batches

    def __len__(self) -> int:
        """Number of batches in an epoch, equal on all shards."""
        return self.plan.steps

    def __getitem__(self, step: int) -> Any:
        """Return the batch of one step of the current epoch.

        Negative steps count from the end. Lists in scenes become tuples.

        Args:
            step: Number of the batch, in [-len(feed), len(feed)).

        Returns:
            The batch, nested like the scenes; each field has a leading axis of B scenes.

        Raises:
            IndexError: `step` is out of range.
            TypeError: `step` is not an integer.
            SceneError: Every scene of the batch failed and was skipped.
            Exception: An exception of the sequence, with index, epoch and step as a note.

        Examples:
            >>> with kf.Feed(np.arange(10), batch_size=4, workers=0) as feed:
            ...     print(feed[0], feed[-1])
            [0 1 2 3] [8 9]
        """
        if not hasattr(step, "__index__"):
            what = f"a feed is indexed by the number of a batch, received a {type(step).__name__}"
            raise TypeError(f"{what}. {self._no_methods['take']}")
        step = operator.index(step)
        if step < 0:
            step += len(self)
        epoch = self.clock.current
        batch = self.submit(epoch, step).result()
        if batch is None:
            raise SceneError(f"every scene of step {step} of epoch {epoch} failed and was skipped; see feed.failures")
        return self.without_lists(batch)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of the next epoch, loaded ahead.

        After `set_state`, the first loop takes the rest of the epoch in the state.

        Examples:
            >>> with kf.Feed(np.arange(5), batch_size=2, workers=0) as feed:
            ...     for batch in feed:
            ...         print(batch)
            [0 1]
            [2 3]
            [4]
        """
        return batches_of(self.begin_loop)

    def epoch(self, number: int) -> Iterator[Any]:
        """Iterate over the batches of epoch `number`, loaded ahead.

        The epoch of the next plain loop does not change.

        Args:
            number: Epoch, from 0.

        Returns:
            An iterator over the batches of that epoch, which are the same in each call.

        Raises:
            TypeError, ValueError: `number` is not an integer, or is negative.

        Examples:
            >>> with kf.Feed(np.arange(6), batch_size=3, shuffle=True, seed=0, workers=0) as feed:
            ...     first, again = list(feed.epoch(5)), list(feed.epoch(5))
            >>> np.array_equal(first, again)
            True
        """
        first = check_integer("epoch", number, 0) * len(self)
        return batches_of(partial(self._loop_over, range(first, first + len(self)), moves_position=False))

    def begin_loop(self, epochs: int = 1) -> FeedCursor:
        """Return a cursor for a loop over the next epochs.

        After `set_state`, the first epoch is the rest of the epoch in the state.
        """
        self.follow_sequence()
        return self._loop_over(self.clock.claim_epochs(epochs), moves_position=True)

    def _loop_over(self, numbers: range, *, moves_position: bool) -> FeedCursor:
        cursor = FeedCursor(weakref.ref(self), numbers, moves_position=moves_position)
        self._loops.add(cursor)
        return cursor

    def submit(self, epoch: int, step: int, *, patience: float | None = None) -> "Future[Any]":
        """Load the batch (epoch, step) and return its future.

        Use it in code that schedules its own loading ahead. With workers, the call waits only for memory: at most
        `patience` seconds, or without limit if `patience` is None. The result of the future is the batch, or None if
        all its scenes were skipped. See `kerasfeed.loaders.loader.Loader.submit`.

        Examples:
            >>> with kf.Feed(np.arange(6), batch_size=2, workers=1) as feed:
            ...     futures = [feed.submit(0, step) for step in range(len(feed))]
            ...     print([future.result().tolist() for future in futures])
            [[0, 1], [2, 3], [4, 5]]
        """
        self.refreshes.refuse_others(self.refreshes.planned)
        self.cursors.wait()
        self.enter_epoch(epoch)
        self.issue_warnings()
        early = self._early
        if early is not None:
            batch = early.take(epoch, step)
            if batch is not None:
                return batch
            self._early = None
        return self._loader.submit(epoch, step, timeout=patience)

    def start(self) -> None:
        """Start to load the first batches of the next epoch, and return.

        Like the beginning of a loop, this call waits for the first scenes if the workers or the spec are not known yet,
        and it calls `on_epoch_begin` of the sequence. The next loop or `fit` gets the same batches as without this
        call, and need not wait for them if you build a model or load weights meanwhile. The loaded batches are dropped
        if another batch is requested first: after `set_state`, or in `fit` with its default `shuffle=True` on a feed
        without shuffle. Without workers, nothing is loaded ahead.

        Raises:
            Exception: The error of a first scene.

        Examples:
            >>> with kf.Feed(np.arange(5), batch_size=2, workers=1) as feed:
            ...     feed.start()
            ...     # build a model here
            ...     print([len(batch) for batch in feed])
            [2, 2, 1]
        """
        self.follow_sequence()
        self._end_early()
        first = self.clock.next_free
        epoch = first // self.clock.steps
        self.enter_epoch(epoch)
        if self.look_ahead > 1:  # otherwise submit() itself would load
            numbers = range(first, (epoch + 1) * self.clock.steps)
            self._early = EarlyBatches(self._loader, map(self.clock.position, numbers))

    def _end_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            early.cancel()

    def enter_epoch(self, epoch: int) -> None:
        """Call the sequence's epoch hooks before any scene is read.

        Raises:
            RuntimeError: A hook has changed the length of the sequence.
        """
        if self.hooks.exist:
            self.hooks.enter(epoch)
            if (length := length_of(self.sequence)) != self.plan.length:
                raise RuntimeError(
                    f"on_epoch_begin or on_epoch_end of the {type(self.sequence).__name__} has changed its length from "
                    f"{self.plan.length:,} to {length:,}, but a feed keeps its first length: make the feed again"
                )
            self._loader.epoch = epoch

    def warn_of_settings(self) -> None:
        """Warn if attributes of the sequence were set after workers received it."""
        self._loader.warn_of_settings(
            "To change it there too, set it in a method on_epoch_begin(self) of the sequence, or make a new feed"
        )

    def issue_warnings(self) -> None:
        """See `AnyFeed.issue_warnings`."""
        if not self._has_warned_of_waste and (waste := self._loader.waste()) is not None:
            self._has_warned_of_waste = True  # warn once, at the user's line
            text = waste_text(waste, self.plan.order, self._loader.stats(), boxes=is_of_boxes(self.job.sequence))
            warn_caller(text, ReadCostWarning)
        self._loader.failure_log.deferred_warnings.issue()

    def indices(self, epoch: int | None = None) -> NDArray[np.int64]:
        """Return the scene index of each row of an epoch.

        Row k of `model.predict(feed)` is the prediction for scene `feed.indices()[k]`, no matter whether `indices` is
        called before or after `predict`.

        Args:
            epoch: Epoch, from 0. None is the current epoch, which `feed[step]`, `evaluate` and `predict` use.

        Returns:
            int64[rows], each in [0, len(feed.sequence)): the rows of this shard, without dropped scenes and with
            padding scenes. If `batch_size` is None, one index for each step.

        Raises:
            TypeError, ValueError: `epoch` is not an integer, or is negative.

        Examples:
            >>> scenes = np.arange(5.0)
            >>> with kf.Feed(scenes, batch_size=2, shuffle=True, seed=0, workers=0) as feed:
            ...     rows = np.concatenate([feed[step] for step in range(len(feed))])  # as predict would return them
            ...     in_order = np.empty(5)
            ...     in_order[feed.indices()] = rows
            >>> in_order
            array([0., 1., 2., 3., 4.])
        """
        number = self.clock.current if epoch is None else check_integer("epoch", epoch, 0)
        return self.plan.epoch_indices(number)

    @property
    def look_ahead(self) -> int:
        """Number of batches to keep in flight; may read scenes."""
        return self._loader.look_ahead

    # ---- from the loader

    @property
    def scene_spec(self) -> SceneSpec:
        """Spec of a scene: nesting, shapes and dtypes of the fields.

        The first use reads a few scenes, spread over the sequence.

        Examples:
            >>> scenes = kf.Zip(points=np.zeros((5, 8, 3)), label=np.arange(5))
            >>> with kf.Feed(scenes, batch_size=2, workers=0) as feed:
            ...     for path, field in zip(feed.scene_spec.paths, feed.scene_spec.fields):
            ...         print(path, field.shape, field.dtype)
            label () int64
            points (8, 3) float64
        """
        if self._loader.layout is None and not self.hooks.is_running:  # reads scenes of the next epoch
            self.enter_epoch(self.clock.next_free // self.clock.steps)
        return self._loader.spec

    @property
    def layout(self) -> Layout | None:
        """Layout of a batch, for `kerasfeed.load`; None until scenes have been read."""
        return self._loader.layout

    @property
    def failures(self) -> FailureTable:
        """Failed scenes: index, epoch, step, exception and count, as a table.

        `count` includes the reads that infer the spec.

        Examples:
            >>> def check(scene):
            ...     if scene == 2:
            ...         raise ValueError("damaged")
            ...     return scene
            >>> with kf.Feed(kf.Map(np.arange(6.0), check), 3, workers=0, on_error="skip") as feed:
            ...     print(list(feed))
            ...     print([(scene.index, scene.exception) for scene in feed.failures])
            [array([0., 1.]), array([3., 4., 5.])]
            [(2, 'ValueError: damaged')]
        """
        return self._loader.failure_log.table()

    def stats(self) -> LoaderStats:
        """Return the current counters: batches, replaced workers, failed scenes and memory.

        Returns:
            A snapshot with the attributes `worker_type`, `workers`, `batches`, `copied`, `slots`, `slot_bytes`, `pids`,
            `respawns`, `failed`, `seeds_random`, `hosts` and `chosen`; see
            [LoaderStats][kerasfeed.loaders.base.LoaderStats].

        Examples:
            >>> with kf.Feed(np.arange(6), batch_size=2, workers=0) as feed:
            ...     batches = list(feed)
            ...     feed.stats().batches
            3
        """
        return self._loader.stats()

    # ---- overridden for a framework

    def _consumed_batches(self) -> int:
        """Return the number of the batch after the last consumed batch.

        Raises:
            RuntimeError: Only the consumer knows it.
        """
        return self.clock.check_consumed()

    def _resume_at(self, number: int, *, shuffled: bool) -> None:
        """Continue with batch `number`; see `EpochClock.resume`."""
        self.clock.resume(number, shuffled=shuffled)

    def _give_up_ahead(self) -> None:
        """Drop the batches that a framework has loaded ahead."""

    # ---- state

    def get_state(self, *, epoch: int | None = None, step: int | None = None) -> dict[str, Any]:
        """Return the consumer's position as a small dict for JSON.

        Pass the dict to `set_state` to resume there. The position is after the last batch that was consumed, not after
        the last batch that was loaded ahead. In a loop the current batch counts as consumed; in a callback of
        `fit(feed)`, the last trained batch does. The feed cannot know the position of the consumer if you iterate over
        `to_tf_dataset()`, loop over `feed.epoch(n)`, or `fit` raised an exception: then pass `epoch` and `step`, or use
        `kerasfeed.BackupAndRestore` or `kerasfeed.FeedCheckpoint`.

        Args:
            epoch: Epoch of the next batch, from 0. None uses the consumer's position. Pass both `epoch` and `step`, or
                neither.
            step: Step of the next batch, in [0, len(feed)]; len(feed) is the beginning of the next epoch.

        Returns:
            A dict with `version`, `seed`, `epoch` and `step` of the next batch, `shuffled_steps`, and a `fingerprint`
            of the sequence, its order and the global batch.

        Raises:
            RuntimeError: The position of the consumer is unknown.
            TypeError, ValueError: Only one of `epoch` and `step` is given, or one is not an integer or out of range.

        Examples:
            >>> with kf.Feed(np.arange(6), batch_size=2, seed=0, workers=0) as feed:
            ...     for batch in feed:
            ...         state = feed.get_state()
            ...         break
            >>> state["epoch"], state["step"]
            (0, 1)
        """
        number = number_of(epoch, step, len(self))
        return state_of(self, self._consumed_batches() if number is None else number).as_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`, without loading earlier batches.

        The next loop, `fit` or iteration of a dataset begins there. The first epoch of a loop or `fit` is the rest of
        the epoch in `state`; an iteration of a dataset always has `len(dataset)` batches. The number and type of the
        workers, and the number of shards of the same global batch, may differ from the feed that made `state`.

        Args:
            state: A dict from `get_state`, perhaps of another process.

        Raises:
            TypeError, ValueError: `state` is not a state, or belongs to a feed with other batches; the message names
                the differences.
            RuntimeError: Keras is in an epoch of `fit` on the feed, or the sequence was refreshed during an epoch.

        Examples:
            >>> with kf.Feed(np.arange(6), batch_size=2, seed=0, workers=0) as feed:
            ...     for batch in feed:
            ...         state = feed.get_state()
            ...         break
            >>> with kf.Feed(np.arange(6), batch_size=2, seed=0, workers=0) as feed:
            ...     feed.set_state(state)
            ...     print(list(feed))
            [array([2, 3]), array([4, 5])]
        """
        target = FeedState.of(state)
        self.follow_sequence()
        target.check(state_of(self, 0), len(self))
        warn_of_hooks(self.sequence, self.hooks.exist, target)
        self._resume_at(target.epoch * len(self) + target.step, shuffled=target.shuffled_steps)

    def state_dict(self) -> dict[str, Any]:
        """`get_state()`, under the name that PyTorch tools use (Lightning, Accelerate, torchdata)."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """`set_state(state)`, under the name that PyTorch tools use."""
        self.set_state(state)

    # ---- life

    def close(self) -> None:
        """Stop the workers and free their memory.

        Delivered batches stay valid. May be called again.

        A `with` block calls it at its end.

        Examples:
            >>> feed = kf.Feed(np.arange(5), batch_size=2, workers=0)
            >>> batch = feed[0]
            >>> feed.close()
            >>> batch
            array([0, 1])
        """
        self._give_up_ahead()
        for cursor in list(self._loops):  # the cursors of unfinished loops
            cursor.close()
        self._end_early()
        self._loader.close()
        self._loader.failure_log.deferred_warnings.issue_last()

    def __reduce__(self) -> Any:
        added = {name: value for name, value in vars(self).items() if name not in (*self._made, "_made")}
        return _rebuilt, (type(self), self.sequence, self.plan.batch_size, self._arguments), added or None

    def __repr__(self) -> str:
        return feed_text(self)

    def _repr_html_(self) -> str:
        return feed_html(self)


def _rebuilt(kind: Any, sequence: Any, batch_size: int | None, arguments: dict[str, Any]) -> Any:
    """Copy a feed of class `kind` without calling its `__init__`.

    Pickle restores the attributes that `__init__` has added.
    """
    feed = kind.__new__(kind)
    BaseFeed.__init__(feed, sequence, batch_size, **arguments)
    return feed


def _refresh(feed: Callable[[], BaseFeed | None], change: Callable[[], None]) -> None:
    """Run `change` (the sequence's hooks) while the feed loads no scenes."""
    known = feed()
    if known is not None:
        known._end_early()  # of the epoch before
        known._loader.refresh(change)
