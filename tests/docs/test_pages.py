"""Every page of the docs holds a program that runs, and prints what the page says."""

import pytest
from pages import blocks_of, run_page, unseen_blocks
from places import ROOT

DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if blocks_of(page)]
LIGHT = {"start/first-feed.md"}


def weight(page):
    return () if str(page.relative_to(DOCS)) in LIGHT else pytest.mark.heavy


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=weight(page), id=str(page.relative_to(DOCS))) for page in PAGES]
)
def test_the_program_of_a_page_runs_and_prints_what_the_page_says(page, tmp_path):
    run_page(page, tmp_path)


def test_no_python_of_a_page_is_passed_over_unmarked():
    assert {page.name: unseen_blocks(page) for page in DOCS.rglob("*.md") if unseen_blocks(page)} == {}


def test_a_how_to_page_holds_a_program():
    without = {page.name for page in (DOCS / "how-to").glob("*.md") if not blocks_of(page)}
    # Of the others: tests/docs/test_tf_data_page.py, and a cluster is needed.
    assert without <= {"index.md", "from-tf-data.md", "cluster.md"}
