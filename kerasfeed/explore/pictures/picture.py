"""A picture that a notebook shows by itself; the one module that imports matplotlib.

Invariant: no pyplot, so no state shared with the user's own figures, no window, and any backend or none.
"""

import io

from matplotlib.figure import Figure


class Picture(Figure):  # type: ignore[misc, unused-ignore]
    """A matplotlib `Figure` that is drawn where a notebook shows it, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=self.dpi)
        return drawn.getvalue()


def new_picture(width: float, height: float, *, constrained: bool = True) -> Picture:
    """An empty picture; width and height in inches. `constrained`: matplotlib finds places for its axes."""
    return Picture(figsize=(width, height), dpi=100, layout="constrained" if constrained else None)
