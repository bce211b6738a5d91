"""`BaseStreamFeed`: generators and a loader, where a sequence cannot be had.

Invariant: scene k of a repetition is a function of the generators alone, whatever the workers, unless first come is
asked for.
"""

import os
from collections.abc import Callable
from typing import Any, Literal

from kerasfeed.feeds.generators.generators import Generators, LocalGenerators
from kerasfeed.feeds.generators.parallel import ParallelGenerators
from kerasfeed.feeds.stream_base import BaseStream
from kerasfeed.feeds.streams.options import StreamOptions
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.arguments import refuse_unknown


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
        refuse_unknown(unknown, BaseStreamFeed.__init__, type(self).__name__)
        self.deterministic = bool(deterministic)
        options = StreamOptions.checked(
            batch_size, spec=spec, seed=seed, drop_remainder=drop_remainder, pad_remainder=pad_remainder,
            workers=workers, worker_type=worker_type, max_queue_size=max_queue_size, max_memory=max_memory,
            collate=collate, on_error=on_error, max_failures=max_failures, timeout=timeout, error_log=error_log,
        )  # fmt: skip
        super().__init__(options)
        self.generators = Generators(make_generator, count, self.seed)
        self._arguments = {
            "count": count, "spec": spec, "seed": self.seed, "deterministic": deterministic,
            "drop_remainder": drop_remainder, "pad_remainder": pad_remainder, "workers": workers,
            "worker_type": worker_type, "max_queue_size": max_queue_size, "max_memory": max_memory, "collate": collate,
            "on_error": on_error, "max_failures": max_failures, "timeout": timeout, "error_log": error_log,
        }  # fmt: skip

    def _make_source(self) -> Source:
        policy = self._options.policy
        if self._functions or self._options.workers == 0:
            return LocalGenerators(self.generators, policy)
        wanted = self.generators.count if self._options.workers == "auto" else int(self._options.workers)
        return ParallelGenerators(
            self.generators, workers=min(wanted, self.generators.count), worker_type=self._options.worker_type,
            deterministic=self.deterministic, max_memory=self._options.max_memory, policy=policy,
            environment=self._options.environment,
        )  # fmt: skip

    def close(self) -> None:
        """Stop the workers and free what they hold; idempotent. Batches already delivered stay valid."""
        self._stop()

    def __reduce__(self) -> Any:
        return _restore, (
            type(self),
            self.generators.make_generator,
            self.plan.batch_size,
            self._arguments,
            self._functions,
        )

    def _facts(self) -> list[tuple[str, str]]:
        return [("generators", f"{self.generators.count} of {self.generators.name}"), *super()._facts()]


def _restore(
    kind: Any, make_generator: Any, batch_size: int | None, arguments: dict[str, Any], functions: tuple[Any, ...]
) -> Any:
    feed = kind(make_generator, batch_size, **arguments)
    for function in functions:
        feed = feed.map(function)
    return feed
