"""Scenes as bytes, and kept as files, one a scene: safe with many processes and threads, and after a crash.

Invariant: a file is complete before it has its name, and what is read is checked (CRC-32, index, lengths), so that what
is half written, damaged or another scene's is never returned. Nothing is unpickled: the bytes are a literal and the
fields' own, and cannot run code. What has no such bytes is not kept.
"""

import ast
import json
import shutil
import zlib
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
_NUMBERS = {"bool": bool, "float": float, "complex": complex}


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
    """Files of scenes, in a folder for each key; to be used as `kerasfeed.sequences.cache_memory.SceneMemory` is."""

    nbytes = 0  # of memory

    def __init__(self, folder: Path, name: str) -> None:
        """In `folder`; names of keys' folders begin with `name`."""
        self._start = folder / name

    def _folder(self, key: str) -> Path:
        return self._start.with_name(f"{self._start.name}-{key}")

    def _path(self, index: int, key: str) -> Path:
        return self._folder(key) / str(index // _PER_FOLDER) / f"{index}{_SUFFIX}"

    def read(self, index: int, key: str) -> tuple[list[Any], str] | None:
        """Fields of a scene and the text of its nesting; None where there is none that is whole."""
        start = len(_MAGIC) + 4
        try:
            data = self._path(index, key).read_bytes()
        except OSError:
            return None
        body = memoryview(data)[start:]
        if data[:start] != _MAGIC + _checksum(index, body):
            return None
        try:
            return decoded(body)
        except TypeError:  # a dtype that this process does not know
            return None

    def write(self, index: int, data: bytes, key: str) -> bool:
        """Keep a scene that was `encoded`, in place of what is there.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        path = self._path(index, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, b"".join([_MAGIC, _checksum(index, data), data]))
        return True

    def begin(self, key: str, after: str) -> bool:
        """Begin with the files of a key, which are deleted where they are the present ones."""
        if key == after:
            shutil.rmtree(self._folder(key), ignore_errors=True)
        return True


def _checksum(index: int, body: bytes | memoryview) -> bytes:
    """CRC-32 of the bytes of a scene and of its index."""
    return zlib.crc32(body, index & 0xFFFFFFFF).to_bytes(4, "little")


def encoded(leaves: list[Any], structure: str) -> bytes | None:
    """The fields of a scene, as `frozen_leaves` gives them, and the text of their nesting, as bytes.

    None where a field has none, such as a number of a class of the user's.
    """
    parts = [part for leaf in leaves if (part := _encoded_leaf(leaf)) is not None]
    if len(parts) < len(leaves):
        return None
    head = repr((structure, [(kind, len(data), *more) for kind, data, *more in parts])).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *(data for _, data, *_ in parts)])


def _encoded_leaf(leaf: Any) -> tuple[Any, ...] | None:
    """Kind, bytes, and what else is needed to make a field anew."""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OT":
        kind = "scalar" if isinstance(leaf, np.generic) else "array"
        # Dtypes of other packages, such as bfloat16, go by their names.
        descr = leaf.dtype.name if leaf.dtype.isbuiltin == 2 else np.lib.format.dtype_to_descr(leaf.dtype)
        return kind, leaf.tobytes(), descr, leaf.shape
    if isinstance(leaf, np.ndarray):
        texts = [item.decode("latin-1") if isinstance(item, bytes) else item for item in leaf.flat]
        inside = "bytes" if leaf.size and isinstance(leaf.flat[0], bytes) else "str"
        kind = "StringDType" if leaf.dtype.kind == "T" else f"objects of {inside}"
        return kind, json.dumps(texts).encode(), leaf.shape
    kind = type(leaf).__name__
    if type(leaf) in _NUMBERS.values():
        array = np.asarray(leaf)
        return kind, array.tobytes(), array.dtype.str, ()
    if type(leaf) is int:
        return kind, str(leaf).encode()
    if type(leaf) is str:
        return kind, leaf.encode("utf-8", "surrogatepass")
    if type(leaf) is bytes:
        return kind, leaf
    return (kind, json.dumps(leaf, default=_complex_parts).encode()) if type(leaf) is list else None


def decoded(data: memoryview) -> tuple[list[Any], str]:
    """Copies of the fields of a scene that was `encoded`, and the text of their nesting.

    Raises:
        Exception: The bytes are no scene.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    structure, heads = _parsed(bytes(data[8:start]))
    leaves = []
    for kind, nbytes, *more in heads:
        leaves.append(_decoded_leaf(kind, data[start : start + nbytes], *more))
        start += nbytes
    return leaves, structure


@lru_cache(maxsize=256)  # most scenes of a sequence have the same
def _parsed(head: bytes) -> tuple[str, list[Any]]:
    structure, heads = ast.literal_eval(head.decode())
    return structure, [
        (kind, nbytes, np.lib.format.descr_to_dtype(more[0]), more[1]) if len(more) == 2 else (kind, nbytes, *more)
        for kind, nbytes, *more in heads
    ]


def _decoded_leaf(kind: str, data: memoryview, *more: Any) -> Any:
    if kind == "int":
        return int(bytes(data))
    if kind == "str":
        return bytes(data).decode("utf-8", "surrogatepass")
    if kind == "bytes":
        return bytes(data)
    if kind == "list":
        return json.loads(bytes(data), object_hook=lambda parts: complex(parts["real"], parts["imag"]))
    if kind == "StringDType":
        return np.array(json.loads(bytes(data)), np.dtypes.StringDType()).reshape(more[0])
    if kind.startswith("objects of"):
        texts = json.loads(bytes(data))
        array = np.empty(len(texts), object)
        array[:] = [text.encode("latin-1") for text in texts] if kind.endswith("bytes") else texts
        return array.reshape(more[0])
    dtype, shape = more
    array = np.frombuffer(data, dtype).reshape(shape).copy() if len(data) else np.empty(shape, dtype)
    return array if kind == "array" else array[()] if kind == "scalar" else _NUMBERS[kind](array[()])


def _complex_parts(value: complex) -> dict[str, float]:
    return {"real": value.real, "imag": value.imag}
