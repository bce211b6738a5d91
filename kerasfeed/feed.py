"""`Feed`: a sequence, a plan and a loader, the object that users hold.

Invariant: a feed decides nothing about data; every batch comes from `Loader.submit(epoch, step)`. To Keras it is a
`PyDataset` that looks ahead by itself, so Keras's own threads and processes stay unused.
"""

import math
import operator
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.arguments import (
    check_collate,
    check_order,
    check_plan,
    check_policy,
    check_seed,
    check_sequence,
    check_workers,
    refuse_other_items,
    refuse_skip,
    refuse_unknown,
)
from kerasfeed.collate import Custom
from kerasfeed.epochs import RequestLog, SequenceHooks
from kerasfeed.errors import FeedWarning, SceneError
from kerasfeed.failures import FailureTable
from kerasfeed.feed_run import EpochTaking, FeedRun
from kerasfeed.feed_taking import dataset_of
from kerasfeed.feed_text import feed_html, feed_text, public_names
from kerasfeed.forms import batch_structure
from kerasfeed.frames import as_sequence
from kerasfeed.integers import check_integer
from kerasfeed.keras_adapter import KerasAdapter
from kerasfeed.keras_side import KerasSide, window_of
from kerasfeed.loaders import Job, LoaderStats
from kerasfeed.loaders.blank import weighted
from kerasfeed.loaders.choose import make_loader
from kerasfeed.loaders.layout import Layout
from kerasfeed.lookahead import Window
from kerasfeed.machine import memory
from kerasfeed.order import Order, Sequential
from kerasfeed.plan import Plan
from kerasfeed.shards import find_shard, refuse_second_sharding
from kerasfeed.shuffle_cost import CostWatch
from kerasfeed.spec import SceneSpec, lists_as_tuples
from kerasfeed.state import FeedState, number_of, state_of, warn_of_hooks
from kerasfeed.stream import EpochClock
from kerasfeed.taking import TakingThreads
from kerasfeed.trainer import KerasCall, Request

if TYPE_CHECKING:
    import tensorflow as tf

_PUBLIC = frozenset([
    "close", "element_spec", "epoch", "failures", "get_state", "indices", "num_batches", "plan", "scene_spec", "seed",
    "sequence", "set_state", "shard", "stats", "submit", "to_tf_dataset",
])  # fmt: skip


_PREDICTED_IN_ORDER = (
    "predict returns its rows in the order of the feed, which is not that of the sequence: row k is for scene "
    "feed.indices()[k]. Predict with a feed without shuffle and order, or put the rows back: "
    "in_order = np.empty_like(rows); in_order[feed.indices()] = rows"
)


