"""Files by URL, through fsspec.

Invariant: a read returns all requested bytes, or raises an error that names the URL. Any number of threads may read at
the same time, without a lock. Each process checks a file only when it opens it, because a check takes as long as a
read. Only this module imports fsspec.
"""

import gc
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from kerasfeed.readers.file_bytes import ByteSource
from kerasfeed.readers.opened_files import Identity, file_identity
from kerasfeed.util.error_text import message_of, reworded, summary
from kerasfeed.util.lru import Lru

Options = Iterable[tuple[str, Any]]
_T = TypeVar("_T")

_PAUSES = 0.1, 0.5  # s before a failed read is tried again
_SLASH_LOST = re.compile(r"[A-Za-z][\w+.-]+(::[^/]+)?:/")
_MAGIC = re.compile(r"[*?[]")
_WEB = re.compile(r"(^|::)https?://")
# Keys for the version of a file, most reliable first; listings and single requests must agree.
_VERSIONS = "ETag", "etag", "Content-MD5", "md5Hash", "generation", "LastModified", "Last-Modified", "last_modified"
_TIMES = "mtime", "modified", "created"
_FINAL = (
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError, LookupError,
    AttributeError, ImportError, NotImplementedError, MemoryError,
)  # fmt: skip
_REFUSED = 401, 403
_GONE = 404, 410


def is_url(path: Any) -> bool:
    """Whether a path is a URL.

    Raises:
        ValueError: It is a `Path` made from a URL, which lost a slash.
    """
    if not isinstance(path, str | os.PathLike):
        return False
    text = os.fspath(path)
    if not isinstance(text, str):
        return False
    if not isinstance(path, str) and _SLASH_LOST.match(text) and "://" not in text and not os.path.lexists(text):
        raise ValueError(f"{text!r} is a URL that lost a slash in a Path: pass URLs as str")
    return "://" in text


def last_part(path: Any) -> str:
    """Return the name of a file without its folder."""
    return str(path).rpartition("/")[2]


def find(url: str) -> list[str]:
    """Return the URLs that match; a plain URL is not checked.

    Raises:
        FileNotFoundError: No file matches.
        ImportError, ValueError: As for `UrlFile`.
        OSError: The store cannot be reached.
    """
    magic = _MAGIC.search(url)
    if magic is None:
        return [url]
    files, name = _located(url, ())
    with suppress(FileNotFoundError):  # a plain name may hold characters of a glob, like the "?" of a query
        _look(url, files, name)
        return [url]
    entries = _tried(url, lambda: files.glob(name, detail=True))
    names = [each for each in entries if entries[each]["type"] == "file"]
    if not names:
        raise FileNotFoundError(
            f"no file matches {url!r}. Check bucket and folder; if the server lists no folders, name each file"
        )
    begin, end = url.rfind("/", 0, magic.start()) + 1, url.find("::", magic.start())
    before, after = url[:begin], "" if end < 0 else url[end:]
    folder = _located(before + after, ())[1].rstrip("/")
    return [f"{before}{each.removeprefix(folder).lstrip('/')}{after}" for each in names]


def identity_at(path: str, options: Options) -> Identity:
    """Return the present identity of the file at a path or URL.

    Raises:
        OSError: The file does not exist or cannot be accessed.
    """
    return _identity(path, *_located(path, options)) if is_url(path) else file_identity(path)


def read_whole(path: str | Path) -> bytes:
    """Return the contents of a small file at a path or URL.

    Raises:
        OSError: The file cannot be read.
        ImportError, ValueError: As for `UrlFile`.
    """
    if isinstance(path, Path):
        return path.read_bytes()
    file = UrlFile(path)
    return file.read(0, file.identity.size)


class UrlFile(ByteSource):
    """The bytes of a file at a URL."""

    def __init__(self, url: str, options: Options = (), identity: Identity | None = None) -> None:
        """Find the file.

        Args:
            url: URL for fsspec: "s3://...", "https://...", "filecache::s3://...".
            options: Options of fsspec's file system.
            identity: Identity of the file, if it has just been checked.

        Raises:
            FileNotFoundError: There is no such file.
            ImportError: fsspec, or the package of the protocol, is missing.
            ValueError: fsspec does not know the protocol.
            OSError: The store cannot be reached.
        """
        self.path = url
        self._files, self._name = _located(url, options)
        self.identity = identity or _identity(url, self._files, self._name)

    def check(self, *, now: bool = False) -> None:
        """Do nothing: see the module."""

    def read(self, address: int, size: int) -> bytes:
        """See `ByteSource.read`."""
        if not size:
            return b""
        return _tried(self.path, lambda: self._read(address, size))

    def _read(self, address: int, size: int) -> bytes:
        data: bytes = self._files.cat_file(self._name, start=address, end=address + size)
        if len(data) > size:
            raise NotImplementedError(
                f"the server sent the whole file, {len(data):,} bytes, instead of the {size:,} requested: it does "
                "not support ranges. Copy the file here, or let fsspec do it: put 'filecache::' before the URL"
            )
        if len(data) < size:
            raise OSError(f"it ends at byte {address + len(data):,}, {size - len(data):,} bytes too early")
        return data


