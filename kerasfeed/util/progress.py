"""A progress bar on stderr.

Invariant: tqdm is imported only if a bar is drawn.
"""

import contextlib
import importlib
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def progress_bar(
    title: str, total: int, shown: bool, *, tty: bool = False, after: float = 0, unit: str = "it"
) -> Iterator[Callable[[int], Any]]:
    """A progress bar; yields a function that advances it by a count.

    Args:
        title: The text before the bar.
        total: The count at the end.
        shown: Whether to show a bar at all.
        tty: Whether to show it only on a terminal or in a notebook.
        after: Seconds before the bar appears, at its next advance.
        unit: The unit of counts.
    """
    in_notebook = _in_notebook()
    if not shown or (tty and not in_notebook and not sys.stderr.isatty()):
        yield lambda count: None
        return
    # Without ipywidgets, tqdm's notebook bar warns, so a notebook gets the terminal's bar.
    draws_widget = in_notebook and importlib.util.find_spec("ipywidgets") is not None
    tqdm = importlib.import_module("tqdm.notebook" if draws_widget else "tqdm.std").tqdm
    without_thread = type("tqdm", (tqdm,), {"monitor_interval": 0})
    # tqdm draws nothing if a terminal does not report its size.
    size = shutil.get_terminal_size()
    shape = {} if draws_widget else {"ncols": size.columns, "nrows": size.lines}
    with without_thread(desc=title, total=total, unit=f" {unit}", delay=after, miniters=1, **shape) as bar:
        yield bar.update


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())
