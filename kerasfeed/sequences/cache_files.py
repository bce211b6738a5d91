"""Scenes as bytes, and kept as files, one a scene: safe with many processes and threads, and after a crash.

Invariant: a file is complete before it has its name, and what is read is checked (CRC-32, index, lengths), so that what
is half written, damaged or another scene's is never returned. Nothing is unpickled: the bytes are a literal and the
fields' own, and cannot run code.
"""

import ast
import json
import shutil
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed.spec.field_values import as_array, is_weak
from kerasfeed.spec.lists import own
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.atomic_write import write_whole

_MAGIC = b"kerasfeed scene 2\n"
_SUFFIX = ".scene"
_PER_FOLDER = 1000
_NUMBERS: dict[str, Callable[[str], Any]] = {
    "bool": "True".__eq__,
    "int": int,
    "float": float,
    "complex": complex,
}  # from their text


def frozen_leaves(scene: Any) -> tuple[list[Any], Any]:
    """Fields of a scene that are the cache's own, and the nesting: copies of arrays and lists, text and numbers.

    Raises:
        SpecError: A field is nothing that a batch can hold.
    """
    leaves, treespec = flatten(scene)
    kept: list[Any] = []
    for path, leaf in zip(field_paths(treespec), leaves, strict=True):
        if isinstance(leaf, np.generic) and not isinstance(leaf, str | bytes):
            kept.append(leaf)
        elif isinstance(leaf, bool | int | float | complex):  # of a class of the user's, perhaps
            plain: Any = next(kind for kind in (bool, int, float, complex) if isinstance(leaf, kind))
            kept.append(plain(leaf))
        else:
            array = as_array(leaf, path)
            # A list of numbers stays one: it may be promoted where an array may not.
            kept.append(own(leaf) if is_weak(leaf) else own(array))
    return kept, treespec


class SceneFiles:
    """The files of one cache key.

    Attributes:
        folder: Where they are; made when the first scene is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, index: int) -> Path:
        return self.folder / str(index // _PER_FOLDER) / f"{index}{_SUFFIX}"

    def read(self, index: int) -> tuple[list[Any], str] | None:
        """Fields of a scene and the text of its nesting; None where there is none that is whole."""
        start = len(_MAGIC) + 4
        try:
            data = self._path(index).read_bytes()
        except OSError:
            return None
        body = memoryview(data)[start:]
        if data[:start] != _MAGIC + _checksum(index, body):
            return None
        try:
            return decoded(body)
        except TypeError:  # a dtype that this process does not know
            return None

    def write(self, index: int, data: bytes) -> None:
        """Keep a scene that was `encoded`, in place of what is there.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        path = self._path(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, b"".join([_MAGIC, _checksum(index, data), data]))

    def clear(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _checksum(index: int, body: bytes | memoryview) -> bytes:
    """CRC-32 of the bytes of a scene and of its index."""
    return zlib.crc32(body, index & 0xFFFFFFFF).to_bytes(4, "little")


def encoded(leaves: list[Any], structure: str) -> bytes:
    """The fields of a scene, as `frozen_leaves` gives them, and the text of their nesting, as bytes.

    A literal says how they are nested, and of each field kind, dtype and number of axes; integers tell how many bytes
    each has, and its shape; then come these bytes. Scenes that differ in shape alone have one literal.
    """
    parts = [_encoded_leaf(leaf) for leaf in leaves]
    head = repr((structure, [(kind, descr, len(shape)) for kind, _, descr, shape in parts])).encode()
    sizes = np.array([size for _, data, _, shape in parts for size in (len(data), *shape)], "<i8")
    return b"".join([len(head).to_bytes(8, "little"), head, sizes.tobytes(), *(data for _, data, *_ in parts)])


def _encoded_leaf(leaf: Any) -> tuple[str, bytes, Any, tuple[int, ...]]:
    """Kind, bytes, dtype and shape of a field."""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OT":
        kind = "scalar" if isinstance(leaf, np.generic) else "array"
        # Dtypes of other packages, such as bfloat16, go by their names.
        descr = leaf.dtype.name if leaf.dtype.isbuiltin == 2 else np.lib.format.dtype_to_descr(leaf.dtype)
        return kind, leaf.tobytes(), descr, leaf.shape
    if isinstance(leaf, np.ndarray):
        texts = [item.decode("latin-1") if isinstance(item, bytes) else item for item in leaf.flat]
        inside = "bytes" if leaf.size and isinstance(leaf.flat[0], bytes) else "str"
        kind = "StringDType" if leaf.dtype.kind == "T" else f"objects of {inside}"
        return kind, json.dumps(texts).encode(), None, leaf.shape
    if isinstance(leaf, list):
        return "list", json.dumps(leaf, default=_complex_parts).encode(), None, ()
    if isinstance(leaf, bytes):
        return "bytes", leaf, None, ()
    return type(leaf).__name__, str(leaf).encode("utf-8", "surrogatepass"), None, ()


def decoded(data: memoryview) -> tuple[list[Any], str]:
    """Copies of the fields of a scene that was `encoded`, and the text of their nesting.

    Raises:
        Exception: The bytes are no scene.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    structure, heads, count = _parsed(bytes(data[8:start]))
    sizes = np.frombuffer(data, "<i8", count, start).tolist()
    start += 8 * count
    leaves = []
    for kind, dtype, axes in heads:
        nbytes, shape, sizes = sizes[0], sizes[1 : 1 + axes], sizes[1 + axes :]
        leaves.append(_decoded_leaf(kind, data[start : start + nbytes], dtype, shape))
        start += nbytes
    return leaves, structure


@lru_cache(maxsize=64)  # most scenes of a sequence have the same
def _parsed(head: bytes) -> tuple[str, list[Any], int]:
    structure, heads = ast.literal_eval(head.decode())
    fields = [
        (kind, None if descr is None else np.lib.format.descr_to_dtype(descr), axes) for kind, descr, axes in heads
    ]
    return structure, fields, sum(1 + axes for *_, axes in heads)


def _decoded_leaf(kind: str, data: memoryview, dtype: Any, shape: list[int]) -> Any:
    if dtype is not None:
        array = np.frombuffer(data, dtype).reshape(shape).copy() if len(data) else np.empty(shape, dtype)
        return array if kind == "array" else array[()]
    if kind == "bytes":
        return bytes(data)
    text = bytes(data).decode("utf-8", "surrogatepass")
    if kind in _NUMBERS:
        return _NUMBERS[kind](text)
    if kind == "str":
        return text
    if kind == "list":
        return json.loads(text, object_hook=lambda parts: complex(parts["real"], parts["imag"]))
    texts = json.loads(text)
    if kind == "StringDType":
        return np.array(texts, np.dtypes.StringDType()).reshape(shape)
    array = np.empty(len(texts), object)
    array[:] = [text.encode("latin-1") for text in texts] if kind.endswith("bytes") else texts
    return array.reshape(shape)


def _complex_parts(value: complex) -> dict[str, float]:
    return {"real": value.real, "imag": value.imag}
