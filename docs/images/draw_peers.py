"""Draws `peers.svg`: bars of the tables in `docs/performance/index.md`, so that chart and tables agree.

Run from the root of the repository: `python docs/images/draw_peers.py`
"""

import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "performance" / "index.md"
OURS, THEIRS, TEXT = "#c8384f", "#a9b4c0", "#30363d"
PANELS = [  # title, table, column
    ("Tiny scenes (40 KB), in a loop", "in a loop", 1),
    ("Big scenes (786 KB), in a loop", "in a loop", 5),
    ("Scenes of 4 ms of Python, in a loop", "in a loop", 2),
    ("Tiny scenes, in model.fit", "in `model.fit`", 1),
]


def read_table(text: str, name: str) -> list[list[str]]:
    """The rows of a table, by the name in its first cell."""
    lines = text[text.index(f"| {name} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def main() -> None:
    """Writes the picture."""
    matplotlib.rcParams.update({"svg.hashsalt": "kerasfeed", "svg.fonttype": "none", "font.family": "sans-serif"})
    text = TABLES.read_text()
    figure = Figure(figsize=(6, 10.4), layout="constrained", facecolor="white")
    figure.suptitle("Scenes per second on 2 cores with 2 workers: longer is better", color=TEXT, fontsize=12)
    for axes, (title, table, column) in zip(figure.subplots(4, 1, height_ratios=[12, 12, 12, 7]), PANELS, strict=True):
        rows = [
            (re.sub(r"[*`]", "", row[0]), float(row[column].replace(",", "")))
            for row in read_table(text, table)
            if row[column]
        ]
        rows = sorted((row for row in rows if not row[0].startswith("plain loop")), key=lambda row: row[1])
        names, values = zip(*rows, strict=True)
        bars = axes.barh(names, values, color=[OURS if "kerasfeed" in name else THEIRS for name in names])
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=4, fontsize=8, color=TEXT)
        axes.set_title(title, fontsize=10, loc="left", color=TEXT)
        axes.set_xlim(0, 1.2 * max(values))
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0, labelsize=8, colors=TEXT)
        axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "images" / "peers.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
