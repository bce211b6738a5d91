"""Run the Python of a page of the docs like a reader: all blocks, as one script, in an empty folder.

A block of `text` right after a block of `python` is the expected output; `...` in it matches anything.
A block after `<!-- not run: why -->` is left out. So is one after `<!-- tested: name -->`, which has its own test.
"""

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from forked_scripts import ForkedScripts
from places import ROOT
from waits import PROGRAM_SECONDS

_BLOCK = re.compile(
    r"(?P<left_out><!-- (?:not run|tested): [^\n]+ -->\n\s*)?"
    r"^```python[^\n]*\n(?P<code>.*?)^```\n"
    r"(?:\n?^```text\n(?P<printed>.*?)^```)?",
    re.DOTALL | re.MULTILINE,
)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*\{?\.?py", re.MULTILINE)
_UNWANTED = ("FeedWarning", "ReadCostWarning", "Exception ignored in", "Exception in thread")
_END = "-- end of block {} --"
_COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """Python of a page, and its expected output (None: not given)."""

    code: str
    printed: str | None


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page to run, from the top."""
    found = _BLOCK.finditer(page.read_text())
    return [Block(one["code"], one["printed"]) for one in found if not one["left_out"]]


def unseen_blocks(page: Path) -> int:
    """Number of blocks of Python, also indented or fenced differently, that are neither run nor marked."""
    text = page.read_text()
    return len(_FENCE.findall(text)) - len(_BLOCK.findall(text))


def environment_of_pages() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "agg"}


def run_page(page: Path, folder: Path, forked: ForkedScripts | None = None) -> None:
    """Run a page's blocks as one script in `folder`; fail if the script fails or its output differs.

    Args:
        page: The page.
        folder: An empty folder.
        forked: Runs the script; None for a new Python.
    """
    blocks = blocks_of(page)
    parts = [f"{block.code}\nprint({_END.format(k)!r}, flush=True)\n" for k, block in enumerate(blocks)]
    script = folder / f"{page.stem.replace('-', '_')}.py"
    script.write_text("".join(parts))
    if forked is not None:
        done = forked.run(script, folder, seconds=PROGRAM_SECONDS)
    else:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", script.name],
            cwd=folder,
            env=environment_of_pages(),
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
        )
    assert done.returncode == 0, f"{page.name} ended with {done.returncode}: {done.stderr[-4000:]}"
    unwanted = [text for text in _UNWANTED if text in done.stderr]
    assert unwanted == [], f"{page.name} warns: {done.stderr[-4000:]}"
    rest = done.stdout
    for k, block in enumerate(blocks):
        printed, rest = rest.split(_END.format(k) + "\n", 1)
        if block.printed is not None:
            same = doctest.OutputChecker().check_output(block.printed, printed, _COMPARISON)
            assert same, f"{page.name}: the page says\n{block.printed}\nand its code prints\n{printed}"
