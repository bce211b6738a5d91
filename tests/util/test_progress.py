"""Progress bars, and where none can be drawn."""

import importlib.util
import warnings

from rich import console

from kerasfeed.util.progress import progress_bar


def test_nothing_warns_in_a_notebook_without_ipywidgets(monkeypatch):
    monkeypatch.setattr(console, "_is_jupyter", lambda: True)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ipywidgets" else find(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with progress_bar("reading", 3, True) as advance:
            advance(3)
