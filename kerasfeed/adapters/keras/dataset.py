"""`KerasDataset`: the dataset of a feed, as Keras's trainers take it.

Invariant: a `fit` on the dataset takes the batches that a `fit` on the feed would take, of the same epochs. What is
made of the dataset (`map`, ...) is TensorFlow's own, which Keras takes as any other dataset.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from kerasfeed.adapters.keras.adapter import TrainerData, standardized_spec
from kerasfeed.adapters.keras.run import KerasRun
from kerasfeed.adapters.keras.trainer import KerasCall, TrainerRequest
from kerasfeed.adapters.tensorflow.dataset import FeedDataset, batches_dataset
from kerasfeed.feeds.cursor import Begin
from kerasfeed.feeds.feed_cursor import FeedLoop, begin_cursor

RunOf = Callable[[KerasCall, TrainerRequest], KerasRun]  # what one of Keras's iterators takes


class KerasDataset(TrainerData, FeedDataset):
    """The batches of a feed, which hold it.

    Args:
        given: See `FeedDataset`.
        feed: The feed.
        device: Where batches are prefetched to; see `batches_dataset`.
        run_of: What one of Keras's iterators takes of the feed through the dataset.
    """

    def __init__(self, *given: Any, feed: Any, device: str | None, run_of: RunOf) -> None:
        super().__init__(*given)
        self._of = feed
        self._device = device
        self._run_of_feed = run_of
        self._init_keras()

    @property
    def _keras_feed(self) -> Any:
        return self._of

    def _keras_run(self, call: KerasCall, request: TrainerRequest) -> KerasRun:
        return self._run_of_feed(call, request)

    def _keras_dataset(self, begin: Begin, class_weight: Any) -> Any:
        structure = standardized_spec(self._of.element_spec, class_weight)
        return batches_dataset(begin, structure, count=None, device=self._device)


def dataset_of(feed: Any, count: int, device: str | None, *, in_order: bool) -> Any:
    """A dataset of the next `count` batches of `feed`, anew in each iteration; see `kerasfeed.Feed.to_tf_dataset`."""
    begin_loop = partial(FeedLoop, feed.clock, count, counted=in_order)
    begin = partial(begin_cursor, feed, count, in_order, feed.refreshes.planned)
    run_of = partial(feed.dataset_run, count, in_order, feed.refreshes.planned)
    return dataset_for_keras(begin, feed, count=count, device=device, begin_loop=begin_loop, run_of=run_of)


def dataset_for_keras(
    begin: Begin, feed: Any, *, count: int | None, device: str | None, begin_loop: Any, run_of: RunOf
) -> Any:
    """The dataset of the batches of `feed` that the cursors give which `begin` makes; see `KerasDataset`."""
    make = partial(KerasDataset, feed=feed, device=device, run_of=run_of)
    return batches_dataset(begin, feed.element_spec, count=count, device=device, begin_loop=begin_loop, make=make)
