"""Do the scenes of several generators agree?

Invariant: what was found to agree is compared once. Shapes may differ: what becomes of those the feed decides.
"""

from typing import Any

import optree

from kerasfeed.errors import SpecError
from kerasfeed.spec.inference import describe, merge
from kerasfeed.spec.nesting import structure_text
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec

_BARE = optree.treespec_leaf()


class Agreement:
    """Nesting, dtypes and number of axes that scenes have in common."""

    def __init__(self) -> None:
        self._spec: SceneSpec | None = None
        self._first = 0
        self._known: set[bytes] = set()

    def check(self, described: bytes, scene: Any, n: int, position: int) -> None:
        """Compare a scene with those before.

        Args:
            described: The same for all scenes that need not be compared with each other.
            scene: One of them.
            n: Number of its generator.
            position: Its number there.

        Raises:
            SpecError: They disagree; the message names the generators and the field.
        """
        if described in self._known:
            return
        spec = describe(scene)
        if self._spec is None:
            self._spec, self._first = spec, n
        try:
            self._spec = merge([(0, self._spec), (1, spec)])
        except SpecError:
            raise SpecError(_text(self._spec, spec, self._first, n, position)) from None
        self._known.add(described)


def _text(one: SceneSpec, other: SceneSpec, first: int, n: int, position: int) -> str:
    who = f"generator {first} disagrees with itself" if first == n else f"generators {first} and {n} disagree"
    where = "at first" if first == n else f"in generator {first}"
    here = f"at its scene {position}" if first == n else f"in scene {position} of generator {n}"
    if one.treespec != other.treespec:
        return (
            f"{who}: scenes are {structure_text(one.treespec)} {where} and {structure_text(other.treespec)} {here}. "
            "Yield the same nesting of tuples and dicts always"
        )
    fields = zip(one.paths, one.fields, other.fields, strict=True)
    path, before, now = next(each for each in fields if not _agree(*each[1:]))
    example = "" if before.is_text else f", for example array.astype(np.{before.dtype.name})"
    if len(before.shape) != len(now.shape):
        example = ""
    return (
        f"{who}: field {path!r} is {before} {where} and {now} {here}. Yield one dtype and one number of axes "
        f"always{example}"
    )


def _agree(*fields: ArraySpec) -> bool:
    try:
        merge([(0, SceneSpec(_BARE, (field,))) for field in fields])
    except SpecError:
        return False
    return True
