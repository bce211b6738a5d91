"""The checks of `kerasfeed.check_sequence` as tests of pytest: `parametrize_with_checks`.

Invariant: pytest is imported where a test module calls this, and nothing of a sequence is read before its first test.

Examples:
    >>> mark = kf.testing.parametrize_with_checks([[1.0, 2.0]], skip=["process", "hash_seed", "directory"])
    >>> mark.args[1][0].id
    'list-length'
    >>> mark.args[1][0].values[0]()  # runs the check
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.explore.check import CHECKS, Checks, check_names, refuse
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import class_name


class SequenceUnderTest:
    """A sequence, or a function that makes it, and the results of its checks; each check is run once.

    Args:
        given: The sequence; or a function or class that makes it, called with no arguments before the first check.
        scenes: See `kerasfeed.check_sequence`.
        seconds: How long one check may take, s.
        seed: See `kerasfeed.check_sequence`.
    """

    def __init__(self, given: Any, *, scenes: int = 64, seconds: float = 60.0, seed: int = 0) -> None:
        self._given = given
        self._make_checks = partial(Checks, scenes=scenes, seconds=seconds, seed=seed)
        self._is_made = not (isinstance(given, type) or (callable(given) and not hasattr(type(given), "__getitem__")))
        if self._is_made:
            refuse(given)

    @property
    def name(self) -> str:
        """As ids name it: its class, or the function."""
        return class_name(self._given) if self._is_made else str(getattr(self._given, "__name__", "sequence"))

    @cached_property
    def checks(self) -> Checks:
        """The checks of the sequence, which is made at the first use."""
        sequence = self._given if self._is_made else self._given()
        refuse(sequence)
        return self._make_checks(sequence)

    def assert_passes(self, name: str) -> None:
        """Run the check `name` as a test: it fails, is skipped, or warns, as the check says.

        Raises:
            AssertionError: The check has failed; the message names index, field and remedy.
        """
        __tracebackhide__ = True
        import pytest

        self.checks.case.begin()
        result = self.checks.result(name)
        if result.status == "failed":
            raise AssertionError(f"{name}: {result.text}")
        if result.status == "skipped":
            pytest.skip(f"{name}: {result.message}")
        if result.status == "warned":
            warn_caller(f"{name}: {result.text}", FeedWarning)


def parametrize_with_checks(
    sequences: Iterable[Any],
    *,
    xfail: Mapping[str, str] | Callable[[Any], Mapping[str, str]] | None = None,
    skip: Iterable[str] = (),
    scenes: int = 64,
    seconds: float = 60.0,
    seed: int = 0,
) -> Any:
    """Decorate a test with one parameter, `check`, and it becomes a test of each check of each sequence.

    The checks are those of `kerasfeed.check_sequence`. Ids are `Rooms-same_twice`, so `pytest -k same_twice` runs one
    check. A check that warns issues a `kerasfeed.FeedWarning`, and one that does not concern a sequence is skipped.

    Args:
        sequences: The sequences. In place of one, a function or class without arguments that makes it, which is called
            before the first test: then nothing is opened while tests are collected.
        xfail: Checks that are expected to fail, by name, each with the reason; or a function that returns these for one
            of `sequences`.
        skip: Names of checks to leave out.
        scenes: How many scenes are compared.
        seconds: How long one check may take, s.
        seed: Seed of the feed that would read them.

    Returns:
        A decorator, `pytest.mark.parametrize("check", ...)`.

    Raises:
        TypeError: Something given is no sequence.
        ValueError: There is no check of such a name.

    Examples:
        A test module:

        >>> class Squares(kf.SceneSequence):
        ...     def __len__(self):
        ...         return 5
        ...     def __getitem__(self, index):
        ...         return np.float32(index**2)
        >>> @kf.testing.parametrize_with_checks([Squares()], xfail={"indices": "index 5 is never asked for"})
        ... def test_squares(check):
        ...     check()
    """
    import pytest

    left_out = set(check_names(skip, "skip"))
    parameters, names = [], []
    for given in sequences:
        expected = dict((xfail(given) if callable(xfail) else xfail) or {})
        check_names(expected, "xfail")
        under_test = SequenceUnderTest(given, scenes=scenes, seconds=seconds, seed=seed)
        names.append(under_test.name)
        count = names.count(under_test.name)
        numbered = under_test.name if count == 1 else f"{under_test.name}{count}"
        for name in CHECKS:
            if name not in left_out:
                marks = []
                if name in expected:  # an error that no check raises fails the test nevertheless
                    marks = [pytest.mark.xfail(reason=expected[name], raises=(AssertionError, FeedWarning))]
                parameters.append(
                    pytest.param(partial(under_test.assert_passes, name), id=f"{numbered}-{name}", marks=marks)
                )
    return pytest.mark.parametrize("check", parameters)
