"""A result as text for a terminal, and as HTML for notebooks.

Invariant: pure. All HTML comes from here, and all text in it is escaped here. Text has the notebook's colours, and
pictures have medium tones, so that both light and dark pages show them. Only elements and styles that JupyterLab shows
in an untrusted notebook are used: no svg, no style, no script.
"""

import html
import textwrap
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

_TEXT_WIDTH = 118  # columns
_LEAST_WIDTH = 40  # columns of a text that is wrapped
_BARS = " ▁▂▃▄▅▆▇█"
_BAR_COLUMNS, _BAR_PIXELS = 20, 160
_WIDTH, _HEIGHT = 144, 36  # CSS pixels of a histogram
ACCENT, PALE = "#4a90d9", "#9aa5b1"
_MUTED = "opacity:.65;font-weight:normal"
_CELL = "padding:.25em .9em .25em 0;white-space:nowrap"
_WRAPPED = "white-space:normal;max-width:70em"


@dataclass(frozen=True)
class Graphic:
    """A cell that is not plain text.

    Attributes:
        text: The text that a terminal shows instead.
        html: HTML of one inline element, inserted unchanged.
    """

    text: str
    html: str


Cell = str | Graphic


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: Names of the columns; none for a table without a head.
        rows: Cells of each row, all rows of one length. The first cell is set as code. The last cell may have several
            lines, and long lines are wrapped.
        right: Names of the columns that are aligned to the right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: Sequence[str] = ()

    @property
    def text(self) -> str:
        """Lines of at most 118 columns, except with long words or cells."""
        rows = [*([self.columns] if self.columns else []), *self.rows]
        cells = [[cell.text if isinstance(cell, Graphic) else cell for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        aligned = [
            [f"{cell:{side}{width}}" for cell, side, width in zip(row, self._sides("<", ">"), widths, strict=True)]
            for row in cells
        ]
        return "\n".join(
            "  ".join(texts).rstrip()
            if isinstance(row[-1], Graphic)
            else _wrapped("  ".join([*texts[:-1], ""]), texts[-1])
            for row, texts in zip(rows, aligned, strict=True)
        )

    @property
    def html(self) -> str:
        """HTML of one `table`."""
        sides = self._sides("left", "right")
        head = "".join(
            f'<th style="{_CELL};text-align:{side};{_MUTED}">{html.escape(name)}</th>'
            for name, side in zip(self.columns, sides, strict=False)
        )
        body = "".join(f"<tr>{_cells(row, sides)}</tr>" for row in self.rows)
        return (
            '<table style="border-collapse:collapse;margin:.4em 0 0 0;color:inherit;font-size:inherit">'
            + (f"<thead><tr>{head}</tr></thead>" if head else "")
            + f"<tbody>{body}</tbody></table>"
        )

    def _sides(self, left: str, right: str) -> list[str]:
        names = self.columns or [""] * len(self.rows[0])
        return [right if name in self.right else left for name in names]


@dataclass(frozen=True)
class Report:
    """The content of a result.

    Attributes:
        title: The subject.
        facts: Pairs of name and value, listed in the first line; a name may be empty.
        tables: The tables; a table without rows is left out.
        more: A last line.
    """

    title: str
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    more: str = ""

    @property
    def text(self) -> str:
        """The report for a terminal."""
        facts = ", ".join(f"{name} {value}".strip() for name, value in self.facts)
        tables = [f"\n{table.text}" for table in self.tables if table.rows]
        return "\n".join([f"{self.title}: {facts}" if facts else self.title, *tables, *filter(None, [self.more])])

    @property
    def html(self) -> str:
        """HTML of one `div`."""
        facts = "".join(
            f'<span style="margin-right:1.4em"><span style="{_MUTED}">{html.escape(name)}</span> '
            f"{html.escape(value)}</span>"
            for name, value in self.facts
        )
        lines = [f"<strong>{html.escape(self.title)}</strong>", facts]
        lines += [table.html for table in self.tables if table.rows]
        divs = "".join(f"<div>{line}</div>" for line in [*lines, html.escape(self.more)] if line)
        return f'<div style="line-height:1.5">{divs}</div>'


class Reported:
    """A result shown as text in terminals and as HTML in notebooks."""

    @abstractmethod
    def _report(self) -> Report:
        """The report to show."""

    def __repr__(self) -> str:
        return self._report().text

    def _repr_html_(self) -> str:
        return self._report().html


def _wrapped(head: str, text: str) -> str:
    lines = [
        line
        for each in text.splitlines() or [""]
        for line in textwrap.wrap(
            each, max(_TEXT_WIDTH - len(head), _LEAST_WIDTH), break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]
    return "\n".join(f"{head if not number else ' ' * len(head)}{line}".rstrip() for number, line in enumerate(lines))


def _cells(row: Sequence[Cell], sides: Sequence[str]) -> str:
    contents = [cell.html if isinstance(cell, Graphic) else html.escape(cell) for cell in row]
    if isinstance(row[0], str):
        contents[0] = f"<code>{contents[0]}</code>"
    styles = [f"{_CELL};text-align:{side}" for side in sides]
    if isinstance(row[-1], str):  # align the other cells with its first line
        styles = [f"{style};vertical-align:top" for style in styles]
        styles[-1] += f";{_WRAPPED}" if sides[-1] == "left" else ""
        contents[-1] = contents[-1].replace("\n", "<br>")
    return "".join(f'<td style="{style}">{content}</td>' for style, content in zip(styles, contents, strict=True))


def coloured(text: str, colour: str, *, bold: bool = False) -> Graphic:
    """Text in a colour."""
    weight = ";font-weight:bold" if bold else ""
    return Graphic(text, f'<span style="color:{colour}{weight}">{html.escape(text)}</span>')


def code(text: str) -> Graphic:
    """Text as code."""
    return Graphic(text, f"<code>{html.escape(text)}</code>")


def bar(share: float, colour: str = ACCENT) -> Graphic:
    """Return a bar.

    `share` is its length relative to the longest bar, in [0, 1]. Only 0 is invisible.
    """
    if not share:
        return Graphic("", "")
    whole, eighths = divmod(max(1, round(8 * _BAR_COLUMNS * share)), 8)
    return Graphic(
        "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip(),
        _box(max(1.0, _BAR_PIXELS * share), 12, colour, "vertical-align:middle"),
    )


def _box(width: float, height: float, colour: str, style: str) -> str:
    size = f"width:{width:.1f}px;height:{height:.1f}px"
    return f'<span style="display:inline-block;{size};background-color:{colour};{style}"></span>'


def bytes_text(count: float) -> str:
    """Return a number of bytes with a unit, three digits at most."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def histogram(shares: Sequence[float], sparkline: Sequence[float]) -> Graphic:
    """Return a histogram whose highest bar has the height of the picture.

    Only 0 is invisible.

    Args:
        shares: The heights, at least 0.
        sparkline: The heights that a terminal shows.
    """
    most, largest = max(shares, default=0.0), max(sparkline, default=0.0)
    text = "".join(_BARS[max(1, round(8 * each / largest))] if each else " " for each in sparkline) if largest else ""
    if not most:
        return Graphic(text, "")
    step = _WIDTH / len(shares)
    gap = 1.0 if step > 3 else 0.0
    boxes = "".join(
        _box(
            step - gap,
            max(1.0, (_HEIGHT - 2) * share / most) if share else 0.0,
            ACCENT,
            f"margin-right:{gap:.0f}px;vertical-align:bottom",
        )
        for share in shares
    )
    style = f"display:inline-block;height:{_HEIGHT}px;line-height:{_HEIGHT}px;white-space:nowrap"
    return Graphic(text, f'<span style="{style}">{boxes}</span>')
