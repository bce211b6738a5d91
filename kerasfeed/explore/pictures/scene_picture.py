"""A grid of scenes as one picture: each scene its parts side by side, under its number and its labels.

Invariant: decides what stands where; what is drawn there, `panels` does. A scene that cannot be read, or drawn, takes
its place with the error.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasfeed.explore.pictures.kinds import Fields, Part, parts_of
from kerasfeed.explore.pictures.panel import INK, MUTED, WRONG, ClassNames, Panel, class_colours
from kerasfeed.explore.pictures.panels import draw_panel, panel_size, plain_text
from kerasfeed.util.error_text import exception_text

_WIDTH = 10.0  # of a grid, inches, as are all sizes here
_GAP, _MARGIN = 0.16, 0.14
_TITLE, _HEAD, _LEGEND = 0.42, 0.4, 0.34  # over all, over each scene, below all
_TICKS = (0.36, 0.2)  # left of and below curves
_CHARACTERS = (17.0, 13.0)  # that fit into an inch of a head, in a grid and alone
_SMALL_CHARACTERS = (18.5, 16.0)
_MOST_NAMED = 12
_LINE = 0.21


@dataclass(frozen=True)
class ShownScene:
    """A scene to be drawn.

    Attributes:
        title: What it is called, such as `scene 12`.
        fields: By path; empty where it failed.
        error: Why it failed; empty where it did not.
    """

    title: str
    fields: Fields
    error: str = ""


def draw_scenes(
    new_picture: Any, scenes: Sequence[ShownScene], title: str, kinds: Mapping[str, str], names: ClassNames
) -> Any:
    """A picture of scenes, which `new_picture` makes of a width and a height in inches.

    Raises:
        ValueError: `kinds` names a field that there is not.
    """
    parts = _common_parts(scenes, kinds)
    drawn = [part for part in parts if part.is_drawn]
    first = next((scene.fields for scene in scenes if scene.fields), {})
    if not drawn and len(first) > 0:
        return _draw_numbers(new_picture, scenes, parts, title, names)
    large = len(scenes) == 1
    grid = _Grid.of(len(scenes), [panel_size(first[part.path], part.kind, large) for part in drawn], large)
    classes = _classes([Panel(scene.fields, part, large) for scene in scenes if scene.fields for part in drawn])
    legend = _LEGEND if classes else 0.0
    height = _TITLE + grid.rows * (grid.height + _GAP) + legend + _MARGIN
    picture = new_picture(grid.columns * (grid.width + _GAP) + 2 * _MARGIN, height)
    _write(picture, _MARGIN, 0.12, _cut(title, int(9.5 * picture.get_figwidth())), 10, INK, below=True, bold=True)
    below = [_draw_scene(picture, grid, place, scene, drawn) for place, scene in enumerate(scenes)]
    up = (0.24 if large else 0.2) if any(below) else 0.06
    for place, scene in enumerate(scenes):
        left, top = grid.place(place, 0)
        text = _joined(scene.title, *_written(scene, parts, names))
        _write(picture, left, top - up, _cut(text, int(grid.width * _CHARACTERS[large])), 10 if large else 8, INK)
    if classes:
        _add_legend(picture, classes, names)
    return picture


@dataclass(frozen=True)
class _Grid:
    """Where scenes stand.

    Attributes:
        rows, columns: Of scenes.
        sizes: Width and height of the panels of a scene.
        stacked: Whether these stand one over the other.
        large: Whether there is one scene alone.
    """

    rows: int
    columns: int
    sizes: tuple[tuple[float, float], ...]
    stacked: bool
    large: bool

    @classmethod
    def of(cls, count: int, sizes: list[tuple[float, float]], large: bool) -> "_Grid":
        """For so many scenes whose panels have these sizes."""
        sizes = sizes or [(2.4, 0.6)]
        stacked = sum(width for width, _ in sizes) > _WIDTH
        width = max(each[0] for each in sizes) if stacked else sum(each[0] + _GAP for each in sizes) - _GAP
        most = max(1, min(count, int((_WIDTH + _GAP) // (width + _GAP))))
        rows = math.ceil(count / most)
        return cls(rows, math.ceil(count / rows), tuple(sizes), stacked, large)

    @property
    def width(self) -> float:
        """Width of a scene."""
        widths = [each[0] for each in self.sizes]
        return max(widths) if self.stacked else sum(widths) + _GAP * (len(widths) - 1)

    @property
    def height(self) -> float:
        """Height of a scene, with what is written over it."""
        heights = [each[1] for each in self.sizes]
        return sum(heights) + _HEAD * len(heights) if self.stacked else max(heights) + _HEAD

    def place(self, scene: int, panel: int) -> tuple[float, float]:
        """Left edge and upper edge of a panel, from the left and from the top of the picture."""
        left = _MARGIN + (scene % self.columns) * (self.width + _GAP)
        top = _TITLE + (scene // self.columns) * (self.height + _GAP) + _HEAD
        before = self.sizes[:panel]
        if self.stacked:
            return left, top + sum(height + _HEAD for _, height in before)
        return left + sum(width + _GAP for width, _ in before), top


def _common_parts(scenes: Sequence[ShownScene], kinds: Mapping[str, str]) -> tuple[Part, ...]:
    """What the first scene that can be read is made of."""
    for scene in scenes:
        if scene.fields:
            unknown = [path for path in kinds if path not in scene.fields]
            if unknown:
                raise ValueError(
                    f"kinds names the field {unknown[0]!r}, which scenes do not have: their fields are "
                    f"{', '.join(map(repr, scene.fields))}"
                )
            return parts_of(scene.fields, kinds)
    return ()


def _draw_scene(picture: Any, grid: _Grid, place: int, scene: ShownScene, drawn: Sequence[Part]) -> bool:
    """Draw the parts of a scene; returns whether something is written over them."""
    if scene.error:
        left, top = grid.place(place, 0)
        lines = textwrap.wrap(scene.error, max(16, int(grid.width * 14)))[:8]
        _write(picture, left, top, "\n".join(lines), 7, WRONG, below=True)
        return False
    texts = []
    for number, part in enumerate(drawn):
        left, top = grid.place(place, number)
        wide, high = grid.sizes[number]
        inset = _TICKS if part.kind in ("signal", "spectrum") else (0.0, 0.0)
        if part.path not in scene.fields:
            _write(picture, left, top, f"no field {part.path!r}", 7, WRONG, below=True)
            continue
        axes = _axes_at(picture, left + inset[0], top, wide - inset[0], high - inset[1])
        said = _draw_part(axes, Panel(scene.fields, part, grid.large))
        text = _joined(_named(part) if len(drawn) > 1 else "", said)
        fits = int(wide * _SMALL_CHARACTERS[grid.large])
        _write(picture, left, top - 0.05, _cut(text, fits), 8.5 if grid.large else 6.5, MUTED)
        texts.append(text)
    return any(texts)


def _axes_at(picture: Any, left: float, top: float, wide: float, high: float) -> Any:
    width, height = picture.get_size_inches()
    return picture.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))


def _write(
    picture: Any, left: float, top: float, text: str, size: float, colour: str,
    *, below: bool = False, right: bool = False, bold: bool = False,
) -> None:  # fmt: skip
    width, height = picture.get_size_inches()
    picture.text(
        left / width, 1 - top / height, text.replace("$", r"\$"), fontsize=size, color=colour,
        va="top" if below else "bottom", ha="right" if right else "left", linespacing=1.4,
        fontweight="bold" if bold else "normal",
    )  # fmt: skip


def _draw_part(axes: Any, panel: Panel) -> str:
    try:
        return draw_panel(axes, panel)
    except Exception as error:  # noqa: BLE001 - scenes may differ from the first in any way; the others are drawn
        axes.set_axis_off()
        text = "\n".join(textwrap.wrap(exception_text(error), 26)[:6])
        axes.text(0, 0.97, text, va="top", fontsize=7, color=WRONG, transform=axes.transAxes)
        return ""


def _classes(panels: Sequence[Panel]) -> list[tuple[str, int]]:
    """Field and number of the classes in the picture, where they are few."""
    found: set[tuple[str, int]] = set()
    for panel in panels:
        path = panel.part.labels or panel.part.path
        found.update((path, value) for value in panel.classes())
        if len(found) > _MOST_NAMED:
            return []
    return sorted(found)


def _draw_numbers(
    new_picture: Any, scenes: Sequence[ShownScene], parts: Sequence[Part], title: str, names: ClassNames
) -> Any:
    """Scenes of single numbers and short texts: a table with a row a scene and a column a field."""
    head = ["", *(_named(part) for part in parts)]
    rows = [[scene.title, *(_value_text(scene, part, names) for part in parts)] for scene in scenes]
    widths = [max(len(row[place]) for row in [head, *rows]) * 0.075 + 0.3 for place in range(len(head))]
    width = max(sum(widths) + 2 * _MARGIN, 0.1 * len(title) + 0.5)
    height = _TITLE + (len(rows) + 1.4) * _LINE + _MARGIN
    picture = new_picture(width, height)
    _write(picture, _MARGIN, 0.12, title, 10, INK, below=True, bold=True)
    axes = _axes_at(picture, _MARGIN, _TITLE + _LINE, width - 2 * _MARGIN, len(rows) * _LINE)
    axes.set_axis_off()
    axes.set_ylim(len(rows), 0)
    for number, cells in enumerate([head, *rows]):
        top, left = _TITLE + (number + 0.75) * _LINE, _MARGIN + 0.06
        if number % 2:
            axes.axhspan(number - 1, number, color="#f1f4f7", linewidth=0)
        for place, cell in enumerate(cells):
            wrong = number > 0 and place == 1 and rows[number - 1][1] == scenes[number - 1].error != ""
            colour = WRONG if wrong else MUTED if number == 0 or place == 0 else INK
            right = place > 0 and not wrong
            _write(picture, left + (widths[place] - 0.2 if right else 0), top, cell, 8, colour, right=right)
            left += widths[place]
    return picture


def _value_text(scene: ShownScene, part: Part, names: ClassNames) -> str:
    if scene.error:
        return scene.error if part.path else ""
    return _written_value(scene.fields.get(part.path), part, names)


def _written(scene: ShownScene, parts: Sequence[Part], names: ClassNames) -> list[str]:
    """Labels, numbers and short texts of a scene, as they are written over it."""
    found = []
    for part in parts:
        if part.is_drawn or part.path not in scene.fields:
            continue
        text = _written_value(scene.fields[part.path], part, names)
        plain = part.kind == "word" or (part.kind == "label" and names.knows(part.path))
        found.append(text if plain else f"{_named(part)} {text}")
    return found


def _written_value(value: Any, part: Part, names: ClassNames) -> str:
    if isinstance(value, str | bytes):
        return plain_text(value)
    if not isinstance(value, np.ndarray) or value.size != 1:
        return ""
    one = value.reshape(-1)[0]
    if part.kind == "number" or value.dtype.kind not in "biu":
        return f"{one:.4g}" if value.dtype.kind in "fc" else plain_text(str(one))
    return names.name(part.path, one)


def _named(part: Part) -> str:
    return f"[{part.path}]" if part.path.isdigit() else part.path


def _add_legend(picture: Any, classes: list[tuple[str, int]], names: ClassNames) -> None:
    axes = picture.add_axes((0, 0, 0.01, 0.01))
    axes.set_axis_off()
    handles = [
        axes.scatter([], [], s=26, marker="s", color=[class_colours(np.array(value))], label=names.name(path, value))
        for path, value in classes
    ]
    width, height = picture.get_size_inches()
    picture.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.03 / width, 0.02 / height), ncols=len(handles),
        frameon=False, fontsize=8, handletextpad=0.1, columnspacing=1.0, borderaxespad=0.2,
    )  # fmt: skip


def _joined(*texts: str) -> str:
    return " · ".join(filter(None, texts))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"
