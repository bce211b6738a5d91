"""Ways to make a batch: stack, pad, ragged, or a user's function.

Invariant: everything here is a value or a pure function of specs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import optree

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_forms import Form, Padded, PaddedAxis, RaggedRows, mask_key
from kerasfeed.spec.inference import describe, merge
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec
from kerasfeed.util.validate import check_integer

Sizes = int | tuple[int | None, ...] | None


class _Unchanged:
    def resolve(self, spec: SceneSpec) -> tuple[SceneSpec, tuple[Form | None, ...]]:
        """Return the spec unchanged, and no forms."""
        return spec, ()


@dataclass(frozen=True)
class Stack(_Unchanged):
    """Stack the rows of each field, which all have one shape."""


@dataclass(frozen=True)
class Custom(_Unchanged):
    """A function of the user makes whole batches.

    Attributes:
        function: Takes a list of scenes, returns a batch.
        sizes: Numbers of scenes in a batch, each at least 1. They suffice to find the axes of a batch whose size
            depends on the number of scenes.
    """

    function: Callable[[list[Any]], Any]
    sizes: tuple[int, ...]

    def describe(self, scene: Any) -> SceneSpec:
        """Return the spec of batches that repeat this one scene.

        Raises:
            Exception: The function raised it.
            SpecError: The scene or the batch is None, or holds a value that no batch can hold.
        """
        if scene is None:
            raise SpecError(
                "__getitem__ returned None, but a collate function needs every scene of its batch. Raise an exception "
                'in __getitem__ instead, and pass on_error="skip" to leave such scenes out'
            )
        fields, treespec = optree.tree_flatten(scene)
        specs = []
        for size in self.sizes:
            # Each scene gets new lists and dicts, because the function may modify them.
            batch = self.function([optree.tree_unflatten(treespec, fields) for _ in range(size)])
            if batch is None:
                raise SpecError("the collate function returned None: return the batch (is a `return` missing?)")
            specs.append((size, describe(batch)))
        return merge(specs)


@dataclass(frozen=True)
class Pad:
    """Pad scenes of different shapes to one shape per batch: `Feed(..., collate=kf.Pad())`.

    Padding goes at the end of an axis. The feed reads a few scenes first to infer the spec. It pads the fields whose
    shapes differ among these scenes, on the axes that differ. It also pads the fields named in the arguments, at least
    on their first axis. It stacks all other fields. Name a field by its path: `"0"`, `"1.points"`; a scene that is one
    array has the path `"scene"`.

    Args:
        value: The padding value: one value for all padded fields, or a dict from field to value (0 for fields not in
            it). It must fit the dtype of the field.
        multiple_of: Padded sizes are multiples of this, so that a compiled model sees few different shapes. One
            integer >= 1 for all padded fields; or a dict from field to an integer, or to a tuple with one integer per
            padded axis.
        length: Padded sizes are exactly this, so that a compiled model sees one shape; `element_spec` contains it.
            Takes the same forms as `multiple_of`, and overrides it. None in a tuple pads that axis to the longest
            scene of the batch. A longer scene raises a `SpecError`.
        mask: The padded fields that get a mask: True for all, a field, or several fields. A mask is bool[B, longest],
            with one axis for each padded axis, and True for values of the scene. A field in a dict gets its mask in
            the same dict, under its key plus `_mask`; any other field becomes `(field, mask)`.
        fields: Fields to pad even if the first scenes agree in shape.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A size is below 1.

    Examples:
        >>> scenes = [np.array([1, 2, 3]), np.array([4])]
        >>> with kf.Feed(scenes, batch_size=2, collate=kf.Pad(value=-1), workers=0) as feed:
        ...     print(feed[0])
        [[ 1  2  3]
         [ 4 -1 -1]]
        >>> with kf.Feed(scenes, batch_size=2, collate=kf.Pad(mask=True), workers=0) as feed:
        ...     values, mask = feed[0]
        >>> mask
        array([[ True,  True,  True],
               [ True, False, False]])
    """

    value: Any = 0
    _: KW_ONLY
    multiple_of: int | Mapping[str, Sizes] | None = None
    length: int | Mapping[str, Sizes] | None = None
    mask: bool | str | Sequence[str] = False
    fields: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        set_field("value", dict(self.value) if isinstance(self.value, Mapping) else self.value)
        set_field("multiple_of", _check_sizes("multiple_of", self.multiple_of))
        set_field("length", _check_sizes("length", self.length))
        set_field("mask", self.mask if isinstance(self.mask, bool) else _check_names("mask", self.mask))
        set_field("fields", _check_names("fields", self.fields))

    def resolve(self, spec: SceneSpec) -> tuple[SceneSpec, tuple[Form | None, ...]]:
        """Return the spec with None for padded axes, and all forms.

        Raises:
            SpecError: An argument does not fit the fields; the message names the field.
        """
        opened, forms = _opened("kf.Pad", spec, self._named(), self._form)
        if any(isinstance(form, Padded) and form.masked for form in forms):
            _check_mask_keys(opened, forms)
        return opened, forms

    def _named(self) -> set[str]:
        dicts = [given for given in (self.value, self.multiple_of, self.length) if isinstance(given, dict)]
        return {*self.fields, *(self.mask if isinstance(self.mask, tuple) else ()), *(key for d in dicts for key in d)}

    def _form(self, path: str, field: ArraySpec) -> Padded:
        axes = [axis for axis, size in enumerate(field.shape) if size is None]
        multiples = _sizes_of("multiple_of", self.multiple_of, path, field, len(axes))
        lengths = _sizes_of("length", self.length, path, field, len(axes))
        value = self.value.get(path, 0) if isinstance(self.value, dict) else self.value
        padded = tuple(
            PaddedAxis(axis, multiple or 1, length)
            for axis, multiple, length in zip(axes, multiples, lengths, strict=True)
        )
        masked = self.mask if isinstance(self.mask, bool) else path in self.mask
        return Padded(padded, _value_of(value, path, field), masked)


@dataclass(frozen=True)
class Ragged:
    """Join scenes of different lengths without padding: `Feed(..., collate=kf.Ragged())`.

    A ragged field is a `tf.RaggedTensor` in `to_tf_dataset()`, and a `kerasfeed.RaggedArray` elsewhere. A field is
    ragged if it is named here, or if its first axis differs among the scenes that are read first to infer the spec. All
    other fields are stacked.

    Args:
        fields: Fields that are ragged even if the first scenes agree in length.

    Raises:
        TypeError: An argument has the wrong type.

    Examples:
        >>> clouds = [np.zeros((4, 3)), np.zeros((5, 3))]
        >>> with kf.Feed(clouds, batch_size=2, collate=kf.Ragged(), workers=0) as feed:
        ...     batch = feed[0]
        >>> batch.values.shape, batch.row_splits
        ((9, 3), array([0, 4, 9]))
    """

    fields: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", _check_names("fields", self.fields))

    def resolve(self, spec: SceneSpec) -> tuple[SceneSpec, tuple[Form | None, ...]]:
        """Return the spec with None for ragged axes, and all forms.

        Raises:
            SpecError: Scenes differ on another axis than the first; the message names the field.
        """
        return _opened("kf.Ragged", spec, self.fields, self._form)

    def _form(self, path: str, field: ArraySpec) -> RaggedRows:
        if None in field.shape[1:]:
            raise SpecError(
                f"field {path!r} is {field}: a ragged field may differ only on its first axis. Use collate='pad', "
                "or return an array whose other axes have one size"
            )
        return RaggedRows()


Collation = Stack | Pad | Ragged | Custom


def _check_names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    names = tuple(value) if isinstance(value, Sequence | set | frozenset) else None
    if names is None or not all(isinstance(each, str) for each in names):
        also = "True, False, " if name == "mask" else ""
        raise TypeError(
            f"{name} must be {also}a field such as '0' or '1.points', or a list of fields, received {value!r}"
        )
    return tuple(sorted(names)) if isinstance(value, set | frozenset) else names


def _check_sizes(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {path: _check_size(f"{name}[{path!r}]", size, nested=True) for path, size in value.items()}
    return _check_size(name, value, nested=False)


def _check_size(name: str, value: Any, *, nested: bool) -> Any:
    if value is None:
        return None
    if nested and isinstance(value, tuple | list):
        return tuple(_check_size(name, size, nested=False) for size in value)
    more = "a tuple of integers" if nested else "a dict from field to integer"
    return check_integer(name, value, 1, what=f"an integer, {more}, or None")


def _sizes_of(name: str, given: Any, path: str, field: ArraySpec, count: int) -> tuple[int | None, ...]:
    size = given.get(path) if isinstance(given, dict) else given
    if not isinstance(size, tuple):
        return (size,) * count
    if len(size) != count:
        raise SpecError(
            f"kf.Pad: {name}[{path!r}] has {len(size)} sizes, {size}, but field {path!r}, {field}, has {count} padded "
            "axes (marked ?). Pass one size per axis, or None to pad to the longest scene"
        )
    return size


def _value_of(value: Any, path: str, field: ArraySpec) -> Any:
    try:
        if np.iscomplexobj(value) and field.dtype.kind != "c":
            raise TypeError
        with np.errstate(all="ignore"):
            cast = np.asarray(value).astype(field.dtype)
        lost = np.isfinite(value) and not np.isfinite(cast) if cast.dtype.kind in "fc" else cast != value
        same = cast.ndim == 0 and (cast.dtype.kind == "V" or not lost)
    except (TypeError, ValueError, OverflowError):
        same = False
    if not same:
        raise SpecError(
            f"kf.Pad: field {path!r} is {field}, but no element of it can be {value!r}. Pass another value for this "
            f"field: kf.Pad(value={{{path!r}: ...}})"
        )
    return cast[()]


def _opened(
    what: str, spec: SceneSpec, named: Collection[str], form_of: Callable[[str, ArraySpec], Form]
) -> tuple[SceneSpec, tuple[Form | None, ...]]:
    """Return `spec` with None for axes that vary, and the forms."""
    if unknown := sorted(set(named) - set(spec.paths), key=str):
        raise SpecError(
            f"{what} names the field {unknown[0]!r}, which scenes do not have: their fields are "
            f"{', '.join(map(repr, spec.paths))}"
        )
    fields, forms = list(spec.fields), list[Form | None]([None] * len(spec.fields))
    for number, (path, field) in enumerate(zip(spec.paths, spec.fields, strict=True)):
        if path in named:
            field = _with_open_rows(what, path, field)
        if not field.is_text and None in field.shape:
            fields[number], forms[number] = field, form_of(path, field)
    return replace(spec, fields=tuple(fields)), tuple(forms) if any(forms) else ()


def _with_open_rows(what: str, path: str, field: ArraySpec) -> ArraySpec:
    if field.is_text or not field.shape:
        raise SpecError(
            f"{what} names the field {path!r}, which is {field}: text and single numbers have no axis to pad or to join"
        )
    if field.untyped:
        raise SpecError(
            f"{what} names the field {path!r}, but the first scenes hold only empty lists there, so its dtype is "
            "unknown. Return np.asarray(values, dtype=...) instead of the list"
        )
    return replace(field, shape=(None, *field.shape[1:]))


def _check_mask_keys(spec: SceneSpec, forms: Sequence[Form | None]) -> None:
    for path, form in zip(spec.paths, forms, strict=True):
        if not isinstance(form, Padded) or not form.masked:
            continue
        key = mask_key(path)
        if any(other == key or other.startswith(f"{key}.") for other in spec.paths):
            raise SpecError(
                f"kf.Pad: the mask of field {path!r} needs the key {key!r}, but scenes already have a field of that "
                "name. Rename that field, or name only the fields that need a mask: mask=[...]"
            )
