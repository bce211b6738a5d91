"""Check a built site: no page loads other hosts' files, pictures have texts, and public names are in the reference.

`mkdocs build --strict` checks links and anchors within the site.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import kerasfeed

_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
_CSS = re.compile(r"""url\(\s*["']?\s*(?:https?:)?//|@import""")


class Page(HTMLParser):
    """The faults and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        loaded = values.get(_LOADED.get(tag, "")) or ""
        if loaded.startswith(("http:", "https:", "//")) and values.get("rel") != "canonical":
            self.faults.append(f"<{tag}> loads {loaded}")
        if tag == "img" and not values.get("alt"):
            self.faults.append(f"a picture without alternative text: {values.get('src')}")


def main(site: Path) -> int:
    """Print the faults of a site; return the exit code."""
    faults: list[str] = []
    anchors: set[str] = set()
    for path in sorted(site.rglob("*.html")):
        page = Page(path)
        anchors |= page.anchors
        faults += [f"{path.relative_to(site)}: {fault}" for fault in page.faults]
    for path in sorted(site.rglob("*.css")):
        text = path.read_text()
        if _CSS.search(text):
            faults.append(f"{path.relative_to(site)} loads something from elsewhere")
    public = [name for name in kerasfeed.__all__ if not name.startswith("__") and name != "errors"]
    faults += [f"{name} has no place in the reference" for name in public if f"kerasfeed.{name}" not in anchors]
    print("\n".join(faults) or "the site is complete, and loads nothing from elsewhere")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
