"""Scenes kept as files, one a scene: safe with many processes and threads, and with what a crash leaves behind.

Invariant: a file is complete before it has its name, and what is read is checked (CRC-32, index, lengths), so that what
is half written, damaged or another scene's is never returned. Nothing is unpickled: a file holds a literal and raw
bytes, and cannot run code.
"""

import ast
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed.spec.field_values import as_array, is_weak
from kerasfeed.spec.lists import own
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.util.atomic_write import write_whole

_MAGIC = b"kerasfeed scene 1\n"
_SUFFIX = ".scene"
_PER_FOLDER = 1000
_NUMBERS = {"bool": bool, "int": int, "float": float, "complex": complex}


def frozen_leaves(scene: Any) -> tuple[list[Any], Any]:
    """Fields of a scene that are the cache's own, and the nesting: copies of arrays and lists, text and numbers.

    Raises:
        SpecError: A field is nothing that a batch can hold.
    """
    leaves, treespec = flatten(scene)
    kept: list[Any] = []
    for path, leaf in zip(field_paths(treespec), leaves, strict=True):
        if isinstance(leaf, bool | int | float | complex | np.generic) and not isinstance(leaf, str | bytes):
            kept.append(leaf)
            continue
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
        try:
            data = bytearray(self._path(index).read_bytes())
        except OSError:
            return None
        try:
            return _decoded(data, index)
        except (ValueError, SyntaxError, KeyError, TypeError, IndexError, MemoryError, RecursionError):
            return None

    def write(self, index: int, leaves: list[Any], treespec: Any) -> None:
        """Keep a scene, in place of what is there.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        path = self._path(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _encoded(index, leaves, structure_text(treespec)))

    def clear(self) -> None:
        """Delete all files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _encoded(index: int, leaves: list[Any], structure: str) -> bytes:
    parts = [_encoded_leaf(leaf) for leaf in leaves]
    head = repr((index, structure, [(kind, len(data), *more) for kind, data, *more in parts])).encode()
    body = b"".join([len(head).to_bytes(8, "little"), head, *(data for _, data, *_ in parts)])
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def _encoded_leaf(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, str):
        return "str", leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, bytes):
        return "bytes", leaf
    if isinstance(leaf, list):
        return "list", json.dumps(leaf, default=_complex_parts).encode()
    kind = type(leaf).__name__ if type(leaf) in _NUMBERS.values() else "array"
    array = np.asarray(leaf)
    if array.dtype.kind in "OT":
        texts = [item.decode("latin-1") if isinstance(item, bytes) else item for item in array.flat]
        inside = "bytes" if array.size and isinstance(array.flat[0], bytes) else "str"
        kind = "StringDType" if array.dtype.kind == "T" else f"objects of {inside}"
        return kind, json.dumps(texts).encode(), array.shape
    kind = "scalar" if isinstance(leaf, np.generic) else kind
    return kind, array.tobytes(), np.lib.format.dtype_to_descr(array.dtype), array.shape


def _decoded(data: bytearray, index: int) -> tuple[list[Any], str]:
    start = len(_MAGIC) + 4
    view = memoryview(data)
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(view[start:]) != int.from_bytes(data[len(_MAGIC) : start], "little"):
        raise ValueError("damaged")
    head_bytes = int.from_bytes(data[start : start + 8], "little")
    start += 8
    found, structure, heads = ast.literal_eval(data[start : start + head_bytes].decode())
    if found != index:
        raise ValueError("another scene")
    start += head_bytes
    leaves = []
    for kind, nbytes, *more in heads:
        leaves.append(_decoded_leaf(kind, view[start : start + nbytes], *more))
        start += nbytes
    return leaves, structure


def _decoded_leaf(kind: str, data: memoryview, *more: Any) -> Any:
    if kind == "str":
        return bytes(data).decode("utf-8", "surrogatepass")
    if kind == "bytes":
        return bytes(data)
    if kind == "list":
        return json.loads(bytes(data), object_hook=lambda parts: complex(parts["real"], parts["imag"]))
    if kind == "StringDType":
        texts = json.loads(bytes(data))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("missing values")
        return np.array(texts, np.dtypes.StringDType()).reshape(more[0])
    if kind.startswith("objects of"):
        texts = json.loads(bytes(data))
        array = np.empty(len(texts), object)
        array[:] = [text.encode("latin-1") for text in texts] if kind.endswith("bytes") else texts
        return array.reshape(more[0])
    descr, shape = more
    dtype = np.lib.format.descr_to_dtype(descr)
    array = np.frombuffer(bytearray(data), dtype).reshape(shape) if len(data) else np.empty(shape, dtype)
    return array if kind == "array" else array[()] if kind == "scalar" else _NUMBERS[kind](array[()])


def _complex_parts(value: complex) -> dict[str, float]:
    return {"real": value.real, "imag": value.imag}
