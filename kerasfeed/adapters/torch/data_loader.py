"""Batches as PyTorch's loaders give them."""

from collections.abc import Callable, Iterator
from typing import Any

import optree
import torch.utils.data


def loader_of(batches: Iterator[Any], convert: Callable[[Any], Any]) -> Any:
    """A `torch.utils.data.DataLoader` of `batches`, whose arrays `convert` makes tensors; for one iteration."""
    return torch.utils.data.DataLoader(_Batches(batches, convert), batch_size=None)


class _Batches(torch.utils.data.IterableDataset[Any]):
    def __init__(self, batches: Iterator[Any], convert: Callable[[Any], Any]) -> None:
        self._batches = batches
        self._convert = convert

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield optree.tree_map(self._convert, batch)
