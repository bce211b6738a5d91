"""Findings of checks, their results with reason and remedy, and the report.

Invariant: results are read-only values; they name index and field if these are known.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from kerasfeed.util.error_text import pluralize
from kerasfeed.util.report import Report, Reported, Table, code, coloured

Status = Literal["passed", "failed", "warned", "skipped"]
_COLOURS: dict[Status, str] = {"failed": "#d9534a", "warned": "#c98a1b", "skipped": "#888888", "passed": "#4a9d5b"}
_EXPLAINED = ("failed", "warned")  # shown with reason and remedy


@dataclass(eq=False)
class Finding(Exception):
    """The outcome of a check, which raises it unless the check passed.

    Attributes:
        status: Outcome of the check.
        message: The outcome in one sentence without a full stop.
        index: Index of the scene; None if the outcome does not concern one scene.
        field: Path of the field; None if the outcome does not concern one field.
        remedy: What to change, if different from the remedy of the check.
    """

    status: Status
    message: str
    index: int | None = None
    field: str | None = None
    remedy: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), dataclasses.astuple(self)


class LostWorker(Finding):
    """A worker died, hung or did not start."""


def failed(message: str, *, index: int | None = None, field: str | None = None, remedy: str | None = None) -> Finding:
    """Return a finding: a batch would be wrong or impossible."""
    return Finding("failed", message, index, field, remedy)


def warned(message: str, *, index: int | None = None, field: str | None = None, remedy: str | None = None) -> Finding:
    """Return a finding: the sequence works, but costs something or may surprise."""
    return Finding("warned", message, index, field, remedy)


def skipped(message: str) -> Finding:
    """Return a finding: the check could not run or does not apply."""
    return Finding("skipped", message)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Name of the check.
        status: "passed"; "failed" if batches would be wrong or could not be made; "warned" if the sequence works, but
            costs something or may surprise; or "skipped" if the check could not run.
        message: What the check found; names index and field if it concerns one scene.
        reason: Why the check matters.
        remedy: What to change; empty if the message says it.
        index: Index of the scene; None if the result does not concern one scene.
        field: Path of the field; None if the result does not concern one field.
        seconds: Duration of the check, s.
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
    """The report of `kerasfeed.check_sequence`; `print` and notebooks show it.

    Attributes:
        name: Class of the sequence.
        scenes: Number of scenes compared, each read in many ways.
        read: Number of scenes read at least once.
        length: Number of scenes; 0 if unknown.
        results: Results of the checks, in the order they ran; see
            [CheckResult][kerasfeed.explore.check.result.CheckResult].
        seconds: Duration of all checks, s.
    """

    name: str
    scenes: int
    read: int
    length: int
    results: tuple[CheckResult, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no check failed; warned and skipped checks do not count."""
        return not self.of("failed")

    def of(self, status: Status) -> tuple[CheckResult, ...]:
        """Return the results with this status."""
        return tuple(result for result in self.results if result.status == status)

    def __getitem__(self, name: str) -> CheckResult:
        """Return the result of the check `name`.

        Raises:
            KeyError: The check did not run.
        """
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(
            f"the check {str(name)!r} did not run; these did: {', '.join(result.name for result in self.results)}"
        )

    def raise_if_failed(self) -> None:
        """Raise the report if a check failed.

        Raises:
            AssertionError: A check has failed.
        """
        if not self.ok:
            raise AssertionError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dicts, lists, text and numbers, for JSON."""
        results = [dataclasses.asdict(result) for result in self.results]
        known = {name: getattr(self, name) for name in ("name", "ok", "scenes", "read", "length", "seconds")}
        return {**known, "results": results}

    def _report(self) -> Report:
        counts = [(len(self.of(status)), status) for status in ("passed", "failed", "warned", "skipped")]
        counted_ = ", ".join(f"{count} {status}" for count, status in counts if count)
        extent = (
            f"{self.read:,} of {pluralize(self.length, 'scene')} read, {self.scenes} compared, {self.seconds:.1f} s"
        )
        rows = [
            (
                coloured(status, _COLOURS[status], bold=status in _EXPLAINED), code(result.name),
                result.text if status in _EXPLAINED else result.message,
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
            if len(missing) > 1:  # many names would widen the column of names
                name, reason = "", "; ".join(f"{', '.join(those)}: {message}" for message, those in names.items())
            rows.append((coloured("skipped", _COLOURS["skipped"]), code(name), reason))
        return Report(self.name, [("", f"{counted_} ({extent})")], [Table((), rows)])
