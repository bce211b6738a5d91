"""The key of a sequence or a function: a digest of all that its values are computed from, as far as that can be seen.

Invariant: equal keys mean equal code, equal state and unchanged source files, in any process and any run. What cannot
be digested so is refused.

What goes in: the state of objects (what pickle would take, `kerasfeed.util.fingerprint`); of the user's functions and
classes the code, what it encloses, and the values of the globals that it names; the text of the modules that these are
from, and of all that they import, installed packages by version; size and mtime of every file that a value names, and
of all files below every folder. Texts in code name no files. Nothing is imported and nothing is run. The text of a
module that is loaded is the one that it had when it was first looked at, until it is loaded again: a file that is
edited meanwhile is not what runs.
"""

import argparse
import ast
import contextlib
import dis
import functools
import importlib.util
import os
import stat
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed import __version__
from kerasfeed.errors import KerasfeedError
from kerasfeed.util.fingerprint import Hasher, joined

_KEY = "pass key='...', a text that you change whenever scenes change"
_MOST_FILES = 100_000
_HEAP_TYPE = 1 << 9  # in the flags of a class that is made while the program runs
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
_MAIN = ("__main__", "__mp_main__")  # their file may be that of whatever runs the user's code: a kernel, a worker
_STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_INSTALLED = {
    "site-packages",
    "dist-packages",
    *(Path(sysconfig.get_path(name)).name for name in ("purelib", "platlib")),
}
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property)

_texts: dict[str, tuple[ModuleSpec, str, tuple[str, ...]]] = {}  # of modules that are loaded


class UnkeyableError(KerasfeedError, TypeError):
    """Part of a sequence's state is nothing that two processes could compare."""


@dataclass(frozen=True)
class Key:
    """The key of a sequence at one moment.

    Attributes:
        digest: 24 hexadecimal digits.
        files: Size and mtime, ns, of every file that went in; None for one that was gone meanwhile.
    """

    digest: str
    files: dict[str, tuple[int, int] | None]

    def holds(self) -> bool:
        """Whether the files are what they were; 2 us a file."""
        return all(_stat(path) == found for path, found in self.files.items())


def key_of(sequence: Any, who: str = "kf.Cached", remedy: str = _KEY, own: Path | None = None) -> Key:
    """The key of a sequence, or of a function.

    Args:
        sequence: What is digested.
        who: Who keeps something under the key, for messages.
        remedy: What else than leaving state out helps, for messages.
        own: The file or folder where it is kept, which is no source.

    Raises:
        UnkeyableError: Some of its state cannot be digested; the message names the attribute and what to do.
    """
    walk = _KeyHasher(who, remedy, None if own is None else str(own.absolute()))
    try:
        state = walk.of(sequence, type(sequence).__name__)
    except RecursionError as error:
        raise UnkeyableError(
            f"{who} cannot compare {type(sequence).__name__}, whose attributes are nested too deeply: {remedy}"
        ) from error
    about = __version__, sys.version_info[:2], sorted(_behind(walk.modules).items()), sorted(walk.files.items())
    return Key(joined(f"key {about}", state).hex(), walk.files)


