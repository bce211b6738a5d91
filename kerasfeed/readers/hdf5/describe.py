"""What is in a file, as names, as text and as a table for notebooks.

Invariant: only looks; data are not read, but the storage of every dataset shown is examined, as it says who reads it.
"""

from typing import Any

import h5py

from kerasfeed.readers.hdf5.error_messages import printable, shown_name, stored_name
from kerasfeed.readers.hdf5.inspection import filters_of
from kerasfeed.readers.hdf5.open_files import SharedFile
from kerasfeed.spec import html
from kerasfeed.util.error_text import message_of

_ROWS_SHOWN = 100
_COLUMNS = ["dataset", "shape", "dtype", "chunks", "filters", "reader"]


def entries(group: h5py.Group, path: str, most: int | None = None) -> list[tuple[str, bool]]:
    """Path and whether it is a dataset, of everything below a group, or of the first `most`, each object once.

    Raises:
        OSError: The file is damaged.
    """
    found: list[tuple[str, bool]] = []

    def visit(name: str | bytes, item: Any) -> bool | None:
        found.append((shown_name(name), isinstance(item, h5py.Dataset)))
        return True if len(found) == most else None  # anything but None ends it

    try:
        group.visititems(visit)
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        raise OSError(f"cannot list what is in {path!r}: a damaged HDF5 file ({message_of(error)})") from error
    return found


def dataset_names(group: h5py.Group, path: str) -> list[str]:
    """Paths of all datasets below a group."""
    return [name for name, is_dataset in entries(group, path) if is_dataset]


def facts(name: str, handle: h5py.Dataset, opened: SharedFile, cache_limit: int | None) -> list[str]:
    """What there is to say about a dataset, as the columns of a table; `name` is its path from where one looks."""
    dataset = opened.dataset(shown_name(handle.name), cache_limit, examined=True)
    assert dataset is not None
    layouts = {h5py.h5d.COMPACT: "compact", h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.VIRTUAL: "virtual"}
    layout = handle.id.get_create_plist().get_layout()
    return [
        printable(name),
        "null" if handle.shape is None else str(tuple(handle.shape)),
        str(handle.dtype),
        str(handle.chunks) if handle.chunks else layouts.get(layout, ""),
        " + ".join(each.name for each in filters_of(handle)) or "none",
        str(dataset.choice),
    ]


def tree(title: str, group: h5py.Group, opened: SharedFile, cache_limit: int | None) -> str:
    """Everything below `group` as text, one line each, indented by depth."""
    lines = [title]
    for name, is_dataset in entries(group, opened.path):
        indent, short = "  " * (1 + name.count("/")), printable(name.rsplit("/", 1)[-1])
        if not is_dataset:
            lines.append(f"{indent}{short}/")
            continue
        _, shape, dtype, chunks, filters, reader = facts(name, group[stored_name(name)], opened, cache_limit)
        chunks = f"chunks {chunks}" if chunks.startswith("(") else chunks
        lines.append(f"{indent}{short}  {dtype} {shape}  {chunks}  {filters}  [{reader}]")
    return "\n".join(lines)


def table(title: str, group: h5py.Group, opened: SharedFile, cache_limit: int | None) -> str:
    """HTML of one `div`: a title and a table of the datasets below `group`."""
    names = dataset_names(group, opened.path)
    shown = [facts(name, group[stored_name(name)], opened, cache_limit) for name in names[:_ROWS_SHOWN]]
    more = f"and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return html.table(title, [], _COLUMNS, shown, more)
