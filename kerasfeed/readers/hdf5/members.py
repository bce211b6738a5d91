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

    @property
    @abstractmethod
    def _links(self) -> Any:
        """How links are followed."""

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
        """The attributes of the file or group, as a dict."""
        return dict(self._group().attrs)

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Whether there is a dataset or group `name`, which may be a path."""

    def __iter__(self) -> Iterator[str]:
        """The names of the datasets and groups directly in this file or group."""
        for name in self._group():
            yield shown_name(name)

    def __len__(self) -> int:
        return len(self._group())

    def get(self, name: str, default: Any = None) -> Any:
        """The dataset or group `name`, or `default` if there is none.

        Args:
            name: A name, or a path such as "group/points".
            default: What is returned if there is no such dataset or group.

        Examples:
            >>> import h5py
            >>> h5py.File("rooms.h5", "w").close()
            >>> file = kf.HDF5File("rooms.h5")
            >>> print(file.get("colours"))
            None
            >>> file.close()
        """
        return self[name] if name in self else default  # noqa: SIM401  # which would be itself

    def keys(self) -> KeysView[str]:
        """The names of the datasets and groups directly in this file or group, in h5py's order."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """The datasets and groups directly in this file or group; None for anything else, such as a broken link."""
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:
        """Pairs of a name and a dataset or group, as `keys` and `values` give them."""
        return _Items(self)

    def dataset_paths(self) -> list[str]:
        """Paths of all datasets, also those in groups within groups, and in other files that external links lead to.

        Returns:
            Paths relative to this file or group, such as "scene_7/points": one for each dataset, that of a link only
            where the dataset has no other. Links that lead nowhere are left out; `tree()` shows them.

        Raises:
            OSError: The file is damaged.

        Examples:
            >>> import h5py
            >>> with h5py.File("rooms.h5", "w") as file:
            ...     file["scene_0/points"] = np.zeros((5, 3))
            ...     file["scene_1/points"] = np.zeros((7, 3))
            >>> file = kf.HDF5File("rooms.h5")
            >>> file.dataset_paths()
            ['scene_0/points', 'scene_1/points']
            >>> file.close()
        """
        return describe.dataset_names(self._group(), self._path_of_file, self._links)

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
