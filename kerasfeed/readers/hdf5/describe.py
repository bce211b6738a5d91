"""List the contents of a file: names, text, or HTML.

Invariant: listing names reads no data. To report the reader of each dataset that they show, `tree` and `table` examine
its storage, which may read its first and last chunk or item.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import h5py

from kerasfeed.readers.hdf5.error_messages import HDF5_ERRORS, link_target, printable, shown_name
from kerasfeed.readers.hdf5.inspection import filters_of
from kerasfeed.readers.hdf5.open_files import OpenDataset
from kerasfeed.util.error_text import message_of
from kerasfeed.util.report import Report, Table

_ROWS_SHOWN = 100
_COLUMNS = ["dataset", "shape", "dtype", "chunks", "filters", "reader"]


@dataclass(frozen=True)
class Entry:
    """An object, or a broken link, with its name.

    Attributes:
        path: The name, relative to the listed group.
        kind: "dataset", "group", "datatype", or "nothing" for a broken link.
        target: Target of a soft or external link; empty for a hard link.
        is_known: Whether the object is listed under another name.
    """

    path: str
    kind: str
    target: str = ""
    is_known: bool = False

    @property
    def is_dataset(self) -> bool:
        """Whether this is a dataset that no other entry names."""
        return self.kind == "dataset" and not self.is_known


_KINDS = {h5py.h5o.TYPE_GROUP: "group", h5py.h5o.TYPE_DATASET: "dataset"}


def entries(group: h5py.Group, path: str, links: Any, most: int | None = None) -> list[Entry]:
    """List the objects below a group, each once.

    Targets of soft and external links come last, unless they are listed already.

    Args:
        group: The group.
        path: Path of the file, for messages.
        links: h5py's link access properties.
        most: Maximum number of entries; None lists all objects.

    Raises:
        OSError: The file is damaged.
    """
    try:
        return list(islice(_walk(group.id, links), most))
    except HDF5_ERRORS as error:
        raise OSError(f"cannot list the contents of {path!r}: a damaged HDF5 file ({message_of(error)})") from error


def _walk(group: Any, links: Any) -> Iterator[Entry]:
    """Walk a group of h5py's low level.

    HDF5's own walk crashes the interpreter if an object is damaged.
    """
    info = h5py.h5o.get_info(group)
    seen = {(info.fileno, info.addr)}
    behind: deque[tuple[Any, str, bytes]] = deque()  # links: the group that holds it, path, and name in the group

    def members(group: Any, prefix: str) -> Iterator[Entry]:
        for stored in group:
            name = prefix + shown_name(stored)
            if group.links.get_info(stored).type == h5py.h5l.TYPE_HARD:
                yield from found(group, name, stored, "")
            else:
                behind.append((group, name, stored))

    def found(group: Any, name: str, stored: bytes, target: str) -> Iterator[Entry]:
        info = h5py.h5o.get_info(group, stored, lapl=links)
        kind, key = _KINDS.get(info.type, "datatype"), (info.fileno, info.addr)
        is_known = key in seen
        seen.add(key)
        if target or not is_known:
            yield Entry(name, kind, target, is_known)
        if kind == "group" and not is_known:
            yield from members(h5py.h5o.open(group, stored, links), f"{name}/")

    yield from members(group, "")
    while behind:
        group, name, stored = behind.popleft()
        target = link_target(group, stored)
        try:
            h5py.h5o.get_info(group, stored, lapl=links)
        except HDF5_ERRORS:
            yield Entry(name, "nothing", target)
        else:
            yield from found(group, name, stored, target)


def facts(name: str, dataset: OpenDataset) -> list[str]:
    """The columns of the table for the dataset `name`."""
    handle = dataset.handle
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


def tree(title: str, found: list[Entry], dataset: Callable[[str], OpenDataset]) -> str:
    """The objects below a group as text, one indented line each.

    `dataset` opens a dataset by its name.
    """
    lines = [title]
    # Links are sorted by their names.
    for entry in sorted(found, key=lambda each: each.path.split("/")):
        name = entry.path
        line = "  " * (1 + name.count("/")) + printable(name.rsplit("/", 1)[-1])
        if entry.kind in ("group", "datatype"):
            line += "/" if entry.kind == "group" else "  datatype"
        elif entry.is_dataset:
            _, shape, dtype, chunks, filters, reader = facts(name, dataset(name))
            chunks = f"chunks {chunks}" if chunks.startswith("(") else chunks
            line += f"  {dtype} {shape}  {chunks}  {filters}  [{reader}]"
        if entry.target:
            line += f"  -> {printable(entry.target)}" + (" (missing)" if entry.kind == "nothing" else "")
        lines.append(line)
    return "\n".join(lines)


def table(title: str, names: list[str], dataset: Callable[[str], OpenDataset]) -> str:
    """HTML of one `div`: a title and a table of datasets.

    `dataset` is as in `tree`.
    """
    shown = [facts(name, dataset(name)) for name in names[:_ROWS_SHOWN]]
    more = f"and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return Report(title, tables=[Table(_COLUMNS, shown)], more=more).html
