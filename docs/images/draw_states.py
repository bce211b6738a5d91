"""Draws `worker_states.svg` and `task_states.svg`: the states of a worker and of a task, as in `kerasfeed/pool/`.

Run from the root of the repository: `python docs/images/draw_states.py`
"""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FOLDER = Path(__file__).parent
TEXT = "#30363d"
GOES_ON, GOOD, BAD = "#eef1f4", "#ddefe2", "#f7dfe3"  # nothing comes after a state that is good or bad
WIDTH, HEIGHT = 1.9, 0.66
Place = tuple[float, float]

WORKER = {  # state: position of its middle, colour
    "starting": ((1.2, 4.6), GOES_ON),
    "ready": ((5.6, 4.6), GOES_ON),
    "at a task": ((10.6, 4.6), GOES_ON),
    "ended": ((5.6, 6.4), GOOD),
    "suspect": ((10.6, 2.2), GOES_ON),
    "dead": ((5.6, 2.2), GOES_ON),
    "replaced": ((1.2, 2.2), GOES_ON),
    "pool failed": ((5.6, 0.4), BAD),
}
WORKER_STEPS = [  # from, to, text, place of its middle, curvature
    ("starting", "ready", "on_worker_begin,\nStatus.STARTED", (3.4, 4.95), 0.0),
    ("ready", "at a task", "reads a task, records its number", (8.1, 5.3), -0.2),
    ("at a task", "ready", "reports it, clears the record", (8.1, 4.6), -0.2),
    ("ready", "ended", "STOP: on_worker_end", (4.3, 5.55), 0.0),
    ("at a task", "suspect", "outlasts timeout:\nhung, asked for its stack", (12.1, 3.4), 0.0),
    ("at a task", "dead", "its link ends: the task\nthat it recorded is suspect", (9.35, 3.2), 0.0),
    ("suspect", "dead", "is killed", (8.1, 2.4), 0.0),
    ("ready", "dead", "its link ends,\nno task is recorded", (4.6, 3.4), 0.0),
    ("starting", "dead", "its link ends", (2.6, 3.25), 0.0),
    ("dead", "replaced", "respawns + 1", (3.4, 2.4), 0.0),
    ("replaced", "starting", "start_worker,\nsame number", (0.3, 3.4), 0.0),
    (
        "dead",
        "pool failed",
        "CrashPolicy: too often at the start,\nor too often with no task to blame",
        (7.5, 1.3),
        0.0,
    ),
]
TASK = {
    "sent": ((1.2, 4.6), GOES_ON),
    "begun": ((5.6, 4.6), GOES_ON),
    "done": ((10.6, 4.6), GOOD),
    "given up": ((1.2, 6.4), BAD),
    "cancelled": ((5.6, 6.4), GOOD),
    "failed": ((10.6, 6.4), BAD),
    "lost": ((5.6, 2.2), GOES_ON),
    "sent again": ((1.2, 2.2), GOES_ON),
    "crashed": ((10.6, 2.2), BAD),
}
TASK_STEPS = [
    ("sent", "begun", "a worker records it", (3.4, 4.8), 0.0),
    ("begun", "done", "Status.DONE", (8.1, 4.8), 0.0),
    ("begun", "failed", "FailedTaskError", (9.25, 5.45), 0.0),
    ("begun", "cancelled", "CancelledTaskError", (6.8, 5.75), 0.0),
    ("sent", "given up", "the pool is closed,\nor fails", (0.25, 5.5), 0.0),
    ("begun", "given up", "the same", (4.2, 5.5), 0.0),
    ("begun", "lost", "its worker died:\nit is suspect", (6.55, 3.4), 0.0),
    ("sent", "lost", "a worker died that\nmay have read it", (3.85, 3.85), 0.0),
    ("lost", "sent again", "a higher number", (3.4, 2.4), 0.0),
    ("sent again", "sent", "numbers below\nare refused", (0.25, 3.4), 0.0),
    ("lost", "crashed", "suspect as often as tries\n(twice by time) at one culprit", (8.1, 2.55), 0.0),
]


def draw_state(axes: Axes, name: str, place: Place, colour: str) -> FancyBboxPatch:
    """A box with the name of a state."""
    x, y = place
    box = FancyBboxPatch(
        (x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.2",
        facecolor=colour, edgecolor=TEXT, linewidth=1.0,
    )  # fmt: skip
    axes.add_patch(box)
    axes.text(x, y, name, ha="center", va="center", fontsize=10, color=TEXT, weight="bold")
    return box


def draw(
    name: str, states: dict[str, tuple[Place, str]], steps: list[tuple[str, str, str, Place, float]], title: str
) -> None:
    """Writes one picture."""
    figure = Figure(figsize=(9, 4.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_title(title, fontsize=12, color=TEXT, loc="left")
    axes.set_xlim(-1.3, 12.9)
    lowest = min(y for (_, y), _ in states.values())
    axes.set_ylim(lowest - 0.5, 6.9)
    axes.set_axis_off()
    boxes = {state: draw_state(axes, state, place, colour) for state, (place, colour) in states.items()}
    for start, end, text, middle, curvature in steps:
        axes.add_patch(
            FancyArrowPatch(
                states[start][0], states[end][0], patchA=boxes[start], patchB=boxes[end], shrinkA=2, shrinkB=2,
                arrowstyle="-|>", mutation_scale=12, color=TEXT, connectionstyle=f"arc3,rad={curvature}",
            )
        )  # fmt: skip
        axes.text(*middle, text, ha="center", va="center", fontsize=8, color=TEXT)
    figure.savefig(FOLDER / name, metadata={"Date": None})


def main() -> None:
    """Writes the pictures."""
    matplotlib.rcParams.update({"svg.hashsalt": "kerasfeed", "svg.fonttype": "none", "font.family": "sans-serif"})
    draw("worker_states.svg", WORKER, WORKER_STEPS, "A worker process")
    draw("task_states.svg", TASK, TASK_STEPS, "A task of worker processes")


if __name__ == "__main__":
    main()
