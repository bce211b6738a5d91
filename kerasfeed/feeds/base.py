"""`BaseFeed`: a sequence, a plan and a loader, without a framework: how it is made, follows its sequence, and resumes.

Invariant: a feed decides nothing about data; every batch comes from `Loader.submit(epoch, step)`.
"""

import dataclasses
import math
import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from kerasfeed.feeds.cost_warning import CostWatch
from kerasfeed.feeds.display import feed_html, feed_text
from kerasfeed.feeds.epoch_clock import EpochClock
from kerasfeed.feeds.hooks import SequenceHooks
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.planned import PlannedFeed
from kerasfeed.feeds.prefetch import Prefetcher
from kerasfeed.feeds.refreshes import Refreshes
from kerasfeed.feeds.sharding import find_shard
from kerasfeed.feeds.state import FeedState, forget_fingerprint, number_of, state_of, warn_of_hooks
from kerasfeed.loaders.arguments import check_collate, check_order, check_seed
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.loader import make_loader
from kerasfeed.loaders.plan_checks import check_plan
from kerasfeed.loaders.sequence_argument import check_sequence, length_of, refuse_other_items
from kerasfeed.orders.base import Order
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.hosts.engine import Hosts
from kerasfeed.spec.collation import Custom
from kerasfeed.util.frames import as_sequence


