"""Compare the user's modules here and in another process.

Invariant: both processes describe a module by the same functions, as text. A value without a short description is not
compared, and neither is a module that is sent by value, because the other process does not import it.
"""

import ast
import enum
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from kerasfeed.util.fingerprint import digest

# Members of a module, a class or a dict by their names (".size", "['size']"), or the text of one value.
Description: TypeAlias = "str | dict[str, Description]"
_STANDARD = str(Path(os.__file__).parent) + os.sep
_SCALARS = (int, float, complex, bool, str, bytes, type(None))
_SCALAR_BASES = (PurePath, np.generic, np.dtype)
_CONTAINERS = (list, tuple, set, frozenset)
_Cached = type(functools.lru_cache(len))
_MOST_ITEMS, _MOST_DEPTH, _MOST_TEXT = 200, 4, 300
_MOST_NAMES, _SHOWN_TEXT = 5, 60
# Values computed from these differ between any two processes, although no program sets them.
_VOLATILE = frozenset((
    "getpid", "getppid", "get_ident", "time", "time_ns", "perf_counter", "monotonic", "datetime", "now", "utcnow",
    "today", "strftime", "uuid", "uuid1", "uuid4", "random", "secrets", "tempfile", "mkdtemp", "mkstemp", "modules",
    "isatty", "get_ipython", "get_terminal_size",
))  # fmt: skip
_FILLING = frozenset(("append", "add", "extend", "insert", "setdefault", "update"))


def is_users(name: str, module: Any) -> bool:
    """Whether a module is the user's: not compiled, installed, main or kerasfeed's."""
    path, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
    if type(path) is not str or not path.endswith(".py") or _is_installed(path) or spec is None:
        return False
    return name.split(".")[0] not in ("__main__", "kerasfeed")


def _is_installed(path: str) -> bool:
    return path.startswith(_STANDARD) or "-packages/" in path


def is_importable(name: str) -> bool:
    """Whether a new interpreter imports `name` from the same file.

    False if the program has loaded the module by its path, or has put it into `sys.modules` by hand.
    """
    module = sys.modules[name]
    path, parent = getattr(module, "__file__", None), sys.modules.get(name.rpartition(".")[0])
    if path is None:
        return getattr(module, "__spec__", None) is not None or parent is not None
    if _is_installed(path) or name.split(".")[0] == "kerasfeed":
        return True
    for finder in sys.meta_path:
        kind = finder if isinstance(finder, type) else type(finder)
        if kind.__module__ == "__main__" or is_users(kind.__module__, sys.modules.get(kind.__module__)):
            continue  # a new interpreter has no finders of the program
        spec = finder.find_spec(name, getattr(parent, "__path__", None))
        if spec is not None:
            return bool(spec.origin == path)
    return False


def module_values() -> dict[str, Description]:
    """Descriptions of the user's modules that this process has imported, by name."""
    return {name: _module_members(name) for name, module in list(sys.modules.items()) if is_users(name, module)}


def differences(theirs: Mapping[str, Description]) -> dict[str, tuple[str, str]]:
    """Return the values that differ in modules of both processes, by name.

    Names that a module changes by itself (counters, caches, time stamps) are left out.

    Args:
        theirs: The `module_values` of the other process.

    Returns:
        Pairs (text here, text in the other process), by the name of the value.
    """
    values = {}
    for module in sorted(theirs.keys() & sys.modules.keys()):
        if not is_users(module, sys.modules[module]):
            continue
        differing = list(_differing(_module_members(module), theirs[module], ()))
        moving = _moving_names(module) if differing else set()
        for path, here, there in differing:
            if moving.isdisjoint(part.removeprefix(".") for part in path):
                values["".join((module, *path))] = here, there
    return values


