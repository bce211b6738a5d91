"""`Refreshes`: whether the sequence of a feed was refreshed since its batches were planned.

Invariant: a feed plans again between two epochs only; within one it refuses to continue.
"""

from typing import Any, NoReturn

from kerasfeed.sequences.view_base import Refreshable, parts_of


class Refreshes:
    """How often a sequence, or what a view holds, had been refreshed when batches of it were planned.

    Attributes:
        planned: The generation of each of them when the present batches were planned; nearly always of none.
    """

    planned: tuple[int, ...]

    def __init__(self, sequence: Any) -> None:
        self._sequence = sequence
        self._refreshable = [part for part in parts_of(sequence) if isinstance(part, Refreshable)]
        self.planned = self.present()

    def present(self) -> tuple[int, ...]:
        """The generation of each of them now."""
        return tuple([part.generation for part in self._refreshable])  # nearly always none

    def check_length(self) -> None:
        """See that the length of the sequence, which was refreshed, is that of its scenes now.

        Raises:
            RuntimeError: It is a view, which keeps the length that it was made with.
        """
        if self._sequence not in self._refreshable:
            raise RuntimeError(
                f"a sequence inside the {type(self._sequence).__name__} was refreshed, and a view keeps the length "
                "that it was made with: make the view anew, and the feed"
            )

    def refuse_others(self, generations: tuple[int, ...]) -> None:
        """Refuse to go on with batches that were planned at these generations, if there are others now.

        Raises:
            RuntimeError: There are.
        """
        if self._refreshable and generations != self.present():  # asked twice a batch
            self.refuse()

    def refuse(self) -> NoReturn:
        """Refuse to go on with an epoch.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            f"the {type(self._sequence).__name__} was refreshed in the midst of an epoch, so its batches are others "
            "now: call refresh() between two epochs, when a loop or fit has ended, and make datasets of the feed again"
        )
