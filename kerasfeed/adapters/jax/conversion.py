"""Batches as `jax.Array`s.

Invariant: on one CPU device, an array uses the memory that the batch was loaded into, unless JAX changes its dtype. JAX
keeps that memory alive, never writes to it, and does not pass it to a computation that donates its arguments.
"""

from functools import partial
from typing import Any

import numpy as np
import optree

from kerasfeed.feeds.batch_loop import converted, numeric_leaves, ragged_paths
from kerasfeed.orders.plan import Plan
from kerasfeed.spec.nesting import field_paths
from kerasfeed.util.error_text import message_of

try:
    import jax
except ImportError as missing:
    raise ImportError(
        'to_jax() needs JAX, which is not installed: pip install jax (the extra "kerasfeed[jax]")'
    ) from missing

_WHERE = "sharding must be a jax.sharding.Sharding, a jax.Device, or None for JAX's default device; received"
_OF_ONE_SIZE = (
    "batches that are divided among devices need a size divisible by the number of parts: make the feed with such a "
    "batch_size, and with drop_remainder=True or pad_remainder=True"
)


class JaxConversion:
    """Puts batches on the devices of a sharding.

    Attributes:
        ahead: See `kerasfeed.feeds.batch_loop.Conversion`.
        divides: Whether devices get parts of a batch.
    """

    def __init__(self, sharding: Any, plan: Plan, prefetch: int) -> None:
        """Check `sharding`, and that batches of `plan` can be divided by it.

        Args:
            sharding: A `jax.sharding.Sharding`, a `jax.Device`, or None for the default device.
            plan: Plan of the feed, with sizes of batches and shards.
            prefetch: Batches to copy ahead of the consumer, if batches are copied at all.

        Raises:
            TypeError: `sharding` is something else.
            ValueError: It divides batches among processes, and the batches have different sizes.
        """
        if isinstance(sharding, jax.Device):
            sharding = jax.sharding.SingleDeviceSharding(sharding)
        if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
            raise TypeError(f"{_WHERE} {sharding!r} of type {type(sharding).__name__}")
        self._sharding: Any = sharding
        self._plan = plan
        self._checked = False
        self._spans_processes = sharding is not None and not sharding.is_fully_addressable
        self.divides = sharding is not None and not sharding.is_fully_replicated
        if self._spans_processes and not plan.is_uniform:
            raise ValueError(_OF_ONE_SIZE)
        copies = len(sharding.device_set) > 1 if sharding is not None else False
        platform = jax.default_backend() if sharding is None else next(iter(sharding.device_set)).platform
        self.ahead = prefetch if copies or platform != "cpu" else 0

    def begin(self, batch: Any) -> Any:
        """See `Conversion.begin`. JAX itself copies in the background."""
        arrays, treespec = numeric_leaves(batch, "JAX")
        if not self._checked and self.divides:
            self._check(batch, arrays, treespec)
        self._checked = True
        _refuse_overflow(arrays, treespec)
        return optree.tree_unflatten(treespec, self._put(arrays, treespec))

    def finish(self, converted: Any) -> Any:
        """See `Conversion.finish`."""
        return converted

    def __repr__(self) -> str:
        return "JAX" if self._sharding is None else f"JAX, {self._sharding}"

    def _put(self, arrays: list[np.ndarray[Any, Any]], treespec: Any) -> list[Any]:
        if self._spans_processes:
            return converted(self._part_of_all, arrays, treespec)
        try:
            return jax.device_put(arrays, self._sharding)  # type: ignore[no-any-return]
        except (TypeError, ValueError, RuntimeError):  # the error does not name the field
            return converted(partial(jax.device_put, device=self._sharding), arrays, treespec)

    def _part_of_all(self, array: np.ndarray[Any, Any]) -> Any:
        whole = jax.make_array_from_process_local_data(self._sharding, array)
        if whole.shape[:1] != (len(array) * self._plan.shard_count,):
            raise ValueError(
                f"the sharding makes a global batch of {whole.shape[0]:,} rows from the {len(array):,} rows of this "
                f"process, but the feed has {self._plan.shard_count} shards. The shards of the feed must be the parts "
                'of a batch that the sharding gives each process: make the feed with shard="auto", or '
                "shard=(index, count)"
            )
        return whole

    def _check(self, batch: Any, arrays: list[np.ndarray[Any, Any]], treespec: Any) -> None:
        """Refuse, at the first batch, sizes that could not be divided later.

        Raises:
            TypeError: A field is ragged.
            ValueError: Sizes of batches cannot be divided.
        """
        if ragged := ragged_paths(batch):
            raise TypeError(
                f"the values of a ragged field cannot be divided among devices: {', '.join(map(repr, ragged))}. Use "
                "collate='pad', or a sharding that gives each device the whole batch"
            )
        plan = self._plan
        if self._spans_processes or plan.batch_size is None:
            return
        for rows in plan.sizes():
            for path, array in zip(field_paths(treespec), arrays, strict=True):
                try:
                    self._sharding.shard_shape((rows, *array.shape[1:]))
                except (ValueError, IndexError) as error:  # IndexError for a field with fewer axes
                    raise ValueError(
                        f"field {path!r} of a batch of {rows:,} rows cannot be divided: {_OF_ONE_SIZE}. JAX: "
                        f"{message_of(error)}"
                    ) from error


def _refuse_overflow(arrays: list[np.ndarray[Any, Any]], treespec: Any) -> None:
    """Refuse integers that JAX would silently truncate to 32 bits.

    Raises:
        OverflowError: As JAX does for Python integers; the message names the field.
    """
    for number, array in enumerate(arrays):
        if array.dtype.kind not in "iu" or array.itemsize < 8 or not array.size:
            continue
        held = np.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
        if held.bits < 64 and (array.min() < held.min or array.max() > held.max):
            raise OverflowError(
                f"field {field_paths(treespec)[number]!r} has values from {array.min():,} to {array.max():,}, but "
                f"JAX keeps {held.bits} bits: set jax_enable_x64, or return numbers that fit {held.dtype}"
            )
