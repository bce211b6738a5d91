"""What is in a file, as names, as text and as a table for notebooks.

Invariant: only looks; data are not read, but the storage of every dataset shown is examined, as it says who reads it.
"""

from dataclasses import astuple, dataclass
from typing import Any

import h5py

from kerasfeed.readers.hdf5.error_messages import printable, shown_name, stored_name
from kerasfeed.readers.hdf5.inspection import filters_of
from kerasfeed.readers.hdf5.open_files import SharedFile
from kerasfeed.spec import html
from kerasfeed.util.error_text import message_of

_ROWS_SHOWN = 100


@dataclass(frozen=True)
class Facts:
    """One dataset in words.

    Attributes:
        name: Its path from the group shown.
        shape: Its shape, "(20, 6, 3)"; "null" where it holds nothing at all.
        dtype: Its dtype.
        chunks: Sizes of a chunk; "compact", "contiguous", ... where there are none.
        filters: Names of its filters, joined by " + ".
        reader: Who reads it, and why.
    """

    name: str
    shape: str
    dtype: str
    chunks: str
    filters: str
    reader: str


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


def facts(name: str, handle: h5py.Dataset, opened: SharedFile, cache_limit: int | None) -> Facts:
    """What there is to say about a dataset, `name` being its path from where one looks."""
    dataset = opened.dataset(shown_name(handle.name), cache_limit, examined=True)
    assert dataset is not None
    layouts = {h5py.h5d.COMPACT: "compact", h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.VIRTUAL: "virtual"}
    layout = handle.id.get_create_plist().get_layout()
    return Facts(
        name=printable(name),
        shape="null" if handle.shape is None else str(tuple(handle.shape)),
        dtype=str(handle.dtype),
        chunks=str(handle.chunks) if handle.chunks else layouts.get(layout, ""),
        filters=" + ".join(each.name for each in filters_of(handle)) or "none",
        reader=str(dataset.choice),
    )


def tree(title: str, group: h5py.Group, opened: SharedFile, cache_limit: int | None) -> str:
    """Everything below `group` as text, one line each, indented by depth."""
    lines = [title]
    for name, is_dataset in entries(group, opened.path):
        indent, short = "  " * (1 + name.count("/")), printable(name.rsplit("/", 1)[-1])
        if not is_dataset:
            lines.append(f"{indent}{short}/")
            continue
        each = facts(name, group[stored_name(name)], opened, cache_limit)
        chunks = f"chunks {each.chunks}" if each.chunks.startswith("(") else each.chunks
        lines.append(f"{indent}{short}  {each.dtype} {each.shape}  {chunks}  {each.filters}  [{each.reader}]")
    return "\n".join(lines)


def table(title: str, group: h5py.Group, opened: SharedFile, cache_limit: int | None) -> str:
    """HTML of one `div`: a title and a table of the datasets below `group`."""
    names = dataset_names(group, opened.path)
    shown = [list(astuple(facts(name, group[stored_name(name)], opened, cache_limit))) for name in names[:_ROWS_SHOWN]]
    columns = ["dataset", "shape", "dtype", "chunks", "filters", "reader"]
    more = f"and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return html.table(title, [], columns, shown, more)