def _stat(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - ten times as fast, and there may be many
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class _KeyHasher(Hasher):
    """A hasher that looks into the user's code, too, and finds the modules and files that values come from."""

    def __init__(self, who: str, remedy: str, own: str | None) -> None:
        super().__init__()
        self._who, self._remedy, self._own = who, remedy, own
        self._texts: set[str] = set()
        self.modules: set[str] = set()
        self.files: dict[str, tuple[int, int] | None] = {}

    # ---- code

    def _is_by_name(self, value: Any, module: str) -> bool:
        """Whether a class or function stands for itself, with the version of the package that it is from."""
        self.modules.add(module)
        if _is_users(module):
            return False
        found: Any = sys.modules.get(module)
        for name in value.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is value or (isinstance(value, type) and not value.__flags__ & _HEAP_TYPE)

    def _function(self, function: types.FunctionType) -> bytes:
        if self._is_by_name(function, str(function.__module__)):
            return joined(f"function {function.__module__}.{function.__qualname__}")
        module = str(function.__globals__.get("__name__"))  # `__module__` may be that of what a decorator was given
        self.modules.add(module)
        if not _is_users(module):  # made by one that is installed
            return joined(f"function {module}.{function.__qualname__}", self._around(function))
        chains, imported = _names_in(function.__code__)
        self.modules.update(imported)
        parts = [(".".join(chain), self._found(function.__globals__[chain[0]], chain[1:]))
                 for chain in chains if chain[0] in function.__globals__]  # fmt: skip
        return joined("users", super()._function(function), self._named("globals", parts))

    def _found(self, value: Any, chain: tuple[str, ...]) -> Any:
        """What code gets that names a global and attributes of it: of the user's modules, and of parsed arguments."""
        for name in chain:
            if isinstance(value, types.ModuleType):
                self.modules.add(value.__name__)
                if not _is_users(value.__name__):
                    break
            elif type(value) not in (argparse.Namespace, types.SimpleNamespace):
                break
            if name not in vars(value):
                break
            value = vars(value)[name]
        return value

    def _class(self, cls: type) -> bytes:
        if self._is_by_name(cls, str(cls.__module__)):
            return joined(f"class {cls.__module__}.{cls.__qualname__}")
        members = ((name, part) for name, part in sorted(vars(cls).items()) if _is_member(name, part))
        return self._named(f"class {cls.__qualname__}", [("", (*cls.__bases__, type(cls))), *members])

    def _module(self, module: types.ModuleType) -> bytes:
        self.modules.add(module.__name__)
        return super()._module(module)

    def _without_state(self, value: Any, error: Exception) -> bytes:
        cls = type(value)
        raise UnkeyableError(
            f"{self._who} cannot compare {self._where()}, a {cls.__module__}.{cls.__qualname__}, between processes "
            "and runs, so it could serve what is out of date. Leave it out in __getstate__ of the class (open "
            f"files when first needed), or {self._remedy}"
        ) from error

    def _where(self) -> str:
        texts = [f"[{part[0]!r:.40}]" if isinstance(part, tuple) else part for part in self._path]
        return ".".join(filter(None, texts)).replace(".[", "[")

    def _object(self, value: Any) -> bytes:
        if isinstance(value, np.random.Generator | np.random.RandomState):
            return self._without_state(value, TypeError("a generator of random numbers changes with every use"))
        return super()._object(value)

    # ---- files

    def _atom(self, value: Any) -> bytes:
        if isinstance(value, str):
            self._look_for(value)
        return super()._atom(value)

    def _array(self, value: Any) -> bytes:
        if value.dtype.kind == "U":
            for text in set(np.asarray(value).ravel().tolist()):
                self._look_for(text)
        return super()._array(value)

    def _file(self, path: Any) -> bytes:
        self._look_for(os.fsdecode(path), is_path=True)
        return super()._file(path)

    def _look_for(self, text: str, *, is_path: bool = False) -> None:
        """Take in the file or folder that a text names; a folder's name has a separator, for it may be just a word."""
        if text in self._texts and not is_path:
            return
        self._texts.add(text)
        try:
            mode = os.stat(text).st_mode  # noqa: PTH116 - as above
        except (OSError, ValueError):
            return
        path = os.path.abspath(text)  # noqa: PTH100 - a relative name means another file elsewhere
        if not stat.S_ISDIR(mode):
            self._take_in(path)
        elif is_path or (("/" in text or os.sep in text) and text.strip(f"/{os.sep}")):
            self._take_in_folder(path)

    def _take_in_folder(self, path: str) -> None:
        for folder, folders, files in os.walk(path, followlinks=True):
            folders[:] = [each for each in folders if os.path.join(folder, each) != self._own]  # noqa: PTH118
            if len(self.files) + len(files) > _MOST_FILES:
                raise UnkeyableError(
                    f"{self._where()} names {path!r}, a folder of more than {_MOST_FILES:,} files, too many for "
                    f"{self._who} to watch: {self._remedy}"
                )
            for file in files:
                self._take_in(os.path.join(folder, file))  # noqa: PTH118

    def _take_in(self, path: str) -> None:
        if path != self._own:
            self.files[path] = _stat(path)


def _is_member(name: str, part: Any) -> bool:
    """Whether an entry of a class is the user's, and not what Python and decorators make of the others."""
    if isinstance(part, types.MemberDescriptorType | types.GetSetDescriptorType) or name == "_abc_impl":
        return False
    return not (name.startswith("__") and name.endswith("__")) or isinstance(part, _FUNCTIONS)


@functools.lru_cache(maxsize=1024)
def _names_in(code: types.CodeType) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """What the code, and the code inside it, names: globals with the attributes after them, and modules it imports."""
    chains: set[tuple[str, ...]] = set()
    imported: set[str] = set()
    chain: tuple[str, ...] = ()
    module = ""
    for each in dis.get_instructions(code):
        if each.opname in _ATTRIBUTE and chain:
            chain = (*chain, each.argval)
            continue
        chains.add(chain)
        chain = (each.argval,) if each.opname in _GLOBAL else ()
        if each.opname == "IMPORT_NAME":
            module = each.argval
            imported.add(module)
        elif each.opname == "IMPORT_FROM":
            imported.add(f"{module}.{each.argval}")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner, modules = _names_in(constant)
            chains.update(inner)
            imported.update(modules)
    return tuple(sorted(chains - {()})), tuple(sorted(imported - {""}))


def _is_users(module: str) -> bool:
    """Whether a module is the user's: in no file of Python's or of an installed package, but for editable ones."""
    spec = _spec_of(module)
    return spec is None or not _is_installed(spec)


def _behind(modules: Iterable[str]) -> dict[str, str]:
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
    return f"{package.version} {joined('record', repr(sorted(own)).encode()).hex()}"


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
    found = joined("text", text).hex(), tuple(_imported(text, package))
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
