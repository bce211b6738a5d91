"""`FrameworkLoops`: methods of every feed for training loops that users write themselves.

Invariant: a framework is imported when it is first used.
"""

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from kerasfeed.feeds.batch_loop import BatchLoop
from kerasfeed.feeds.cursor import LoopCursor
from kerasfeed.loaders.arguments import refuse_skip
from kerasfeed.loaders.failures.failure_log import FailurePolicy
from kerasfeed.orders.plan import Plan
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    import jax
    import torch


class FrameworkLoops:
    """A feed's batches as arrays of JAX and of PyTorch."""

    @abstractmethod
    def begin_loop(self, epochs: int = 1) -> LoopCursor:
        """Return a cursor for the next epochs."""

    def to_jax(
        self, sharding: "jax.sharding.Sharding | jax.Device | None" = None, *, prefetch: int = 2, epochs: int = 1
    ) -> BatchLoop[Any]:
        """Iterate over batches as `jax.Array`s.

        Each iteration is the next epoch of the feed. On the CPU an array uses the memory that the batch was loaded
        into, without a copy, unless JAX changes its dtype: without `jax_enable_x64`, JAX narrows dtypes of 64 bits to
        32, and complex128 to complex64. The memory is reused once no array refers to it. A computation that donates
        such an array leaves the memory unchanged.

        Args:
            sharding: Destination of batches: a `jax.sharding.Sharding` of one or several devices, or a `jax.Device`.
                None is JAX's default device, without committing to it. A sharding that spans several processes makes
                one global batch of the shards of their feeds; see `shard` of `kerasfeed.Feed`. A sharding that divides
                batches needs all of them to be divisible: `drop_remainder=True` or `pad_remainder=True`.
            prefetch: Number of batches to copy to devices ahead of the consumer, at least 0. Only batches that are
                already loaded are copied ahead. Has no effect if nothing is copied, or if the feed has `workers=0`.
            epochs: Epochs of the feed in one iteration, at least 1.

        Returns:
            An iterable of batches, nested as the scenes are; a ragged field is a `kerasfeed.RaggedArray` of two arrays.
            See [BatchLoop][kerasfeed.feeds.batch_loop.BatchLoop].

        Raises:
            ImportError: JAX is not installed.
            TypeError: `sharding` is something else. In an iteration: JAX lacks the dtype of a field (text, for
                example), or the sharding divides a ragged field.
            ValueError: An argument is out of range; the feed skips scenes (`on_error="skip"`) in batches that the
                sharding divides; or batches cannot be divided by the sharding. The last error may be raised at the
                first batch, because it depends on the shape of the batch.
            OverflowError: In an iteration: a field of int64 or uint64 has values that do not fit JAX's 32 bits.

        Examples:
            >>> with kf.Feed(np.zeros((10, 3), np.float32), batch_size=4, workers=0) as feed:
            ...     for batch in feed.to_jax():
            ...         print(type(batch).__name__, batch.shape)
            ArrayImpl (4, 3)
            ArrayImpl (4, 3)
            ArrayImpl (2, 3)
        """
        from kerasfeed.adapters.jax.conversion import JaxConversion

        prefetch, epochs = check_integer("prefetch", prefetch, 0), check_integer("epochs", epochs, 1)
        plan: Plan = self.plan  # type: ignore[attr-defined]
        conversion = JaxConversion(sharding, plan, prefetch)
        if conversion.divides:
            policy: FailurePolicy = self._options.policy  # type: ignore[attr-defined]
            refuse_skip(policy, "a sharding that divides batches", replaceable=plan.length > 0)
        return BatchLoop(self, partial(self.begin_loop, epochs), conversion, epochs)

    def to_torch(
        self,
        device: "torch.device | str | int | None" = None,
        *,
        pin_memory: bool | Literal["auto"] = "auto",
        prefetch: int = 2,
        epochs: int = 1,
    ) -> BatchLoop[Any]:
        """Iterate over batches as `torch.Tensor`s.

        Each iteration is the next epoch of the feed. On the CPU a tensor uses the memory that the batch was loaded
        into, without a copy. The tensor may be written to; its memory is reused once no tensor refers to it.

        Args:
            device: Destination of batches, for example "cuda". None is the CPU. Copies to a CUDA device use a separate
                stream; the current stream waits for them when it gets the batch.
            pin_memory: Whether to copy batches to page-locked memory, so that a GPU copies asynchronously. "auto" is
                False: with worker processes on the same cores such a copy takes longer than it saves. With
                `device=None`, True returns tensors in page-locked memory.
            prefetch: Number of batches to copy to the device ahead of the consumer, at least 0. Only batches that are
                already loaded are copied ahead. Has no effect if nothing is copied, or if the feed has `workers=0`.
            epochs: Epochs of the feed in one iteration, at least 1.

        Returns:
            An iterable of batches, nested as the scenes are; a ragged field is a `kerasfeed.RaggedArray` of two
            tensors. See [BatchLoop][kerasfeed.feeds.batch_loop.BatchLoop].

        Raises:
            ImportError: PyTorch is not installed.
            TypeError: An argument has the wrong type. In an iteration: PyTorch lacks the dtype of a field (text, for
                example).
            ValueError: An argument is out of range.
            RuntimeError: PyTorch has no such device here, or cannot lock memory.

        Examples:
            >>> with kf.Feed(np.zeros((10, 3), np.float32), batch_size=4, workers=0) as feed:
            ...     for batch in feed.to_torch():
            ...         print(type(batch).__name__, tuple(batch.shape))
            Tensor (4, 3)
            Tensor (4, 3)
            Tensor (2, 3)
        """
        from kerasfeed.adapters.torch.conversion import TorchConversion

        prefetch, epochs = check_integer("prefetch", prefetch, 0), check_integer("epochs", epochs, 1)
        conversion = TorchConversion(device, pin_memory, prefetch)
        return BatchLoop(self, partial(self.begin_loop, epochs), conversion, epochs)