class BaseFeed(PlannedFeed):
    """Batches of a sequence, for loops: what `kerasfeed.Feed` is without Keras.

    Args, and what is raised: see `kerasfeed.Feed`.

    Attributes:
        sequence: The sequence.
        shard: Which shard it is, of how many, and who said so.
        collation: How scenes become a batch.
    """

    _public = frozenset([
        "close", "element_spec", "epoch", "failures", "get_state", "indices", "load_state_dict", "num_batches", "plan",
        "scene_spec", "seed", "sequence", "set_state", "shard", "state_dict", "stats", "submit", "to_jax",
        "to_tf_dataset", "to_torch",
    ])  # fmt: skip

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
        shard_index: int = 0,
        shard_count: int = 1,
        shard: Any = None,
        pad_remainder: bool = False,
        on_error: Literal["raise", "replace", "mask", "skip"] = "raise",
        max_failures: int | float | None = None,
        timeout: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        hosts: Hosts | None = None,
        **unknown: Any,
    ) -> None:
        before = frozenset(vars(self))  # what a subclass has set
        super().__init__(FeedOptions.checked(BaseFeed.__init__, locals(), "Feed"))
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
            length, options.batch_size, chosen, seed, bool(drop_remainder), self.shard.index, self.shard.count,
            bool(pad_remainder),
        )  # fmt: skip
        check_plan(self.plan, on_error)
        self.collation = check_collate(collate, self.plan, on_error)
        ahead = options.ahead
        if options.workers:  # enough scenes in flight to keep every worker at one while it has another waiting
            rows = 1 if isinstance(self.collation, Custom) else self.plan.rows
            ahead = max(ahead, math.ceil(2 * options.workers / rows))
        self.sequence = sequence
        self.refreshes = Refreshes(sequence)
        self.job = options.job(sequence, self.plan, self.collation, look_ahead=ahead, free=options.free)
        self._start_loader()
        self.clock = EpochClock(self.plan.steps, seed)
        self.hooks = SequenceHooks(sequence, partial(_refresh, weakref.ref(self)))
        self._loops: weakref.WeakSet[Prefetcher] = weakref.WeakSet()  # look-ahead of loops
        self._arguments = {
            **options.given, "seed": seed, "shard_index": 0, "shard_count": 1,
            "order": None if order is None else chosen,  # which pickles where the function may not
            "shard": shard if isinstance(shard, str) else self.shard,
        }  # fmt: skip
        self._init_framework(ahead)
        self._made = frozenset(vars(self)) - before

    def _start_loader(self, failure_log: FailureLog | None = None) -> None:
        self._loader = make_loader(self.job, self._options.worker_type, failure_log)
        self._costs = CostWatch(self.plan.order, self._loader.waste, self._loader.stats)

    def follow_sequence(self) -> None:
        """Before an epoch begins: have the length of a sequence that was refreshed, or resized, and workers of it.

        Raises:
            RuntimeError: An epoch is to be gone on with, whose batches have changed.
            ValueError: The order, or the batch size, does not fit the new length.
        """
        generations = self.refreshes.present()
        if generations != self.refreshes.planned:
            self.refreshes.check_length()
        elif self.refreshes.resized is None:
            return
        plan = dataclasses.replace(self.plan, length=check_sequence(self.sequence))
        check_plan(plan, self._options.policy.on_error)
        if not self.clock.change_steps(plan.steps):
            self.refreshes.refuse()
        self._give_up_ahead()
        for window in list(self._loops):
            window.close()
        self.hooks.leave()
        self._loader.close()
        self.refreshes.planned, self.refreshes.resized = generations, None
        self.plan = plan
        self.job = dataclasses.replace(self.job, plan=plan)
        forget_fingerprint(self)
        self._loader.failure_log.renew(plan.length)
        self._start_loader(self._loader.failure_log)

    # ---- what a framework adds

    def _consumed_batches(self) -> int:
        """Number of the batch after the last one consumed.

        Raises:
            RuntimeError: Only the consumer knows.
        """
        return self.clock.check_consumed()

    def _resume_at(self, number: int, *, shuffled: bool) -> None:
        """Go on with batch `number`; see `EpochClock.resume`."""
        self.clock.resume(number, shuffled=shuffled)

    def _give_up_ahead(self) -> None:
        """Give up what a framework has loaded ahead."""

    # ---- state

    def get_state(self, *, epoch: int | None = None, step: int | None = None) -> dict[str, Any]:
        """The position of the consumer in the feed, as a small dict for JSON; give it to `set_state` to resume there.

        The position is after the last batch that was consumed, not after the last one that was loaded ahead. In a loop
        the batch in hand counts as consumed; in a callback of `fit`, the last batch that was trained on. If you iterate
        over something made of `to_tf_dataset()` (`map`, ...), or after a `fit` that was stopped, the feed cannot know
        how far the consumer came: pass `epoch` and `step`, or use `kerasfeed.BackupAndRestore` or
        `kerasfeed.FeedCheckpoint`.

        Args:
            epoch: Epoch of the next batch, from 0. None is where the feed is. Give both this and `step`, or neither.
            step: Step of the next batch, in [0, len(feed)).

        Returns:
            A dict with `version`, `seed`, `epoch` and `step` of the next batch, `shuffled_steps`, and a `fingerprint`
            of the sequence, its order and the global batch.

        Raises:
            RuntimeError: The position of the consumer is not known.
            TypeError: Only one of `epoch` and `step` is given.

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
        """Continue with the batch that is next by `state`, without loading those before it.

        The next loop, `fit` or iteration of a dataset begins there. Its first epoch is what is left of the epoch in
        `state`. The workers, their type, and the number of shards of the same global batch may differ from those of the
        feed that made `state`.

        Args:
            state: What `get_state` returned, perhaps in another process.

        Raises:
            TypeError, ValueError: `state` is not a state, or belongs to a feed with other batches; the message says
                what differs.

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
        found = FeedState.of(state)
        self.follow_sequence()
        found.check(state_of(self, 0), len(self))
        warn_of_hooks(self.sequence, self.has_epoch_hooks, found)
        self._resume_at(found.epoch * len(self) + found.step, shuffled=found.shuffled_steps)

    def state_dict(self) -> dict[str, Any]:
        """What `get_state()` returns, by the name that PyTorch's tools look for (Lightning, Accelerate, torchdata)."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """`set_state(state)`, by the name that PyTorch's tools look for."""
        self.set_state(state)

    # ---- life

    def close(self) -> None:
        """Stop the workers and free their memory. Batches already delivered stay valid. May be called again.

        A `with` block calls it at its end.

        Examples:
            >>> feed = kf.Feed(np.arange(5), batch_size=2, workers=0)
            >>> batch = feed[0]
            >>> feed.close()
            >>> batch
            array([0, 1])
        """
        self._give_up_ahead()
        for window in list(self._loops):  # of loops that were left in the middle, and live on
            window.close()
        self._loader.close()
        self._loader.failure_log.deferred_warnings.issue_last()

    def __reduce__(self) -> Any:
        kind, added = type(self), {}
        if kind.__init__ is BaseFeed.__init__:  # of a class in a function that adds methods alone, its base
            kind = next(base for base in kind.__mro__ if "<locals>" not in base.__qualname__)
        else:
            added = {name: value for name, value in vars(self).items() if name not in (*self._made, "_made")}
        return _made_anew, (kind, self.sequence, self.plan.batch_size, self._arguments), added or None

    def __repr__(self) -> str:
        return feed_text(self.sequence, self.plan, self.shard, self.stats(), self.worker_choice)

    def _repr_html_(self) -> str:
        return feed_html(
            self.sequence, self.plan, self.shard, self.stats(), lambda: self.element_spec, self.worker_choice
        )


def _made_anew(kind: Any, sequence: Any, batch_size: int | None, arguments: dict[str, Any]) -> Any:
    """A copy of a feed of class `kind`, whose own `__init__` is not called: what that has added is its state."""
    feed = kind.__new__(kind)
    BaseFeed.__init__(feed, sequence, batch_size, **arguments)
    return feed


def _refresh(feed: Callable[[], BaseFeed | None], change: Callable[[], None]) -> None:
    """Run `change`, hooks of the sequence, while a feed loads no scene."""
    known = feed()
    if known is not None:
        known._loader.refresh(change)
        known.refreshes.note_length(length_of(known.sequence), known.plan.length)


BaseFeed.__init__.__qualname__ = "Feed.__init__"  # what Python's own messages call it
