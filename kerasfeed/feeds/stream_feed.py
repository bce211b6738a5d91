"""`BaseStreamFeed`: generators and a loader, where a sequence cannot be had.

Invariant: scene k of a repetition is a function of the generators alone, whatever the workers, unless first come is
asked for.
"""

import os
from collections.abc import Callable
from typing import Any, Literal

from kerasfeed.feeds.generators.generators import Generators, LocalGenerators
from kerasfeed.feeds.generators.parallel import ParallelGenerators
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.stream_base import BaseStream
from kerasfeed.feeds.streams.source import Source


class BaseStreamFeed(BaseStream):
    """Batches of what generators yield, for loops; see `kerasfeed.StreamFeed`."""

    def __init__(
        self,
        make_generator: Callable[..., Any],
        batch_size: int | None = None,
        *,
        count: int = 1,
        spec: Any = None,
        seed: int | None = None,
        deterministic: bool = True,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        workers: int | Literal["auto"] = "auto",
        worker_type: Literal["auto", "process", "thread"] = "auto",
        max_queue_size: int = 10,
        max_memory: int | None = None,
        collate: Any = "stack",
        on_error: Literal["raise", "mask", "skip"] = "raise",
        max_failures: int | float | None = None,
        timeout: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__(FeedOptions.checked(BaseStreamFeed.__init__, locals(), type(self).__name__))
        self.deterministic = bool(deterministic)
        self.generators = Generators(make_generator, count, self.seed)

    def _make_source(self) -> Source:
        options, count = self._options, self.generators.count
        if self._functions or not options.workers:
            return LocalGenerators(self.generators, options.policy)
        return ParallelGenerators(
            self.generators, workers=count if options.given["workers"] == "auto" else min(options.workers, count),
            worker_type=options.worker_type, deterministic=self.deterministic, max_memory=options.max_memory,
            policy=options.policy, environment=options.environment,
        )  # fmt: skip

    def close(self) -> None:
        """Stop the workers and free their memory. Batches already delivered stay valid. May be called again."""
        self._stop()

    def __reduce__(self) -> Any:
        arguments = {**self._options.given, "seed": self.seed}
        return _restore, (
            type(self), self.generators.make_generator, self.plan.batch_size, arguments, self._functions,
        )  # fmt: skip

    def _facts(self) -> list[tuple[str, str]]:
        return [("generators", f"{self.generators.count} of {self.generators.name}"), *super()._facts()]


def _restore(
    kind: Any, make_generator: Any, batch_size: int | None, arguments: dict[str, Any], functions: tuple[Any, ...]
) -> Any:
    feed = kind(make_generator, batch_size, **arguments)
    for function in functions:
        feed = feed.map(function)
    return feed


BaseStreamFeed.__init__.__qualname__ = "StreamFeed.__init__"  # what Python's own messages call it
