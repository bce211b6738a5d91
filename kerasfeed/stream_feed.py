"""`StreamFeed`: generators and a loader, where a sequence cannot be had.

Invariant: scene k of a repetition is a function of the generators alone, whatever the workers, unless first come is
asked for.
"""

import os
from collections.abc import Callable
from typing import Any, Literal

from kerasfeed.arguments import refuse_unknown
from kerasfeed.batch_stream import BatchStream
from kerasfeed.streams.fleet import Fleet
from kerasfeed.streams.generators import Generators, LocalGenerators
from kerasfeed.streams.options import StreamOptions
from kerasfeed.streams.source import Source


class StreamFeed(BatchStream):
    """Batches of what generators yield, for `model.fit` on any Keras backend, `tf.data` and plain loops.

    For sources that cannot be indexed; what can be is better fed by a `kerasfeed.Feed`, which shuffles and resumes. A
    loop is one repetition of the generators, which begin afresh with each; infinite generators need a loop that ends
    by itself, or `fit(feed, steps_per_epoch=...)`, whose epochs follow each other without a break.

    Args:
        make_generator: Function `(n, count)` that returns the n-th of `count` generators, or any iterable; with
            `count=1` a function of no arguments will do, such as the method `generate_data` of a class. It is called
            anew for every repetition, in the worker that runs the generator. Where it has a parameter `start`, that is
            the number of the scene to begin with, not 0 where a worker that died is replaced (else its generator is
            run again up to there).
        batch_size: Scenes in a batch. None where each item is a batch already, as Keras's own generators yield them.
        count: Number of generators, at least 1.
        spec: Spec of a scene, nested as the scenes are: `kerasfeed.ArraySpec(shape, dtype)` for each field, None for
            an axis that varies. None infers it from the first scenes.
        seed: Integer >= 0 behind `kerasfeed.current_rng()` in the generators and in the functions given to `map`; in
            worker processes also behind `random` and `numpy.random`, which differ from generator to generator and from
            repetition to repetition. None draws one, kept in `feed.seed`.
        deterministic: Whether scene k comes from generator k mod `count`, those that have ended left out; else from
            whichever has one ready.
        drop_remainder: Whether to drop the last batch of a repetition when it is not full.
        pad_remainder: Whether to fill it up, with scenes of `sample_weight` 0; every batch is then
            `(x, y, sample_weight)`, and scenes must be `(x, y)` or `(x, y, sample_weight)`.
        workers: Threads or processes that run the generators, each one or more of them; after `map`, concurrent calls
            of the function. 0 runs all in the calling thread. "auto" is one for each generator; after `map`, the number
            of cores.
        worker_type: "thread", "process" (for work that holds the GIL, and for isolation), or "auto": processes, except
            where `make_generator` or the function cannot be pickled, and on Windows.
        max_queue_size: Batches made ahead of the consumer.
        max_memory: Ceiling of the batch memory, bytes. None is a quarter of the memory of the machine or container.
        collate: How scenes become a batch; see `kerasfeed.Feed`.
        on_error: What becomes of a generator that raises, or of an item whose function does. "raise": the consumer
            gets the error, behind the scenes that came before it, and the repetition is over. "skip": the item is left
            out; of the generator nothing more comes in this repetition. "mask": an item's row is zeros with
            `sample_weight` 0; a generator is dealt with as in "skip".
        max_failures: How often a scene may end its worker process before it has failed, and, where `on_error` is not
            "raise", how many may fail in one repetition before the feed does: a count, or a share of its scenes so
            far. None is 3 times, and a tenth (or 3).
        timeout: Seconds that a scene may take; see `kerasfeed.Feed`.
        error_log: Path of a file to which every failure is appended as a line of JSON.

    Raises:
        TypeError: An argument is of the wrong type or unknown; `make_generator` is a generator and not a function.
        ValueError: An argument is out of range.
    """

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
        refuse_unknown(unknown, StreamFeed.__init__, type(self).__name__)
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
        return Fleet(
            self.generators, workers=min(wanted, self.generators.count), worker_type=self._options.worker_type,
            deterministic=self.deterministic, max_memory=self._options.max_memory, policy=policy,
            surroundings=self._options.surroundings,
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
