"""Every page of the docs holds a program that runs, and prints what the page says."""

import contextlib

import pytest
from forked_scripts import ForkedScripts
from pages import blocks_of, environment_of_pages, run_page, unseen_blocks
from places import ROOT

DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if blocks_of(page)]
OWN = {DOCS / "how-to/object-store.md"}  # aiohttp ends a fork of TensorFlow with a segmentation fault


@pytest.fixture(scope="module")
def forked():
    """Runs scripts with Keras and TensorFlow imported already."""
    with contextlib.closing(ForkedScripts(environment_of_pages())) as scripts:
        yield scripts


@pytest.mark.heavy
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_program_of_a_page_runs_and_prints_what_the_page_says(request, page, tmp_path):
    code = "".join(block.code for block in blocks_of(page))
    needs_its_own = page in OWN or "KERAS_BACKEND" in code  # which must be set before Keras is imported
    run_page(page, tmp_path, None if needs_its_own else request.getfixturevalue("forked"))


def test_no_python_of_a_page_is_passed_over_unmarked():
    assert {page.name: unseen_blocks(page) for page in DOCS.rglob("*.md") if unseen_blocks(page)} == {}


def test_a_how_to_page_holds_a_program():
    without = {page.name for page in (DOCS / "how-to").glob("*.md") if not blocks_of(page)}
    # Of the others: tests/docs/test_tf_data_page.py, and a cluster is needed.
    assert without <= {"index.md", "from-tf-data.md", "cluster.md"}
