"""NumPy's `str_` and `bytes_` with NUL characters at their end, which NumPy cuts off where it pickles them.

Invariant: text arrives as it was returned, by every worker; see `kerasfeed.util.picklers`.
"""

from typing import Any


def exact_text(value: Any) -> Any:
    """A `str` or `bytes` of a subclass, such as `np.bytes_`, as plain `str` or `bytes`, with all its characters."""
    kind = type(value)
    if kind is str or kind is bytes:
        return value
    return str.__str__(value) if isinstance(value, str) else bytes.__bytes__(value)
