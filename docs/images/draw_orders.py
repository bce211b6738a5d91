"""Draws `orders.png`: every order, index against position.

Run from the root of the repository: `PYTHONPATH=. python docs/images/draw_orders.py`
"""

import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import kerasfeed as kf

FOLDER = Path(__file__).parent
SCENES = 600
LENGTHS = np.linspace(10, 500, SCENES).astype(int)  # scenes that grow longer, so that buckets are bands
LABELS = np.repeat(["a", "b", "c"], [400, 150, 50])


def growing(length: int, seed: int, epoch: int) -> np.ndarray:
    """Draws from the scenes up to a place that moves on."""
    return np.random.default_rng([seed, epoch]).integers(np.arange(1, length + 1))


PICTURES = [
    ("Sequential()", kf.Sequential(), None),
    ("Shuffled()", kf.Shuffled(), None),
    ("BlockShuffled(25, window=4)", kf.BlockShuffled(25, window=4), None),
    ("BlockShuffled(block_of=...)", kf.BlockShuffled(block_of=np.sqrt(np.arange(SCENES)).astype(int)), None),
    ("Weighted(weights), growing", kf.Weighted(np.arange(SCENES)), None),
    ("Balanced(labels), 400 : 150 : 50", kf.Balanced(LABELS), None),
    ("Bucketed(lengths, [200, 400]), batches of 32", kf.Bucketed(LENGTHS, [200, 400]), 32),
    ("a function: more as time goes on", growing, None),
]


def main() -> None:
    """Writes the picture."""
    figure = Figure(figsize=(12, 5.4), dpi=80, layout="constrained")
    panels = figure.subplots(2, 4, sharex=True, sharey=True).flat
    for (title, order, batch_size), axes in zip(PICTURES, panels, strict=True):
        kf.show(order, SCENES, batch_size, axes=axes)
        axes.set_title(f"{title}\n{axes.get_title().rsplit('; ')[-1]}", fontsize="small")
        axes.label_outer()
    drawn = io.BytesIO()
    figure.savefig(drawn)
    picture = Image.open(drawn).convert("RGB").quantize(48)
    picture.save(FOLDER / "orders.png", optimize=True)


if __name__ == "__main__":
    main()
