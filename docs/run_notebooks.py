"""Runs the notebooks from top to bottom and keeps their outputs in them, as the site shows them.

Run from the root of the repository: `python docs/run_notebooks.py [NAME.ipynb ...]`
"""

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

ROOT = Path(__file__).parents[1]
# What TensorFlow's compiled parts log as they are loaded, before any setting is read.
_LOGGED = ("WARNING: All log messages before absl", "I0000 ", "W0000 ", "E0000 ")


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all."""
    os.environ["PYTHONPATH"] = str(ROOT)  # this kerasfeed, and not one that is installed
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if names and path.name not in names:
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(
                notebook,
                timeout=600,
                kernel_name="python3",
                record_timing=False,
                coalesce_streams=True,
                resources={"metadata": {"path": folder}},
            ).execute()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if not only_logs(output)]
                for output in cell.outputs:
                    pictures = output.get("data", {})
                    if "image/png" in pictures:
                        pictures["image/png"] = shrunk(pictures["image/png"])
                    for kind in ("text/html", "text/plain"):
                        if kind in pictures:
                            pictures[kind] = re.sub(r"/tmp/tmp\w+/", "", pictures[kind])  # the same in every run
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)


def only_logs(output: nbformat.NotebookNode) -> bool:
    """Whether an output is nothing but log lines of TensorFlow."""
    told = output.text.splitlines() if output.get("name") == "stderr" else ["kept"]
    return all(line.startswith(_LOGGED) or not line.strip() for line in told)


def shrunk(png: str) -> str:
    """A picture in 64 colours, a third as large; base64, as in notebooks."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    kept = io.BytesIO()
    image.quantize(64).save(kept, "png", optimize=True)
    return base64.b64encode(kept.getvalue()).decode()


if __name__ == "__main__":
    main(sys.argv[1:])
