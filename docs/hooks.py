"""A hook of mkdocs: the version in the site's name, and the notebooks, with the outputs that they hold, as pages.

A picture in an output has the text in its cell's metadata, under `alt`, as its alternative text.
"""

import base64
import re
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "01_quickstart.ipynb": "start/quickstart.md",
    "02_hdf5.ipynb": "start/hdf5.md",
    "03_explore.ipynb": "start/explore.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the version of these sources to the name of the site, for its header and titles."""
    package = (ROOT / "kerasfeed" / "__init__.py").read_text()
    (version,) = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    if not config.site_name.endswith(version):  # `mkdocs serve` builds again at each change
        config.site_name = f"{config.site_name} {version}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page, and its pictures, for each notebook."""
    for name, page in PAGES.items():
        text, pictures = page_of(ROOT / "notebooks" / name)
        files.append(File.generated(config, page, content=text))
        for picture, content in pictures.items():
            files.append(File.generated(config, f"{Path(page).parent}/{picture}", content=content))
    return files


def page_of(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown with its outputs, and the pictures by name."""
    notebook = nbformat.read(path, as_version=4)
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for number, output in enumerate(cell.outputs):
            name = f"{path.stem}-{cell.id}-{number}.png"
            parts.append(_output(output, name, cell.metadata.get("alt", "Output of the cell above"), pictures))
    parts.append(f"This page is `notebooks/{path.name}`, run from top to bottom.")
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def _output(output: nbformat.NotebookNode, name: str, alt: str, pictures: dict[str, bytes]) -> str:
    if output.get("name") == "stderr":
        raise ValueError(f"a cell that makes {name} writes to stderr: {output.text}")
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        pictures[name] = base64.b64decode(data["image/png"])
        return f"![{alt}]({name})"
    if "text/html" in data:
        lines = (line.strip() for line in data["text/html"].splitlines())
        return f"<div>{''.join(line for line in lines if line)}</div>"
    return f"```text\n{data['text/plain']}\n```" if "text/plain" in data else ""
