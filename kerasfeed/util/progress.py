"""How far something is, drawn on stderr.

Invariant: rich is imported only where a bar is drawn.
"""

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(
    title: str, total: int, shown: bool, *, tty: bool = False, after: float | None = None, unit: str = ""
) -> Iterator[Callable[[int], None]]:
    """A progress bar; gives what moves it on by so many.

    Args:
        title: What is done.
        total: How much there is to do.
        shown: Whether there is a bar at all.
        tty: Whether there is one on a terminal and in a notebook alone.
        after: Time for which nothing is drawn, s, nor before the bar moves: what takes less shows nothing.
        unit: What is counted, where the bar is to tell how many a second; "bytes" are told as MB.
    """
    if not shown:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if console.is_jupyter and importlib.util.find_spec("ipywidgets") is None:  # without it rich warns at each step
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
