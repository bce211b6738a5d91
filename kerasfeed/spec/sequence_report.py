"""What a sequence says of itself in a notebook: the fields of its first scene, with a small picture of each.

Invariant: never raises, whatever the sequence does.
"""

from typing import Any

import numpy as np

from kerasfeed.spec.array_pictures import preview
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import describe
from kerasfeed.spec.nesting import flatten
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.error_text import summary
from kerasfeed.util.report import Graphic, Report, Table

FIELD_COLUMNS = ("field", "shape", "dtype")


def sequence_report(sequence: Any) -> Report:
    """The fields of scene 0; where that cannot be read, the error."""
    name = type(sequence).__name__
    try:
        length, scene = len(sequence), sequence[0]
        spec = describe(scene)
        rows = [
            (*field_cells(path, field), Graphic("", preview(np.asarray(as_array(leaf, path)), path)))
            for path, field, leaf in zip(spec.paths, spec.fields, flatten(scene)[0], strict=True)
        ]
    except Exception as error:  # noqa: BLE001 - a notebook must show the sequence even when a scene cannot be read
        return Report(name, [("error", summary(error))])
    columns = [*FIELD_COLUMNS, "preview" if any(row[-1].html for row in rows) else ""]
    return Report(f"{name}, scene 0", [("scenes", f"{length:,}")], [Table(columns, rows)])


def field_cells(path: str, field: ArraySpec) -> tuple[str, str, str]:
    """What stands in the columns `FIELD_COLUMNS` of a field."""
    dtype, _, shape = str(field).partition("[")
    return path, f"[{shape}", dtype
