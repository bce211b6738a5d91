"""`pluralize`: a number with its noun, which is singular for one."""

import pytest

from kerasfeed.util.error_text import pluralize


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [(0, ["scene"], "0 scenes"), (1, ["scene"], "1 scene"), (1, ["axis", "axes"], "1 axis"),
     (2, ["axis", "axes"], "2 axes"), (12345, ["scene"], "12,345 scenes")],
)  # fmt: skip
def test_pluralize_uses_the_singular_for_one(count, words, text):
    assert pluralize(count, *words) == text