class Feed(KerasAdapter):
    """Batches of a sequence, for `model.fit` on any Keras backend, `tf.data` and plain loops.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene: a `SceneSequence`, a list,
            an ndarray, a map-style dataset, a pandas `Series` or `DataFrame` (rows are dicts of its columns). The same
            structure, dtypes and number of axes for every index.
        batch_size: Scenes in a batch. None where each item is a batch already, as in a `keras.utils.PyDataset`.
        shuffle: Whether each epoch visits the scenes in a new random order; each exactly once.
        order: The order of the scenes, instead of `shuffle`: `kerasfeed.Sequential()`, `kerasfeed.Shuffled()`,
            `kerasfeed.BlockShuffled(block_size)` for scenes that are cheap to read in blocks, such as HDF5 chunks,
            `kerasfeed.Weighted(weights)`, `kerasfeed.Balanced(labels)`, `kerasfeed.Bucketed(lengths, boundaries)`, or a
            function (length, seed, epoch) that returns the indices of an epoch, int64[scenes], as many in each epoch.
        seed: Integer >= 0 behind the order and every scene's `rng`. None draws one, kept in `feed.seed`; shards that
            shuffle need one that they share.
        drop_remainder: Whether to drop the last batch of an epoch when it is not full.
        workers: Concurrent `__getitem__` calls, whatever the batch size. 0 loads in the calling thread. "auto" is the
            number of cores.
        worker_type: "thread", "process" (for scenes that hold the GIL, and for isolation), or "auto": processes,
            except for a list, tuple or ndarray, where there is nothing to compute, where the sequence cannot be
            pickled, and on Windows.
        max_queue_size: Batches kept in flight ahead of the consumer; more where `workers` needs it.
        max_memory: Ceiling of the batch memory, bytes; beyond, batches are copied to ordinary memory, with a warning.
            None is a quarter of the memory of the machine, or of the container.
        collate: How scenes become a batch: "stack" (one shape for all), "pad" or `kerasfeed.Pad(...)`, "ragged" or
            `kerasfeed.Ragged(...)`, or a function from a list of scenes to a batch. The function runs in the worker,
            once a batch, which is then one task; it must pickle (with `cloudpickle`) for worker processes.
        shard_index: Which shard of every global batch (`batch_size * shard_count` scenes) this feed is.
        shard_count: Number of shards. All have the same number of steps, and together they are the unsharded epoch.
        shard: Instead of these two a pair of them, a `tf.distribute.InputContext`, or "auto": what tf.distribute,
            keras.distribution, jax or torch.distributed, where they run, know of this process; `feed.shard` says who
            did. A pickled feed asks again where it is unpickled.
        pad_remainder: Whether short batches are filled up, with scenes of `sample_weight` 0, so that all have one size
            and weighted metrics are exact; every batch is then `(x, y, sample_weight)`, and scenes must be `(x, y)` or
            `(x, y, sample_weight)`.
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
        order: Order | Callable[[int, int, int], Any] | None = None,
        seed: int | None = None,
        drop_remainder: bool = False,
        workers: int | Literal["auto"] = "auto",
        worker_type: Literal["auto", "process", "thread"] = "auto",
        max_queue_size: int = 10,
        max_memory: int | None = None,
        collate: Any = "stack",
        shard_index: int = 0,
        shard_count: int = 1,
        shard: Any = None,
        pad_remainder: bool = False,
        on_error: Literal["raise", "replace", "mask", "skip"] = "raise",
        max_failures: int | float | None = None,
        timeout: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown(unknown, Feed.__init__)
        sequence = as_sequence(sequence)
        length = check_sequence(sequence)
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, 1)
            refuse_other_items(sequence, batch_size)
        count = check_workers(workers, worker_type)
        self.shard = find_shard(shard, shard_index, shard_count)
        chosen = check_order(order, shuffle)
        self.seed = check_seed(seed, chosen, self.shard.count)
        chosen = chosen.seeded(self.seed)
        order = None if order is None else chosen  # which pickles where the function may not
        self.plan = Plan(
            length, batch_size, chosen, self.seed, bool(drop_remainder), self.shard.index, self.shard.count,
            bool(pad_remainder),
        )  # fmt: skip
        check_plan(self.plan, on_error)
        ceiling = memory() // 4 if max_memory is None else check_integer("max_memory", max_memory, 1)
        ahead = check_integer("max_queue_size", max_queue_size, 1)
        self.collation = check_collate(collate, self.plan, on_error)
        if count:  # enough scenes in flight to keep every worker at one while it has another waiting
            ahead = max(ahead, math.ceil(2 * count / (1 if isinstance(self.collation, Custom) else self.plan.rows)))
        self.sequence = sequence
        batched = batch_size is not None
        policy = check_policy(on_error, max_failures, timeout, error_log, batched=batched, workers=count)
        self.job = Job(sequence, self.plan, count, ceiling, ahead, policy, self.collation)
        self._loader = make_loader(self.job, worker_type)
        self._costs = CostWatch(chosen, self._loader.waste, self._loader.stats)
        self._clock = EpochClock(self.plan.steps, self.seed)
        self._hooks = SequenceHooks(sequence, self._loader.refresh)
        self.request_log = RequestLog()
        self._loops: weakref.WeakSet[Window] = weakref.WeakSet()  # look-ahead of loops
        self.takings = TakingThreads()
        self.keras_side = KerasSide(weakref.proxy(self), self._clock, self._hooks, self.request_log)
        super().__init__(ahead)
        self._arguments = {
            "shuffle": shuffle, "order": order, "seed": self.seed, "drop_remainder": drop_remainder, "workers": workers,
            "worker_type": worker_type, "max_queue_size": max_queue_size, "max_memory": max_memory, "collate": collate,
            "shard": shard if isinstance(shard, str) else self.shard, "pad_remainder": pad_remainder,
            "on_error": on_error, "max_failures": max_failures, "timeout": timeout, "error_log": error_log,
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
        batch = self.submit(epoch, step).result()
        self.request_log.finish(request, time.perf_counter())
        if batch is None:
            raise SceneError(f"every scene of step {step} of epoch {epoch} failed and was skipped; see feed.failures")
        return self.as_keras_takes(batch)

    def as_keras_takes(self, batch: Any) -> Any:
        """A batch that Keras has asked for: tuples in place of lists. Tells what there is to be told."""
        self._loader.faults.notices.tell()
        return lists_as_tuples(batch) if self._loader.spec.has_lists else batch

    def __iter__(self) -> Iterator[Any]:
        """One epoch of batches, loaded ahead; every iteration is the next epoch, or what `set_state` left of one."""
        numbers = self._clock.claim_epoch()
        for found in self._iterate(numbers):
            self._clock.consumed = found[0] + 1
            yield found.pop()
        self._clock.consumed = numbers.stop  # on_error="skip" may have left out the last one

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of epoch `number`, loaded ahead; the feed's own count of epochs is left alone."""
        first = check_integer("epoch", number, 0) * len(self)
        return (found.pop() for found in self._iterate(range(first, first + len(self))))

    def _iterate(self, numbers: range) -> Iterator[list[Any]]:
        """Number and batch, to be popped: what has been left in the middle then holds no batch."""
        self._hooks.enter(numbers.start // len(self))
        window = window_of(self, self._clock, numbers)
        self._loops.add(window)
        try:
            for number in numbers:
                found = [number, window.take()]
                if found[1] is not None:  # on_error="skip" has left a scene of it
                    yield found
        finally:
            window.close()
        self._hooks.leave()
        self._tell()

    def submit(self, epoch: int, step: int, *, patience: float | None = None) -> "Future[Any]":
        """Promise the batch (epoch, step); waits at most for memory, see `kerasfeed.loaders.Loader.submit`."""
        self.takings.wait()
        self._hooks.enter(epoch)
        self._tell()
        return self._loader.submit(epoch, step, patience=patience)

    def _tell(self) -> None:
        """Issue the warnings that wait, here where the user stands."""
        self._costs.check()
        self._loader.faults.notices.tell()

    def indices(self, epoch: int | None = None) -> NDArray[np.int64]:
        """The scene of every row of an epoch, in the order of delivery.

        Row `k` of what `model.predict(feed)` returns is the prediction for scene `feed.indices()[k]`, before as after
        it: `in_order[feed.indices()] = predictions` puts them back.

        Args:
            epoch: Number of the epoch; None is that of `feed[step]`, which `evaluate` and `predict` take.

        Returns:
            int64[rows], each in [0, len(feed.sequence)): of this shard alone, without what is dropped, with the scenes
            that fill up a batch. Where `batch_size` is None, one for each step.

        Raises:
            TypeError, ValueError: `epoch` is none.
        """
        number = self._clock.current if epoch is None else check_integer("epoch", epoch, 0)
        return self.plan.epoch_indices(number)

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
        """Nesting of a batch with an `ArraySpec` for each of its arrays, batch axis first; None for what varies.

        A ragged field is a `kerasfeed.RaggedArray` of two.
        """
        spec, layout = self._spec, self._loader.layout
        if layout is None or not layout.batched:
            return spec.unflatten(spec.fields)
        return batch_structure(spec, layout.forms, self.plan.rows if self.plan.is_uniform else None)

    @property
    def _spec(self) -> SceneSpec:
        spec = self._loader.spec
        return weighted(spec) if self.job.weighs else spec

    @property
    def scene_spec(self) -> SceneSpec:
        """Spec of a scene as the sequence gives it; the first use reads a few scenes."""
        return self._loader.spec

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
        refuse_skip(self.job.policy, "to_tf_dataset()")
        refuse_second_sharding(self.shard.count)
        return dataset_of(self, check_integer("epochs", epochs, 1) * len(self), device, in_order=deterministic)

    def _known_batches(self) -> int:
        return len(self)

    def _keras_run(self, call: KerasCall, request: Request) -> FeedRun:
        if request.method:
            refuse_skip(self.job.policy, f"{request.method}()")
        has_order = not isinstance(self.plan.order, Sequential)
        self._warn_of_order(request)
        # Keras's shuffling of batches would add nothing to an order, and put the shards of a step out of step.
        shuffled = request.shuffle and not has_order and self.plan.shard_count == 1
        return FeedRun(self, call.iterator, request, shuffled=shuffled)

    def dataset_run(self, batches: int, in_order: bool, call: KerasCall, request: Request) -> FeedRun:
        """What one of Keras's iterators takes of a dataset of the feed, of so many batches."""
        self._warn_of_order(request)
        return FeedRun(self, call.iterator, request, shuffled=False, batches=batches, in_order=in_order)

    def _warn_of_order(self, request: Request) -> None:
        if request.method == "predict" and not isinstance(self.plan.order, Sequential):
            self._loader.faults.notices.post("predict", _PREDICTED_IN_ORDER, FeedWarning)
            self._loader.faults.notices.tell()

    def _keras_taking(self) -> EpochTaking:
        return EpochTaking(self)

    def _keras_hook(self, *, begins: bool) -> None:
        self.keras_side.hooked(begins=begins)

    # ---- state

    def get_state(self, *, epoch: int | None = None, step: int | None = None) -> dict[str, Any]:
        """Where the consumer stands, and of what feed, as a small dict for JSON; for `set_state`.

        That is after the last batch that was consumed, not after the last one loaded ahead: in a loop after the one in
        hand, in a callback of `fit` after the last one trained on. What is made of `to_tf_dataset()` (`map`, ...) hides
        from the feed what of it is consumed, and so does a `fit` that was stopped: say where you stand with `epoch`
        and `step` (in [0, len(feed)]) of the next batch, or use `kerasfeed.FeedCheckpoint`.

        Returns:
            `version`, `seed`, `epoch` and `step` of the next batch, `shuffled_steps`, and a `fingerprint` of the
            sequence, its order and the global batch.

        Raises:
            RuntimeError: Where the consumer stands is not known.
        """
        number = number_of(epoch, step, len(self))
        return state_of(self, self.keras_side.consumed() if number is None else number).as_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue at the batch that `state` (of `get_state`) says is next, without loading those before it.

        The next loop, `fit` or iteration of a dataset begins there, and its first epoch is what is left of that one.
        Workers, their type, and the number of shards of the same global batch may have changed.

        Raises:
            TypeError, ValueError: `state` is none, or one of other batches; the message says what differs.
        """
        found = FeedState.of(state)
        found.check(state_of(self, 0), len(self))
        warn_of_hooks(self.sequence, self.has_epoch_hooks, found)
        self.keras_side.resume(found.epoch * len(self) + found.step, shuffled=found.shuffled_steps)

    # ---- life

    def stats(self) -> LoaderStats:
        """A snapshot of the loader's counters."""
        return self._loader.stats()

    def close(self) -> None:
        """Stop the workers and free what they hold; idempotent. Batches already delivered stay valid."""
        self.keras_side.give_up()
        for window in list(self._loops):  # of loops that were left in the middle, and live on
            window.close()
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

    def __dir__(self) -> list[str]:
        return public_names(self, Feed, _PUBLIC)

    def __repr__(self) -> str:
        return feed_text(self.sequence, self.plan, self.shard, self.stats())

    def _repr_html_(self) -> str:
        return feed_html(self.sequence, self.plan, self.shard, self.stats(), lambda: self.element_spec)


def _restore(sequence: Any, batch_size: int | None, arguments: dict[str, Any]) -> Feed:
    return Feed(sequence, batch_size, **arguments)
