"""How far a training had come, by the iterations of its optimizer, in a file.

Invariant: the file is replaced as a whole or not at all. Which batch comes next is told by the model itself, whose
optimizer counts the batches it was trained on and is saved with it; so whichever of its saved states is restored, and
however the writing of model and record was cut short, the two agree, or the record is refused.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kerasfeed.adapters.keras.record_file import read_content, refusal, write_content
from kerasfeed.feeds.epoch_clock import FitCut
from kerasfeed.feeds.state import FeedState
from kerasfeed.util.error_text import summary

_KIND = "kerasfeed.FeedCheckpoint"
_VERSION = 1
_KEPT = 16


@dataclass(frozen=True)
class Record:
    """One moment of a training.

    Attributes:
        iterations: What the optimizers had counted.
        number: Number, in the feed's stream, of the next batch.
        shuffled_steps: Whether `fit` shuffled the steps of the epoch that this batch is part of.
        scale: Sum of their loss scales, 0 without. It tells batches apart that were skipped, and are no iterations:
            each of these halves it.
    """

    iterations: int
    number: int
    shuffled_steps: bool
    scale: float = 0.0

    def is_before(self, other: "Record") -> bool:
        """Whether a model comes by this moment before it comes by `other`."""
        return (self.iterations, -self.scale) < (other.iterations, -other.scale)


@dataclass(frozen=True)
class TrainingRecords:
    """What a checkpoint file holds.

    Attributes:
        feed: The state of the feed at the last of the records.
        cut: How `fit` cuts the stream into its epochs.
        execution: Batches of one execution of the training function.
        even: Whether every batch may be expected to be as many iterations; a loss scale skips some.
        records: In the order of their iterations; the first one is where the training began.
    """

    feed: FeedState
    cut: FitCut
    execution: int
    even: bool
    records: tuple[Record, ...]

    def with_record(self, record: Record, feed: FeedState) -> "TrainingRecords":
        """These and one more, in place of those that it overtakes; of the oldest, the first is kept."""
        before = [each for each in self.records if each.is_before(record)]
        records = (*before[:1], *before[1:][1 - _KEPT :], record)
        return replace(self, feed=feed, records=records)

    def at(self, iterations: int, scale: float = 0.0) -> Record:
        """The moment at which the optimizers had counted `iterations`, and had these loss scales.

        Raises:
            ValueError: It is not known.
        """
        for record in reversed(self.records):
            if (record.iterations, record.scale) == (iterations, scale):
                return record
        before = [record for record in self.records if record.iterations < iterations]
        if not before:
            raise ValueError(
                f"its optimizer has counted {iterations:,} iterations, and where the training began "
                f"{self.records[0].iterations:,}. It is another model, or was restored without its optimizer"
            )
        last, rate = before[-1], self._rate()
        if (
            len(self.records) == 1 and self.even
        ):  # killed within the very first execution, before there was a second record
            return replace(last, number=min(last.number + self.execution, self.cut.start + self.cut.first))
        if rate is None or (iterations - last.iterations) % rate:
            known = ", ".join(f"{record.iterations:,}" for record in self.records)
            raise ValueError(
                f"its optimizer has counted {iterations:,} iterations. They do not grow evenly with the batches (a "
                f"loss scale skips some, for example), and of {known} alone the file knows the batch. Save the model "
                "with BackupAndRestore, or give FeedCheckpoint the save_freq of what saves it, and put it before that"
            )
        return replace(last, number=last.number + (iterations - last.iterations) // rate)

    def _rate(self) -> int | None:
        """Iterations a batch, where that is always the same."""
        rates = set()
        for one, other in zip(self.records, self.records[1:], strict=False):
            batches = other.number - one.number
            rates.add((other.iterations - one.iterations) / batches if batches > 0 else 0.0)
        rate = rates.pop() if len(rates) == 1 else 0.0
        return int(rate) if self.even and rate >= 1 and rate == int(rate) else None

    # ---- the file

    def write(self, path: Path) -> None:
        """Replace the file at `path`, at once; what was written is on the disk when this returns."""
        content = {
            "feed": self.feed.as_dict(), "fit": asdict(self.cut), "execution": self.execution, "even": self.even,
            "records": [asdict(record) for record in self.records],
        }  # fmt: skip
        write_content(path, _KIND, _VERSION, content)

    @classmethod
    def read(cls, path: Path) -> "TrainingRecords | None":
        """The content of the file at `path`; None where there is none.

        Raises:
            ValueError: It is damaged, or something else.
        """
        content = read_content(path, _KIND, _VERSION)
        if content is None:
            return None
        try:
            records = tuple(Record(**record) for record in content["records"])
            return cls(
                FeedState.of(content["feed"]), FitCut(**content["fit"]), content["execution"], content["even"], records
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(refusal(path, f"it is damaged ({summary(error)})")) from None
