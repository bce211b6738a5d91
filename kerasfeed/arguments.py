"""Arguments of a feed, checked before anything is read.

Invariant: every refusal says what was needed, what came and what to write instead; habits from Keras, tf.data and
PyTorch are answered with the word used here.
"""

import math
import operator
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed.loaders.policy import ON_ERROR, FaultPolicy
from kerasfeed.order import Order, Sequential, Shuffled
from kerasfeed.plan import Plan

_WORD_HERE = {
    "num_workers": "workers",
    "num_parallel_calls": "workers",
    "use_multiprocessing": 'worker_type="process" (or "thread")',
    "multiprocessing_context": 'worker_type="process"; workers are clean interpreters, never forks',
    "drop_last": "drop_remainder",
    "prefetch_factor": "max_queue_size",
    "buffer_size": "max_queue_size (the shuffle itself needs no buffer)",
    "prefetch": "max_queue_size",
    "collate_fn": "nothing: scenes are stacked; shape them in the sequence's __getitem__",
    "sampler": "order (kf.Sequential(), kf.Shuffled(), kf.BlockShuffled(...))",
    "batch_sampler": "batch_size and order",
    "generator": "seed",
    "worker_init_fn": "an on_worker_begin(worker) method of the sequence",
    "persistent_workers": "nothing: workers stay until feed.close()",
    "pin_memory": "nothing, or feed.to_tf_dataset(device=...)",
    "num_shards": "shard_count",
    "index": "shard_index",
    "rank": "shard_index",
    "world_size": "shard_count",
    "dataset": "sequence, the first argument",
}
WORKER_TYPES = ("auto", "process", "thread")


def refuse_unknown(unknown: Mapping[str, Any], known: list[str]) -> None:
    """Raise a TypeError for keyword arguments that do not exist, naming the right word.

    Raises:
        TypeError: `unknown` is not empty.
    """
    for name in unknown:
        if name in _WORD_HERE:
            raise TypeError(f"Feed() has no argument {name!r}. Use {_WORD_HERE[name]}")
        raise TypeError(f"Feed() has no argument {name!r}. It takes {', '.join(known)}")


def check_sequence(sequence: Any) -> int:
    """The length of a sequence.

    Raises:
        TypeError: It cannot be indexed by integers from 0.
        ValueError: It is empty.
    """
    name = type(sequence).__name__
    if isinstance(sequence, type):
        raise TypeError(
            f"Feed() needs an instance, received the class {sequence.__name__}: write {sequence.__name__}(...)"
        )
    if isinstance(sequence, Iterator):
        raise TypeError(
            f"Feed() needs a sequence that can be indexed, received a {name}, which can only be read forward. Write a "
            "class with __len__ and __getitem__(index) that makes one scene, or pass list(...) if it fits in memory"
        )
    if isinstance(sequence, Mapping | str | bytes):
        raise TypeError(
            f"Feed() needs a sequence of scenes indexed by 0, 1, 2, ..., received a {name}. For a dict of arrays write "
            "a class whose __getitem__(index) returns {key: array[index] for key, array in ...}"
        )
    missing = [method for method in ("__len__", "__getitem__") if not hasattr(type(sequence), method)]
    if missing == ["__len__"] and isinstance(getattr(type(sequence), "num_batches", None), property):
        batches = _num_batches(sequence)  # a Keras PyDataset may say its length so
        if batches is None:
            raise TypeError(f"Feed() needs a finite sequence, and {name} has no length. Give it a __len__")
        return batches
    if missing:
        raise TypeError(
            f"Feed() needs an object with __len__ and __getitem__(index), received a {name} without "
            f"{' and '.join(missing)}. Subclass kerasfeed.SceneSequence"
        )
    length = len(sequence)
    if length < 1:
        raise ValueError(f"the sequence is empty: len({name}) is {length}. Check the path or the filter that made it")
    return length


