"""What a check has found.

Invariant: a finding is a value; whoever makes it says index and field where they are known.
"""

from dataclasses import dataclass
from typing import Literal

from kerasfeed.errors import KerasfeedError

Status = Literal["passed", "failed", "warned", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        status: Whether the sequence is as it should be.
        message: What was found, in a sentence without a full stop.
        index: Index of the scene; None where it is about several.
        field: Path of the field; None likewise.
        remedy: What to change, where that is not what the check says in general.
        blocks: Whether checks that need this one are skipped where it has failed.
    """

    status: Status
    message: str
    index: int | None = None
    field: str | None = None
    remedy: str | None = None
    blocks: bool = True


class LostWorkerError(KerasfeedError):
    """Internal: a worker ended, or hung.

    Attributes:
        index: The scene that it was at; None for none.
    """

    def __init__(self, message: str, index: int | None) -> None:
        super().__init__(message)
        self.index = index


class MemoryGrownError(Exception):
    """Internal: memory has grown by more than reading scenes may take.

    Attributes:
        nbytes: By how much, bytes.
        reads: Over how many readings of scenes.
    """

    def __init__(self, nbytes: int, reads: int) -> None:
        super().__init__(nbytes, reads)
        self.nbytes = nbytes
        self.reads = reads

    @property
    def text(self) -> str:
        """By how much, in words."""
        return f"memory has grown by {self.nbytes / 1e6:,.0f} MB over {self.reads:,} readings of scenes"


class OutOfTimeError(Exception):
    """Internal: the time that the checks may take is spent."""


def passed(message: str) -> Finding:
    """All is well."""
    return Finding("passed", message)


def failed(message: str, *, index: int | None = None, field: str | None = None, remedy: str | None = None) -> Finding:
    """Batches would be wrong, or could not be made."""
    return Finding("failed", message, index, field, remedy)


def warned(message: str, *, index: int | None = None, field: str | None = None, remedy: str | None = None) -> Finding:
    """It works, and costs something, or surprises whoever uses the sequence in another way."""
    return Finding("warned", message, index, field, remedy)


def skipped(message: str) -> Finding:
    """It could not be found out, or does not concern this sequence."""
    return Finding("skipped", message)
