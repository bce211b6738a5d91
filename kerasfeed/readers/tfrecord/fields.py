"""Fields of a scene as features of a record, and back.

Invariant: the encoding depends on the spec alone. float32 is a `float_list`. int32, int64, and scalar integers and
booleans are an `int64_list`. `str` and `bytes` are a `bytes_list`. Every other dtype is one bytes value: the array's
memory, little-endian, in C order. A feature has the name of its field. If an axis has no fixed size, the feature
`<name>/shape` holds the sizes of all axes. Values are never rounded.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.readers.tfrecord.example import BYTES, FLOAT, INT64, Example, Piece, Values, encode_pieces, memory_of
from kerasfeed.spec.field_values import coerce
from kerasfeed.spec.scene_spec import TEXT, ArraySpec, SceneSpec
from kerasfeed.spec.spec_json import leaves_of
from kerasfeed.util.array_bits import object_array
from kerasfeed.util.error_text import message_of, pluralize

RAW = "raw"
SHAPE = "/shape"


def kind_of(field: ArraySpec) -> str:
    """Return how a field is stored: `BYTES`, `FLOAT`, `INT64` or `RAW`."""
    if field.is_text:
        return BYTES
    if field.dtype == np.float32:
        return FLOAT
    if field.dtype in (np.int32, np.int64) or (field.shape == () and field.dtype.kind in "iub"):
        return INT64
    return RAW


class SceneCodec:
    """Encode scenes of one spec as records, and decode them.

    Args:
        spec: Spec of a scene.

    Raises:
        SpecError: Two features would have one name.
    """

    def __init__(self, spec: SceneSpec) -> None:
        self.spec = spec
        self._fields = [_FieldCodec(path, field) for path, field in zip(spec.paths, spec.fields, strict=True)]
        names = [name for field in self._fields for name in field.names]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"two features would have the name {name!r}: rename one of the fields")

    def pieces(self, scene: Any) -> list[Piece]:
        """Encode a scene in pieces, which may share its memory.

        Raises:
            SpecError: The scene does not match the spec; the message names the field.
            ValueError: The record would be too large.
        """
        features: dict[str, Values] = {}
        for field, leaf in zip(self._fields, leaves_of(self.spec, scene), strict=True):
            field.encode(leaf, features)
        return encode_pieces(features)

    def decode(self, record: bytes) -> list[Any]:
        """Decode the fields of a scene, in the spec's order.

        Arrays may be read-only.

        Raises:
            SpecError: A feature is missing, or does not match the spec.
            ValueError: The record is not an Example, or is damaged.
        """
        example = Example(record)
        return [field.decode(example) for field in self._fields]


class _FieldCodec:
    """One field of a spec."""

    def __init__(self, path: str, field: ArraySpec) -> None:
        self.path = path
        self.field = field
        self.kind = kind_of(field)
        self.is_sized = None in field.shape
        self._fixed_shape = tuple(size or 0 for size in field.shape)
        self._fixed_size = math.prod(self._fixed_shape)
        self._takes_int = self.kind == INT64 and field.weak and field.shape == () and field.dtype == np.int64
        self._stored = field.dtype if field.is_text else field.dtype.newbyteorder("<")

    @property
    def names(self) -> list[str]:
        """Names of the features of the field."""
        return [self.path, self.path + SHAPE] if self.is_sized else [self.path]

    # ---- encode

    def encode(self, leaf: Any, features: dict[str, Values]) -> None:
        """Add the features of a value."""
        array = leaf if self._is_plain(leaf) else coerce(leaf, self.field, self.path)
        if self.is_sized:
            features[self.path + SHAPE] = Values(INT64, np.array(np.shape(array), np.int64))
        if self.kind == BYTES:
            features[self.path] = Values(BYTES, self._texts(array))
        elif self.kind == FLOAT:
            features[self.path] = Values(FLOAT, array)
        elif self.kind == INT64:
            is_int = type(array) is int
            features[self.path] = Values(INT64, [array] if is_int else np.ravel(array).astype(np.int64))
        else:
            features[self.path] = Values(BYTES, [memory_of(array, self._stored)])

    def _is_plain(self, leaf: Any) -> bool:
        """Whether a value matches without conversion; 0.3 us, while `coerce` takes 8."""
        if type(leaf) is np.ndarray:
            return leaf.shape == self._fixed_shape and leaf.dtype == self.field.dtype and not self.is_sized
        return type(leaf) is int and self._takes_int and -(1 << 63) <= leaf < 1 << 63

    def _texts(self, value: Any) -> list[bytes]:
        values: list[Any] = [value] if isinstance(value, str | bytes) else value.ravel().tolist()
        if self.field.dtype != TEXT:
            return values
        try:
            return [text.encode() for text in values]
        except UnicodeEncodeError as error:
            raise SpecError(f"field {self.path!r} holds text that UTF-8 cannot encode: {message_of(error)}") from None

    # ---- decode

    def decode(self, example: Example) -> Any:
        """Return the value of the field in a record."""
        feature = example.get(self.path)
        if feature is None:
            names = example.names()
            why = "holds no list" if self.path in names else f"is missing; it has {', '.join(names) or '-'}"
            more = f"; the record also holds {example.other_fields}" if example.other_fields else ""
            raise SpecError(f"feature {self.path!r} {why}{more}")
        if not self.field.is_text:
            numbers = self._numbers(feature)
            return numbers.reshape(self._shape(len(numbers), feature, example))
        texts = self._texts_in(feature)
        shape = self._shape(len(texts), feature, example)
        return object_array(texts, shape) if shape else texts[0]

    def _shape(self, size: int, feature: Values, example: Example) -> tuple[int, ...]:
        """Return the shape of a value of `size` items."""
        if not self.is_sized:
            if size == self._fixed_size:
                return self._fixed_shape
            raise self._mismatch(feature)
        sizes = example.get(self.path + SHAPE)
        if sizes is not None and sizes.kind == INT64:
            shape = tuple(sizes.values.tolist())
        elif self.field.shape.count(None) == 1:
            others = math.prod(size for size in self.field.shape if size is not None)
            shape = tuple(size // max(1, others) if each is None else each for each in self.field.shape)
        else:
            raise SpecError(
                f"feature {self.path!r}: the sizes of {self.field} are unknown, because the record has no feature "
                f"{self.path + SHAPE!r}"
            )
        if not self.field.fits(shape) or min(shape, default=0) < 0 or math.prod(shape) != size:
            raise self._mismatch(feature, shape)
        return shape

    def _numbers(self, feature: Values) -> NDArray[Any]:
        kind, values = feature
        wanted = self.field.dtype
        if kind == BYTES and len(values) == 1 and len(values[0]) % self._stored.itemsize == 0:
            return np.frombuffer(values[0], self._stored).astype(wanted, copy=False)
        if kind == FLOAT and wanted in (np.float32, np.float64):
            return np.asarray(values, wanted)
        if kind != INT64 or wanted.kind not in "iub":
            raise self._mismatch(feature)
        numbers: NDArray[Any] = values.astype(wanted)
        if wanted.itemsize < 8 and not np.array_equal(numbers.astype(np.int64), values):
            raise SpecError(f"feature {self.path!r} holds numbers out of the range of {wanted}")
        return numbers

    def _texts_in(self, feature: Values) -> list[Any]:
        if feature.kind != BYTES:
            raise self._mismatch(feature)
        if self.field.dtype != TEXT:
            return list(feature.values)
        try:
            return [value.decode() for value in feature.values]
        except UnicodeDecodeError as error:
            raise SpecError(
                f"feature {self.path!r} is not UTF-8 text ({message_of(error)}): use bytes, kf.ArraySpec(shape, 'S')"
            ) from None

    def _mismatch(self, feature: Values, shape: tuple[int, ...] | None = None) -> SpecError:
        count = pluralize(len(feature.values), "value")
        if feature.kind == BYTES and len(feature.values) == 1 and not self.field.is_text:
            count = f"one value of {len(feature.values[0]):,} bytes"
        sizes = "" if shape is None else f" and sizes {shape}"
        return SpecError(f"feature {self.path!r}: expected {self.field}, received a {feature.kind} of {count}{sizes}")


def infer_spec(examples: list[tuple[str, Example]]) -> dict[str, ArraySpec]:
    """Infer the spec of records: a dict of their features.

    A feature with one value in every record is a scalar; other features have one axis.

    Args:
        examples: Names for messages, and records; at least one.

    Raises:
        SpecError: The records disagree; the message names them and the feature.
    """
    for record, example in examples:
        if example.other_fields:
            raise SpecError(
                f"{record} holds {example.other_fields}, but only the features of a tf.train.Example are read. Give "
                "spec= with the features you want, and parse the rest from .record(index). Or write the scenes with "
                "kf.write_tfrecords"
            )
    wanted = sorted({name for _, example in examples for name in example.names()})
    spec: dict[str, ArraySpec] = {}
    for name in wanted:
        by_record: Mapping[str, Values | None] = {record: example.get(name) for record, example in examples}
        missing = [record for record, values in by_record.items() if values is None]
        if missing:
            raise SpecError(
                f"feature {name!r} is in some records and not in others ({missing[0]}). Give spec= with the fields "
                "that all records have"
            )
        kinds = {record: values.kind for record, values in by_record.items() if values is not None}
        first, *others = kinds.items()
        for record, kind in others:
            if kind != first[1]:
                raise SpecError(f"feature {name!r} is a {first[1]} in {first[0]} and a {kind} in {record}")
        sizes = {len(values.values) for values in by_record.values() if values is not None}
        shape: tuple[int | None, ...] = () if sizes == {1} else (sizes.pop() if len(sizes) == 1 else None,)
        dtype = {BYTES: "S", FLOAT: "float32", INT64: "int64"}[first[1]]
        spec[name] = ArraySpec(shape, np.dtype(dtype))
    if not spec:
        raise SpecError(f"{examples[0][0]} has no feature")
    return spec
