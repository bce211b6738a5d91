"""`FeedCheckpoint`: a Keras callback that resumes a feed with its model.

Invariant: the feed's position is the model's position. It depends neither on batches loaded ahead, nor on which file
was written last.
"""

import os
import warnings
from typing import TYPE_CHECKING, Any, Literal

import keras

from kerasfeed.adapters.keras.adapter import KerasAdapter, copied_callback
from kerasfeed.adapters.keras.saved_files import Progress, Record
from kerasfeed.adapters.keras.trained_model import begin_with, iterations_of, optimizers_of, scale_of
from kerasfeed.adapters.keras.trainer import (
    TrainerPosition,
    adapter_of,
    batches_of,
    execution_of,
    restored_epoch,
    steps_per_epoch_of,
    trainer_position,
)
from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.epoch_clock import FitPlan
from kerasfeed.feeds.state import state_of
from kerasfeed.feeds.stream_feed import BaseStreamFeed
from kerasfeed.util.atomic_write import sync_folder
from kerasfeed.util.error_text import message_of, pluralize
from kerasfeed.util.validate import check_integer, local_path

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.feed import Feed


_ORDER = (
    "the model was restored after FeedCheckpoint, which would resume the feed at another batch: put FeedCheckpoint "
    "after BackupAndRestore in callbacks=[...], or use kerasfeed.BackupAndRestore for both"
)


class _EpochEnd:
    """Value of `model.stop_training` that ends a resumed epoch, and not the training."""


class FeedCheckpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Resumes a feed after the last batch of the restored model.

    Use it in programs that save models in their own way; `kerasfeed.BackupAndRestore` saves model and feed together.
    Restore the model with its optimizer before `fit`, or in an earlier callback:
    `callbacks=[keras.callbacks.BackupAndRestore(...), kerasfeed.FeedCheckpoint(...)]`. `fit` then continues in the
    epoch in which the model was saved, with the remaining batches, which Keras numbers from 0. Works with `fit(feed)`;
    for a `kerasfeed.Feed` also with `fit(feed.to_tf_dataset(), shuffle=False)`, also if `map` changes each batch of the
    dataset.

    The `iterations` of an optimizer, which are saved with the model, count the batches of training. The file maps them
    to batches of the feed. It is written after every `save_freq` batches and after every epoch. If every batch is one
    iteration, the file can be written less often than the model.

    A dataset can be resumed if `fit` gets no `steps_per_epoch`, or if the dataset repeats forever. Other data raise a
    ValueError when `fit` begins.

    When training ends, the file is deleted if a `keras.callbacks.BackupAndRestore` of the same `fit` deletes its own.

    Args:
        feed: The feed that is passed to `fit`, made with a `seed`.
        path: The file; one for each process.
        save_freq: "epoch", or the number of batches after which the file is also written.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range. In `fit`: the file is damaged or does
            not fit the training, or the model was restored after this callback.

    Examples:
        >>> import keras
        >>> scenes = kf.Zip(np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32))
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with kf.Feed(scenes, batch_size=4, shuffle=True, seed=0, workers=0) as feed:
        ...     checkpoint = kf.FeedCheckpoint(feed, "feed.json")
        ...     history = model.fit(feed, epochs=2, callbacks=[checkpoint], verbose=0)
        >>> import os
        >>> os.path.exists("feed.json")
        True
    """

    _restores_model = False  # whether a subclass restores the model

    def __init__(self, feed: "Feed", path: str | os.PathLike[str], save_freq: int | Literal["epoch"] = "epoch") -> None:
        super().__init__()
        self._is_stream = isinstance(feed, BaseStreamFeed)
        if not hasattr(feed, "resume_fit"):
            raise TypeError(
                f"{type(self).__name__}(feed, ...) resumes a kerasfeed.Feed or a kerasfeed.StreamFeed, received a "
                f"{type(feed).__name__}"
            )
        self.feed = feed
        self.path = local_path("path", path)
        if self.path.is_dir():
            raise ValueError(f"path must be a file, received the folder {self.path}")
        remedy = ' ("epoch" writes at the end of each epoch)'
        self.save_freq = save_freq if save_freq == "epoch" else check_integer("save_freq", save_freq, 1, remedy=remedy)
        self._progress: Progress | None = None  # of the running `fit`
        self._deletes = False
        self._began_at: tuple[int, float] | None = None
        self._execution = 1
        self._epoch = self._done = 0  # the epoch of `fit`, and its batches so far
        self._ends_early = False  # whether the epoch was resumed, so that Keras would run past its end
        self._unsaved = 0  # batches
        self._measured = self._set_epoch = False
        self._claimed = 0 if self._is_stream else feed.clock.taken
        self._follows: Literal["iterations", "stream"] | None = None  # for a dataset made from the feed's dataset
        self._plan: FitPlan | None = None  # of a `Feed`
        self._followed_from: int | None = None  # number of the first batch that the dataset must claim

    def __deepcopy__(self, memo: dict[int, Any]) -> "FeedCheckpoint":
        made: FeedCheckpoint = copied_callback(self, memo, self.feed)
        return made

    # ---- called by Keras

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; moves the feed to the model's position."""
        position = trainer_position("fit")
        if position is None or position.callbacks is None:
            raise RuntimeError(f"{type(self).__name__} works within model.fit of Keras 3, but no fit is running")
        callbacks = list(position.callbacks)
        backups = [each for each in callbacks if isinstance(each, keras.callbacks.BackupAndRestore)]
        if any(callbacks.index(backup) > callbacks.index(self) for backup in backups):
            raise ValueError(_ORDER)
        self._deletes = any(backup.delete_checkpoint for backup in backups)
        self._began_at = iterations_of(self.model), scale_of(self.model)
        self._begin(position, *self._began_at)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._set_epoch:
            begin_with(self.model, 0)  # fit has begun there; the next fit must not
            self._set_epoch = False
        began_at, self._began_at = self._began_at, None
        if began_at is not None and began_at != (iterations_of(self.model), scale_of(self.model)):
            raise ValueError(_ORDER)
        if began_at is None:
            self._epoch, self._done, self._ends_early = epoch, 0, False
        if self._plan is not None and (self._follows == "iterations" or (self._follows and began_at is not None)):
            clock, start = self.feed.clock, self._plan.numbers(epoch).start
            clock.resume(start, shuffled=clock.is_shuffled(start, False))  # the iteration of this epoch begins there
            self._followed_from = start

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras, after an execution."""
        assert self._progress is not None
        if self._followed_from is not None and self._followed_from == self.feed.clock.taken:
            raise ValueError(f"fit was given the dataset of another feed than {type(self).__name__}")
        self._followed_from = None
        self._done += self._execution
        self._unsaved += self._execution
        steps = self._progress.steps
        if steps is not None:
            self._done = min(self._done, steps)
        if self._follows is not None and self.feed.clock.taken < self._number:
            raise ValueError(self._rebatched(steps))  # taken may be larger: other loops over the feed take batches, too
        if not self._is_stream and self._follows is None:
            self.feed.clock.record_consumed(self._number)
        if self.save_freq != "epoch" and self._unsaved >= self.save_freq:
            self._unsaved = 0
            self._save()
        elif self._progress.even and not self._measured:  # the first batch shows how many iterations it adds
            self._record()
        if self._ends_early and self._done == steps and not self.model.stop_training:
            self.model.stop_training = _EpochEnd()  # Keras's own switch, to leave an epoch in the middle

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if isinstance(self.model.stop_training, _EpochEnd):  # otherwise training itself ends
            self.model.stop_training = False
        if self._follows is not None:
            self.feed.clock.end_fit_epoch(self._number)
        if self._progress is not None and self._progress.steps in (None, self._done):
            self._epoch, self._done = epoch + 1, 0
        self._save()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._is_stream:
            self.feed.take_rest()
        else:
            self._claimed = self.feed.clock.taken
        self._progress = None
        if self._set_epoch:  # nothing was left to train
            begin_with(self.model, 0)
            self._set_epoch = False
        if self._deletes:
            self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)

    # ---- resume and save

    def _begin(self, position: TrainerPosition, iterations: int, scale: float) -> None:
        feed, iterator, run = self.feed, position.iterator, self.feed.fit_run
        self._follows = None if run is not None and run.serves(iterator) else self._adopt(position)
        self._execution, self._unsaved = execution_of(iterator), 0
        steps = steps_per_epoch_of(iterator) or (None if self._is_stream else int(batches_of(iterator) or 0))
        self._epoch, self._done = restored_epoch(self.model) or position.initial_epoch, 0
        progress = Progress.read(self.path)
        if progress is not None:
            self._resume(progress, iterations, scale, steps, position.epochs)
        if not self._is_stream and steps:
            self._plan = feed.clock.plan_fit(self._epoch, steps)
            self._done = self._plan.steps - self._plan.first
        left = None if steps is None else steps - self._done
        if self._follows is not None and self._done and left and left % self._execution:
            raise ValueError(
                f"the resumed epoch has {left:,} batches left of a dataset made from the feed's dataset, "
                f"but the training function takes {self._execution} at a time: pass the feed itself to fit, "
                "or compile with steps_per_execution=1"
            )
        self._ends_early = self._done > 0 and (self._follows is not None or not run.has_epoch_cursors)
        even = not self._is_stream and not any(hasattr(each, "inner_optimizer") for each in optimizers_of(self.model))
        kept = () if progress is None else progress.records
        self._progress = Progress(steps, self._execution, even, self._state()["fingerprint"], kept)
        self._record()
        self._measured = False

    def _adopt(self, position: TrainerPosition) -> Literal["iterations", "stream"]:
        """Follow a `fit` on a dataset made from the feed's dataset.

        Returns:
            "iterations" if each epoch is an iteration of the dataset, "stream" if all epochs share an infinite one.
        """
        if self._is_stream:
            raise ValueError("to resume a stream, pass the feed itself to fit")
        clock, iterator = self.feed.clock, position.iterator
        if isinstance(adapter_of(iterator), KerasAdapter):
            raise ValueError(f"fit was given another feed than {type(self).__name__}: pass the same feed to both")
        batches, steps = batches_of(iterator), steps_per_epoch_of(iterator)
        if not (steps or batches):
            raise ValueError(
                "the number of batches in an epoch of this dataset is unknown: pass the feed itself to fit, or "
                'make the dataset with to_tf_dataset(device="/cpu:0"), or repeat() it and pass steps_per_epoch'
            )
        if batches and steps:
            raise ValueError(
                f"steps_per_epoch={steps} of a dataset of {batches:,} batches made from a feed's dataset cannot be "
                "resumed: repeat() the dataset, leave steps_per_epoch out, or pass the feed itself to fit"
            )
        if batches and batches % clock.steps:
            raise ValueError(self._rebatched(batches))
        if clock.consumed is None:  # a batch was taken before, for example by Keras to build the model
            clock.resume(self._claimed)
        return "iterations" if batches else "stream"

    def _rebatched(self, batches: int | None) -> str:
        """The error for a dataset of `batches` batches in an epoch, which are not the feed's."""
        return (
            f"fit was given a dataset of {batches:,} batches in an epoch, made from a feed of "
            f"{self.feed.clock.steps:,}, and "
            f"{type(self).__name__} does not know which scenes they hold: batch in the feed, and only map its dataset"
        )

    def _resume(self, progress: Progress, iterations: int, scale: float, steps: int | None, epochs: int) -> None:
        """Move the feed to the model's position, and set its epoch."""
        try:
            here, behind = progress.at(iterations, scale)
            self._epoch, self._done = here.epoch, here.done + behind
            if progress.steps is not None:
                more, self._done = divmod(self._done, progress.steps)
                self._epoch += more
            state = {**here.state, "fingerprint": progress.fingerprint}
            if progress.steps != steps and progress.fingerprint == self._fingerprint():
                raise ValueError(
                    f"an epoch of fit had {_text(progress.steps)}, but now has {_text(steps)}: pass "
                    f"steps_per_epoch={progress.steps}"
                )
            if self.feed.resume_fit(state, behind, self._done, progress.steps):
                self._epoch, self._done = self._epoch + 1, 0
        except ValueError as error:
            raise ValueError(f"{self.path} does not fit this training: {message_of(error)}") from None
        if here == progress.records[0] and len(progress.records) > 1 and not self._restores_model:
            warnings.warn(
                f"the model is at the start of training, but {self.path} belongs to a model with "
                f"{pluralize(progress.records[-1].iterations, 'iteration')}: the feed starts over, too. To continue, "
                "restore the model, with BackupAndRestore for example",
                FeedWarning,
                stacklevel=2,
            )
        begin_with(self.model, self._epoch)
        self._set_epoch = True
        if self._epoch >= epochs:
            warnings.warn(
                f"the model was trained for {pluralize(self._epoch, 'epoch')}, according to {self.path}, and "
                f"fit(epochs={epochs}) asks for no more: nothing is trained. Pass more epochs to continue, or delete "
                "the file to start over",
                FeedWarning,
                stacklevel=2,
            )

    @property
    def _number(self) -> int:
        """Number of the next batch of a `Feed`, over all epochs."""
        assert self._plan is not None
        return self._plan.numbers(self._epoch).stop - self._plan.steps + self._done

    def _state(self) -> dict[str, Any]:
        return self.feed.get_state() if self._is_stream else state_of(self.feed, self._number).as_dict()

    def _fingerprint(self) -> Any:
        state = self.feed.get_state() if self._is_stream else self.feed.get_state(epoch=0, step=0)
        return state["fingerprint"]

    def _save(self) -> None:
        self._record()

    def _record(self) -> None:
        if self._progress is None:
            return
        state = self._state()
        del state["fingerprint"]
        record = Record(iterations_of(self.model), scale_of(self.model), self._epoch, self._done, state)
        self._measured = True
        if not self._progress.records or record != self._progress.records[-1]:
            self._progress = self._progress.with_record(record)
            self._progress.write(self.path)


def _text(steps: int | None) -> str:
    return "the steps of a repetition" if steps is None else f"{steps:,} steps"
