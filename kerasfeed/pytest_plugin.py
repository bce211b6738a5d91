"""A plugin for pytest: `pytest -p kerasfeed.pytest_plugin --kerasfeed-sequence module:object` checks a sequence.

Invariant: it is loaded where it is asked for, by `-p` or `pytest_plugins`, and is no entry point: who does not use it
pays nothing. It adds tests where the option is given, and imports the checks then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kerasfeed.util.error_text import message_of

if TYPE_CHECKING:
    from kerasfeed.testing import SequenceUnderTest

_OPTION = "--kerasfeed-sequence"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("kerasfeed", "checks of sequences of scenes")
    group.addoption(
        _OPTION, action="append", default=[], metavar="MODULE:OBJECT", dest="kerasfeed_sequences",
        help="check this sequence, or what this function or class without arguments makes; may be given several times",
    )  # fmt: skip


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add a test for each check of each sequence."""
    for place in session.config.getoption("kerasfeed_sequences"):
        items.extend(_items(session, place))


def _items(session: pytest.Session, place: str) -> Iterator[pytest.Item]:
    from kerasfeed.cli.main import NoObjectError, named_object
    from kerasfeed.explore.check import CHECKS
    from kerasfeed.testing import SequenceUnderTest

    try:
        under_test = SequenceUnderTest(named_object(place))
    except (NoObjectError, TypeError) as error:
        raise pytest.UsageError(f"{_OPTION} {place}: {message_of(error)}") from error
    for name in CHECKS:
        yield CheckItem.from_parent(session, name=f"{place}-{name}", under_test=under_test, check=name)


class CheckItem(pytest.Item):
    """A check of a sequence, as a test."""

    def __init__(self, *, under_test: SequenceUnderTest, check: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._under_test = under_test
        self._check = check

    def runtest(self) -> None:
        """Run it."""
        self._under_test.assert_passes(self._check)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """What the check says; of other errors, where they were raised."""
        if isinstance(excinfo.value, AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """What pytest shows of it."""
        return self.path, None, self.name