class Blocks(ByteSource):
    """A file read in blocks, for one reader with small steps."""

    def __init__(self, source: ByteSource, block: int, kept: int) -> None:
        """Read blocks of `block` bytes; keep the last `kept`."""
        self.path, self.identity = source.path, source.identity
        self._source, self._block = source, block
        self._blocks: Lru[int, bytes] = Lru(kept)

    def check(self, *, now: bool = False) -> None:
        """See `ByteSource.check`."""
        self._source.check(now=now)

    def read(self, address: int, size: int) -> bytes:
        """See `ByteSource.read`."""
        stop = address + size
        if size >= self._block or stop > self.identity.size:  # would empty the cache, or fails
            return self._source.read(address, size)
        pieces = []
        while address < stop:
            first = address - address % self._block
            data = self._blocks.get_or_load(first, partial(self._loaded, first))[0]
            pieces.append(data[address - first : stop - first])
            address = first + self._block
        return b"".join(pieces)

    def _loaded(self, first: int) -> bytes:
        return self._source.read(first, min(self._block, self.identity.size - first))


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection in all threads.

    Only the thread that holds HDF5's lock may call this. That thread waits for others, such as fsspec's. If one of them
    collected an h5py object, it would wait for the lock, and both would deadlock.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class FileObject(io.RawIOBase):
    """A source as a file object for h5py."""

    def __init__(self, source: ByteSource) -> None:
        """Read `source`."""
        self._source, self._position = source, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, and return it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.identity.size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, out: Any) -> int:
        """Fill `out` from the position on; return the number of bytes."""
        view = memoryview(out).cast("B")
        size = max(0, min(len(view), self._source.identity.size - self._position))
        with collection_paused():
            view[:size] = self._source.read(self._position, size)
        self._position += size
        return size


def _located(url: str, options: Options) -> tuple[Any, str]:
    """Return the file system, and the name of the file in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ImportError(
            f'reading {url!r} needs the package fsspec: pip install fsspec, or pip install "kerasfeed[remote]"'
        ) from None
    if url.startswith("file://") and not os.path.lexists(url.removeprefix("file://")):
        url = unquote(url)  # Path.as_uri() quotes spaces, and fsspec takes names as they are
    try:
        found: tuple[Any, str] = url_to_fs(url, **dict(options))
    except ImportError as error:
        raise ImportError(f"reading {url!r} needs a package of its protocol: {message_of(error)}") from error
    except ValueError as error:
        raise ValueError(
            f"cannot read {url!r}: {message_of(error)}. fsspec.available_protocols() lists the known protocols. "
            "Register your own protocol in the module of your class, so that worker processes know it too"
        ) from error
    return found


def _look(url: str, files: Any, name: str) -> dict[str, Any]:
    """Return the store's information on a file.

    Bypass fsspec's caches, which would list the folder.
    """
    from fsspec.implementations.cached import CachingFileSystem

    while isinstance(files, CachingFileSystem):
        files = files.fs
    info: dict[str, Any] = _tried(url, lambda: files.info(name))
    return info


def _identity(url: str, files: Any, name: str) -> Identity:
    info = _look(url, files, name)
    if info["type"] == "directory":
        raise IsADirectoryError(f"{url!r} is a folder, not a file")
    if info.get("size") is None:
        raise OSError(f"cannot read {url!r}: the server does not report the size of the file. Copy it here first")
    version = next((str(info[key]) for key in (*_VERSIONS, *_TIMES) if info.get(key)), "")
    return Identity(0, _number(url), int(info["size"]), _number(version.strip('"')))


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _tried(url: str, call: Callable[[], _T]) -> _T:
    """Return `call()`, tried up to three times; errors name the URL."""
    for pause in (*_PAUSES, None):
        try:
            return call()
        except Exception as error:
            # fsspec raises FileNotFoundError for any failure of a web server.
            cause = error.__cause__ if isinstance(error, FileNotFoundError) and _WEB.search(url) else None
            reason = error if cause is None else cause
            status = getattr(reason, "status", None)
            if isinstance(status, int):
                is_final = status < 500 and status not in (408, 429)
            else:
                is_final = isinstance(reason, _FINAL)
            if pause is None or is_final:
                raise _read_error(url, error, reason, status, tries=1 if is_final else 1 + len(_PAUSES)) from error
            time.sleep(pause)
    raise AssertionError


def _read_error(url: str, error: Exception, reason: BaseException, status: Any, tries: int) -> Exception:
    if isinstance(reason, FileNotFoundError) or status in _GONE:
        return FileNotFoundError(f"cannot open {url!r}: there is no such file. Check bucket, folder and name")
    why = f"cannot read {url!r}: {message_of(reason) if isinstance(reason, NotImplementedError) else summary(reason)}"
    if isinstance(reason, PermissionError) or status in _REFUSED:
        return PermissionError(
            f"{why}. fsspec takes keys from its configuration, and from the configuration of the store's package"
        )
    if tries > 1:
        why += f" (tried {tries} times)"
    return reworded(error, why) if type(error) in (OSError, IsADirectoryError, TimeoutError) else OSError(why)
