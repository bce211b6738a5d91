"""HTML for notebooks: a titled table of fields, with a small picture of each array.

Invariant: every function is pure. Text keeps the notebook's colour, and all text that came from a user is escaped.
"""

import html
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasfeed.spec.array_pictures import preview
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import describe
from kerasfeed.spec.nesting import flatten
from kerasfeed.util.error_text import summary

_CELL = "text-align:left;padding:.25em .9em .25em 0;vertical-align:middle;white-space:nowrap"
_MUTED = "opacity:.65;font-weight:normal"


@dataclass(frozen=True)
class FieldRow:
    """One line of a field table.

    Attributes:
        path: Dotted name of the field, plain text.
        shape: Its shape, plain text such as `[2048, 3]`.
        dtype: Its dtype, plain text such as `float32`.
        preview: HTML made by `kerasfeed.spec.array_pictures`, inserted as it is; empty for none.
    """

    path: str
    shape: str
    dtype: str
    preview: str


def field_table(title: str, facts: list[tuple[str, str]], fields: list[FieldRow]) -> str:
    """A title, a line of facts and a table of fields.

    Args:
        title: Plain text.
        facts: Pairs of name and value, plain text.
        fields: One row a field, in order. The picture column is left out where no row has one.

    Returns:
        HTML of one `div`.
    """
    pictured = any(field.preview for field in fields)
    columns = ["field", "shape", "dtype", *(["preview"] if pictured else [])]
    rows = [[*_escaped(each.path, each.shape, each.dtype), each.preview][: len(columns)] for each in fields]
    return _titled(title, facts, columns, rows, "")


def table(title: str, facts: list[tuple[str, str]], columns: list[str], rows: list[list[str]], more: str = "") -> str:
    """A title, a line of facts and a table; all of it plain text.

    Args:
        title: Above the table.
        facts: Pairs of name and value.
        columns: Their names.
        rows: Cells of each row, as many as columns; the first is set as code. Without rows there is no table.
        more: A line below the table.

    Returns:
        HTML of one `div`.
    """
    return _titled(title, facts, columns, [_escaped(*row) for row in rows], more)


def table_with_pictures(
    title: str, facts: list[tuple[str, str]], columns: list[str], rows: list[list[str]], more: list[tuple[str, str]]
) -> str:
    """A title, a line of facts, a table whose cells are HTML, and lines of facts below it.

    Args:
        title: Plain text.
        facts: Pairs of name and value, plain text.
        columns: Names of the columns, plain text.
        rows: Cells of each row, HTML that is inserted as it is.
        more: Pairs of name and value, plain text, each a line of its own.

    Returns:
        HTML of one `div`.
    """
    lines = "".join(
        f'<div><span style="{_MUTED}">{html.escape(name)}</span> {html.escape(value)}</div>' for name, value in more
    )
    return _titled(title, facts, columns, rows, "").removesuffix("</div>") + lines + "</div>"


def _escaped(name: str, *cells: str) -> list[str]:
    return [f"<code>{html.escape(name)}</code>", *map(html.escape, cells)]


def _titled(title: str, facts: list[tuple[str, str]], columns: list[str], rows: list[list[str]], more: str) -> str:
    parts = [f'<div style="line-height:1.5"><div><strong>{html.escape(title)}</strong></div>']
    if facts:
        spans = "".join(
            f'<span style="margin-right:1.4em"><span style="{_MUTED}">{html.escape(name)}</span> '
            f"{html.escape(value)}</span>"
            for name, value in facts
        )
        parts.append(f"<div>{spans}</div>")
    if rows:
        head = "".join(f'<th style="{_CELL};{_MUTED}">{html.escape(name)}</th>' for name in columns)
        body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
        parts.append(
            '<table style="border-collapse:collapse;margin:.4em 0 0 0;color:inherit;font-size:inherit">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    if more:
        parts.append(f"<div>{html.escape(more)}</div>")
    parts.append("</div>")
    return "".join(parts)


def sequence_table(sequence: Any) -> str:
    """A sequence as a table of the fields of its first scene; where that cannot be read, the error."""
    name = type(sequence).__name__
    try:
        facts = [("scenes", f"{len(sequence):,}")]
        scene = sequence[0]
        spec = describe(scene)
        leaves, _ = flatten(scene)
        rows = [
            FieldRow(
                path, str(list(field.shape)), str(field).split("[")[0], preview(np.asarray(as_array(leaf, path)), path)
            )
            for path, field, leaf in zip(spec.paths, spec.fields, leaves, strict=True)
        ]
    except Exception as error:  # noqa: BLE001 - a notebook must show the sequence even when a scene cannot be read
        return field_table(name, [("error", summary(error))], [])
    return field_table(f"{name}, scene 0", facts, rows)
