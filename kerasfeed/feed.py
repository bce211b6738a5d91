"""`Feed`: a sequence, a plan and a loader, the object that users hold.

Invariant: a feed decides nothing about data; every batch comes from `Loader.submit(epoch, step)`. To Keras it is a
`PyDataset` that looks ahead by itself, so Keras's own threads and processes stay unused.
"""

import math
import operator
import os
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np

from kerasfeed.arguments import (
    WORKER_TYPES,
    check_integer,
    check_order,
    check_plan,
    check_policy,
    check_sequence,
    refuse_unknown,
)
from kerasfeed.epochs import EpochClock, RequestLog, SequenceHooks, tame_adapter, trainer_position
from kerasfeed.errors import SceneError
from kerasfeed.failures import FailureTable
from kerasfeed.feed_text import feed_html, feed_text
from kerasfeed.loaders import Job, Loader, LoaderStats
from kerasfeed.loaders.blank import weighted
from kerasfeed.loaders.inline import InlineLoader
from kerasfeed.loaders.layout import Layout
from kerasfeed.loaders.processes import ProcessLoader, processes_supported
from kerasfeed.loaders.threads import ThreadLoader
from kerasfeed.lookahead import KerasWindows, Window
from kerasfeed.machine import cores, memory
from kerasfeed.order import Order, Sequential
from kerasfeed.plan import Plan
from kerasfeed.shuffle_cost import CostWatch
from kerasfeed.spec import ArraySpec, SceneSpec, lists_as_tuples

if TYPE_CHECKING:
    import tensorflow as tf

_ARGUMENTS = [
    "sequence", "batch_size", "shuffle", "order", "seed", "drop_remainder", "workers", "worker_type",
    "max_queue_size", "max_memory", "shard_index", "shard_count", "on_error", "max_failures", "timeout", "error_log",
]  # fmt: skip


