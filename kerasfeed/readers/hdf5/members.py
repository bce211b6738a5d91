"""What an open file or group holds, by name.

Invariant: a mapping as h5py's groups are, of local names, and nothing below them is looked at: a file of a million
groups is as quick to ask as one of three. Only what says so in its name descends into groups.
"""

from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

from kerasfeed.readers.hdf5 import describe
from kerasfeed.readers.hdf5.error_messages import shown_name


class Members(ABC):
    """Datasets and groups by name."""

    @abstractmethod
    def _group(self) -> Any:
        """h5py's group, of the open file."""

    @property
    @abstractmethod
    def _path_of_file(self) -> str:
        """Where the file is."""

    @abstractmethod
    def __getitem__(self, name: str) -> Any:
        """The dataset or group `name`."""

    def _no_name(self, name: object) -> TypeError:
        kind = type(self).__name__
        code = kind.removeprefix("HDF5").lower()
        return TypeError(
            f"an {kind} is indexed by the name of a dataset, received {name!r}: write {code}[name][{name!r}]"
        )

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the file, or of the group."""
        return dict(self._group().attrs)

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Whether there is a dataset or group `name`, which may be a path."""

    def __iter__(self) -> Iterator[str]:
        """The names of what is directly here."""
        for name in self._group():
            yield shown_name(name)

    def __len__(self) -> int:
        return len(self._group())

    def get(self, name: str, default: Any = None) -> Any:
        """The dataset or group `name`; `default` where there is none."""
        return self[name] if name in self else default  # noqa: SIM401  # which would be itself

    def keys(self) -> KeysView[str]:
        """The names of what is directly here, in h5py's order."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """What is directly here; None for what is neither a dataset nor a group, such as a link to nothing."""
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:
        """Pairs of a name and what `values` gives."""
        return _Items(self)

    def dataset_paths(self) -> list[str]:
        """Paths, from here, of all datasets, groups descended into: opens everything below once.

        Raises:
            OSError: The file is damaged.
        """
        return describe.dataset_names(self._group(), self._path_of_file)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


class _Values(ValuesView[Any]):
    _mapping: Members

    def __iter__(self) -> Iterator[Any]:
        return map(self._mapping.get, self._mapping)


class _Items(ItemsView[str, Any]):
    _mapping: Members

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, self._mapping.get(name)) for name in self._mapping)
