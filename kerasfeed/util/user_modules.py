"""The modules of the user's that are imported, and whether their text is still the one that was.

Invariant: all workers of a feed run one text of each module: what its file held when the feed began to load, or when
the first of them imported it. What this process has imported itself is known as far as it was seen before, or Python's
own cache of it tells.
"""

import marshal
import os
import struct
import sys
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from kerasfeed.util.opened_files import Identity, Opened, first_in_feed

_STANDARD = str(Path(os.__file__).parent) + os.sep
_loaded: dict[str, tuple[Any, Identity | None]] = {}  # by name: the spec of the import, and the text that it read


@dataclass(frozen=True)
class ModuleTexts:
    """The modules of the user's that a process has imported.

    Attributes:
        now: What the file of each holds, by its path.
        edited: Those whose files hold another text than this process runs, by name.
    """

    now: dict[str, Identity]
    edited: dict[str, str]


class ModuleEditedError(Exception):
    """Internal: a worker has imported a module whose text is another one than that of its feed."""


def _user_modules() -> dict[str, str]:
    """Name and file of each; not what is installed, nor the main module, which is sent by value."""
    found = {}
    for name, module in list(sys.modules.items()):
        path: Any = getattr(module, "__file__", None)
        if _is_users(name, path, getattr(module, "__spec__", None)):
            found[name] = path
    return found


def _is_users(name: str, path: Any, spec: Any) -> bool:
    if not isinstance(path, str) or not path.endswith(".py") or path.startswith(_STANDARD) or "-packages/" in path:
        return False
    return spec is not None and name.split(".")[0] not in ("__main__", "kerasfeed")


def _text_of(path: str) -> Identity | None:
    try:
        text = Path(path).read_bytes()
    except OSError:
        return None
    digest = blake2b(text, digest_size=16).digest()
    return Identity(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"), len(text), 0)


def module_texts() -> ModuleTexts:
    """Those of this process; 50 us a module."""
    texts = ModuleTexts({}, {})
    for name, path in _user_modules().items():
        spec, text = sys.modules[name].__spec__, _text_of(path)
        if text is None:
            continue
        texts.now[path] = text
        if name not in _loaded or _loaded[name][0] is not spec:  # else it has not been reloaded since
            _loaded[name] = spec, (text if _is_as_cached(spec, path) else None)
        if _loaded[name][1] != text:
            texts.edited[name] = path
    return texts


def note_import(name: str) -> None:
    """The module `name` is being imported: note its text, which nothing else tells where Python writes no cache."""
    module = sys.modules.get(name)
    path: Any = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    if _is_users(name, path, spec) and (name not in _loaded or _loaded[name][0] is not spec):
        _loaded[name] = spec, _text_of(path)


def _is_as_cached(spec: Any, path: str) -> bool:
    """Whether a file has the code that Python cached when it was last imported; True where there is no such cache.

    Where Python writes none, one that is there may be of any text that the file once held.
    """
    if type(spec.loader) is not SourceFileLoader or not spec.cached or sys.dont_write_bytecode:
        return True
    try:
        data, status = Path(spec.cached).read_bytes(), Path(path).stat()
        kind, moment, size = struct.unpack("<3I", data[4:16])  # kind 0: made of a source of this moment and size
        if kind or (moment, size) == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF):
            return True
        return bool(marshal.loads(data[16:]) == compile(Path(path).read_bytes(), path, "exec", 0, True))
    except (OSError, EOFError, ValueError, TypeError, struct.error):
        return True
    except SyntaxError:
        return False


def edited_message(name: str, path: str) -> str:
    """What to say of a module of which workers have imported two texts."""
    return (
        f"the module {name} ({path}) was edited since the feed began to load, and scenes of old and new code would be "
        f"mixed. Make the feed anew, after importlib.reload({name}) or in a new process"
    )


class ModuleWatch:
    """The modules of a worker, against those of its feed. To be asked whenever user's code has run: mostly 0.1 us."""

    def __init__(self, expected: ModuleTexts) -> None:
        self._expected = expected
        self._checked: set[str] = set()
        self._count = 0

    def check(self) -> None:
        """Look at what was imported since.

        Raises:
            ModuleEditedError: The text of a module is another one.
        """
        if len(sys.modules) == self._count:
            return
        self._count = len(sys.modules)
        for name, path in _user_modules().items():
            if name in self._checked or (text := _text_of(path)) is None:
                continue
            self._checked.add(name)
            first = self._expected.now.get(path) or first_in_feed(Opened(path, module=name), text)
            if first != text:
                raise ModuleEditedError(edited_message(name, path))

    def edited(self) -> str:
        """What of the imported modules the parent runs in another text, in words; empty where nothing is."""
        return ", ".join(f"{name} ({path})" for name, path in self._expected.edited.items() if name in self._checked)
