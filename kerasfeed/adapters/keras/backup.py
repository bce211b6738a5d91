"""`BackupAndRestore`: model, optimizer and feed saved in one place, and restored from it.

Invariant: the saved model is replaced as a whole or not at all, and what is known of the feed is written before it, for
the model before as for the one that is saved. So whenever a process is killed, the two agree.
"""

import os
import shutil
from typing import TYPE_CHECKING, Any, Literal

from kerasfeed.adapters.keras.checkpoint import FeedCheckpoint
from kerasfeed.adapters.keras.record_file import sync_folder
from kerasfeed.adapters.keras.trained_model import optimizers_of
from kerasfeed.util.validate import local_path

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.feed import Feed


class BackupAndRestore(FeedCheckpoint):
    """Saves model, optimizer and feed during `fit`, and resumes a `fit` that was killed at the very next batch.

    Use it in place of `keras.callbacks.BackupAndRestore`. Run the same script again: `fit` continues in the epoch in
    which the model was saved, with the remaining batches of that epoch, which Keras numbers from 0. The model must be
    built before `fit`. Works with `fit(feed)`, with `fit(feed.to_tf_dataset())`, and with a dataset that is made of
    that batch by batch (`map`).

    Args:
        feed: The feed that `fit` is given, made with a `seed`.
        backup_dir: A folder on a disk, for this training only; one for each process.
        save_freq: "epoch" saves at the end of each epoch. An integer >= 1 also saves after that many batches.
        double_checkpoint: Whether to keep the last model but one too, which is restored if the last one cannot be read.
        delete_checkpoint: Whether to delete the folder when training ends.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    Examples:
        >>> import keras
        >>> scenes = kf.Zip(np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32))
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with kf.Feed(scenes, batch_size=4, shuffle=True, seed=0, workers=0) as feed:
        ...     backup = kf.BackupAndRestore(feed, "backup", save_freq=100)
        ...     history = model.fit(feed, epochs=2, callbacks=[backup], verbose=0)
        >>> len(history.history["loss"])
        2
    """

    def __init__(
        self,
        feed: "Feed",
        backup_dir: str | os.PathLike[str],
        save_freq: int | Literal["epoch"] = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
    ) -> None:
        remedy = "elsewhere use keras.callbacks.BackupAndRestore, and kerasfeed.FeedCheckpoint with a file behind it"
        self.backup_dir = local_path("backup_dir", backup_dir, what="a folder", remedy=remedy)
        if self.backup_dir.exists() and not self.backup_dir.is_dir():
            raise ValueError(f"backup_dir must be a folder, received the file {self.backup_dir}")
        super().__init__(feed, self.backup_dir / "feed.json", save_freq)
        self.double_checkpoint = bool(double_checkpoint)
        self.delete_checkpoint = bool(delete_checkpoint)
        self._weights = self.backup_dir / "latest.weights.h5"
        self._before = self.backup_dir / "previous.weights.h5"

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; restores the model, and goes where it stands."""
        self._restore()
        super().on_train_begin(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        super().on_train_end(logs)
        if self.delete_checkpoint and self.backup_dir.exists():
            # What is known of the feed goes last: a model without it could not be resumed.
            for path in (self._before, self._weights):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.backup_dir)

    def _restore(self) -> None:
        model = self.model
        if not model.built:
            raise ValueError("BackupAndRestore needs a model that is built before fit: call it on a batch, or build it")
        if not self._weights.exists() and not self._before.exists():
            return
        if not self.path.exists():
            raise ValueError(
                f"{self.backup_dir} holds a model, and nothing tells which batches it was trained on: a folder of "
                "keras.callbacks.BackupAndRestore, perhaps. Give kf.BackupAndRestore a folder of its own; to go on "
                "from that model, load its weights and pass initial_epoch to fit"
            )
        for optimizer in optimizers_of(model):
            if optimizer is model.optimizer and not optimizer.built:
                optimizer.build(model.trainable_variables)
        if not self._weights.exists():  # killed between the two renames of a save
            self._before.replace(self._weights)
        try:
            model.load_weights(self._weights)
        except OSError:
            if not self._before.exists():
                raise
            model.load_weights(self._before)
            self._before.replace(self._weights)  # or the next save would keep the one that cannot be read

    def _save(self) -> None:
        self._record()
        if not self._is_recording:
            return
        self.backup_dir.mkdir(parents=True, exist_ok=True)
        following = self.backup_dir / "next.weights.h5"
        following.unlink(missing_ok=True)  # of a process that was killed
        self.model.save_weights(following)
        with following.open("rb+") as file:
            os.fsync(file.fileno())
        if self.double_checkpoint and self._weights.exists():
            self._weights.replace(self._before)
        following.replace(self._weights)
        sync_folder(self.backup_dir)
