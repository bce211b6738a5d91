"""`PlannedFeed`: batches of a plan by epoch and step, one at a time or loaded ahead.

Invariant: every batch comes from `Loader.submit(epoch, step)`; in which order they are asked for changes none of them.
"""

import operator
import time
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning, SceneError
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.feeds.cost_warning import CostWatch
from kerasfeed.feeds.epoch_clock import EpochClock
from kerasfeed.feeds.hooks import SequenceHooks
from kerasfeed.feeds.prefetch import Prefetcher, window_of
from kerasfeed.feeds.refreshes import Refreshes
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.failures.table import FailureTable
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import short_tracebacks
from kerasfeed.util.validate import check_integer


class PlannedFeed(AnyFeed):
    """A feed of which each batch has a place, step `step` of epoch `epoch`, and whose loader is there from the start.

    Attributes:
        clock: Where its consumers stand.
        hooks: The sequence's own `on_epoch_begin` and `on_epoch_end`.
        refreshes: How often what is read was refreshed.
    """

    clock: EpochClock
    hooks: SequenceHooks
    refreshes: Refreshes
    _costs: CostWatch
    _loops: weakref.WeakSet[Prefetcher]

    @abstractmethod
    def follow_sequence(self) -> None:
        """An epoch begins: have the length of a sequence that was refreshed, or resized by a hook of its own."""

    # ---- batches

    def __len__(self) -> int:
        """Number of batches in an epoch, the same in every epoch and on every shard."""
        return self.plan.steps

    def __getitem__(self, step: int) -> Any:
        """The batch of one step of the current epoch. Negative steps count from the end; lists in scenes become tuples.

        Args:
            step: Number of the batch, in [-len(feed), len(feed)).

        Returns:
            The batch, nested as the scenes are, each field with a leading axis of B scenes.

        Raises:
            IndexError: `step` is out of range.
            Exception: What the sequence raised, with index, epoch and step as a note.

        Examples:
            >>> with kf.Feed(np.arange(10), batch_size=4, workers=0) as feed:
            ...     print(feed[0], feed[-1])
            [0 1 2 3] [8 9]
        """
        step = operator.index(step)
        if step < 0:
            step += len(self)
        request = self.request_log.begin()
        epoch = self.clock.current
        batch = self.submit(epoch, step).result()
        self.request_log.finish(request, time.perf_counter())
        if batch is None:
            raise SceneError(f"every scene of step {step} of epoch {epoch} failed and was skipped; see feed.failures")
        return self.without_lists(batch)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch, loaded ahead. After `set_state`, first what is left of the epoch set.

        Examples:
            >>> with kf.Feed(np.arange(5), batch_size=2, workers=0) as feed:
            ...     for batch in feed:
            ...         print(batch)
            [0 1]
            [2 3]
            [4]
        """
        self.follow_sequence()
        numbers = self.clock.claim_epoch()
        with short_tracebacks:
            for found in self._iterate(numbers):
                self.clock.note_consumed(found[0] + 1)
                yield found.pop()
        self.clock.note_consumed(numbers.stop)  # on_error="skip" may have left out the last one

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of epoch `number`, loaded ahead. The epoch that the next plain loop takes does not change.

        Args:
            number: Epoch, from 0.

        Returns:
            An iterator over the batches of that epoch; the same batches each time.

        Raises:
            TypeError, ValueError: `number` is not an integer, or is negative.

        Examples:
            >>> with kf.Feed(np.arange(6), batch_size=3, shuffle=True, seed=0, workers=0) as feed:
            ...     first, again = list(feed.epoch(5)), list(feed.epoch(5))
            >>> np.array_equal(first, again)
            True
        """
        first = check_integer("epoch", number, 0) * len(self)
        return self._epoch(range(first, first + len(self)))

    def _epoch(self, numbers: range) -> Iterator[Any]:
        with short_tracebacks:
            for found in self._iterate(numbers):
                yield found.pop()

    def _iterate(self, numbers: range) -> Iterator[list[Any]]:
        """Number and batch, to be popped: what has been left in the middle then holds no batch."""
        window = self.begin_window(numbers)
        try:
            for number in numbers:
                found = [number, window.take()]
                if found[1] is not None:  # on_error="skip" has left a scene of it
                    yield found
        finally:
            window.close()
        self.hooks.leave()
        self.issue_warnings()

    def begin_window(self, numbers: range) -> Prefetcher:
        """Look-ahead along the batches `numbers`, for a loop that begins; closed with the feed."""
        self.enter_epoch(numbers.start // len(self))
        window = window_of(self, numbers)
        self._loops.add(window)
        return window

    def submit(self, epoch: int, step: int, *, patience: float | None = None) -> "Future[Any]":
        """Load the batch (epoch, step) and return a future of it; for code that loads ahead by itself.

        Waits only for memory: at most `patience` seconds, or without limit where it is None. See
        `kerasfeed.loaders.loader.Loader.submit`.

        Examples:
            >>> with kf.Feed(np.arange(6), batch_size=2, workers=1) as feed:
            ...     futures = [feed.submit(0, step) for step in range(len(feed))]
            ...     print([future.result().tolist() for future in futures])
            [[0, 1], [2, 3], [4, 5]]
        """
        self.refreshes.refuse_others(self.refreshes.planned)
        self.cursors.wait()
        self.enter_epoch(epoch)
        if self.refreshes.resized is not None:
            text = self.refreshes.resized_text(self.plan.length)
            self._loader.failure_log.deferred_warnings.defer(f"resized {self.plan.length}", text, FeedWarning)
        self.issue_warnings()
        return self._loader.submit(epoch, step, timeout=patience)

    def enter_epoch(self, epoch: int) -> None:
        """Tell the sequence of the epoch, before any scene is read."""
        if self.hooks.exist:
            self.hooks.enter(epoch)
            self._loader.epoch = epoch

    def begin_reading(self, number: int | None = None) -> None:
        """Scenes may be read to infer the spec: if so, the epoch of batch `number` begins, by default of the next."""
        if self.hooks.exist and self._loader.layout is None and not self.hooks.is_running:
            self.enter_epoch((self.clock.free if number is None else number) // self.clock.steps)

    def issue_warnings(self) -> None:
        """See `AnyFeed.issue_warnings`."""
        self._costs.check()
        self._loader.failure_log.deferred_warnings.issue()

    def indices(self, epoch: int | None = None) -> NDArray[np.int64]:
        """The index of the scene in each row of an epoch, in the order of delivery.

        Row k of `model.predict(feed)` is the prediction for scene `feed.indices()[k]`, whether it is called before or
        after `predict`.

        Args:
            epoch: Epoch, from 0. None is the current epoch, of which `feed[step]`, `evaluate` and `predict` take
                batches.

        Returns:
            int64[rows], each in [0, len(feed.sequence)): the rows of this shard, without scenes that are dropped, and
            with those that fill up a batch. Where `batch_size` is None, one index for each step.

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
        """Number of batches that should be in flight at once; see `begin_reading`."""
        return self._loader.look_ahead

    @property
    def has_epoch_hooks(self) -> bool:
        """Whether the sequence has epoch hooks, so that an epoch is loaded only after the one before it."""
        return self.hooks.exist

    # ---- what the loader knows

    @property
    def scene_spec(self) -> SceneSpec:
        """Spec of a scene as the sequence returns it: its structure, and shape and dtype of each field.

        The first use reads a few scenes, spread over the sequence.

        Examples:
            >>> scenes = kf.Zip(points=np.zeros((5, 8, 3)), label=np.arange(5))
            >>> with kf.Feed(scenes, batch_size=2, workers=0) as feed:
            ...     for path, field in zip(feed.scene_spec.paths, feed.scene_spec.fields):
            ...         print(path, field.shape, field.dtype)
            label () int64
            points (8, 3) float64
        """
        self.begin_reading()
        return self._loader.spec

    @property
    def layout(self) -> Layout | None:
        """Where the fields of a scene stand in a batch, if scenes have been read; for `kerasfeed.load`."""
        return self._loader.layout

    @property
    def failures(self) -> FailureTable:
        """The scenes that have failed so far, with index, epoch, step, exception and count; a table in a notebook.

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
        """The feed's counters at this moment: batches, replaced workers, failed scenes and memory.

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
