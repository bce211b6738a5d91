"""A progress bar on stderr.

Invariant: rich is imported only if a bar is drawn.
"""

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(
    title: str, total: int, shown: bool, *, tty: bool = False, after: float | None = None, unit: str = ""
) -> Iterator[Callable[[int], None]]:
    """A progress bar; yields a function that advances it by a count.

    Args:
        title: The text before the bar.
        total: The count at the end.
        shown: Whether to show a bar at all.
        tty: Whether to show it only on a terminal and in a notebook.
        after: Seconds before the bar appears, at its next advance; None shows it at once.
        unit: The unit of counts; the bar then shows a rate. "bytes" shows MB.
    """
    if not shown:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if console.is_jupyter and importlib.util.find_spec("ipywidgets") is None:  # otherwise rich warns at each step
        console = Console(stderr=True, force_jupyter=False)
    counted = [DownloadColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    rate = [TextColumn(f"{{task.fields[rate]}} {unit}/s")] if unit and unit != "bytes" else []
    bar = Progress(TextColumn(title), BarColumn(), *counted, *rate, TimeRemainingColumn(), console=console)
    task = bar.add_task("", total=total, rate="-")
    hidden = tty and not (console.is_terminal or console.is_jupyter)
    begin = time.monotonic()

    def advance(count: int) -> None:
        seconds = time.monotonic() - begin
        moved = bar.tasks[0].completed + count
        bar.update(task, advance=count, rate=f"{moved / max(1e-3, seconds):,.0f}")
        if seconds > (after or 0) and not hidden:
            bar.start()

    try:
        if after is None and not hidden:
            bar.start()
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