def differences_text(values: Mapping[str, tuple[str, str]]) -> str:
    """Return the warning about values that differ in worker processes.

    `values` is the result of `differences` in a worker process.
    """
    names = [
        f"{name} is {_shown(other, own)} there and {_shown(own, other)} here" for name, (other, own) in values.items()
    ]
    more = f"; and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (
        f"your modules differ in worker processes: {'; '.join(names[:_MOST_NAMES])}{more}. A worker process imports "
        "each module again, and does not see values that your program sets in it. Pass such values to the constructor "
        "of the sequence, or use worker_type='thread'; if you have edited a file, restart Python"
    )


# ---- descriptions


def _module_members(name: str) -> Description:
    module = sys.modules[name]
    # An import hook, such as the one in pytest, changes the code, and another process may not have it.
    has_code = type(getattr(module.__spec__, "loader", None)) is SourceFileLoader
    return _members(module, name, "", has_code)


def _members(owner: Any, module: str, prefix: str, has_code: bool) -> dict[str, Description]:
    members: dict[str, Description] = {}
    for name, value in list(vars(owner).items()):
        function, kind = _function_of(value), type(value)
        described: Description | None = None
        if function is not None:
            described = _function_text(function, module, has_code)
        elif issubclass(kind, type):
            if value.__module__ == module and value.__qualname__ == prefix + name:
                described = _members(value, module, f"{prefix}{name}.", has_code)
            else:
                described = _reference(value)
        elif not name.startswith("_"):  # other names are Python's, or private to the module, such as caches
            described = _value(value)
        if described is not None:
            members[f".{name}"] = described
    return members


def _value(value: Any, depth: int = 0) -> "Description | None":
    """Describe numbers, text, None, paths, enums, and containers of these.

    Dataclasses count as containers. Return None for anything else.
    """
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__}.{value.name}"
    if _is_scalar(value):
        return _limited(repr(value))
    if depth < _MOST_DEPTH and (kind is SimpleNamespace or "__dataclass_fields__" in kind.__dict__):
        attributes = list(getattr(value, "__dict__", {}).items())
        pairs = [(f".{name}", _value(item, depth + 1)) for name, item in attributes if not name.startswith("_")]
        return {name: item for name, item in pairs if item is not None}
    if depth == _MOST_DEPTH or kind not in (*_CONTAINERS, dict):
        return None
    if len(value) > _MOST_ITEMS:
        return f"a {kind.__name__} of {len(value):,} items"
    if kind is dict:
        pairs = [(key, _value(item, depth + 1)) for key, item in list(value.items())]
        return {f"[{_limited(repr(key))}]": item for key, item in pairs if item is not None and _is_scalar(key)}
    texts = [_value(item, depth + 1) for item in list(value)]
    if None in texts:
        return None
    ordered = list(map(str, texts)) if kind in (list, tuple) else sorted(map(str, texts))
    return _limited(("({})" if kind is tuple else "[{}]" if kind is list else "{{{}}}").format(", ".join(ordered)))


def _is_scalar(value: Any) -> bool:
    kind = type(value)  # no other classes, so that no `__repr__` of the user is called
    return kind in _SCALARS or issubclass(kind, _SCALAR_BASES)


def _limited(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}... ({digest(text)[:8]})"


def _function_of(value: Any) -> Any:
    """Return the Python function behind a member, or None."""
    kind = type(value)
    if kind in (staticmethod, classmethod):
        return _function_of(value.__func__)
    if kind is property:
        return _function_of(value.fget)
    return value if kind in (FunctionType, BuiltinFunctionType, _Cached) else None


def _function_text(function: Any, module: str, has_code: bool) -> str | None:
    if getattr(function, "__module__", None) != module:
        return _reference(function)
    if not has_code:
        return None
    parts = []
    name = getattr(function, "__qualname__", "")
    while type(function) in (FunctionType, _Cached):
        if type(function) is FunctionType:
            defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            parts.append((digest(function.__code__), [repr(each) for each in defaults if _is_scalar(each)]))
        function = vars(function).get("__wrapped__")
    return f"the function {name} (code {digest(repr(parts))[:8]})"


