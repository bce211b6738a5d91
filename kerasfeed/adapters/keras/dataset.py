"""`KerasDataset`: the dataset of a feed, for Keras's trainers.

Invariant: `fit` on the dataset takes the batches and epochs that `fit` on the feed would take. Datasets made from it
(`map`, ...) are TensorFlow's own, which Keras takes as any other dataset.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from kerasfeed.adapters.keras.adapter import TrainerData, standardized_spec
from kerasfeed.adapters.keras.run import KerasRun
from kerasfeed.adapters.keras.trainer import TrainerRequest
from kerasfeed.adapters.tensorflow.dataset import FeedDataset, batches_dataset
from kerasfeed.feeds.cursor import Begin

RunOf = Callable[[Any, TrainerRequest], KerasRun]  # makes the run of one of Keras's iterators


class KerasDataset(TrainerData, FeedDataset):
    """The batches of a feed; keeps the feed alive.

    Args:
        given: See `FeedDataset`.
        feed: The feed.
        device: Device to prefetch batches to; see `batches_dataset`.
        run_of: Makes the run of one of Keras's iterators over the dataset.
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

    def _keras_run(self, iterator: Any, request: TrainerRequest) -> KerasRun:
        return self._run_of_feed(iterator, request)

    def _keras_dataset(self, begin: Begin, class_weight: Any) -> Any:
        structure = standardized_spec(self._of.element_spec, class_weight)
        return batches_dataset(begin, structure, count=None, device=self._device)


def keras_dataset(
    begin: Begin, feed: Any, run_of: RunOf, *, device: str | None, count: int | None = None, begin_loop: Any = None
) -> Any:
    """Make the dataset of the batches of `feed`; see `KerasDataset` and `batches_dataset`."""
    make = partial(KerasDataset, feed=feed, device=device, run_of=run_of)
    return batches_dataset(begin, feed.element_spec, count=count, device=device, begin_loop=begin_loop, make=make)