def _num_batches(sequence: Any) -> int | None:
    try:
        batches = sequence.num_batches
    except NotImplementedError:
        return None
    return None if batches is None else operator.index(batches)


def check_integer(name: str, value: Any, least: int, *, remedy: str = "") -> int:
    """`value` as an int of at least `least`.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is too small.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, received {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, received {value!r} of type {type(value).__name__}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, received {number}{remedy}")
    return number


def check_policy(
    on_error: Any, max_failures: Any, timeout: Any, error_log: Any, *, batched: bool, workers: int
) -> FaultPolicy:
    """The policy that these arguments of a feed ask for.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or two do not go together.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error must be one of {', '.join(map(repr, ON_ERROR))}, received {on_error!r}")
    if on_error == "mask" and not batched:
        raise ValueError("on_error='mask' needs a batch_size: where items are batches already use on_error='replace'")
    if isinstance(max_failures, float | np.floating):
        if not 0 < max_failures <= 1:
            raise ValueError(
                f"max_failures must be a count of at least 1, or a share in (0, 1], received {max_failures!r}"
            )
        max_failures = float(max_failures)
    elif max_failures is not None:
        max_failures = check_integer("max_failures", max_failures, 1, remedy=" (a share of the scenes is a float)")
    return FaultPolicy(on_error, max_failures, _check_timeout(timeout, workers), _check_log(error_log))


def _check_timeout(timeout: Any, workers: int) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | np.number):
        raise TypeError(f"timeout must be a number of seconds, received {timeout!r} of type {type(timeout).__name__}")
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a positive number of seconds, or None for any time, received {timeout!r}")
    if not workers:
        raise ValueError(
            "timeout needs workers: with workers=0 the calling thread loads, and nobody can end what it is at. Use "
            "workers=1, worker_type='process'"
        )
    return float(timeout)


def _check_log(error_log: Any) -> str | None:
    if error_log is None:
        return None
    try:
        path = Path(error_log).absolute()
    except TypeError:
        raise TypeError(
            f"error_log must be a path, received {error_log!r} of type {type(error_log).__name__}"
        ) from None
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"is in a folder that does not exist ({path.parent})"
        raise ValueError(f"error_log={str(error_log)!r} {what}; name a file in an existing folder")
    return str(path)


def check_order(order: Any, shuffle: bool) -> Order:
    """The order that `order` and `shuffle` of a feed ask for.

    Raises:
        TypeError: `order` is not an `Order`.
        ValueError: Both are given.
    """
    if order is None:
        return Shuffled() if shuffle else Sequential()
    if isinstance(order, type) and issubclass(order, Order):
        raise TypeError(f"order needs an instance, received the class {order.__name__}: write {order.__name__}(...)")
    if not isinstance(order, Order):
        raise TypeError(
            f"order must be kf.Sequential(), kf.Shuffled() or kf.BlockShuffled(block_size), received {order!r} of type "
            f"{type(order).__name__}"
        )
    if shuffle:
        raise ValueError(
            f"order={order!r} and shuffle=True are two answers to one question; leave shuffle out (shuffle=True means "
            "order=kf.Shuffled())"
        )
    return order


def check_plan(plan: Plan) -> None:
    """Refuse plans in which a shard, or every shard, would have nothing to do.

    Raises:
        ValueError: The message says which.
    """
    if plan.steps == 0:
        raise ValueError(
            f"drop_remainder=True drops everything: the sequence has {plan.length} scenes and a step takes "
            f"{plan.rows * plan.shard_count} (batch_size {plan.rows} x shard_count {plan.shard_count}). Use a smaller "
            "batch_size or drop_remainder=False"
        )
    if not plan.drop_remainder and 0 < plan.remainder < plan.shard_count:
        raise ValueError(
            f"the last step has {plan.remainder} scenes for {plan.shard_count} shards, so some shard would have none "
            f"and the shards would disagree on the number of steps. Use drop_remainder=True, or a batch_size that "
            f"leaves at least {plan.shard_count} of {plan.length} scenes for the last step"
        )