def _reference(value: Any) -> str:
    """Name a function or class of another module.

    For an installed module, name only the package, because details may differ.
    """
    module = str(value.__module__)
    is_known = module == "__main__" or is_users(module, sys.modules.get(module))
    return f"{module}.{getattr(value, '__qualname__', '')}" if is_known else f"a part of {module.split('.')[0]}"


# ---- comparison


def _differing(
    here: Description, there: Description, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    if isinstance(here, dict) and isinstance(there, dict):
        for name in there:
            if name in here:
                yield from _differing(here[name], there[name], (*path, name))
            else:
                yield (*path, name), "not set", _plain(there[name])
        for name in here.keys() - there.keys():
            if name.startswith("["):
                yield (*path, name), _plain(here[name]), "not set"
    elif here != there:
        yield path, _plain(here), _plain(there)


def _plain(described: Description) -> str:
    return described if isinstance(described, str) else "set"


def _shown(text: str, other: str) -> str:
    """Shorten a text to the part that differs from the other."""
    same = len(os.path.commonprefix([text, other]))  # noqa: RUF071 - works for any text
    start = max(0, min(same, len(text) - _SHOWN_TEXT // 2) - _SHOWN_TEXT // 2) if len(text) > _SHOWN_TEXT else 0
    return f"{'...' if start else ''}{text[start : start + _SHOWN_TEXT]}{'...' if text[start + _SHOWN_TEXT :] else ''}"


# ---- names that a module changes itself


def _moving_names(module: str, importers: tuple[str, ...] = ()) -> set[str]:
    """Return names whose values a module changes itself: clock, counters, caches.

    Names that it imports from other modules of the user are included; `importers` are the modules that import it.
    """
    path = getattr(sys.modules.get(module), "__file__", None)
    if module in importers or path is None or not is_users(module, sys.modules[module]):
        return set()
    try:
        nodes = list(ast.walk(ast.parse(Path(path).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return set()
    package = getattr(sys.modules[module].__spec__, "parent", None)
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)}
    own = {name for node in inside if isinstance(node, ast.Global) for name in node.names}
    volatile = _VOLATILE | {function.name for function in functions if _names(function) & _VOLATILE}
    moving: set[str] = set()
    empty: set[str] = set()
    filled: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.AugAssign) and node in inside:
            moving |= _base_names(node.target) - ({getattr(node.target, "id", "")} - own)
        elif isinstance(node, ast.ImportFrom) and (not node.level or package):
            source = resolve_name("." * node.level + (node.module or ""), package)
            theirs = _moving_names(source, (*importers, module))
            named = {alias.asname or alias.name for alias in node.names if alias.name in theirs}
            moving |= theirs if node.names[0].name == "*" else named
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and node in inside:
            filled |= _base_names(node)
        elif isinstance(node, ast.Attribute) and node.attr in _FILLING and node in inside:
            filled |= _base_names(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {name for target in targets for name in _base_names(target)}
            if node in inside:  # for example `largest = max(largest, value)`
                moving |= names & own & _names(node.value)
            elif _names(node.value) & volatile:
                moving |= names
            elif ast.unparse(node.value) in ("{}", "[]", "dict()", "list()", "set()"):
                empty |= names
    return moving | (empty & filled)


def _names(node: ast.AST) -> set[str | None]:
    """Return all names of variables and attributes in some code."""
    return {_last_name(each) for each in ast.walk(node)}


def _last_name(node: ast.AST) -> str | None:
    return getattr(node, "id", None) or getattr(node, "attr", None)


def _base_names(target: ast.AST) -> set[str]:
    """Return the last names of an assignment's target: `cache` of `cls.cache[key]`."""
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    if isinstance(target, ast.Tuple | ast.List):
        return {name for each in target.elts for name in _base_names(each)}
    return {_last_name(target) or ""}
