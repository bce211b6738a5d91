"""`tf.train.Example` without TensorFlow: named lists of bytes, float32 or int64.

Invariant: the bytes written follow the original schema, and everything that the original schema reads is read here. The
messages are declared in a separate descriptor pool, so TensorFlow may be in the same process; nothing here imports it.

Encoding builds no message: tags and sizes precede the memory of the arrays, which is not copied if large. A record of
256 KiB takes 3 us (and 25 us for its checksum); building messages takes 100 us.

A packed list of numbers and a `bytes` value have the same wire format. So the lists are declared as bytes, and NumPy
decodes numbers without one Python object each: 5 us for 9,216 float32, while `FloatList(value=...)` takes 300. Integers
in [0, 128), such as labels, are single bytes, decoded in the same way; other integers use the original schema. Writers
may leave lists unpacked: such values are unknown fields here, and the original schema reads them.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kerasfeed.util.error_text import message_of

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet
except ImportError as error:
    raise ImportError(
        'TFRecord files need protobuf, which is not installed: pip install protobuf (the extra "kerasfeed[tfrecord]")'
    ) from error

BYTES, FLOAT, INT64 = "bytes_list", "float_list", "int64_list"
_FLOAT32 = np.dtype("<f4")
_VALUE, _SECOND = b"\x0a", b"\x12"  # tags of the first and second field of a message; a size follows
_KIND_TAGS = {BYTES: b"\x0a", FLOAT: b"\x12", INT64: b"\x1a"}
_MOST_BYTES = (1 << 31) - 1
_COPIED = 1 << 14  # bytes; smaller arrays are copied, which is faster
_FEW = 8  # integers; for fewer, NumPy is slower than the original schema

Piece = Any  # bytes or uint8[N]


class Values(NamedTuple):
    """One feature.

    Attributes:
        kind: `BYTES`, `FLOAT` or `INT64`.
        values: A list of bytes, float32[N] or int64[N]; decoded arrays may be read-only. For encoding, float32 may
            have any axes, a few integers may be a list, and one bytes value may be uint8[N].
    """

    kind: str
    values: Any


def _declare(*, as_bytes: bool) -> tuple[Any, Any, Any]:
    """Return classes of Example, FloatList and Int64List."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kerasfeed/example.proto", package="kerasfeed", syntax="proto3")

    def add(message: Any, name: str, number: int, kind: int, type_name: str = "", *, repeated: bool = False) -> Any:
        label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
        return message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)

    as_message, as_list = field_type.TYPE_MESSAGE, field_type.TYPE_BYTES
    for name, true_type in (("Float", field_type.TYPE_FLOAT), ("Int64", field_type.TYPE_INT64)):
        add(file.message_type.add(name=f"{name}List"), "value", 1, as_list if as_bytes else true_type, repeated=True)
    add(file.message_type.add(name="BytesList"), "value", 1, as_list, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, type_name) in enumerate(((BYTES, "BytesList"), (FLOAT, "FloatList"), (INT64, "Int64List")), 1):
        add(feature, name, number, as_message, f".kerasfeed.{type_name}").oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field_type.TYPE_STRING)
    add(entry, "value", 2, as_message, ".kerasfeed.Feature")
    add(features, "feature", 1, as_message, ".kerasfeed.Features.FeatureEntry", repeated=True)
    add(file.message_type.add(name="Example"), "features", 1, as_message, ".kerasfeed.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = ("Example", "FloatList", "Int64List")
    first, second, third = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kerasfeed.{name}")) for name in names
    )
    return first, second, third


_Example, _, _ = _declare(as_bytes=True)
_, _TrueFloats, _TrueIntegers = _declare(as_bytes=False)


def encode_pieces(features: Mapping[str, Values]) -> list[Piece]:
    """Encode an Example in pieces.

    Large pieces share the memory of the values. The order of the features does not matter.

    Raises:
        UnicodeEncodeError: A name is not valid text.
        ValueError: The record exceeds the limit of protocol buffers.
    """
    pieces: list[Piece] = [b""]
    total = 0
    for name in sorted(features) if len(features) > 1 else features:
        kind, values = features[name]
        is_value = True
        if kind == FLOAT:
            value = memory_of(values, _FLOAT32)
        elif kind == INT64:
            is_value, value = _integers(values)
        elif len(values) == 1:
            (value,) = values
        else:
            is_value, value = False, b"".join([part for each in values for part in (_VALUE + _size(len(each)), each)])
        size = len(value)
        head = _head(name, kind, size, is_value and (size > 0 or kind == BYTES))
        pieces += head, value
        total += len(head) + size
    pieces[0] = _VALUE + _size(total)
    if total + len(pieces[0]) > _MOST_BYTES:
        raise ValueError(f"a record would have {total:,} bytes, but protocol buffers have at most {_MOST_BYTES:,}")
    return pieces


