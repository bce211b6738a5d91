"""What a description says: a table with a row a field, remarks, and what is known of single scenes.

Invariant: pure; all text is plain, and nothing raises on account of what scenes hold.
"""

import math
from typing import Any

import numpy as np

from kerasfeed.util.counted import counted
from kerasfeed.util.report import Picture, Report, Table, histogram

_COLUMNS = ("field", "dtype", "shape", "min", "max", "mean", "std", "histogram")
_NUMBERS = ("min", "max", "mean", "std")
_MOST_BARS = 40
_SHOWN_FEATURES = 3
_SHOWN_CLASSES = 6
_SHOWN_INDICES = 5
_SHOWN_GROUPS = 3


def description_report(description: Any) -> Report:
    """What a `Description` says."""
    fields = [_row(field) for field in description.values()]
    notes = [(path, _note_text(field, description)) for path, field in description.items()]
    notes = [*((path, text) for path, text in notes if text), *_findings(description)]
    return Report(description.name, _facts(description), [Table(_COLUMNS, fields, _NUMBERS), Table((), notes)])


def _row(field: Any) -> tuple[str | Picture, ...]:
    unit = " chars" if "str" in field.dtypes else " bytes" if field.is_text else ""
    numbers = _number_text(field.min), _number_text(field.max), _numbers_text(field.mean), _numbers_text(field.std)
    shape = _shape_text(field)
    return field.path, " or ".join(field.dtypes), shape, *(f"{text}{unit}" for text in numbers), _histogram(field)


def _histogram(field: Any) -> Picture:
    if 1 < len(field.classes) <= _MOST_BARS:
        total = sum(field.classes.values())
        shares = [count / total for count in field.classes.values()]
        labels = [f"{value}: {_share_text(share)}" for value, share in zip(field.classes, shares, strict=True)]
    else:
        shares, ends = field.shares, zip(field.edges, field.edges[1:], field.shares, strict=False)
        labels = [f"{_number_text(low)} to {_number_text(high)}: {_share_text(share)}" for low, high, share in ends]
    return histogram(shares, labels, field.shares)


def _number_text(value: Any) -> str:
    """A number in few characters: four digits, thousands apart."""
    if value is None:
        return "-"
    if isinstance(value, bool | int):
        return f"{int(value):,}"
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(float(value))
    if value == round(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:.3g}"


def _numbers_text(values: Any) -> str:
    """A number; of few all, of many the smallest and the largest."""
    if not isinstance(values, np.ndarray):
        return _number_text(values)
    if len(values) <= _SHOWN_FEATURES:
        return ", ".join(_number_text(value) for value in values.tolist())
    if np.isnan(values).all():
        return "-"
    return f"{_number_text(float(np.nanmin(values)))} to {_number_text(float(np.nanmax(values)))}"


def _seconds_text(seconds: float) -> str:
    """A time in a unit that suits it."""
    if math.isnan(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _bytes_text(count: float) -> str:
    """A number of bytes in a unit that suits it."""
    if math.isnan(count):
        return "-"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _shape_text(field: Any) -> str:
    """The shape of a field: `[2048, 3]`, `[12-900, 3]`, or how many there are."""
    if field.shape is None:
        return " or ".join(str(list(shape)) for shape in list(field.shapes)[:3]) or "of different numbers of axes"
    sizes = [str(low) if low == high else f"{low:,}-{high:,}" for low, high in field.sizes]
    return f"[{', '.join(sizes)}]"


def _classes_text(field: Any) -> str:
    """The most frequent values, with their share."""
    total = sum(field.classes.values())
    if not total or len(field.classes) > 100:
        return ""
    frequent = sorted(field.classes.items(), key=lambda each: -each[1])
    shown = [f"{_class_name(value)}: {_share_text(count / total)}" for value, count in frequent[:_SHOWN_CLASSES]]
    more = len(frequent) - _SHOWN_CLASSES
    return ", ".join(shown) + (f", {more} more" if more > 0 else "")


def _class_name(value: Any) -> str:
    text = repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= 20 else text[:19] + "…"


def _share_text(share: float) -> str:
    """A share as percent."""
    if 0 < share < 1e-3:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.3g} %"


