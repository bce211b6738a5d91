"""What checks say: what each has found, its result with reason and remedy, and the report of all.

Invariant: results are values that are only read; who makes a finding says index and field where they are known.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from kerasfeed.util.error_text import counted
from kerasfeed.util.report import Report, Reported, Table, code, coloured

Status = Literal["passed", "failed", "warned", "skipped"]
_COLOURS: dict[Status, str] = {"failed": "#d9534a", "warned": "#c98a1b", "skipped": "#888888", "passed": "#4a9d5b"}
_TOLD = ("failed", "warned")  # with reason and remedy


@dataclass(eq=False)
class Finding(Exception):
    """What a check has found. A check returns text where all is well, and raises this otherwise.

    Attributes:
        status: Whether the sequence is as it should be.
        message: What was found, in a sentence without a full stop.
        index: Index of the scene; None where it is about several.
        field: Path of the field; None likewise.
        remedy: What to change, where that is not what the check says in general.
    """

    status: Status
    message: str
    index: int | None = None
    field: str | None = None
    remedy: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), dataclasses.astuple(self)


class LostWorker(Finding):
    """A worker ended, hung or did not start."""


def failed(message: str, *, index: int | None = None, field: str | None = None, remedy: str | None = None) -> Finding:
    """A batch would be wrong, or could not be made."""
    return Finding("failed", message, index, field, remedy)


def warned(message: str, *, index: int | None = None, field: str | None = None, remedy: str | None = None) -> Finding:
    """It works, and costs something, or surprises whoever uses the sequence in another way."""
    return Finding("warned", message, index, field, remedy)


def skipped(message: str) -> Finding:
    """It could not be found out, or does not concern this sequence."""
    return Finding("skipped", message)


@dataclass(frozen=True)
class CheckResult:
    """What one check has found.

    Attributes:
        name: Name of the check.
        status: "passed"; "failed", where batches would be wrong or could not be made; "warned", where it works, but
            costs something or surprises; or "skipped", where it could not be found out.
        message: What was found; it names index and field, where it is about one.
        reason: Why it matters.
        remedy: What to change; empty where the message says it.
        index: Index of the scene; None where it is about several.
        field: Path of the field; None likewise.
        seconds: How long the check took, s.
    """

    name: str
    status: Status
    message: str
    reason: str
    remedy: str
    index: int | None
    field: str | None
    seconds: float

    @property
    def text(self) -> str:
        """Message, reason and remedy, a line each."""
        lines = [self.message, f"Why: {self.reason}", *([f"Remedy: {self.remedy}"] if self.remedy else [])]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class SequenceReport(Reported):
    """What `kerasfeed.check_sequence` returns; `print` and notebooks show it.

    Attributes:
        name: Class of the sequence.
        scenes: How many scenes were compared, each read in many ways.
        read: How many were read at least once.
        length: How many there are; 0 where the sequence does not say.
        results: What each check has found, in the order in which they ran; see
            [CheckResult][kerasfeed.explore.check.result.CheckResult].
        seconds: How long all took, s.
    """

    name: str
    scenes: int
    read: int
    length: int
    results: tuple[CheckResult, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no check has failed; what was warned of or skipped does not count."""
        return not self.of("failed")

    def of(self, status: Status) -> tuple[CheckResult, ...]:
        """The results of one status."""
        return tuple(result for result in self.results if result.status == status)

    def __getitem__(self, name: str) -> CheckResult:
        """The result of the check `name`.

        Raises:
            KeyError: It was not run.
        """
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(
            f"{str(name)!r} was not checked; these were: {', '.join(result.name for result in self.results)}"
        )

    def raise_if_failed(self) -> None:
        """Raise the report, if a check has failed.

        Raises:
            AssertionError: A check has failed.
        """
        if not self.ok:
            raise AssertionError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, text and numbers, for JSON."""
        results = [dataclasses.asdict(result) for result in self.results]
        known = {name: getattr(self, name) for name in ("name", "ok", "scenes", "read", "length", "seconds")}
        return {**known, "results": results}

    def _report(self) -> Report:
        counts = [(len(self.of(status)), status) for status in ("passed", "failed", "warned", "skipped")]
        counted_ = ", ".join(f"{count} {status}" for count, status in counts if count)
        extent = f"{self.read:,} of {counted(self.length, 'scene')} read, {self.scenes} compared, {self.seconds:.1f} s"
        rows = [
            (
                coloured(status, _COLOURS[status], bold=status in _TOLD), code(result.name),
                result.text if status in _TOLD else result.message,
            )
            for status in _COLOURS
            if status != "skipped"
            for result in self.of(status)
        ]  # fmt: skip
        if missing := self.of("skipped"):
            names: dict[str, list[str]] = {}
            for result in missing:
                names.setdefault(result.message, []).append(result.name)
            name, reason = missing[0].name, missing[0].message
            if len(missing) > 1:  # names in a row of their own would widen the column of names
                name, reason = "", "; ".join(f"{', '.join(those)}: {message}" for message, those in names.items())
            rows.append((coloured("skipped", _COLOURS["skipped"], bold=False), code(name), reason))
        return Report(self.name, [("", f"{counted_} ({extent})")], [Table((), rows)])
