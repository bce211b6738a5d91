"""`FeedCheckpoint`: a Keras callback that resumes a feed where the restored model stopped.

Invariant: the position is that of the model. It is never derived from what was loaded, and never from which file was
written last.
"""

import os
import warnings
from typing import TYPE_CHECKING, Any, Literal

import keras

from kerasfeed.adapters.keras.adapter import TrainerData
from kerasfeed.adapters.keras.progress_file import Record, TrainingRecords
from kerasfeed.adapters.keras.record_file import sync_folder
from kerasfeed.adapters.keras.stream_progress import StreamProgress
from kerasfeed.adapters.keras.trained_model import begin_with, iterations_of, optimizers_of, scale_of
from kerasfeed.adapters.keras.trainer import (
    TrainerPosition,
    adapter_of,
    asked_steps,
    batches_of,
    restored_epoch,
    trainer_position,
)
from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.state import state_of
from kerasfeed.feeds.stream_feed import BaseStreamFeed
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import message_of
from kerasfeed.util.validate import check_integer, local_path

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.feed import Feed


_ORDER = (
    "the model was restored behind FeedCheckpoint, which then resumes the feed at another batch: put FeedCheckpoint "
    "behind BackupAndRestore in callbacks=[...], or use kerasfeed.BackupAndRestore for both"
)


class _EpochEnd:
    """In place of True in `model.stop_training`, where an epoch that was begun before ends."""


class FeedCheckpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Resumes a feed within an epoch, at the batch after the last one that the restored model was trained on.

    For programs that save their models in their own way; `kerasfeed.BackupAndRestore` saves model and feed together.
    Restore the model with its optimizer before `fit`, or in a callback before this one:
    `callbacks=[keras.callbacks.BackupAndRestore(...), kerasfeed.FeedCheckpoint(...)]`. `fit` then continues in the
    epoch in which the model was saved, with the remaining batches of that epoch, which Keras numbers from 0. Works with
    `fit(feed)`, with `fit(feed.to_tf_dataset(), shuffle=False)`, and with a dataset that is made of that batch by batch
    (`map`).

    The `iterations` of an optimizer, which are saved with the model, count the batches that the model was trained on.
    The file tells to which batch of the feed they belong. It is written after every `save_freq` batches and after every
    epoch. If every batch is one iteration, it need not be written as often as the model.

    A dataset made of `feed.to_tf_dataset()` can be resumed without `steps_per_epoch`, or if it repeats for ever; other
    data raise a ValueError when `fit` begins.

    When training ends, the file is deleted if a `keras.callbacks.BackupAndRestore` of the same `fit` deletes its own.

    Args:
        feed: The feed that `fit` is given, made with a `seed`.
        path: The file; one for each process.
        save_freq: "epoch", or the number of batches after which the file is also written.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    Examples:
        >>> import keras
        >>> scenes = kf.Zip(np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32))
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with kf.Feed(scenes, batch_size=4, shuffle=True, seed=0, workers=0) as feed:
        ...     place = kf.FeedCheckpoint(feed, "feed.json")
        ...     history = model.fit(feed, epochs=2, callbacks=[place], verbose=0)
        >>> import os
        >>> os.path.exists("feed.json")
        True
    """

    def __init__(self, feed: "Feed", path: str | os.PathLike[str], save_freq: int | Literal["epoch"] = "epoch") -> None:
        super().__init__()
        is_stream = isinstance(feed, BaseStreamFeed)
        if not is_stream and not hasattr(feed, "fit_tracker"):
            raise TypeError(
                f"{type(self).__name__}(feed, ...) resumes a kerasfeed.Feed or a kerasfeed.StreamFeed, received a "
                f"{type(feed).__name__}"
            )
        self.feed = feed
        self.path = local_path("path", path)
        self._stream = StreamProgress(feed, self.path) if is_stream else None
        if self.path.is_dir():
            raise ValueError(f"path must be that of a file, received the folder {self.path}")
        remedy = ' ("epoch" writes at the end of each)'
        self.save_freq = save_freq if save_freq == "epoch" else check_integer("save_freq", save_freq, 1, remedy=remedy)
        self._records: TrainingRecords | None = None
        self._deletes = False
        self._began_at: tuple[int, float] | None = None
        self._saved = 0
        self._measured = self._set_epoch = False
        self._claimed = 0 if is_stream else feed.clock.taken
        self._follows: Literal["feed", "iterations", "stream"] = "feed"

    # ---- called by Keras

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; goes where the model stands, once that is restored."""
        position = trainer_position("fit")
        if position is None or position.callbacks is None:
            raise RuntimeError(f"{type(self).__name__} works within model.fit of Keras 3, and fit was not found")
        position.check_step()
        callbacks = list(position.callbacks)
        backups = [each for each in callbacks if isinstance(each, keras.callbacks.BackupAndRestore)]
        if any(callbacks.index(backup) > callbacks.index(self) for backup in backups):
            raise ValueError(_ORDER)
        self._deletes = any(backup.delete_checkpoint for backup in backups)
        if self._stream is not None:
            self._begin_stream(self._stream, position)
        else:
            self._begin(position)
        self._began_at = iterations_of(self.model), scale_of(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._set_epoch:
            begin_with(self.model, 0)  # fit has begun there; the next fit of the model is not to
            self._set_epoch = False
        began_at, self._began_at = self._began_at, None
        if began_at is not None and began_at != (iterations_of(self.model), scale_of(self.model)):
            raise ValueError(_ORDER)
        if self._follows != "feed":
            anew = self._follows == "iterations" or began_at is not None
            self.feed.clock.follow(epoch, anew=anew)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; `batch` is the last step of an execution."""
        if self._stream is not None:
            self._end_batch_of_stream(self._stream)
            return
        number = self.feed.fit_tracker.consumed()
        self.feed.clock.note_consumed(number)
        if self.save_freq != "epoch" and number - self._saved >= self.save_freq:
            self._saved = number
            self._save()
        elif not self._measured:  # the first one tells how many iterations a batch is
            self._record()
        followed = self._follows != "feed"
        if self.feed.fit_tracker.ends_early(number, followed=followed) and not self.model.stop_training:
            self.model.stop_training = _EpochEnd()  # Keras's own switch, to leave an epoch in the middle

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if isinstance(self.model.stop_training, _EpochEnd):  # and nobody else has said that training is to end
            self.model.stop_training = False
        if self._follows != "feed":
            self.feed.clock.end()
        self._save()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._stream is not None:
            self._stream.end()
        else:
            self._claimed = self.feed.clock.taken
        self._records = None
        if self._set_epoch:  # nothing was left to train
            begin_with(self.model, 0)
            self._set_epoch = False
        if self._deletes:
            self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)

    # ---- what is done

    def _begin(self, position: TrainerPosition) -> None:
        side = self.feed.fit_tracker
        self._follows = "feed"
        if not side.clock.serves(position.iterator):
            self._follows = self._adopt(position)
        iterations, scale = iterations_of(self.model), scale_of(self.model)
        records = TrainingRecords.read(self.path)
        epoch = restored_epoch(self.model) or position.initial_epoch
        shuffled = side.shuffles(position.iterator)
        if records is not None:
            epoch, shuffled = self._resume(records, iterations, scale)
            self._warn_of_the_end(epoch, position.epochs)
        cut = side.clock.planned(epoch)
        self._saved = cut.start
        self._measured = False
        state = state_of(self.feed, cut.start)
        execution = position.execution
        if self._follows != "feed" and cut.first < cut.steps and cut.first % execution:
            raise ValueError(
                f"the epoch that is resumed has {cut.first:,} batches left, of what was made of the feed's dataset, "
                f"and an execution of the training function takes {execution}: pass the feed itself to fit, or its "
                "to_tf_dataset(), or compile with steps_per_execution=1"
            )
        here = Record(iterations, cut.start, shuffled, scale)
        kept = () if records is None else records.records
        even = not any(hasattr(each, "inner_optimizer") for each in optimizers_of(self.model))
        self._records = TrainingRecords(state, cut, execution, even, kept).with_record(here, state)
        self._records.write(self.path)

    def _adopt(self, position: TrainerPosition) -> Literal["iterations", "stream"]:
        """Take part in a `fit` on what was made of the feed's dataset, whose epochs Keras tells nobody else of.

        Returns:
            Whether each epoch is an iteration of the dataset, or all take from one that does not end.
        """
        side, iterator = self.feed.fit_tracker, position.iterator
        if isinstance(adapter_of(iterator), TrainerData):
            raise ValueError(
                f"fit was given another feed than {type(self).__name__}: make it with the feed that is trained on"
            )
        batches, steps = batches_of(iterator), asked_steps(iterator)
        asked = steps or batches
        if not asked:
            raise ValueError(
                "how many batches an epoch of this dataset has is not known: pass steps_per_epoch to fit, or "
                "apply tf.data.experimental.assert_cardinality to the dataset"
            )
        if batches and steps:
            raise ValueError(
                f"steps_per_epoch={steps} of a dataset of {batches:,} batches that was made of a feed's cannot be "
                "resumed: repeat() the dataset, leave steps_per_epoch out, or pass the feed itself to fit"
            )
        if side.clock.consumed is None:  # somebody peeked into the dataset: Keras does, to build the model
            side.clock.rewind(self._claimed)
        side.clock.prepare(iterator, position.initial_epoch, asked)
        return "iterations" if batches else "stream"

    def _resume(self, records: TrainingRecords, iterations: int, scale: float) -> tuple[int, bool]:
        """Go where the model stands; returns the epoch of `fit`, and whether the steps of that epoch are shuffled."""
        clock = self.feed.clock
        try:
            records.feed.check(state_of(self.feed, 0), clock.steps)
            clock.check_steps(records.cut.steps)
            here = records.at(iterations, scale)
        except ValueError as error:
            raise ValueError(f"{self.path} does not fit what is trained: {message_of(error)}") from None
        if here == records.records[0] and len(records.records) > 1:
            warnings.warn(
                f"the model is where training began, and {self.path} knows of "
                f"{counted(records.records[-1].number, 'batch', 'batches')}: the feed begins there, too. Have the "
                "model restored, with BackupAndRestore for example, to go on",
                FeedWarning,
                stacklevel=2,
            )
        epoch = records.cut.epoch_of(here.number)
        rest = records.cut.end_of(epoch) - here.number
        self.feed.fit_tracker.resume(here.number, shuffled=here.shuffled_steps, rest=rest)
        begin_with(self.model, epoch)
        self._set_epoch = True
        return epoch, here.shuffled_steps

    def _warn_of_the_end(self, epoch: int, epochs: int) -> None:
        if epoch >= epochs:
            warnings.warn(
                f"the model was trained for {counted(epoch, 'epoch')}, as {self.path} knows, and fit(epochs={epochs}) "
                "asks for no more: nothing is trained. Pass more epochs to go on, or delete the file to begin anew",
                FeedWarning,
                stacklevel=2,
            )

    def _begin_stream(self, stream: StreamProgress, position: TrainerPosition) -> None:
        resumed = stream.begin(position, iterations_of(self.model), scale_of(self.model))
        self._saved = 0
        if resumed is not None:
            self._warn_of_the_end(resumed, position.epochs)
            begin_with(self.model, resumed)
            self._set_epoch = True

    def _end_batch_of_stream(self, stream: StreamProgress) -> None:
        position = trainer_position("fit")
        assert position is not None
        self._saved += position.execution  # batches since the last time
        if self.save_freq != "epoch" and self._saved >= self.save_freq:
            self._saved = 0
            self._save()
        if stream.ends_early(position) and not self.model.stop_training:
            self.model.stop_training = _EpochEnd()

    @property
    def _is_recording(self) -> bool:
        """Whether a `fit` runs whose place is known."""
        return self._records is not None or (self._stream is not None and self._stream.begun)

    def _save(self) -> None:
        self._record()

    def _record(self) -> None:
        if self._stream is not None:
            self._stream.record(iterations_of(self.model), scale_of(self.model))
            return
        if self._records is None:
            return
        self._measured = True
        side = self.feed.fit_tracker
        number = side.consumed()
        shuffled = side.clock.is_shuffled(number, side.clock.shuffled)
        record = Record(iterations_of(self.model), number, shuffled, scale_of(self.model))
        if record != self._records.records[-1]:
            self._records = self._records.with_record(record, state_of(self.feed, number))
            self._records.write(self.path)
