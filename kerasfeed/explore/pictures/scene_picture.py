"""A grid of scenes as one picture: each scene its parts side by side, under its number and its labels.

Invariant: decides what stands where; what is drawn there, `panels` does. A scene that cannot be read, or drawn, takes
its place with the error. The one module that imports matplotlib, and no pyplot: so no state is shared with the user's
own figures, there is no window, and any backend or none will do.
"""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from kerasfeed.explore.pictures.panels import draw_panel, panel_size, plain_text, write_table
from kerasfeed.explore.pictures.parts import (
    INK,
    MUTED,
    WRONG,
    ClassNames,
    Panel,
    ScenePart,
    class_colours,
    class_text,
    joined,
    parts_of,
)
from kerasfeed.explore.pictures.shown_scenes import Shown, ShownScene
from kerasfeed.util.error_text import exception_text

_WIDTH = 10.0  # of a grid, inches, as are all sizes here
_GAP = 0.16
_TITLE, _HEAD, _LEGEND = 0.42, 0.4, 0.34  # over all, over each scene, below all
_POINTS = ((8, 6.5), (10, 8.5))  # of what is written over scenes and over their parts, in a grid and alone
_MOST_NAMED = 12
_LINE = 0.21


class Picture(Figure):  # type: ignore[misc, unused-ignore]
    """A matplotlib `Figure` that is drawn where a notebook shows it, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=self.dpi)
        return drawn.getvalue()


def new_picture(width: float, height: float) -> Picture:
    """An empty picture; width and height in inches."""
    return Picture(figsize=(width, height), dpi=100, layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=_GAP / 2))


def draw_scenes(shown: Shown, kinds: Mapping[str, str], names: ClassNames) -> Picture:
    """A picture of scenes.

    Args:
        shown: The scenes.
        kinds: Kinds of fields that the user has given, by path.
        names: From a field to the names of its classes.

    Raises:
        ValueError: `kinds` names a field that there is not.
    """
    scenes, title = shown.scenes, shown.title
    first = next((scene.fields for scene in scenes if scene.fields), {})
    unknown = [path for path in kinds if path not in first]
    if unknown and first:
        raise ValueError(
            f"kinds names the field {unknown[0]!r}, which scenes do not have: their fields are "
            f"{', '.join(map(repr, first))}"
        )
    parts = parts_of(first, kinds)  # of the first scene that can be read
    drawn = [part for part in parts if part.is_drawn]
    if first and not drawn:
        return _draw_numbers(scenes, parts, title, names)
    large = len(scenes) == 1
    sizes = [panel_size(first[part.path], part.kind, large) for part in drawn] or [(2.4, 0.6)]
    widths, heights = zip(*((width + _GAP, height + _HEAD) for width, height in sizes), strict=True)
    width, height, shape = sum(widths), max(heights), {"ncols": len(drawn), "width_ratios": widths}
    if width > _WIDTH:  # one over the other
        width, height, shape = max(widths), sum(heights), {"nrows": len(drawn), "height_ratios": heights}
    rows = math.ceil(len(scenes) / max(1, int((_WIDTH + _GAP) // width)))
    columns = math.ceil(len(scenes) / rows)
    classes = _classes([Panel(scene.fields, part, large) for scene in scenes if scene.fields for part in drawn])
    picture = new_picture(columns * width, rows * height + _TITLE + (_LEGEND if classes else 0.0))
    _write_over(picture, title, 10, columns * width, weight="bold")
    for frame, scene in zip(picture.subfigures(rows, columns, squeeze=False).flat, scenes, strict=False):
        text = joined(scene.title, *_written(scene, parts, names), by=" · ")
        _write_over(frame, text, _POINTS[large][0], width)
        if scene.error or not drawn:
            _write_error(frame.add_subplot(), scene.error)
        else:
            axes = frame.subplots(squeeze=False, **shape)
            _draw_scene(axes, scene, drawn, widths, large)
    if classes:
        _add_legend(picture, classes, names)
    return picture


def _draw_scene(axes: Any, scene: ShownScene, drawn: Sequence[ScenePart], widths: Sequence[float], large: bool) -> None:
    """Draw the parts of a scene, each into axes of its own, under its name and what was left out of it."""
    for place, part, width in zip(axes.flat, drawn, widths, strict=True):
        if part.path not in scene.fields:
            _write_error(place, f"no field {part.path!r}")
            continue
        try:
            said = draw_panel(place, Panel(scene.fields, part, large))
        except Exception as error:  # noqa: BLE001 - scenes may differ from the first in any way; the others are drawn
            _write_error(place, exception_text(error))
            continue
        text, size = joined(_named(part) if len(drawn) > 1 else "", said, by=" · "), _POINTS[large][1]
        place.set_title(_fitting(text, size, width), loc="left", color=MUTED, pad=2, fontsize=size)
        place.set_anchor("NW")


def _write_over(figure: Any, text: str, size: float, width: float, **style: Any) -> None:
    text = _fitting(text, size, width)
    figure.suptitle(text, x=_GAP / 2 / width, ha="left", fontsize=size, color=INK, **style)


def _fitting(text: str, size: float, width: float) -> str:
    """Text of a size in points that fits into a width in inches; a dollar sign begins no mathematics."""
    most = int(width * 120 / size)
    return (text if len(text) <= most else text[: max(1, most - 1)] + "…").replace("$", r"\$")


def _write_error(axes: Any, text: str) -> None:
    axes.set_axis_off()
    lines = "\n".join(textwrap.wrap(text, 26)[:8])
    axes.text(0, 1, lines, va="top", fontsize=7, color=WRONG, transform=axes.transAxes, parse_math=False)


def _classes(panels: Sequence[Panel]) -> list[tuple[str, int]]:
    """Field and number of the classes in the picture, where they are few."""
    classes: set[tuple[str, int]] = set()
    for panel in panels:
        path = panel.part.labels or panel.part.path
        classes.update((path, value) for value in panel.classes())
        if len(classes) > _MOST_NAMED:
            return []
    return sorted(classes)


def _draw_numbers(scenes: Sequence[ShownScene], parts: Sequence[ScenePart], title: str, names: ClassNames) -> Picture:
    """Scenes of single numbers and short texts: a table with a row a scene and a column a field."""
    rows = [["", *(_named(part) for part in parts)]]
    rows += [[scene.title, *(_value_text(scene, part, names) for part in parts)] for scene in scenes]
    widths = [max(map(len, column)) * 0.075 + 0.3 for column in zip(*rows, strict=True)]
    width = max(sum(widths), 0.1 * len(title) + 0.5)
    picture = new_picture(width, _TITLE + len(rows) * _LINE)
    _write_over(picture, title, 10, width, weight="bold")
    table = write_table(picture.add_subplot(), rows, 8, widths)
    for (row, column), cell in table.get_celld().items():
        if row == 0 or column == 0:
            cell.get_text().set(color=MUTED)
        if column == 0 or (row > 0 and scenes[row - 1].error):
            cell.get_text().set(ha="left")
        if row > 0 and column == 1 and scenes[row - 1].error:
            cell.get_text().set(color=WRONG)
    return picture


def _value_text(scene: ShownScene, part: ScenePart, names: ClassNames) -> str:
    if scene.error:
        return scene.error if part.path else ""
    return _written_value(scene.fields.get(part.path), part, names)


def _written(scene: ShownScene, parts: Sequence[ScenePart], names: ClassNames) -> list[str]:
    """Labels, numbers and short texts of a scene, as they are written over it."""
    texts = []
    for part in parts:
        if part.is_drawn or part.path not in scene.fields:
            continue
        text = _written_value(scene.fields[part.path], part, names)
        plain = part.kind == "word" or (part.kind == "label" and names(part.path) is not None)
        texts.append(text if plain else f"{_named(part)} {text}")
    return texts


def _written_value(value: Any, part: ScenePart, names: ClassNames) -> str:
    if isinstance(value, str | bytes):
        return plain_text(value)
    if not isinstance(value, np.ndarray) or value.size != 1:
        return ""
    one = value.reshape(-1)[0]
    if part.kind == "number" or value.dtype.kind not in "biu":
        return f"{one:.4g}" if value.dtype.kind in "fc" else plain_text(str(one))
    return class_text(one, names(part.path))


def _named(part: ScenePart) -> str:
    return f"[{part.path}]" if part.path.isdigit() else part.path


def _add_legend(picture: Picture, classes: list[tuple[str, int]], names: ClassNames) -> None:
    labels = [class_text(value, names(path)) for path, value in classes]
    handles = [
        Line2D([], [], linestyle="", marker="s", markersize=5, color=tuple(class_colours(np.array(value))))
        for _, value in classes
    ]
    picture.legend(
        handles, labels, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=8, handletextpad=0.1,
        columnspacing=1.0, borderaxespad=0.2,
    )  # fmt: skip
