"""Files by URL, through fsspec.

Invariant: a read gives all the bytes that were asked for, or an error that names the URL. Reads may come from any
thread, several at once, and none holds a lock. What a file is, is looked at when it is opened, in each process, and not
again: a look takes as long as a read. fsspec is imported here alone.
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
from kerasfeed.readers.opened_files import Identity, identity_of
from kerasfeed.util.error_text import message_of, reworded, summary
from kerasfeed.util.lru import Lru

Options = Iterable[tuple[str, Any]]
_T = TypeVar("_T")

_PAUSES = 0.1, 0.5  # s before a read that failed is tried again
_SLASH_LOST = re.compile(r"[A-Za-z][\w+.-]+(::[^/]+)?:/")
_MAGIC = re.compile(r"[*?[]")
_WEB = re.compile(r"(^|::)https?://")
# What stores say of a version of a file, the surest first; listings and looks at one file must say the same.
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
        ValueError: It was one, before it was made a `Path`, which takes a slash of it away.
    """
    if not isinstance(path, str | os.PathLike):
        return False
    text = os.fspath(path)
    if not isinstance(text, str):
        return False
    if not isinstance(path, str) and _SLASH_LOST.match(text) and "://" not in text and not os.path.lexists(text):
        raise ValueError(f"{text!r} is a URL that a Path took a slash from: give URLs as text")
    return "://" in text


def last_part(path: Any) -> str:
    """The name of a file without what stands before it."""
    return str(path).rpartition("/")[2]


def find(url: str) -> list[str]:
    """The URLs of the files that a URL, or a glob of URLs, means, in no order. What is no glob is not looked for.

    Raises:
        FileNotFoundError: No file matches.
        ImportError, ValueError: As `UrlFile`.
        OSError: The store cannot be asked.
    """
    magic = _MAGIC.search(url)
    if magic is None:
        return [url]
    files, name = _located(url, ())
    with suppress(FileNotFoundError):  # a name may hold such characters, as the "?" of a query
        _look(url, files, name)
        return [url]
    told = _tried(url, lambda: files.glob(name, detail=True))
    found = [each for each in told if told[each]["type"] == "file"]
    if not found:
        raise FileNotFoundError(
            f"no file matches {url!r}. Check bucket and folder; of a server that lists no folders, name each file"
        )
    begin, end = url.rfind("/", 0, magic.start()) + 1, url.find("::", magic.start())
    before, after = url[:begin], "" if end < 0 else url[end:]
    folder = _located(before + after, ())[1].rstrip("/")
    return [f"{before}{each.removeprefix(folder).lstrip('/')}{after}" for each in found]


def identity_at(path: str | Path, options: Options = ()) -> Identity:
    """The identity of the file at a path or URL now.

    Raises:
        OSError: There is none, or it cannot be looked at.
    """
    return _identity(path, *_located(path, options)) if isinstance(path, str) and is_url(path) else identity_of(path)


def read_whole(path: str | Path) -> bytes:
    """What a small file holds, at a path or URL."""
    if isinstance(path, Path):
        return path.read_bytes()
    file = UrlFile(path)
    return file.read(0, file.identity.size)


class UrlFile(ByteSource):
    """The bytes of a file at a URL."""

    def __init__(self, url: str, options: Options = (), identity: Identity | None = None) -> None:
        """Find the file.

        Args:
            url: fsspec's: "s3://...", "https://...", "filecache::s3://...".
            options: Of fsspec's file system.
            identity: What the file is, where that has just been looked at.

        Raises:
            FileNotFoundError: There is no such file.
            ImportError: fsspec is missing, or the package of the protocol.
            ValueError: fsspec does not know the protocol.
            OSError: The store cannot be asked.
        """
        self.path = url
        self._files, self._name = _located(url, options)
        self.identity = identity or _identity(url, self._files, self._name)

    def check(self, *, now: bool = False) -> None:
        """Nothing: see the module."""

    def read(self, address: int, size: int) -> bytes:
        """See `ByteSource.read`."""
        if not size:
            return b""
        return _tried(self.path, lambda: self._read(address, size))

    def _read(self, address: int, size: int) -> bytes:
        data: bytes = self._files.cat_file(self._name, start=address, end=address + size)
        if len(data) > size:
            raise NotImplementedError(
                f"the server gives the whole file, {len(data):,} bytes, and not the {size:,} that were asked for: it "
                "knows no ranges. Copy the file here, or have fsspec do so: 'filecache::' before the URL"
            )
        if len(data) < size:
            raise OSError(f"it ends at byte {address + len(data):,}, {size - len(data):,} bytes too early")
        return data


