"""The scenes that failed, as a table.

Invariant: values only; a table does not change after it was made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from kerasfeed.util.error_text import pluralize

if TYPE_CHECKING:
    from kerasfeed.util.report import Report

_ROWS_SHOWN = 100
_NUMBERS = ("index", "epoch", "step", "count")


@dataclass(frozen=True)
class FailedScene:
    """One scene that failed, with one exception.

    Attributes:
        index: Index of the scene; None if several were read at once (`get_batch`) and all failed.
        epoch: Epoch of the last failure; None while the spec was inferred.
        step: Step of the last failure; None while the spec was inferred.
        exception: Type and message, at most 200 characters.
        count: Number of such failures of the scene.
    """

    index: int | None
    epoch: int | None
    step: int | None
    exception: str
    count: int


class FailureTable(Sequence[FailedScene]):
    """The failed scenes that `feed.failures` returns, sorted by index.

    Notebooks show a table. Each item has the attributes `index`, `epoch`, `step`, `exception` (type and message, at
    most 200 characters) and `count` (number of such failures of the scene).
    """

    def __init__(self, rows: Sequence[FailedScene], forgotten: int = 0) -> None:
        """Make a table of `rows`; `forgotten` counts failures that were not kept."""
        self._rows = tuple(sorted(rows, key=lambda row: (-1 if row.index is None else row.index, row.exception)))
        self.forgotten = forgotten

    @overload
    def __getitem__(self, index: int) -> FailedScene: ...
    @overload
    def __getitem__(self, index: slice) -> "FailureTable": ...
    def __getitem__(self, index: int | slice) -> "FailedScene | FailureTable":
        return FailureTable(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FailureTable) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def _report(self) -> "Report":
        from kerasfeed.util.report import Report, Table  # workers need no reports

        if not self._rows:
            return Report("no scene has failed", more=self._more())
        rows = [
            (*map(_number, (row.index, row.epoch, row.step, row.count)), row.exception)
            for row in self._rows[:_ROWS_SHOWN]
        ]
        scenes = pluralize(len({row.index for row in self._rows}), "scene")
        return Report("failures", [("", scenes)], [Table([*_NUMBERS, "exception"], rows, _NUMBERS)], self._more())

    def __repr__(self) -> str:
        return self._report().text

    def _repr_html_(self) -> str:
        return self._report().html

    def _more(self) -> str:
        more = len(self._rows) - _ROWS_SHOWN
        parts = [f"and {more:,} more rows"] if more > 0 else []
        if self.forgotten:
            parts.append(f"{self.forgotten:,} further failures were not kept")
        return "; ".join(parts)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
