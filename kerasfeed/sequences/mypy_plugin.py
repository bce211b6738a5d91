"""A plugin for mypy: slices of classes that declare `def __getitem__(self, index: int)`.

`sequence[10:20]` is a `kerasfeed.Subset` of any `SceneSequence`, which a class that declares `index: int` hides from a
type checker. For mypy, add `plugins = kerasfeed.sequences.mypy_plugin` to its settings. Only mypy imports this module.
"""

from collections.abc import Callable
from functools import partial

from mypy.nodes import TypeInfo
from mypy.plugin import MethodSigContext, Plugin
from mypy.types import CallableType, FunctionLike, Instance, Overloaded

_SEQUENCE = "kerasfeed.sequences.base.SceneSequence"
_SUBSET = "kerasfeed.sequences.base.Subset"


class SlicePlugin(Plugin):
    """Adds the overload `(slice) -> Subset` to what a `SceneSequence` declares for integers."""

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """See `mypy.plugin.Plugin`."""
        owner, _, method = fullname.rpartition(".")
        if method != "__getitem__":
            return None
        declaring, subset = self._class(owner), self._class(_SUBSET)
        if declaring is None or subset is None or not declaring.has_base(_SEQUENCE):
            return None
        declared = declaring.get(method)
        if declared is None or isinstance(declared.type, Overloaded):  # overloads say themselves what slices are
            return None
        return partial(_with_slices, Instance(subset, []))

    def _class(self, fullname: str) -> TypeInfo | None:
        found = self.lookup_fully_qualified(fullname)
        return found.node if found is not None and isinstance(found.node, TypeInfo) else None


def _with_slices(subset: Instance, context: MethodSigContext) -> FunctionLike:
    declared = context.default_signature
    if not isinstance(declared, CallableType) or len(declared.arg_types) != 1:
        return declared
    slices = context.api.named_generic_type("builtins.slice", [])
    return Overloaded([declared, declared.copy_modified(arg_types=[slices], ret_type=subset)])


def plugin(version: str) -> type[Plugin]:
    """What mypy calls: the plugin for mypy of this version."""
    return SlicePlugin
