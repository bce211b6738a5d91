"""The key of a sequence or a function: a digest of all that its values are computed from, as far as that can be seen.

Invariant: equal keys mean equal class code, equal state and unchanged source files, in any process and any run. What
cannot be digested so is refused; nothing is left out in silence but what a module of the standard library or of an
installed package computes, which stands for itself with its version.

What goes in: code (bytecode, constants, names, defaults, closures, and the module-level functions, classes and values
of the user's own modules that it names; modules that it names stand for their files), attributes (what pickle would
take), and size and mtime of every file that an attribute names, of all files below every folder.
"""

import functools
import hashlib
import logging
import os
import sys
import sysconfig
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed import __version__
from kerasfeed.errors import KerasfeedError
from kerasfeed.sequences.cache.object_state import names_in, state_of

_KEY = "pass key='...', a text that you change whenever scenes change"
_MOST_FILES = 100_000
_LONGEST_PATH = 4096
_IN_CLASSES = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__", "_abc_impl",
    "__firstlineno__", "__static_attributes__", "__slots__", "__parameters__", "__orig_bases__", "__slotnames__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__match_args__", "__classdictcell__",
}  # fmt: skip
_PLAIN = (bool, int, float, complex, bytes, type(None), type(Ellipsis), type(NotImplemented))
# Globals that code may name without depending on their state.
_WITHOUT_STATE = (logging.Logger, type(threading.Lock()), type(threading.RLock()), threading.local)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class UnkeyableError(KerasfeedError, TypeError):
    """Part of a sequence's state is nothing that two processes could compare."""


@dataclass(frozen=True)
class Key:
    """The key of a sequence at one moment.

    Attributes:
        digest: 32 hexadecimal digits.
        files: Size and mtime, ns, of every file that went in; None for one that was not there.
    """

    digest: str
    files: dict[str, tuple[int, int] | None]

    def holds(self) -> bool:
        """Whether the files are what they were; 2 us a file."""
        return all(_stat(path) == found for path, found in self.files.items())


def key_of(sequence: Any, who: str = "kf.Cached", remedy: str = _KEY) -> Key:
    """The key of a sequence, or of a function.

    Args:
        sequence: What is digested.
        who: Who keeps something under the key, for messages.
        remedy: What else than leaving state out helps, for messages.

    Raises:
        UnkeyableError: Some of its state cannot be digested; the message names the attribute and what to do.
    """
    walk = _Walk(who, remedy)
    return Key(walk.digest(sequence), walk.files)


