"""The events that the process of a case sends to its parent, and the line that it waits for.

Invariant: a case prepares, prints `ready` and waits for a line on standard input. So the parent may prepare several
cases at once and measure them one by one. Each event is one line of JSON after `MARK`; a framework may print other
lines.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

MARK = "benchmarks: "


def tell(event: str, **values: Any) -> None:
    """Send one event to the parent."""
    print(MARK + json.dumps({"event": event, **values}), flush=True)


def wait_for_parent() -> None:
    """Send `ready`, and wait for the line of the parent."""
    tell("ready")
    if not sys.stdin.readline():
        raise SystemExit("the parent process is gone")


def serve(run: Callable[[], dict[str, float]]) -> None:
    """Run a case, send its figures or its error, and end the process."""
    try:
        figures = run()
    except Exception as error:
        tell("error", error=f"{type(error).__name__}: {error}")
        raise
    tell("figures", figures=figures)
    os._exit(0)  # the peer is closed; an orderly end of TensorFlow takes seconds
