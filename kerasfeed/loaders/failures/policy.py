"""What a feed is told to do about scenes that fail.

Invariant: a value; `kerasfeed.loaders.failures.recovery` carries it out.
"""

from dataclasses import dataclass

ON_ERROR = ("raise", "replace", "mask", "skip")
_TRIES = 3
_RATE = 0.1


@dataclass(frozen=True)
class FailurePolicy:
    """What to do about scenes that fail.

    Attributes:
        on_error: One of `ON_ERROR`.
        max_failures: How often a scene may end its worker before it has failed, and how many scenes may fail where
            `on_error` is not "raise"; a float is a share of the scenes. None is 3 times and a tenth.
        timeout: Seconds that one scene may take; None for any time.
        error_log: Path of a file to which failures are appended as JSON lines; None for none.
    """

    on_error: str = "raise"
    max_failures: int | float | None = None
    timeout: float | None = None
    error_log: str | None = None

    @property
    def tries(self) -> int:
        """How often a scene may end its worker before it has failed."""
        return self.max_failures if isinstance(self.max_failures, int) else _TRIES

    def most_failed(self, length: int) -> int:
        """How many of `length` scenes may fail."""
        if self.max_failures is None:
            return max(_TRIES, _share(_RATE, length))
        return self.max_failures if isinstance(self.max_failures, int) else _share(self.max_failures, length)

    def most_failed_so_far(self, length: int) -> int:
        """How many of the first `length` scenes of a stream may fail, of which nobody knows how many will come."""
        most = self.most_failed(length)
        return most if isinstance(self.max_failures, int) else max(_TRIES, most)


def _share(rate: float, length: int) -> int:
    return int(rate * length + 1e-6)  # 0.29 of 100 are 29, though floating point makes it 28.999
