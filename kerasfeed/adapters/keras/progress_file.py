"""How far a training had come, by the iterations of its optimizer, in a file.

Invariant: the file is replaced as a whole or not at all. Which batch comes next is told by the model itself, whose
optimizer counts the batches it was trained on and is saved with it; so whichever of its saved states is restored, and
however the writing of model and record was cut short, the two agree, or the record is refused.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kerasfeed.util.atomic_write import sync_folder, write_whole
from kerasfeed.util.error_text import summary

_KIND, _VERSION = "kerasfeed.FeedCheckpoint", 2
_KEPT = 16


@dataclass(frozen=True)
class Record:
    """One moment of a training.

    Attributes:
        iterations: What the optimizers had counted.
        scale: Sum of their loss scales, 0 without. It tells batches apart that were skipped, and are no iterations:
            each of these halves it.
        epoch: The epoch of `fit` that the next batch is part of.
        done: Batches of that epoch that were trained on before, also before a resume.
        state: State of the feed, without its fingerprint.
    """

    iterations: int
    scale: float
    epoch: int
    done: int
    state: dict[str, Any]

    def is_before(self, other: "Record") -> bool:
        """Whether a model comes by this moment before it comes by `other`."""
        return (self.iterations, -self.scale) < (other.iterations, -other.scale)


@dataclass(frozen=True)
class Progress:
    """What a checkpoint file holds.

    Attributes:
        steps: Batches of an epoch of `fit`; None where that is a repetition of a stream.
        execution: Batches of one execution of the training function.
        even: Whether every batch may be expected to be as many iterations, and a batch between two records to be known
            by their number; a loss scale skips some, and a stream's state is known at its records alone.
        fingerprint: What identifies the feed.
        records: In the order of their iterations; the first one is where the training began.
    """

    steps: int | None
    execution: int
    even: bool
    fingerprint: dict[str, Any]
    records: tuple[Record, ...] = ()

    def with_record(self, record: Record) -> "Progress":
        """These and one more, in place of those that it overtakes; of the oldest, the first is kept."""
        before = [each for each in self.records if each.is_before(record)]
        return replace(self, records=(*before[:1], *before[1:][1 - _KEPT :], record))

    def at(self, iterations: int, scale: float = 0.0) -> tuple[Record, int]:
        """A record, and how many batches behind it the optimizers had counted `iterations`, with these loss scales.

        Raises:
            ValueError: It is not known.
        """
        for record in reversed(self.records):
            if (record.iterations, record.scale) == (iterations, scale):
                return record, 0
        before = [record for record in self.records if record.iterations < iterations]
        if not before:
            raise ValueError(
                f"its optimizer has counted {iterations:,} iterations, and where the training began "
                f"{self.records[0].iterations:,}. It is another model, or was restored without its optimizer"
            )
        last, more = before[-1], iterations - before[-1].iterations
        if self.even and self.steps and len(self.records) == 1:  # killed within the very first execution
            return last, min(self.execution, self.steps - last.done)
        rate = self._rate()
        if not rate or more % rate:
            known = ", ".join(f"{record.iterations:,}" for record in self.records)
            raise ValueError(
                f"its optimizer has counted {iterations:,} iterations. They do not grow evenly with the batches (a "
                "loss scale skips some, for example), or those of a stream are trained on, and of "
                f"{known} alone the file knows the batch. Save the model with BackupAndRestore, or give FeedCheckpoint "
                "the save_freq of what saves it, and put it before that"
            )
        return last, more // rate

    def _rate(self) -> int:
        """Iterations a batch, where that is always the same; else 0."""
        if not self.even or not self.steps:
            return 0
        rates = set()
        for one, other in zip(self.records, self.records[1:], strict=False):
            batches = (other.epoch - one.epoch) * self.steps + other.done - one.done
            rates.add((other.iterations - one.iterations) / batches if batches > 0 else 0.0)
        rate = rates.pop() if len(rates) == 1 else 0.0
        return int(rate) if rate == int(rate) else 0

    # ---- the file

    def write(self, path: Path) -> None:
        """Replace the file at `path`, at once; what was written is on the disk when this returns."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"kind": _KIND, "version": _VERSION, **asdict(self)}
        write_whole(path, json.dumps(content).encode(), durable=True)
        sync_folder(path.parent)

    @classmethod
    def read(cls, path: Path) -> "Progress | None":
        """The content of the file at `path`; None where there is none.

        Raises:
            ValueError: It is damaged, or something else.
        """
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _unusable(path, f"it is no JSON, or was cut short ({summary(error)})") from None
        if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
            raise _unusable(path, f"it was not written by {_KIND}")
        version = content.pop("version", None)
        if version != _VERSION:
            raise _unusable(path, f"it has version {version!r}, and this is {_VERSION}")
        try:
            return cls(**{**content, "records": tuple(Record(**record) for record in content["records"])})
        except (KeyError, TypeError) as error:
            raise _unusable(path, f"it is damaged ({summary(error)})") from None


def _unusable(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} tells nothing of where training stood: {reason}. Restore the file, or delete it, and the saved model "
        "with it, to begin anew"
    )
