"""`ShardFormat`: what shards of one kind of file are."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class ShardFormat(ABC):
    """What a shard is. Pickles; every worker has one of its own."""

    @abstractmethod
    def encode(self, scene: Any) -> Any:
        """A scene as `write` wants it.

        Raises:
            SpecError: The scene is not what the spec says; the message names the field.
        """

    @abstractmethod
    def write(self, descriptor: int, encoded: Iterator[Any], scenes: int) -> Any:
        """Write a shard of so many scenes to a file that is open; what it returns is for `finish`."""

    def finish(self, path: Path, written: Any) -> None:  # noqa: B027 - most have nothing to do
        """The shard has its name now."""

    @abstractmethod
    def count(self, path: Path) -> int | None:
        """Scenes of the shard at `path`; None where it is none."""
