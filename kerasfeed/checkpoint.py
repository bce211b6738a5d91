"""`FeedCheckpoint`: a Keras callback that resumes a feed where the restored model stopped.

Invariant: the position is that of the model. It is never derived from what was loaded, and never from which file was
written last.
"""

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import keras

from kerasfeed.error_text import message_of
from kerasfeed.errors import FeedWarning
from kerasfeed.integers import check_integer
from kerasfeed.state import state_of
from kerasfeed.trainer import TrainerPosition, trainer_position
from kerasfeed.training_records import Record, TrainingRecords, sync_folder
from kerasfeed.whole_backups import save_whole

if TYPE_CHECKING:
    from kerasfeed.feed import Feed


class FeedCheckpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Resumes a feed in mid-epoch, at the batch after the last one that the restored model was trained on.

    It pairs with `keras.callbacks.BackupAndRestore`, in any order, or with whatever restores the model with its
    optimizer before `fit`. `fit` goes on in the epoch in which the model was saved, with the batches that are left of
    it, which Keras numbers from 0. Works with `fit(feed)`, with `fit(feed.to_tf_dataset(), shuffle=False)`, and with
    what is made of that batch by batch (`map`).

    The batches that a model was trained on are counted by its optimizers, whose `iterations` are saved with it. The
    file tells which batch of the feed they stand for: it is written before `BackupAndRestore` saves the model, so a
    kill in between does no harm. Nor does one while that saves: it is made to replace its files as a whole. For other
    ways to save the model the file is written after every `save_freq` batches and every epoch; it need not be written
    as often as the model where every batch is one iteration.

    When training ends, the file is deleted if a `BackupAndRestore` deletes its own.

    Args:
        feed: The feed that `fit` is given, made with a `seed`.
        path: The file that is kept, one for each process.
        save_freq: "epoch", or after how many batches the file is also written.

    Raises:
        TypeError, ValueError: An argument is none of these.
    """

    def __init__(self, feed: "Feed", path: str | os.PathLike[str], save_freq: int | Literal["epoch"] = "epoch") -> None:
        super().__init__()
        if not hasattr(feed, "keras_side"):
            raise TypeError(f"FeedCheckpoint(feed, path) resumes a kerasfeed.Feed, received a {type(feed).__name__}")
        self.feed = feed
        self.path = Path(path)
        if self.path.is_dir():
            raise ValueError(f"path must be that of a file, received the folder {self.path}")
        remedy = ' ("epoch" writes at the end of each)'
        self.save_freq = save_freq if save_freq == "epoch" else check_integer("save_freq", save_freq, 1, remedy=remedy)
        self._records: TrainingRecords | None = None
        self._backups: list[Any] = []
        self._behind: Any = None
        self._saved = 0
        self._measured = self._set_epoch = False
        self._claimed = feed.keras_side.clock.cursor

    # ---- called by Keras

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; goes where the model stands, once that is restored."""
        position = trainer_position("fit")
        if position is None or position.callbacks is None:
            raise RuntimeError("FeedCheckpoint works within model.fit of Keras 3, and fit was not found")
        position.check_step()
        self._backups = [each for each in position.callbacks if isinstance(each, keras.callbacks.BackupAndRestore)]
        callbacks = list(position.callbacks)
        behind = [backup for backup in self._backups if callbacks.index(backup) > callbacks.index(self)]
        self._behind = behind[-1] if behind else None
        for backup in self._backups:
            _call_with(backup, "_save_model", before=self._save, around=partial(save_whole, backup), once=False)
        if self._behind is None:
            self._begin(position)
        else:  # it restores the model after this
            _call_with(self._behind, "on_train_begin", after=lambda: self._begin(position))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; `batch` is the last step of an execution."""
        number = self.feed.keras_side.consumed()
        self.feed.keras_side.clock.consumed = number
        due = self.save_freq != "epoch" and number - self._saved >= self.save_freq
        if due:
            self._saved = number
        if due or not self._measured:  # the first one tells how many iterations a batch is
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._save()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._behind is None:
            self._end()
        else:  # as long as there is a saved model, it is known where it stands
            _call_with(self._behind, "on_train_end", after=self._end)

    # ---- what is done

    def _begin(self, position: TrainerPosition) -> None:
        side = self.feed.keras_side
        if not side.clock.serves(position.iterator):
            self._adopt(position.iterator)
        iterations, scale = iterations_of(self.model), scale_of(self.model)
        records = TrainingRecords.read(self.path)
        epoch = self.model._initial_epoch or position.initial_epoch
        shuffled = bool(getattr(position.iterator.data_adapter, "shuffle", False))
        if records is not None:
            epoch, shuffled = self._resume(records, iterations, scale)
            self._warn_of_the_end(epoch, position.epochs)
        cut = side.clock.planned(epoch)
        self._saved = cut.start
        self._measured = False
        state = state_of(self.feed, cut.start)
        execution = int(getattr(position.iterator, "steps_per_execution", 1))
        here = Record(iterations, cut.start, shuffled, scale)
        kept = () if records is None else records.records
        even = not any(hasattr(each, "inner_optimizer") for each in optimizers_of(self.model))
        self._records = TrainingRecords(state, cut, execution, even, kept).with_record(here, state)
        self._records.write(self.path)

    def _adopt(self, iterator: Any) -> None:
        """Take part in a `fit` on what was made of the feed's dataset."""
        side = self.feed.keras_side
        if hasattr(iterator.data_adapter, "py_dataset"):
            raise ValueError("fit was given another feed than FeedCheckpoint: make it with the feed that is trained on")
        if side.clock.consumed is None:  # somebody peeked into the dataset: Keras does, to build the model
            side.clock.rewind(self._claimed)
        side.prepare_dataset(iterator, iterator._num_batches)
        if not side.clock.serves(iterator):
            raise ValueError(
                f"steps_per_epoch is above the {iterator._num_batches} batches of the dataset: repeat() that, or leave "
                "steps_per_epoch out"
            )

    def _resume(self, records: TrainingRecords, iterations: int, scale: float) -> tuple[int, bool]:
        """Go where the model stands; returns the epoch of `fit`, and whether the steps of that epoch are shuffled."""
        clock = self.feed.keras_side.clock
        try:
            records.feed.check(state_of(self.feed, 0), clock.steps)
            clock.check_steps(records.cut.steps)
            here = records.at(iterations, scale)
        except ValueError as error:
            raise ValueError(f"{self.path} does not fit what is trained: {message_of(error)}") from None
        if here == records.records[0] and len(records.records) > 1:
            warnings.warn(
                f"the model is where training began, and {self.path} knows of {records.records[-1].number:,} batches: "
                "the feed begins there, too. Have the model restored, with BackupAndRestore for example, to go on",
                FeedWarning,
                stacklevel=2,
            )
        epoch = records.cut.epoch_of(here.number)
        rest = records.cut.end_of(epoch) - here.number
        self.feed.keras_side.resume(here.number, shuffled=here.shuffled_steps, rest=rest)
        self.model._initial_epoch = epoch
        self._set_epoch = True
        return epoch, here.shuffled_steps

    def _warn_of_the_end(self, epoch: int, epochs: int) -> None:
        if epoch >= epochs:
            warnings.warn(
                f"the model was trained for {epoch:,} epochs, as {self.path} knows, and fit(epochs={epochs}) asks for "
                f"no more: nothing is trained. Pass a greater epochs to go on, or delete the file to begin anew",
                FeedWarning,
                stacklevel=2,
            )

    def _save(self) -> None:
        if self._records is None:
            return
        self._measured = True
        side = self.feed.keras_side
        number = side.consumed()
        shuffled = side.clock.is_shuffled(number, side.clock.shuffled)
        record = Record(iterations_of(self.model), number, shuffled, scale_of(self.model))
        if record != self._records.records[-1]:
            self._records = self._records.with_record(record, state_of(self.feed, number))
            self._records.write(self.path)

    def _end(self) -> None:
        self._records = None
        self._claimed = self.feed.keras_side.clock.cursor
        if self._set_epoch:
            self.model._initial_epoch = None  # or the next fit of the model would begin there, too
            self._set_epoch = False
        for backup in self._backups:
            vars(backup).pop("_save_model", None)
        if any(backup.delete_checkpoint for backup in self._backups):
            self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers of a model: that which it was compiled with, and those among its attributes.

    Raises:
        ValueError: It has none.
    """
    candidates = (getattr(model, "optimizer", None), *vars(model).values())
    found = {id(each): each for each in candidates if isinstance(each, keras.optimizers.Optimizer)}
    if not found:
        raise ValueError("FeedCheckpoint needs a model with an optimizer, which counts the batches it was trained on")
    return list(found.values())


def iterations_of(model: Any) -> int:
    """What all optimizers of a model have counted together."""
    counters = {id(each): each for each in (getattr(each, "inner_optimizer", each) for each in optimizers_of(model))}
    return sum(int(each._iterations.numpy()) for each in counters.values())


def scale_of(model: Any) -> float:
    """The sum of the loss scales of a model's optimizers; 0 where they have none."""
    scaled = [each for each in optimizers_of(model) if hasattr(each, "initial_scale")]
    return float(sum(each.dynamic_scale.numpy() if each.built else each.initial_scale for each in scaled))


def _call_with(
    callback: Any,
    method: str,
    *,
    before: Callable[[], None] | None = None,
    around: Callable[[Callable[[], None]], None] | None = None,
    after: Callable[[], None] | None = None,
    once: bool = True,
) -> None:
    """Have something called before, around or after a method of `callback`, as long as that has it."""
    vars(callback).pop(method, None)  # of a training that was interrupted
    original = getattr(callback, method, None)
    if original is None:
        return

    def both(*arguments: Any, **named: Any) -> None:
        if once:
            vars(callback).pop(method, None)
        if before is not None:
            before()
        if around is None:
            original(*arguments, **named)
        else:
            around(partial(original, *arguments, **named))
        if after is not None:
            after()

    setattr(callback, method, both)
