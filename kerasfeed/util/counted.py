"""Counts in messages.

Invariant: one of something is in the singular.
"""


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 scene`, `2 scenes`; `plural` is given where it is more than the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