def memory_of(values: Any, dtype: np.dtype[Any]) -> Piece:
    """Return the bytes of an array, as a copy if small."""
    array = np.ascontiguousarray(values, dtype)
    return array.tobytes() if array.nbytes < _COPIED else array.reshape(-1).view(np.uint8)


@functools.lru_cache(1 << 12)
def _head(name: str, kind: str, size: int, is_value: bool) -> bytes:
    """Return the bytes before the `size` bytes of a feature."""
    head = _VALUE + _size(size) if is_value else b""
    head = _KIND_TAGS[kind] + _size(len(head) + size) + head
    key = name.encode()
    head = b"".join((_VALUE, _size(len(key)), key, _SECOND, _size(len(head) + size), head))
    return _VALUE + _size(len(head) + size) + head


@functools.lru_cache(1 << 12)
def _size(size: int) -> bytes:
    packed: bytes = _TrueIntegers(value=[size]).SerializeToString()
    return packed[2:]  # skip a tag, and the byte with the number of bytes


def _integers(values: NDArray[np.int64] | list[int]) -> tuple[bool, bytes]:
    """Return whether the bytes are a packed list's value, and the bytes."""
    if isinstance(values, np.ndarray):
        if len(values) >= _FEW and not (values >> 7).any():
            return True, values.astype(np.uint8).tobytes()
        values = values.tolist()
    return False, _TrueIntegers(value=values).SerializeToString()


class Example:
    """A serialized Example; each feature is decoded when it is used.

    Args:
        data: The bytes of one record.

    Raises:
        ValueError: `data` is not an Example.
    """

    __slots__ = ("_features", "_message")

    def __init__(self, data: bytes) -> None:
        try:
            self._message = _Example.FromString(data)
        except DecodeError as error:
            raise ValueError(f"the data are not a serialized tf.train.Example ({message_of(error)})") from None
        self._features = self._message.features.feature

    @property
    def other_fields(self) -> str:
        """Describe contents other than features; these are not read."""
        numbers = sorted({field.field_number for field in UnknownFieldSet(self._message)})
        if numbers == [2]:
            return "feature lists, as a tf.train.SequenceExample does"
        return f"the fields {', '.join(map(str, numbers))} of another message" if numbers else ""

    def names(self) -> list[str]:
        """Names of the features, in alphabetical order."""
        return sorted(self._features)

    def get(self, name: str) -> Values | None:
        """Return a feature; None if it is missing or holds no list.

        Raises:
            ValueError: A list is damaged.
        """
        feature = self._features.get(name)
        kind = None if feature is None else feature.WhichOneof("kind")
        if kind is None:
            return None
        value_list = getattr(feature, kind)
        if kind == BYTES:
            return Values(kind, value_list.value)
        chunks = value_list.value
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if len(UnknownFieldSet(value_list)) or (kind == INT64 and not data.isascii()):
            return Values(kind, _by_original_schema(name, kind, value_list.SerializeToString()))
        if kind == INT64:
            return Values(kind, np.frombuffer(data, np.uint8).astype(np.int64))
        if len(data) % _FLOAT32.itemsize:
            raise ValueError(f"feature {name!r}: a list of float32 takes {len(data)} bytes, not a multiple of 4")
        return Values(kind, np.frombuffer(data, _FLOAT32))


def _by_original_schema(name: str, kind: str, data: bytes) -> NDArray[Any]:
    try:
        message = (_TrueFloats if kind == FLOAT else _TrueIntegers).FromString(data)
    except DecodeError as error:
        raise ValueError(f"feature {name!r}: a number of its list is damaged ({message_of(error)})") from None
    return np.array(message.value, np.float32 if kind == FLOAT else np.int64)