def _note_text(field: Any, description: Any) -> str:
    """The most frequent values of a field, and what deserves a look."""
    return "; ".join(filter(None, [_classes_text(field), *_remarks(field, description.scenes - description.failed)]))


def _remarks(field: Any, scenes: int) -> list[str]:
    """What deserves a look: NaN, infinities, zeros, a constant, other dtypes or shapes, scenes without the field."""
    found = []
    if field.scenes < scenes:
        found.append(f"in {field.scenes:,} of {scenes:,} scenes only")
    if field.nan:
        found.append(f"{field.nan:,} NaN in {_scenes_text(field.nan_scenes)}")
    if field.infinite:
        found.append(f"{field.infinite:,} infinite in {_scenes_text(field.infinite_scenes)}")
    if len(field.uniform_scenes) and not field.constant and field.min != field.max:
        found.append(f"one value in {_scenes_text(field.uniform_scenes)}")
    if field.min_scene is not None and field.min != field.max and not _is_class(field):
        found.append(f"min in scene {field.min_scene}, max in scene {field.max_scene}")
    if field.zeros and not _is_class(field):
        what = "empty" if field.is_text else "zeros"
        found.append(f"{_share_text(field.zeros / max(1, field.values))} {what}")
    if field.constant:
        found.append("the same in all scenes")
    elif field.min is not None and field.min == field.max and not field.is_text:
        found.append(f"all values are {_number_text(field.min)}")
    if len(field.dtypes) > 1:
        found.append("of different dtypes")
    if len(field.shapes) > 1:
        found.append(f"{len(field.shapes)} shapes")
    return found


def _scenes_text(scenes: Any) -> str:
    """How many scenes, and the first of them."""
    shown = ", ".join(map(str, scenes[:_SHOWN_INDICES].tolist()))
    return f"{counted(len(scenes), 'scene')}: {shown}{', …' if len(scenes) > _SHOWN_INDICES else ''}"


def _is_class(field: Any) -> bool:
    return 0 < len(field.classes) <= 100


def _facts(description: Any) -> list[tuple[str, str]]:
    """Name and value of what is known of scenes."""
    timing = description.timing
    some = f"{description.scenes:,} of " if description.scenes != description.length else ""
    return [
        ("", f"{some}{counted(description.length, 'scene')}"),
        ("each", f"{_bytes_text(description.nbytes)} (95 %: {_bytes_text(description.nbytes_95)})"),
        ("read in", f"{_seconds_text(timing.seconds)} (95 %: {_seconds_text(timing.seconds_95)})"),
    ]


def _findings(description: Any) -> list[tuple[str, str]]:
    """What is known of single scenes: those that failed, are there twice, or are slow."""
    found = []
    if description.failed:
        shown = [f"{index} ({text})" for index, text in description.failures[:_SHOWN_GROUPS]]
        more = description.failed - len(shown)
        found.append(("failed", f"{description.failed:,}: " + "; ".join(shown) + (f"; {more:,} more" * (more > 0))))
    if description.duplicates:
        count = sum(len(group) - 1 for group in description.duplicates)
        shown = [_group_text(group) for group in description.duplicates[:_SHOWN_GROUPS]]
        more = len(description.duplicates) - len(shown)
        text = f"{count:,}: " + "; ".join(shown) + (f"; {more:,} more groups" if more > 0 else "")
        found.append(("duplicates", text))
    slow = [f"{index} ({_seconds_text(seconds)})" for index, seconds in description.timing.slowest]
    if slow:
        found.append(("slowest", ", ".join(slow)))
    return found


def _group_text(group: tuple[int, ...]) -> str:
    shown = " = ".join(map(str, group[:_SHOWN_INDICES]))
    return shown if len(group) <= _SHOWN_INDICES else f"{shown} = … ({len(group):,})"
