"""The README is short, and its links work."""

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
    compared = 0
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 6 and cells[1][:1].isdigit() and not cells[0].startswith("plain"):
            assert f">{cells[1]}<" in chart, f"draw the chart again: python docs/images/draw_peers.py ({cells[0]})"
            compared += 1
    assert compared >= 15


def test_the_first_program_is_that_of_the_site():
    of_readme, of_site = (
        re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[1]
        for page in (README, ROOT / "docs" / "index.md")
    )
    assert of_readme == of_site


def test_a_figure_of_the_readme_stands_in_a_table_of_the_site():
    pages = [*(ROOT / "docs" / "performance").glob("*.md"), ROOT / "docs" / "understand" / "faults.md"]
    told = "".join(page.read_text() for page in pages)
    figures = re.findall(r"\b\d{1,3},\d{3}\b", TEXT.split("## What you get")[1].split("![")[0])
    assert len(figures) >= 5
    assert [figure for figure in figures if f" {figure} " not in told] == []
