"""The README is short, and its links lead somewhere."""

import re

import pytest
from places import README, ROOT

TEXT = README.read_text()
LINKS = sorted(set(re.findall(r"\]\(([^)\s]+)\)", TEXT)))


def anchors_of(page):
    """The anchors of a page's headings, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def test_the_readme_is_at_most_8_kilobytes():
    assert len(TEXT.encode()) <= 8 * 1024


@pytest.mark.parametrize("link", LINKS)
def test_a_link_of_the_readme_leads_to_a_file_and_a_heading(link):
    path, _, anchor = link.partition("#")
    assert (ROOT / path).is_file()
    if anchor:
        assert anchor in anchors_of(ROOT / path)


def test_the_chart_shows_the_numbers_of_the_tables():
    table = (ROOT / "docs" / "performance" / "index.md").read_text()
    chart = (ROOT / "docs" / "images" / "peers.svg").read_text()
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 6 and cells[1][:1].isdigit() and not cells[0].startswith("plain"):
            assert f">{cells[1]}<" in chart, f"draw the chart anew: python docs/images/draw_peers.py ({cells[0]})"
