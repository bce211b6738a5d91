"""The shard of a feed, from its arguments or a framework.

Invariant: only frameworks that the program has imported are queried. No framework is initialized, except the backend of
Keras. The result names its source.
"""

import json
import operator
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.validate import check_integer

_FORMS = (
    'shard must be "auto", a pair (shard_index, shard_count), or the tf.distribute.InputContext that '
    "strategy.distribute_datasets_from_function hands out"
)


@dataclass(frozen=True)
class Shard:
    """The part of each global batch that a feed loads.

    Attributes:
        index: Number of this shard, in [0, count).
        count: Number of shards, at least 1.
        source: Source of these numbers, such as "auto: jax"; empty for the arguments of the feed.
    """

    index: int
    count: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.index} of {self.count}" + (f" ({self.source})" if self.source else "")


def find_shard(shard: Any, shard_index: Any, shard_count: Any) -> Shard:
    """Return the shard for these arguments of a feed.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or the arguments name the shard twice.
    """
    if shard is None:
        return _checked(shard_index, shard_count, "")
    if (shard_index, shard_count) != (None, 1):
        raise ValueError(f"shard={shard!r} cannot be combined with shard_index or shard_count: pass one or the other")
    if isinstance(shard, Shard):
        return shard
    if isinstance(shard, str):
        if shard != "auto":
            raise ValueError(f"{_FORMS}; received {shard!r}")
        return _framework_shard()
    if hasattr(shard, "input_pipeline_id") and hasattr(shard, "num_input_pipelines"):
        return _checked(shard.input_pipeline_id, shard.num_input_pipelines, "tf.distribute.InputContext")
    if isinstance(shard, tuple | list) and len(shard) == 2:
        return _checked(shard[0], shard[1], "")
    raise TypeError(f"{_FORMS}; received {shard!r} of type {type(shard).__name__}")


def refuse_second_sharding(shard_count: int) -> None:
    """Refuse a dataset of one shard if Keras would shard it again.

    Raises:
        ValueError: The current distribution shards datasets itself.
    """
    distribution = _distribution()
    if shard_count > 1 and _processes(distribution) > 1 and getattr(distribution, "auto_shard_dataset", False):
        raise ValueError(
            f"this feed is one of {shard_count} shards, and {type(distribution).__name__} would shard its dataset once "
            "more: set keras.distribution.distribution().auto_shard_dataset = False, or make a feed without shards"
        )


def _checked(index: Any, count: Any, source: str) -> Shard:
    count = check_integer("shard_count", count, 1)
    if index is None and count > 1:
        raise ValueError(
            f"shard_count={count} needs shard_index, the number of this shard, in [0, {count}): without it, every host "
            'would load the same scenes. Or let shard="auto" find both'
        )
    index = check_integer("shard_index", 0 if index is None else index, 0)
    if index >= count:
        raise ValueError(f"shard_index must be below shard_count ({count}), received {index}")
    return Shard(index, count, source)


def _framework_shard() -> Shard:
    """Return the shard from the first framework with several processes.

    Without such a framework, it is shard 0 of 1.
    """
    for source, ask in _SOURCES.items():
        answer = ask()
        if answer is not None:
            return _checked(*answer, f"auto: {source}")
    variable = _environment()
    if variable is not None:
        warn_caller(
            f'shard="auto" has found only one process, but the environment sets several ({variable}): each of them '
            "would load every scene. Make the feed after keras.distribution.initialize(), "
            "jax.distributed.initialize() or torch.distributed.init_process_group(), or inside strategy.scope(), or "
            "pass shard=(shard_index, shard_count)",
            FeedWarning,
        )
    return Shard(0, 1, "auto: one process")


def _from_strategy() -> tuple[int, int] | None:
    tf = sys.modules.get("tensorflow")
    if tf is None or not tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    resolver = strategy.cluster_resolver
    if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    return _rank(resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id)


def _rank(cluster: Any, task_type: Any, task_id: Any) -> tuple[int, int] | None:
    """Return the index in a TensorFlow cluster and its number of workers.

    The chief comes first. Return None if this task is not one of several workers.
    """
    chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
    if chiefs + workers < 2 or task_type not in ("chief", "worker"):
        return None
    return (0 if task_type == "chief" else chiefs + int(task_id)), chiefs + workers


def _from_distribution() -> tuple[int, int] | None:
    distribution = _distribution()
    count = _processes(distribution)
    if count < 2 or not hasattr(distribution, "data_shard_id"):
        return None
    # The processes of one model replica load the same scenes.
    return distribution.data_shard_id, min(count, distribution.num_model_replicas)


def _distribution() -> Any:
    keras = sys.modules.get("keras")
    return None if keras is None else keras.distribution.distribution()


def _processes(distribution: Any) -> int:
    return getattr(distribution, "num_processes", 1)


def _from_jax() -> tuple[int, int] | None:
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    # Querying JAX initializes it, and then jax.distributed.initialize() would fail.
    initialized = getattr(jax.distributed, "is_initialized", None)
    keras = sys.modules.get("keras")
    is_keras_on_it = keras is not None and keras.backend.backend() == "jax"
    if not (initialized is not None and initialized()) and not is_keras_on_it:
        return None
    count = jax.process_count()
    return (jax.process_index(), count) if count > 1 else None


def _from_torch() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    count = distributed.get_world_size()
    return (distributed.get_rank(), count) if count > 1 else None


_SOURCES: dict[str, Callable[[], tuple[int, int] | None]] = {
    "tf.distribute": _from_strategy,
    "keras.distribution": _from_distribution,
    "jax": _from_jax,
    "torch.distributed": _from_torch,
}


def _environment() -> str | None:
    """Return a launcher's environment variable for several processes, or None."""
    for name in ("KERAS_DISTRIBUTION_NUM_PROCESSES", "JAX_NUM_PROCESSES", "WORLD_SIZE"):
        with suppress(ValueError):
            if int(os.environ.get(name, "1")) > 1:
                return f"{name}={os.environ[name]}"
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        rank = _rank(config["cluster"], config["task"]["type"], operator.index(config["task"]["index"]))
        return None if rank is None else f"TF_CONFIG: worker {rank[0]} of {rank[1]}"
    return None