def _stat(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - ten times as fast, and there may be many
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class _Walk:
    """One walk over a sequence. What is equal in content has one digest, shared or not; what is met twice is walked
    once, and a circle is told by how far back it leads.
    """  # noqa: D205

    def __init__(self, who: str, remedy: str) -> None:
        self._who, self._remedy = who, remedy
        self._hashes = [hashlib.blake2b(digest_size=16)]
        self._done: dict[int, bytes] = {}
        self._begun: list[int] = []
        self._kept: list[Any] = []  # what was met stays alive, for ids are used again
        self._path: list[str] = []
        self.files: dict[str, tuple[int, int] | None] = {}

    def digest(self, sequence: Any) -> str:
        self._path.append(type(sequence).__name__)
        self._update("kerasfeed", __version__, sys.version_info[:2])
        self._walk(sequence)
        return self._hashes[0].hexdigest()

    def _update(self, *words: Any) -> None:
        for word in words:
            text = word if isinstance(word, bytes) else repr(word).encode("utf-8", "surrogatepass")
            self._hashes[-1].update(len(text).to_bytes(8, "little") + text)

    def _under(self, name: str, value: Any) -> None:
        self._path.append(name)
        self._walk(value)
        self._path.pop()

    def _walk(self, value: Any) -> None:
        if isinstance(value, str | os.PathLike):
            self._update(type(value).__name__, os.fspath(value))
            self._walk_file(os.fspath(value))
        elif type(value) in _PLAIN or isinstance(value, np.dtype | np.generic | range | slice):
            self._update(type(value).__name__, value)
        elif id(value) in self._begun:
            self._update("circle", len(self._begun) - self._begun.index(id(value)))
        else:
            self._update(self._digest_of(value))

    def _digest_of(self, value: Any) -> bytes:
        if id(value) not in self._done:
            self._hashes.append(hashlib.blake2b(digest_size=16))
            self._begun.append(id(value))
            self._walk_new(value)
            self._begun.pop()
            self._done[id(value)] = self._hashes.pop().digest()
            self._kept.append(value)
        return self._done[id(value)]

    def _walk_new(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self._walk_array(value)
        elif isinstance(value, dict):
            self._update("dict", type(value).__qualname__, len(value))
            for key, item in value.items():
                self._walk(key)
                self._under(f"[{key!r:.40}]", item)
        elif isinstance(value, list | tuple):
            self._update(type(value).__qualname__, len(value))
            for number, item in enumerate(value):
                self._under(f"[{number}]", item)
        elif isinstance(value, set | frozenset):
            self._update(type(value).__qualname__, len(value))
            for item in sorted(value, key=repr):
                self._walk(item)
        elif isinstance(value, type):
            self._walk_class(value)
        elif isinstance(value, types.CodeType):
            self._walk_code(value)
        elif isinstance(value, types.ModuleType):
            self._walk_module(value)
        elif isinstance(value, types.FunctionType):
            self._walk_function(value)
        elif isinstance(value, types.BuiltinFunctionType | types.WrapperDescriptorType | np.ufunc):
            self._update("builtin", getattr(value, "__module__", None), value.__name__)
        else:
            self._walk_object(value)

    def _walk_array(self, array: Any) -> None:
        self._update("array", type(array).__qualname__, array.dtype.str, str(array.dtype), array.shape)
        if isinstance(array, np.memmap) and array.filename is not None and array.mode != "c":
            self._update(array.offset, array.strides)
            self._walk(str(array.filename))
        elif array.dtype.hasobject:
            self._walk(array.tolist())
        else:
            self._hashes[-1].update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _walk_function(self, function: types.FunctionType) -> None:
        if _is_installed(function.__module__):
            self._update("function", function.__module__, function.__qualname__, _version_of(function.__module__))
            return
        self._update("function", function.__qualname__)
        self._walk(function.__code__)
        self._under("defaults", (function.__defaults__, function.__kwdefaults__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._under(name, cell.cell_contents)
            except ValueError:  # not filled yet
                self._update("empty")
        for name in names_in(function.__code__):
            if name in function.__globals__:
                self._walk_global(name, function.__globals__[name])

    def _walk_global(self, name: str, value: Any) -> None:
        self._update("global", name)
        if isinstance(value, _WITHOUT_STATE):
            self._update(type(value).__qualname__)
        else:
            self._under(name, value)

    def _walk_code(self, code: types.CodeType) -> None:
        self._update(code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
        self._update(code.co_exceptiontable)
        self._walk(code.co_consts)

    def _walk_module(self, module: types.ModuleType) -> None:
        """A module of the user's stands for its file, and for the modules that it takes anything from."""
        self._update("module", module.__name__, _version_of(module.__name__))
        if _is_installed(module.__name__):
            return
        found = {_home_of(value) for value in vars(module).values()}
        for name in sorted(found - {module.__name__, "__main__", ""}):
            if name in sys.modules:
                self._walk(sys.modules[name])

    def _walk_class(self, cls: type) -> None:
        self._update("class", cls.__qualname__)
        if _is_installed(cls.__module__):
            self._update(cls.__module__, _version_of(cls.__module__))
            return
        for base in cls.__bases__:
            self._walk(base)
        for name, value in sorted(vars(cls).items()):
            if name not in _IN_CLASSES and not isinstance(
                value, types.MemberDescriptorType | types.GetSetDescriptorType
            ):
                self._update(name)
                self._under(name, value)

    def _walk_object(self, value: Any) -> None:
        cls = type(value)
        self._walk(cls)
        try:
            state = state_of(value)
        except Exception as error:
            raise UnkeyableError(
                f"{self._who} cannot compare {self._where}, a {cls.__module__}.{cls.__qualname__}, between processes "
                "and runs, so it could serve what is out of date. Leave it out in __getstate__ of the class (open "
                f"files when first needed), or {self._remedy}"
            ) from error
        for name, item in state:
            self._update(name)
            self._under(name, item)

    @property
    def _where(self) -> str:
        return ".".join(self._path).replace(".[", "[")

    def _walk_file(self, name: str | bytes) -> None:
        path = os.fsdecode(name)
        try:
            if not path or len(path) > _LONGEST_PATH or not Path(path).exists():
                return
        except (OSError, ValueError):
            return
        self._update(os.path.abspath(path))  # noqa: PTH100 - a relative name means another file elsewhere
        if not Path(path).is_dir():
            self._update_file(path)
            return
        for folder, folders, files in os.walk(path):
            folders.sort()
            if len(self.files) + len(files) > _MOST_FILES:
                raise UnkeyableError(
                    f"{self._where} is {path!r}, a folder of more than {_MOST_FILES:,} files, too many for "
                    f"{self._who} to watch: {self._remedy}"
                )
            for file in sorted(files):
                self._update(file)
                self._update_file(os.path.join(folder, file))  # noqa: PTH118 - as for `stat`

    def _update_file(self, path: str) -> None:
        self.files[path] = _stat(path)
        self._update("file", self.files[path])


@functools.lru_cache(maxsize=1024)
def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to the standard library or to an installed package, and so changes with its version."""
    top = (module or "").split(".")[0]
    if top == "__main__":  # whose file may be that of whatever runs the user's code: pytest, a kernel, a worker
        return False
    if top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top == "kerasfeed" or file.startswith(_INSTALLED)


def _version_of(module: str) -> Any:
    """Version of the package, and size and mtime of the module's file, for versions often stay what they were."""
    top = module.split(".")[0]
    file = None if top in sys.stdlib_module_names else getattr(sys.modules.get(module), "__file__", None)
    return getattr(sys.modules.get(top), "__version__", None), file and _stat(file)


def _home_of(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    home = getattr(value, "__module__", None) if isinstance(value, type | types.FunctionType) else None
    return home if isinstance(home, str) else ""
