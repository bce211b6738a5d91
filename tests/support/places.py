"""Paths, for tests in any folder."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
SUPPORT = Path(__file__).parent
ROOT = TESTS.parent
README = ROOT / "README.md"
