"""Batches as tensors of PyTorch.

Invariant: on the CPU a tensor uses the memory that the batch was loaded into, and may be written to. Copies to a CUDA
device use a separate stream; the consumer's stream waits for the copies of a batch when it gets the batch.
"""

from typing import Any

import numpy as np
import optree

from kerasfeed.feeds.batch_loop import converted, numeric_leaves
from kerasfeed.util.error_text import message_of

try:
    import torch
except ImportError as missing:
    raise ImportError(
        'to_torch() needs PyTorch, which is not installed: pip install torch (the extra "kerasfeed[torch]")'
    ) from missing


_Moving = tuple[Any, list[Any], Any]  # a batch, its tensors on a CUDA device, and the event of their copies there
_REGISTERED = 2  # `isbuiltin` of dtypes that a library such as ml_dtypes adds to NumPy


class TorchConversion:
    """Puts batches on a device.

    Attributes:
        ahead: See `kerasfeed.feeds.batch_loop.Conversion`.
    """

    def __init__(self, device: Any, pin_memory: Any, prefetch: int) -> None:
        """Check the arguments.

        Args:
            device: A `torch.device`, the name of one, or None for the CPU.
            pin_memory: Whether to copy batches to page-locked memory, a bool; "auto" is False.
            prefetch: Batches to copy ahead of the consumer, if batches are copied at all.

        Raises:
            ValueError: `pin_memory` is something else.
            RuntimeError: PyTorch has no such device, or cannot lock memory.
        """
        self._device = _usable("cpu" if device is None else device)
        if pin_memory not in ("auto", True, False):
            raise ValueError(f'pin_memory must be True, False or "auto", received {pin_memory!r}')
        on_cuda = self._device.type == "cuda"
        # "auto" does not pin: several threads fill page-locked memory, and compete with workers for cores.
        self._pins = pin_memory is True
        if self._pins and not torch.accelerator.is_available():
            raise RuntimeError("pin_memory=True needs a GPU, and PyTorch finds none: leave it out")
        self._stream = torch.cuda.Stream(self._device) if on_cuda else None  # type: ignore[no-untyped-call]
        self.ahead = prefetch if self._device.type != "cpu" or self._pins else 0

    def begin(self, batch: Any) -> _Moving:
        """See `Conversion.begin`."""
        arrays, treespec = numeric_leaves(batch, "PyTorch")
        tensors = converted(tensor_of, arrays, treespec)
        if self._pins:
            tensors = [tensor.pin_memory() for tensor in tensors]
        if self._stream is None:
            return optree.tree_unflatten(treespec, [tensor.to(self._device) for tensor in tensors]), [], None
        with torch.cuda.stream(self._stream):
            # PyTorch keeps pinned memory until copies from it are done. For other memory it waits here.
            moved = [tensor.to(self._device, non_blocking=self._pins) for tensor in tensors]
            return optree.tree_unflatten(treespec, moved), moved, self._stream.record_event()

    def finish(self, converted: _Moving) -> Any:
        """See `Conversion.finish`."""
        batch, moved, copied = converted
        if copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied)
            for tensor in moved:
                tensor.record_stream(stream)  # its memory belongs to the other stream
        return batch

    def __repr__(self) -> str:
        return f"PyTorch on {self._device}"


def _usable(device: Any) -> Any:
    """Return the `torch.device` with its index, whatever the current device.

    Raises:
        RuntimeError: PyTorch has no such device.
    """
    try:
        return torch.empty(0, device=torch.device(device)).device
    except (AssertionError, ImportError, RuntimeError) as error:  # AssertionError without CUDA
        raise RuntimeError(f"PyTorch cannot use device {str(device)!r} here: {message_of(error)}") from error


def tensor_of(array: np.ndarray[Any, Any]) -> Any:
    """Return a tensor of the memory of `array`, or of a copy.

    Raises:
        TypeError: PyTorch has no such dtype.
    """
    if not (array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    kind = getattr(torch, array.dtype.name, None) if array.dtype.isbuiltin == _REGISTERED else None
    if kind is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).view(kind)
