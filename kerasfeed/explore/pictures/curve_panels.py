"""Point clouds, signals and spectra, drawn into matplotlib axes.

Invariant: see `kerasfeed.explore.pictures.panels`. Point clouds have equal aspect, and near points hide far ones.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.palette import ACCENT, LINE, MUTED, class_colours
from kerasfeed.explore.pictures.panel import Panel, joined

_MOST_POINTS = (2_500, 30_000)  # in a grid and alone
_MOST_MOMENTS = (1_000, 6_000)
_AZIMUTH, _ELEVATION = np.radians(-52), np.radians(24)  # of the eye that looks at point clouds


def draw_points(axes: Any, panel: Panel) -> str:
    """Points as a distant eye sees them, coloured by their labels, else by height."""
    cloud, labels = np.asarray(panel.value), panel.labels
    total = len(cloud)
    kept = np.ones(total, bool) if panel.valid is None else panel.valid
    padded, finite = total - int(kept.sum()), np.isfinite(cloud[:, :3]).all(axis=1)
    lost = int((kept & ~finite).sum())
    kept = kept & finite
    places = np.flatnonzero(kept)
    most = panel.most(_MOST_POINTS)
    said = ""
    if len(places) > most:
        said = f"{most:,} of {len(places):,} points"
        places = places[np.linspace(0, len(places) - 1, most).astype(np.intp)]
    said = joined(said, f"{padded:,} padded" if padded else "", f"{lost:,} not finite" if lost else "")
    points = cloud[places, :3].astype(np.float64)
    axes.set_axis_off()
    axes.set_aspect("equal")
    if not len(points):
        return joined("no points", said)
    across, up, depth = _seen(points)
    order = np.argsort(-depth, kind="stable")
    values = points[:, -1]
    size = min(60.0, max(0.5, (9_000.0 if panel.large else 2_200.0) / len(points)))
    style: dict[str, Any] = {"s": size, "linewidths": 0}
    if labels is not None:
        style["c"] = class_colours(labels[places][order])
    else:
        style.update(c=values[order], cmap="viridis", vmax=float(values.max()) + 0.12 * float(np.ptp(values)) + 1e-12)
    axes.scatter(across[order], up[order], **style)
    half = 0.52 * max(float(np.ptp(across)), float(np.ptp(up)), 1e-12)
    for set_limits, places_along in ((axes.set_xlim, across), (axes.set_ylim, up)):
        middle = (float(places_along.max()) + float(places_along.min())) / 2
        set_limits(middle - half, middle + half)
    return said


def _seen(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Places across and up as a distant eye sees them, and the distance from it; the third coordinate is up."""
    if points.shape[1] < 3:
        return points[:, 0], points[:, 1], np.zeros(len(points))
    x, y, z = (points - points.mean(axis=0)).T
    sin, cos = np.sin(_AZIMUTH), np.cos(_AZIMUTH)
    nearer = x * cos + y * sin
    across = y * cos - x * sin
    up = z * np.cos(_ELEVATION) - nearer * np.sin(_ELEVATION)
    return across, up, -(nearer * np.cos(_ELEVATION) + z * np.sin(_ELEVATION))


def draw_signal(axes: Any, panel: Panel) -> str:
    """Values over their number, a line a channel; padding is grey, and labels of moments colour the ground."""
    series = np.asarray(panel.value)
    if series.ndim == 2 and series.shape[0] < series.shape[1]:
        series = series.T
    series = series.reshape(len(series), -1)
    length, channels = series.shape
    most = panel.most(_MOST_MOMENTS)
    places = np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.intp))
    shown = min(channels, 8)
    values = series[places][:, :shown].astype(np.float64)
    colours = class_colours(np.arange(shown))
    for channel in range(shown):
        axes.plot(places, values[:, channel], color=colours[channel] if shown > 1 else ACCENT, linewidth=0.9)
    _axes_of_curve(axes, length)
    if panel.valid is not None:
        _shade_padding(axes, panel.valid)
    labels = panel.labels
    if labels is not None:
        _shade_classes(axes, labels)
    more = f"{shown} of {channels} channels" if channels > shown else ""
    return joined(f"{len(places):,} of {length:,} values" if len(places) < length else "", more)


def draw_spectrum(axes: Any, panel: Panel) -> str:
    """Values over their number, the area below filled."""
    array = np.asarray(panel.value)
    spectrum = np.abs(array).astype(np.float64).reshape(-1)
    bins = min(len(spectrum), panel.most(_MOST_MOMENTS))
    # The highest of neighbours stands for them, so that no line is lost.
    begins = np.unique(np.linspace(0, len(spectrum), bins, endpoint=False).astype(np.intp))
    peaks = np.maximum.reduceat(spectrum, begins)
    axes.fill_between(begins, peaks, color=ACCENT, alpha=0.25, linewidth=0)
    axes.plot(begins, peaks, color=ACCENT, linewidth=0.9)
    _axes_of_curve(axes, len(spectrum))
    if panel.valid is not None:
        _shade_padding(axes, panel.valid)
    axes.set_ylim(bottom=min(0.0, float(np.nanmin(peaks)) if len(peaks) else 0.0))
    said = f"highest of each {len(spectrum) / bins:.3g} values" if bins < len(spectrum) else ""
    return joined("magnitude" if array.dtype.kind == "c" else "", said)


def _axes_of_curve(axes: Any, length: int) -> None:
    axes.set_xlim(0, max(1, length - 1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(labelsize=6, colors=MUTED, length=2, width=0.6, color=LINE)
    axes.locator_params(nbins=4)


def _shade_padding(axes: Any, valid: NDArray[np.bool_]) -> None:
    for begin, end in _runs(~valid):
        axes.axvspan(begin, end, color=LINE, alpha=0.7, linewidth=0)


def _shade_classes(axes: Any, labels: NDArray[np.int64]) -> None:
    for value in np.unique(labels)[:20]:
        for begin, end in _runs(labels == value)[:200]:
            axes.axvspan(begin, end, color=class_colours(value), alpha=0.18, linewidth=0)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
