"""Draws a grid of scenes with their parts, numbers and labels.

Invariant: this module decides the layout, `panels` draws. A scene that cannot be read or drawn shows its error instead.
This is the one module that imports matplotlib. It does not use pyplot: no state is shared with the user's figures, no
window opens, and no backend is needed.
"""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from kerasfeed.explore.show.panels import draw_panel, panel_size, plain_text, write_table
from kerasfeed.explore.show.parts import (
    INK,
    MUTED,
    WRONG,
    ClassNames,
    Fields,
    Panel,
    ScenePart,
    class_colours,
    class_text,
    joined,
    parts_of,
)
from kerasfeed.explore.show.shown_scenes import Shown, ShownScene
from kerasfeed.util.error_text import exception_text

_WIDTH = 10.0  # of a grid; all sizes here are in inches
_GAP, _MARGIN = 0.16, 0.14
_TITLE, _HEAD, _LEGEND = 0.42, 0.4, 0.34  # above the picture, above each scene, below the picture
_TICKS = (0.36, 0.2)  # left of and below curves
_CHARACTERS = (15.5, 13.0)  # per inch of a heading, in a grid and alone
_SMALL_CHARACTERS = (18.5, 16.0)
_MOST_NAMED = 12
_LINE = 0.21


class Picture(Figure):  # type: ignore[misc, unused-ignore]
    """A matplotlib `Figure` that a notebook shows, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=self.dpi)
        return drawn.getvalue()


def new_picture(width: float, height: float, layout: Literal["constrained"] | None = None) -> Picture:
    """Return an empty picture; sizes in inches."""
    return Picture(figsize=(width, height), dpi=100, layout=layout)


def draw_scenes(shown: Shown, kinds: Mapping[str, str], names: ClassNames) -> Picture:
    """Draw scenes into one picture.

    Args:
        shown: The scenes.
        kinds: Kinds of fields given by the user, by path.
        names: Maps a field to the names of its classes.

    Raises:
        ValueError: `kinds` names an unknown field.
    """
    scenes, title = shown.scenes, shown.title
    fields = max((scene.fields for scene in scenes if scene.fields), key=_number_of_values, default={})
    unknown = [path for path in kinds if path not in fields]
    if unknown and fields:
        raise ValueError(
            f"kinds names the field {unknown[0]!r}, which scenes do not have: their fields are "
            f"{', '.join(map(repr, fields))}"
        )
    parts = parts_of(fields, kinds)  # by the largest scene, because an empty field has no clear kind
    drawn = [part for part in parts if part.is_drawn]
    if fields and not drawn:
        return _draw_numbers(scenes, parts, title, names)
    large = len(scenes) == 1
    grid = _Grid.of(len(scenes), [panel_size(fields[part.path], part.kind, large) for part in drawn], large)
    classes = _classes([Panel(scene.fields, part, large) for scene in scenes if scene.fields for part in drawn])
    height = _TITLE + grid.rows * (grid.height + _GAP) + (_LEGEND if classes else 0.0) + _MARGIN
    picture = new_picture(grid.columns * (grid.width + _GAP) + 2 * _MARGIN, height)
    _write(picture, _MARGIN, 0.12, _cut(title, int(9.5 * picture.get_figwidth())), 10, INK, below=True, bold=True)
    below = [_draw_scene(picture, grid, number, scene, drawn) for number, scene in enumerate(scenes)]
    up = (0.24 if large else 0.2) if any(below) else 0.06
    for number, scene in enumerate(scenes):
        left, top = grid.corner(number, 0)
        text = joined(scene.title, *_written(scene, parts, names), by=" · ")
        _write(picture, left, top - up, _cut(text, int(grid.width * _CHARACTERS[large])), 10 if large else 8, INK)
    if classes:
        _add_legend(picture, classes, names)
    return picture


def _number_of_values(fields: Fields) -> int:
    return sum(getattr(value, "size", 1) for value in fields.values())


@dataclass(frozen=True)
class _Grid:
    """Layout of the scenes.

    Attributes:
        rows, columns: Number of scenes down and across.
        sizes: Width and height of each panel of a scene.
        stacked: Whether the panels of a scene are one above the other.
        large: Whether there is only one scene.
    """

    rows: int
    columns: int
    sizes: tuple[tuple[float, float], ...]
    stacked: bool
    large: bool

    @classmethod
    def of(cls, count: int, sizes: Sequence[tuple[float, float]], large: bool) -> "_Grid":
        """Lay out `count` scenes whose panels have these sizes."""
        sizes = tuple(sizes) or ((2.4, 0.6),)
        one_row = cls(1, count, sizes, sum(width for width, _ in sizes) > _WIDTH, large)
        fitting = max(1, min(count, int((_WIDTH + _GAP) // (one_row.width + _GAP))))
        rows = math.ceil(count / fitting)
        return replace(one_row, rows=rows, columns=math.ceil(count / rows))

    @property
    def width(self) -> float:
        """Width of a scene."""
        widths = [width for width, _ in self.sizes]
        return max(widths) if self.stacked else sum(widths) + _GAP * (len(widths) - 1)

    @property
    def height(self) -> float:
        """Height of a scene, including its heading."""
        heights = [height for _, height in self.sizes]
        return sum(heights) + _HEAD * len(heights) if self.stacked else max(heights) + _HEAD

    def corner(self, scene: int, panel: int) -> tuple[float, float]:
        """Return left and upper edge of a panel, from the top left."""
        left = _MARGIN + (scene % self.columns) * (self.width + _GAP)
        top = _TITLE + (scene // self.columns) * (self.height + _GAP) + _HEAD
        before = self.sizes[:panel]
        if self.stacked:
            return left, top + sum(height + _HEAD for _, height in before)
        return left + sum(width + _GAP for width, _ in before), top


def _draw_scene(picture: Picture, grid: _Grid, number: int, scene: ShownScene, drawn: Sequence[ScenePart]) -> bool:
    """Draw the parts of a scene; return whether any has a heading."""
    if scene.error:
        left, top = grid.corner(number, 0)
        lines = textwrap.wrap(scene.error, max(16, int(grid.width * 14)))[:8]
        _write(picture, left, top, "\n".join(lines), 7, WRONG, below=True)
        return False
    texts = []
    for panel, part in enumerate(drawn):
        left, top = grid.corner(number, panel)
        wide, high = grid.sizes[panel]
        inset = _TICKS if part.kind in ("signal", "spectrum") else (0.0, 0.0)
        if part.path not in scene.fields:
            _write(picture, left, top, f"no field {part.path!r}", 7, WRONG, below=True)
            continue
        axes = _axes_at(picture, left + inset[0], top, wide - inset[0], high - inset[1])
        remark = _draw_part(axes, Panel(scene.fields, part, grid.large))
        text = joined(_named(part) if len(drawn) > 1 else "", remark, by=" · ")
        fits = int(wide * _SMALL_CHARACTERS[grid.large])
        _write(picture, left, top - 0.05, _cut(text, fits), 8.5 if grid.large else 6.5, MUTED)
        texts.append(text)
    return any(texts)


def _axes_at(picture: Picture, left: float, top: float, wide: float, high: float) -> Any:
    width, height = picture.get_size_inches()
    return picture.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))


def _write(
    picture: Picture, left: float, top: float, text: str, size: float, colour: str,
    *, below: bool = False, bold: bool = False,
) -> None:  # fmt: skip
    width, height = picture.get_size_inches()
    picture.text(
        left / width, 1 - top / height, text.replace("$", r"\$"), fontsize=size, color=colour,
        va="top" if below else "bottom", ha="left", linespacing=1.4,
        fontweight="bold" if bold else "normal",
    )  # fmt: skip


def _draw_part(axes: Any, panel: Panel) -> str:
    try:
        return draw_panel(axes, panel)
    except Exception as error:  # noqa: BLE001 - scenes may hold anything; draw the others
        axes.set_axis_off()
        text = "\n".join(textwrap.wrap(exception_text(error), 26)[:6])
        axes.text(0, 0.97, text, va="top", fontsize=7, color=WRONG, transform=axes.transAxes)
        return ""


def _classes(panels: Sequence[Panel]) -> list[tuple[str, int]]:
    """Field and number of each class; empty if there are many."""
    classes: set[tuple[str, int]] = set()
    for panel in panels:
        path = panel.part.labels or panel.part.path
        classes.update((path, value) for value in panel.classes())
        if len(classes) > _MOST_NAMED:
            return []
    return sorted(classes)


def _draw_numbers(scenes: Sequence[ShownScene], parts: Sequence[ScenePart], title: str, names: ClassNames) -> Picture:
    """Draw numbers and short texts as a table."""
    rows = [["", *(_named(part) for part in parts)]]
    for scene in scenes:
        rows.append([scene.title, *(_written_value(scene.fields.get(part.path), part, names) for part in parts)])
    widths = [max(map(len, column)) * 0.075 + 0.3 for column in zip(*rows, strict=True)]
    height = len(rows) * _LINE
    least = _WIDTH / 2 if any(scene.error for scene in scenes) else 0.0
    picture = new_picture(max(sum(widths) + 2 * _MARGIN, 0.1 * len(title) + 0.5, least), _TITLE + height + 2 * _MARGIN)
    _write(picture, _MARGIN, 0.12, title, 10, INK, below=True, bold=True)
    table = write_table(_axes_at(picture, _MARGIN, _TITLE, sum(widths), height), rows, 8, widths)
    for (row, column), cell in table.get_celld().items():
        if row == 0 or column == 0:
            cell.get_text().set(color=MUTED)
        if column == 0:
            cell.get_text().set(ha="left")
    left = _MARGIN + widths[0]
    for row, scene in enumerate(scenes, 1):
        text = _cut(scene.error, int((picture.get_figwidth() - left) * _CHARACTERS[0]))
        _write(picture, left, _TITLE + (row + 0.75) * _LINE, text, 8, WRONG)
    return picture


def _written(scene: ShownScene, parts: Sequence[ScenePart], names: ClassNames) -> list[str]:
    """Labels, numbers and short texts of a scene, for its heading."""
    texts = []
    for part in parts:
        if part.is_drawn or part.path not in scene.fields:
            continue
        text = _written_value(scene.fields[part.path], part, names)
        plain = part.kind == "word" or (part.kind == "label" and names(part.path) is not None)
        texts.append(text if plain else f"{_named(part)} {text}")
    return texts


def _written_value(value: Any, part: ScenePart, names: ClassNames) -> str:
    """Text of a value, or dtype and shape of an array."""
    if not isinstance(value, np.ndarray):
        return "" if value is None else plain_text(value)
    if value.size != 1:
        return f"{value.dtype.name}{list(value.shape)}"
    one = value.reshape(-1)[0]
    if part.kind == "number" or value.dtype.kind not in "biu":
        return f"{one:.4g}" if value.dtype.kind in "fc" else plain_text(str(one))
    return class_text(one, names(part.path))


def _named(part: ScenePart) -> str:
    return f"[{part.path}]" if part.path.isdigit() else part.path


def _add_legend(picture: Picture, classes: list[tuple[str, int]], names: ClassNames) -> None:
    axes = picture.add_axes((0, 0, 0.01, 0.01))
    axes.set_axis_off()
    handles = [
        axes.scatter([], [], s=26, marker="s", color=[class_colours(np.array(v))], label=class_text(v, names(path)))
        for path, v in classes
    ]
    width, height = picture.get_size_inches()
    picture.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.03 / width, 0.02 / height), ncols=len(handles),
        frameon=False, fontsize=8, handletextpad=0.1, columnspacing=1.0, borderaxespad=0.2,
    )  # fmt: skip


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"