class Feed(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of a sequence, for `model.fit` on any Keras backend, `tf.data` and plain loops.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene: a `SceneSequence`, a list,
            an ndarray, a map-style dataset. The same structure, dtypes and number of axes for every index.
        batch_size: Scenes in a batch. None where each item is a batch already, as in a `keras.utils.PyDataset`.
        shuffle: Whether each epoch visits the scenes in a new random order; each exactly once.
        order: The order of the scenes, instead of `shuffle`: `kerasfeed.Sequential()`, `kerasfeed.Shuffled()`, or
            `kerasfeed.BlockShuffled(block_size)` for scenes that are cheap to read in blocks, such as HDF5 chunks.
        seed: Integer >= 0 behind the order and every scene's `rng`. None draws one, kept in `feed.seed`.
        drop_remainder: Whether to drop the last batch of an epoch when it is not full.
        workers: Concurrent `__getitem__` calls, whatever the batch size. 0 loads in the calling thread. "auto" is the
            number of cores.
        worker_type: "thread", "process" (for scenes that hold the GIL, and for isolation), or "auto": processes,
            except for a list, tuple or ndarray, where there is nothing to compute, where the sequence cannot be
            pickled, and on Windows.
        max_queue_size: Batches kept in flight ahead of the consumer; more where `workers` needs it.
        max_memory: Ceiling of the batch memory, bytes; beyond, batches are copied to ordinary memory, with a warning.
            None is a quarter of the memory of the machine, or of the container.
        shard_index: Which shard of every global batch (`batch_size * shard_count` scenes) this feed is.
        shard_count: Number of shards.
        on_error: What becomes of a scene that fails: that raises, outlasts `timeout`, or ends its worker process
            `max_failures` times. "raise": whoever asks for the batch gets the error. "replace": another scene, a
            function of (seed, epoch, index), stands in its row. "mask": its row is zeros with `sample_weight` 0; every
            batch is then `(x, y, sample_weight)`, and scenes must be `(x, y)` or `(x, y, sample_weight)`. "skip": its
            row is left out, in plain loops only. With all of these batches are the same whatever the workers.
        max_failures: How often a scene may end its worker process before it has failed, and, where `on_error` is not
            "raise", how many scenes may fail before the feed does. A float is a share of the scenes. None is 3 times,
            and a tenth of the scenes (or 3).
        timeout: Seconds that a scene may take. A worker process that outlasts it is replaced, and its scene tried once
            more; a thread cannot be ended, and the batch fails. None never gives up, but warns after 30 s.
        error_log: Path of a file to which every failure is appended as a line of JSON.

    Raises:
        TypeError: An argument is of the wrong type, unknown, or the sequence cannot be indexed.
        ValueError: An argument is out of range, or the sequence is empty.
    """

    def __init__(
        self,
        sequence: Any,
        batch_size: int | None,
        *,
        shuffle: bool = False,
        order: Order | None = None,
        seed: int | None = None,
        drop_remainder: bool = False,
        workers: int | Literal["auto"] = "auto",
        worker_type: Literal["auto", "process", "thread"] = "auto",
        max_queue_size: int = 10,
        max_memory: int | None = None,
        shard_index: int = 0,
        shard_count: int = 1,
        on_error: Literal["raise", "replace", "mask", "skip"] = "raise",
        max_failures: int | float | None = None,
        timeout: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown(unknown, _ARGUMENTS)
        length = check_sequence(sequence)
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, 1)
            _refuse_batches(sequence)
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self.seed = check_integer("seed", seed, 0)
        if worker_type not in WORKER_TYPES:
            raise ValueError(f"worker_type must be one of {', '.join(WORKER_TYPES)}, received {worker_type!r}")
        count = cores() if workers == "auto" else check_integer("workers", workers, 0, remedy=_NO_WORKERS)
        shard_count = check_integer("shard_count", shard_count, 1)
        shard_index = check_integer("shard_index", shard_index, 0)
        if shard_index >= shard_count:
            raise ValueError(f"shard_index must be below shard_count ({shard_count}), received {shard_index}")
        chosen = check_order(order, shuffle)
        self.plan = Plan(length, batch_size, chosen, self.seed, bool(drop_remainder), shard_index, shard_count)
        check_plan(self.plan)
        ceiling = memory() // 4 if max_memory is None else check_integer("max_memory", max_memory, 1)
        ahead = check_integer("max_queue_size", max_queue_size, 1)
        if count:  # enough scenes in flight to keep every worker at one while it has another waiting
            ahead = max(ahead, math.ceil(2 * count / self.plan.rows))
        self.sequence = sequence
        batched = batch_size is not None
        policy = check_policy(on_error, max_failures, timeout, error_log, batched=batched, workers=count)
        self._job = Job(sequence, self.plan, count, ceiling, ahead, policy)
        self._loader = _make_loader(self._job, worker_type)
        self._costs = CostWatch(chosen, self._loader.waste, self._loader.stats)
        self._clock = EpochClock()
        self._hooks = SequenceHooks(sequence, self._loader.refresh)
        self._hooked_epoch_runs = False
        self._fit_goes_on = False
        self.request_log = RequestLog()
        self._windows = KerasWindows()
        # A Keras in which the look-ahead above finds nothing gets threads to look ahead with. They only wait.
        threads = 1 if not count or self._windows.supported() else max(2, 2 * math.ceil(count / self.plan.rows) + 2)
        super().__init__(workers=threads, use_multiprocessing=False, max_queue_size=ahead)
        self._arguments = {
            "shuffle": shuffle, "order": order, "seed": self.seed, "drop_remainder": drop_remainder, "workers": workers,
            "worker_type": worker_type, "max_queue_size": max_queue_size, "max_memory": max_memory,
            "shard_index": shard_index, "shard_count": shard_count, "on_error": on_error, "max_failures": max_failures,
            "timeout": timeout, "error_log": error_log,
        }  # fmt: skip

    # ---- batches

    def __len__(self) -> int:
        return self.plan.steps

    def __getitem__(self, step: int) -> Any:
        """The batch of one step of the current epoch; waits for it. Negative steps count from the end.

        Keras reads a feed this way, and on TensorFlow it takes no lists: here they become tuples.

        Raises:
            IndexError: `step` is out of range.
            Exception: What the sequence raised, with index, epoch and step as a note.
        """
        step = operator.index(step)
        if step < 0:
            step += len(self)
        request = self.request_log.begin()
        epoch = self._clock.current
        following = epoch + 1 if self._fit_goes_on else None
        window = self._windows.find(sys._getframe(1), step, self.submit, epoch, self.look_ahead, following)
        batch = self.submit(epoch, step).result() if window is None else window.take(step)
        self.request_log.finish(request, time.perf_counter())
        self._loader.faults.notices.tell()
        if batch is None:
            raise SceneError(f"every scene of step {step} of epoch {epoch} failed and was skipped; see feed.failures")
        return lists_as_tuples(batch) if self._loader.spec.has_lists else batch

    def __iter__(self) -> Iterator[Any]:
        """One epoch of batches, loaded ahead; every iteration is the next epoch."""
        return self._iterate(None)

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of epoch `number`, loaded ahead; the feed's own count of epochs is left alone."""
        return self._iterate(check_integer("epoch", number, 0))

    def _iterate(self, number: int | None) -> Iterator[Any]:
        epoch = self._clock.claim() if number is None else number
        self._hooks.enter(epoch)
        steps = range(len(self))
        window = Window(self.submit, epoch, steps, self.look_ahead)
        try:
            for step in steps:
                batch = window.take(step)
                if batch is not None:  # on_error="skip" has left a scene of it
                    yield batch
        finally:
            window.close()
        self._hooks.leave()
        self._tell()

    def submit(self, epoch: int, step: int) -> "Future[Any]":
        """Promise the batch (epoch, step) without waiting; see `kerasfeed.loaders.Loader.submit`."""
        self._hooks.enter(epoch)
        self._tell()
        return self._loader.submit(epoch, step)

    def _tell(self) -> None:
        """Issue the warnings that wait, here where the user stands."""
        self._costs.check()
        self._loader.faults.notices.tell()

    @property
    def look_ahead(self) -> int:
        """Batches that are worth having in flight at once."""
        return self._loader.look_ahead

    @property
    def has_epoch_hooks(self) -> bool:
        """Whether the sequence changes between epochs, so that none may begin before the one before is loaded."""
        return self._hooks.exist

    @property
    def element_spec(self) -> Any:
        """Nesting of a scene with an `ArraySpec` for each field of a batch, batch axis first (None if it varies)."""
        spec = self._spec
        if self.plan.batch_size is None:
            return spec.unflatten(spec.fields)
        rows = self.plan.rows if self.plan.is_uniform else None
        return spec.unflatten([ArraySpec((rows, *field.shape), field.dtype) for field in spec.fields])

    @property
    def _spec(self) -> SceneSpec:
        spec = self._loader.spec
        return weighted(spec) if self._job.policy.on_error == "mask" else spec

    @property
    def layout(self) -> Layout | None:
        """Where the fields of a scene stand in a batch, if scenes have been read; for `kerasfeed.load`."""
        return self._loader.layout

    @property
    def failures(self) -> FailureTable:
        """The scenes that have failed so far: a table of index, epoch, step, exception and count."""
        return self._loader.faults.table()

    # ---- frameworks

    def to_tf_dataset(
        self, *, device: str | None = None, epochs: int = 1, deterministic: bool = True
    ) -> "tf.data.Dataset":
        """This feed as a `tf.data.Dataset`; each iteration of it is the feed's next epoch.

        Args:
            device: Where batches are prefetched to, for example "/gpu:0". None is the first GPU if there is one and no
                distribution strategy places the batches itself, else the host.
            epochs: Epochs of the feed in one iteration of the dataset, at least 1.
            deterministic: Whether batches keep the order of steps; False delivers whichever is loaded first.

        Returns:
            A dataset of batches nested as the scenes are (lists become tuples), with static shapes and dtypes and known
            cardinality.

        Raises:
            TypeError: A field has a dtype that TensorFlow lacks.
        """
        from kerasfeed.adapters.tf_data import to_tf_dataset

        self._refuse_skip("to_tf_dataset()")
        return to_tf_dataset(
            self, device=device, epochs=check_integer("epochs", epochs, 1), deterministic=deterministic
        )

    def begin_epoch(self) -> int:
        """Claim the next epoch for a consumer that submits its own steps; returns its number."""
        epoch = self._clock.claim()
        self._hooks.enter(epoch)
        self.request_log.clear()
        return epoch

    @property
    def num_batches(self) -> int:
        """Number of steps in an epoch; Keras asks for it as `fit` begins."""
        position = trainer_position()
        if position is not None and position.method == "fit" and position.epoch is None:
            self._clock.prepare(position.initial_epoch)
            self._windows.close()
        if position is not None:
            self._refuse_skip(f"{position.method}()")
            ordered = self.plan.shard_count > 1 or not isinstance(self.plan.order, Sequential)
            tame_adapter(self, sys._getframe(1), ordered=ordered)
        return len(self)

    def _refuse_skip(self, where: str) -> None:
        if self._job.policy.on_error == "skip":
            raise ValueError(
                f"on_error='skip' changes the shape and the number of batches, so it is for plain loops and not for "
                f"{where}: use on_error='replace', or 'mask', which gives failed scenes sample_weight 0"
            )

    def on_epoch_begin(self) -> None:
        """Called by Keras; see `kerasfeed.epochs` for what it means."""
        position = trainer_position()
        self._fit_goes_on = position is not None and position.goes_on and not self.has_epoch_hooks
        if position is None:
            self._clock.begin(0)
        elif position.method == "fit" and position.epoch is not None:
            self._clock.begin(position.epoch)
        else:
            return
        self._hooked_epoch_runs = True

    def on_epoch_end(self) -> None:
        """Called by Keras; see `kerasfeed.epochs` for what it means."""
        self.request_log.clear()
        position = trainer_position()
        if position is not None and position.method != "fit":
            return
        began, self._hooked_epoch_runs = self._hooked_epoch_runs, False
        if position is not None and position.epoch is None:
            self._clock.prepare(position.initial_epoch)
        elif began or position is None:
            self._hooks.leave()
            self._clock.end()

    # ---- life

    def stats(self) -> LoaderStats:
        """A snapshot of the loader's counters."""
        return self._loader.stats()

    def close(self) -> None:
        """Stop the workers and free what they hold; idempotent. Batches already delivered stay valid."""
        self._windows.close()
        self._loader.close()
        self._loader.faults.notices.tell_last()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _restore, (self.sequence, self.plan.batch_size, self._arguments)

    def __repr__(self) -> str:
        return feed_text(self.sequence, self.plan, self.stats())

    def _repr_html_(self) -> str:
        return feed_html(self.sequence, self.plan, self.stats(), lambda: self._spec)


_NO_WORKERS = ' (0 loads in the calling thread, "auto" uses every core)'


def _restore(sequence: Any, batch_size: int | None, arguments: dict[str, Any]) -> Feed:
    return Feed(sequence, batch_size, **arguments)


def _refuse_batches(sequence: Any) -> None:
    if isinstance(sequence, Feed):
        raise TypeError("the sequence is a Feed already; pass its `sequence`")
    if isinstance(sequence, keras.utils.PyDataset):
        raise ValueError(
            f"each item of {type(sequence).__name__}, a keras.utils.PyDataset, is a batch already: use batch_size=None"
        )


def _make_loader(job: Job, worker_type: str) -> Loader:
    if job.workers == 0:
        return InlineLoader(job)
    if worker_type == "thread":
        return ThreadLoader(job)
    in_memory = isinstance(job.sequence, list | tuple | np.ndarray)
    if worker_type == "auto" and (in_memory or not processes_supported()):
        return ThreadLoader(job)
    loader = ProcessLoader(job)
    try:
        loader.start()  # workers come up while the caller builds a model
    except (TypeError, OSError) as error:
        loader.close()
        if worker_type == "process":
            raise
        warnings.warn(f"worker_type='auto' falls back to threads: {error}", UserWarning, stacklevel=4)
        return ThreadLoader(job)
    return loader
