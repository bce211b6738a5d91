"""How far a training on a stream had come, by the iterations of its optimizer, in a file; and how it goes on.

Invariant: the file is replaced as a whole or not at all, and written before the model is saved. What comes next is told
by the model itself, whose optimizer counts the batches that it was trained on; a model of which the file does not know
is refused.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kerasfeed.adapters.keras.record_file import read_content, refusal, write_content
from kerasfeed.adapters.keras.trainer import TrainerPosition, adapter_of, asked_steps, trainer_position
from kerasfeed.util.error_text import summary

_KIND = "kerasfeed.StreamCheckpoint"
_VERSION = 1
_KEPT = 16


@dataclass(frozen=True)
class StreamRecord:
    """One moment of a training.

    Attributes:
        iterations: What the optimizers had counted.
        scale: Sum of their loss scales; see `Record`.
        epoch: The epoch of `fit` that the next batch is part of.
        done: Batches of that epoch before.
        state: State of the feed.
    """

    iterations: int
    scale: float
    epoch: int
    done: int
    state: dict[str, Any]


class StreamProgress:
    """The file of one training, and the stream that it is about."""

    def __init__(self, feed: Any, path: Path) -> None:
        self._feed: Any = feed
        self._path = path
        self._steps: int | None = None  # of an epoch; None for a repetition
        self._done = 0  # batches of the first epoch before this `fit`
        self._first = 0  # that epoch
        self._records: list[StreamRecord] = []
        self.begun = False

    def begin(self, position: TrainerPosition, iterations: int, scale: float) -> int | None:
        """A `fit` begins, with a model that has counted so many iterations.

        Returns:
            The epoch with which it goes on; None where nothing was known of the model.

        Raises:
            ValueError: The file does not fit what is trained; or `fit` was given other data.
            RuntimeError: The stream cannot be resumed.
        """
        fed: Any = getattr(adapter_of(position.iterator), "_keras_feed", None)
        if fed is not self._feed:
            raise ValueError("a stream is resumed where fit is given the feed itself, or its to_tf_dataset()")
        self._steps, self._first, self._done = asked_steps(position.iterator), position.initial_epoch, 0
        self._records, resumed = self._read(), None
        if self._records:
            found = self._found(iterations, scale)
            self._feed.set_state(found.state)
            resumed, self._done = found.epoch, found.done
            if found.done and not self._steps and self._feed.pass_end():
                resumed, self._done = found.epoch + 1, 0
            self._first = resumed
            self._feed.set_rest(self._steps - self._done if self._steps and self._done else None)
        self.begun = True
        self._note(StreamRecord(iterations, scale, self._first, self._done, self._feed.get_state()))
        return resumed

    def record(self, iterations: int, scale: float) -> None:
        """Write where training stands, within a callback of `fit`."""
        position = trainer_position("fit")
        if not self.begun or position is None or position.epoch is None:
            return
        epoch, done = position.epoch, self.done(position)
        if position.hook == "on_epoch_end" or (self._steps and done >= self._steps):
            epoch, done = epoch + 1, 0
        self._note(StreamRecord(iterations, scale, epoch, done, self._feed.get_state()))

    def done(self, position: TrainerPosition) -> int:
        """Batches of the epoch that runs which have been trained on, also before it was resumed."""
        before = self._done if position.epoch == self._first else 0
        most = self._steps or (1 << 62)
        return before + position.trained(range(max(0, most - before)))

    def ends_early(self, position: TrainerPosition) -> bool:
        """Whether the epoch that was resumed is over, and Keras would go on."""
        resumed = self._done and position.epoch == self._first
        return bool(resumed and self._steps and self.done(position) >= self._steps)

    def end(self) -> None:
        """The `fit` is over."""
        self.begun = False
        self._feed.set_rest(None)

    # ---- the file

    def _found(self, iterations: int, scale: float) -> StreamRecord:
        for record in reversed(self._records):
            if (record.iterations, record.scale) == (iterations, scale):
                return record
        known = ", ".join(f"{record.iterations:,}" for record in self._records)
        raise ValueError(
            f"{self._path} does not fit what is trained: the optimizer has counted {iterations:,} iterations, and the "
            f"file knows {known}. Save the model with BackupAndRestore, or give FeedCheckpoint the save_freq of what "
            "saves it, and put it before that"
        )

    def _note(self, record: StreamRecord) -> None:
        if self._records and self._records[-1] == record:
            return
        here = record.iterations, record.scale  # a step whose loss was not finite changes the scale alone
        before = [
            each for each in self._records
            if each.iterations <= record.iterations and (each.iterations, each.scale) != here
        ]  # fmt: skip
        self._records = [*before[1 - _KEPT :], record]
        content = {"steps_per_epoch": self._steps, "records": [asdict(each) for each in self._records]}
        write_content(self._path, _KIND, _VERSION, content)

    def _read(self) -> list[StreamRecord]:
        content = read_content(self._path, _KIND, _VERSION)
        if content is None:
            return []
        try:
            records = [StreamRecord(**record) for record in content["records"]]
            steps = content["steps_per_epoch"]
        except (KeyError, TypeError) as error:
            raise ValueError(refusal(self._path, f"it is damaged ({summary(error)})")) from None
        if steps != self._steps:
            raise ValueError(
                f"{self._path} does not fit what is trained: an epoch of fit had {_text(steps)}, and has "
                f"{_text(self._steps)}: pass steps_per_epoch={steps}"
            )
        return records


def _text(steps: int | None) -> str:
    return "the steps of a repetition" if steps is None else f"{steps:,} steps"
