"""Copy an HDF5 file object by object, with some datasets made anew by somebody else.

Invariant: every link, group, attribute and dataset that is not made anew is what it was: hard links to one object stay
hard links to one object, references and dimension scales refer to the copies. What cannot be kept is refused by name.
"""

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

from kerasfeed.util.error_text import message_of

# Written by HDF5 as dimension scales are attached to datasets.
_SCALE_LISTS = ("DIMENSION_LIST", "REFERENCE_LIST")
Key = tuple[int, int]


def key_of(item: Any) -> Key:
    """What identifies an object of an open file, by whichever name it was reached."""
    info = h5py.h5o.get_info(item.id)
    return int(info.fileno), int(info.addr)


class TreeCopy:
    """Copies `source` into the empty file `target`."""

    def __init__(
        self, source: h5py.File, target: h5py.File, remake: dict[Key, Callable[[h5py.Group, bytes], h5py.Dataset]]
    ) -> None:
        """Prepare.

        Args:
            source: The file to copy.
            target: An empty file, open for writing.
            remake: For each dataset that is made anew, what makes it, without attributes, in a group under a name.
        """
        self._source = source
        self._target = target
        self._remake = remake
        self._names: dict[Key, str] = {}  # where the copy of an object first stands
        self._lcpl = links_in_utf8()

    def run(self) -> None:
        """Copy everything.

        Raises:
            ValueError: The file holds something that cannot be kept; the message names it.
        """
        source, target = self._source["/"], self._target["/"]
        self._names[key_of(source)] = "/"
        self._copy_attributes(source, target)
        groups = [(source, target)]
        while groups:
            self._copy_links(*groups.pop(), groups)
        for name in list(self._names.values()):
            self._rewrite_references(self._target[name], name)
        for name in self._names.values():  # not before all are mended: attaching writes to both sides
            self._attach_scales(self._source[name], self._target[name])

    def _copy_links(self, source: h5py.Group, target: h5py.Group, groups: list[tuple[h5py.Group, h5py.Group]]) -> None:
        for name in source:
            try:
                link = source.get(name, getlink=True)
            except TypeError as error:
                raise ValueError(
                    f"the link {name!r} of {source.name!r} cannot be copied: {message_of(error)}"
                ) from None
            if not isinstance(link, h5py.HardLink):
                target[name] = link
                continue
            item = source[name]
            key = key_of(item)
            if key in self._names:
                target[name] = self._target[self._names[key]]
                continue
            self._names[key] = f"{target.name.rstrip('/')}/{name}"
            raw = name.encode("utf-8", "surrogateescape")
            if isinstance(item, h5py.Group):
                made = h5py.Group(h5py.h5g.create(target.id, raw, self._lcpl, _properties(item)))
                self._copy_attributes(item, made)
                groups.append((item, made))
            elif key in self._remake:
                self._copy_attributes(item, self._remake[key](target, raw))
            else:
                h5py.h5o.copy(source.id, raw, target.id, raw, lcpl=self._lcpl)

    def _copy_attributes(self, source: Any, target: Any) -> None:
        for name in source.attrs:
            raw = name.encode("utf-8", "surrogateescape")
            attribute = h5py.h5a.open(source.id, raw)
            if name in _SCALE_LISTS or holds_references(attribute.dtype):
                continue  # when all objects have their copies
            try:
                made = h5py.h5a.create(target.id, raw, attribute.get_type(), attribute.get_space())
                if attribute.get_space().get_simple_extent_type() != h5py.h5s.NULL:
                    value = np.empty(attribute.shape, attribute.dtype)
                    attribute.read(value)
                    made.write(value)
            except (TypeError, OSError, ValueError) as error:
                raise ValueError(
                    f"the attribute {name!r} of {source.name!r} cannot be copied: {message_of(error)}"
                ) from error

    def _rewrite_references(self, copy: Any, name: str) -> None:
        original = self._source[name]
        for attribute_name in original.attrs:
            if attribute_name in _SCALE_LISTS:
                continue
            dtype = original.attrs.get_id(attribute_name).dtype
            if holds_references(dtype):
                where = f"the attribute {attribute_name!r} of {name!r}"
                value = self._translated(original.attrs[attribute_name], dtype, where)
                copy.attrs.create(attribute_name, value, dtype=dtype)
        if not isinstance(original, h5py.Dataset):
            return
        if holds_references(original.dtype):
            copy[...] = self._translated(original[...], original.dtype, f"the dataset {name!r}")
        for attribute_name in _SCALE_LISTS:
            if attribute_name in copy.attrs and attribute_name in original.attrs:
                del copy.attrs[attribute_name]  # it refers to the original file's objects

    def _attach_scales(self, original: Any, copy: Any) -> None:
        if not isinstance(original, h5py.Dataset) or "DIMENSION_LIST" not in original.attrs:
            return
        for axis, dimension in enumerate(original.dims):
            for scale in dimension.values():
                copy.dims[axis].attach_scale(self._target[self._names[key_of(scale)]])

    def _translated(self, value: Any, dtype: np.dtype[Any], where: str) -> Any:
        if h5py.check_ref_dtype(dtype) is not h5py.Reference:
            raise ValueError(
                f"{where} holds references to regions, or references within other values, which cannot be copied to "
                "another file; remove it from a copy of the file first"
            )
        references = np.empty(np.shape(value), dtype)
        for place, reference in np.ndenumerate(np.asarray(value, object)):
            if not reference:
                references[place] = h5py.Reference()
                continue
            name = self._names.get(key_of(self._source[reference]))
            if name is None:
                raise ValueError(f"{where} refers to an object that no link leads to, which cannot be copied")
            references[place] = self._target[name].ref
        return references if references.shape else references[()]


def links_in_utf8() -> Any:
    """How links are made, with names in UTF-8."""
    made = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    made.set_char_encoding(h5py.h5t.CSET_UTF8)
    return made


def _properties(group: h5py.Group) -> Any:
    # Not the group's own list: of a group in the newer format it names the heap of that very group.
    old, new = group.id.get_create_plist(), h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    new.set_link_creation_order(old.get_link_creation_order())
    new.set_attr_creation_order(old.get_attr_creation_order())
    return new


def holds_references(dtype: np.dtype[Any]) -> bool:
    """Whether values of `dtype` refer, somewhere within, to objects of their file."""
    if h5py.check_ref_dtype(dtype) is not None:
        return True
    inner = h5py.check_vlen_dtype(dtype)
    if isinstance(inner, np.dtype):
        return holds_references(inner)
    if dtype.subdtype is not None:
        return holds_references(dtype.base)
    return any(holds_references(dtype[name]) for name in dtype.names or ())