class Blocks(ByteSource):
    """A file for one reader that goes from place to place, or forward, in small steps: whole blocks are read."""

    def __init__(self, source: ByteSource, block: int, kept: int) -> None:
        """Read `source` in blocks of `block` bytes, and keep the last `kept` of them."""
        self.path, self.identity = source.path, source.identity
        self._source, self._block = source, block
        self._blocks: Lru[int, bytes] = Lru(kept, lambda _: 1)

    def check(self, *, now: bool = False) -> None:
        """See `ByteSource.check`."""
        self._source.check(now=now)

    def read(self, address: int, size: int) -> bytes:
        """See `ByteSource.read`."""
        stop = address + size
        if size >= self._block or stop > self.identity.size:  # the one would push out what is kept, the other fails
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
    """No garbage is collected meanwhile, in any thread; for one thread at a time, that which holds HDF5's lock.

    The thread that it waits for, such as fsspec's own, would else wait for that lock, and both for ever, where it came
    to collect an object of h5py's.
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
        self._source, self._place = source, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, which is returned."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._source.identity.size}[whence]
        self._place = start + offset
        return self._place

    def readinto(self, out: Any) -> int:
        """Fill `out` from the place on, which moves; returns how many bytes there were."""
        view = memoryview(out).cast("B")
        size = max(0, min(len(view), self._source.identity.size - self._place))
        with collection_paused():
            view[:size] = self._source.read(self._place, size)
        self._place += size
        return size


def _located(url: str, options: Options) -> tuple[Any, str]:
    """The file system, and its name of the file."""
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
            f"cannot read {url!r}: {message_of(error)}. fsspec.available_protocols() lists what fsspec reads; one of "
            "your own is registered in the module of your class, so that worker processes know it too"
        ) from error
    return found


def _look(url: str, files: Any, name: str) -> dict[str, Any]:
    """What the store says of a file; not what a cache before it says, which for that lists the whole folder."""
    from fsspec.implementations.cached import CachingFileSystem

    while isinstance(files, CachingFileSystem):
        files = files.fs
    told: dict[str, Any] = _tried(url, lambda: files.info(name))
    return told


def _identity(url: str, files: Any, name: str) -> Identity:
    told = _look(url, files, name)
    if told["type"] == "directory":
        raise IsADirectoryError(f"{url!r} is a folder, and not a file")
    if told.get("size") is None:
        raise OSError(f"cannot read {url!r}: the server does not say how large the file is. Copy it here first")
    version = next((str(told[key]) for key in (*_VERSIONS, *_TIMES) if told.get(key)), "")
    return Identity(0, _number(url), int(told["size"]), _number(version.strip('"')))


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _tried(url: str, call: Callable[[], _T]) -> _T:
    """What `call` returns, which is called up to three times where the store fails; its errors name the URL."""
    for pause in (*_PAUSES, None):
        try:
            return call()
        except Exception as error:
            # fsspec makes a FileNotFoundError of whatever goes wrong with a web server.
            cause = error.__cause__ if isinstance(error, FileNotFoundError) and _WEB.search(url) else None
            reason = error if cause is None else cause
            status = getattr(reason, "status", None)
            if isinstance(status, int):
                is_final = status < 500 and status not in (408, 429)
            else:
                is_final = isinstance(reason, _FINAL)
            if pause is None or is_final:
                raise _told(url, error, reason, status, tries=1 if is_final else 1 + len(_PAUSES)) from error
            time.sleep(pause)
    raise AssertionError


def _told(url: str, error: Exception, reason: BaseException, status: Any, tries: int) -> Exception:
    if isinstance(reason, FileNotFoundError) or status in _GONE:
        return FileNotFoundError(f"cannot open {url!r}: there is no such file. Check bucket, folder and name")
    why = f"cannot read {url!r}: {message_of(reason) if isinstance(reason, NotImplementedError) else summary(reason)}"
    if isinstance(reason, PermissionError) or status in _REFUSED:
        return PermissionError(f"{why}. fsspec takes keys from its configuration, and from that of the store's package")
    if tries > 1:
        why += f" (tried {tries} times)"
    return reworded(error, why) if type(error) in (OSError, IsADirectoryError, TimeoutError) else OSError(why)
