"""The modules that code comes from: which of them are the user's, their text, and what that imports.

Invariant: nothing is imported and nothing is run. The text of a module that is loaded is the one that it had when it
was first looked at, until it is loaded again: a file that is edited meanwhile is not what runs.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_MAIN = ("__main__", "__mp_main__")  # their file may be that of whatever runs the user's code: a kernel, a worker
_STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_INSTALLED = {
    "site-packages",
    "dist-packages",
    *(Path(sysconfig.get_path(name)).name for name in ("purelib", "platlib")),
}

_texts: dict[str, tuple[ModuleSpec, str, tuple[str, ...]]] = {}  # of modules that are loaded


def is_users(module: str) -> bool:
    """Whether a module is the user's: in no file of Python's or of an installed package, but for editable ones."""
    spec = _spec_of(module)
    return spec is None or not _is_installed(spec)


def behind(modules: Iterable[str]) -> dict[str, str]:
    """What modules are made of, by name: texts of the user's, and of all that they import, and versions of packages.

    Imports are followed at the top of a module and inside its functions. The standard library is left out.
    """
    found: dict[str, str] = {}
    waiting = list(modules)
    done = set(waiting)
    while waiting:
        name = waiting.pop()
        spec = _spec_of(name)
        if spec is None:
            continue
        top = name.partition(".")[0]
        if _is_installed(spec):
            if spec.has_location and top != "kerasfeed" and not _is_standard(spec.origin or ""):
                found[top] = _version_of(top) or ""
            continue
        found[name], imported = _read(name, spec)
        new = {*imported, name.rpartition(".")[0]} - done - {""}
        waiting += new
        done |= new
    return found


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module comes from; None where that is not known."""
    if name in _MAIN or not name:
        return None
    if name in sys.modules:
        spec = getattr(sys.modules[name], "__spec__", None)
        return spec if isinstance(spec, ModuleSpec) else None
    above = name.rpartition(".")[0]
    try:
        if not above:
            return importlib.util.find_spec(name)
        package = _spec_of(above)
        if package is None or package.submodule_search_locations is None:
            return None
        return importlib.machinery.PathFinder.find_spec(name, package.submodule_search_locations)
    except (ImportError, ValueError, AttributeError):
        return None


def _is_installed(spec: ModuleSpec) -> bool:
    top = spec.name.partition(".")[0]
    if top == "kerasfeed":
        return True
    if not spec.has_location or spec.origin is None:  # built in or frozen; a package without a file of its own
        return spec.submodule_search_locations is None
    if _INSTALLED.intersection(Path(spec.origin).parts):
        return _version_of(top) is not None
    return _is_standard(spec.origin)


def _is_standard(origin: str) -> bool:
    return origin.startswith(_STANDARD) and not _INSTALLED.intersection(Path(origin).parts)


@functools.lru_cache(maxsize=1024)
def _version_of(top: str) -> str | None:
    """Version of the package that a module belongs to, and the digests of its files; None for none."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return _version(metadata.distribution(top), top)
    names = metadata.packages_distributions().get(top)
    return None if names is None else " ".join(_version(metadata.distribution(name), top) for name in sorted({*names}))


def _version(package: metadata.Distribution, top: str) -> str:
    """A version, and what tells two packages of one version apart that were installed from a folder."""
    record = (package.read_text("RECORD") or "").splitlines()
    own = [line for line in record if line.startswith((f"{top}/", f"{top}.py,")) and not line.endswith(",,")]
    return f"{package.version} {_digest(repr(sorted(own)).encode())}"


def _read(name: str, spec: ModuleSpec) -> tuple[str, tuple[str, ...]]:
    """Digest of a module's text, and the names of all that it may import."""
    kept = _texts.get(name)
    if kept is not None and kept[0] is spec:
        return kept[1:]
    text = b""
    if spec.origin is not None:
        get_data: Any = getattr(spec.loader, "get_data", lambda path: Path(path).read_bytes())
        with contextlib.suppress(OSError):
            text = get_data(spec.origin)
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    found = _digest(text), tuple(_imported(text, package))
    if name in sys.modules:
        _texts[name] = spec, *found
    return found


def _imported(text: bytes, package: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of its text were told when it was loaded
            tree = ast.parse(text)
    except (SyntaxError, ValueError):  # machine code
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # beyond the top
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module"):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and not name.value.startswith("."):
                yield name.value


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()
