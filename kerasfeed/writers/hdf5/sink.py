"""Write HDF5 files so that no error or Ctrl-C raises inside HDF5.

Invariant: HDF5 never sees a failed write. After one, HDF5 could not close the file, and the process would end with a
segmentation fault at exit (h5py issue 914, seen with h5py 3.14 and HDF5 1.14.6). Data that cannot be written is kept in
memory instead, so that the file can be closed, and the error is raised here.
"""

import contextlib
import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from kerasfeed.pool.resource_errors import start_thread

Result = TypeVar("Result")


class Sink(io.RawIOBase):
    """A file for h5py that stores system errors instead of raising them.

    Attributes:
        error: The first error; the file is then incomplete, and the writer must soon stop and close it.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.error: OSError | None = None
        self._fd = fd
        self._position = 0
        self._kept: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise the first error, if any."""
        if self.error is not None:
            raise self.error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read or write."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = (self._size() if start is None else start) + offset
        return self._position

    def _size(self) -> int:
        return max([os.fstat(self._fd).st_size, *(start + len(data) for start, data in self._kept)])

    def tell(self) -> int:
        """Return the position of the next read or write."""
        return self._position

    def write(self, data: Any) -> int:
        """Write all of `data`, to the disk if possible."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view) and self.error is None:
                done += os.pwrite(self._fd, view[done:], self._position + done)
        except OSError as error:
            self.error = error
        if done < len(view):
            self._kept.append((self._position + done, bytes(view[done:])))
        self._position += len(view)
        return len(view)

    def readinto(self, target: Any) -> int:
        """Read written data; unwritten bytes are zero."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view):
            data = os.pread(self._fd, len(view) - done, self._position + done)
            if not data:
                break
            view[done : done + len(data)] = data
            done += len(data)
        view[done:] = bytes(len(view) - done)
        for start, data in self._kept:
            first, last = max(start, self._position), min(start + len(data), self._position + len(view))
            if first < last:
                view[first - self._position : last - self._position] = data[first - start : last - start]
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file."""
        size = self._position if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self._fd, size)
        except OSError as error:
            self.error = error
        return size


def interruptible(job: Callable[[Callable[[], None]], Result]) -> Result:
    """Run `job(check)` on another thread and wait.

    If this thread is interrupted, `check()` raises in the job. So Ctrl-C is never raised inside a callback of HDF5, but
    here, after the job has ended.

    Raises:
        BaseException: It interrupted the wait, or the job raised it.
    """
    stop = threading.Event()
    future: Future[Result] = Future()

    def check() -> None:
        if stop.is_set():
            raise _InterruptedError

    def run() -> None:
        try:
            future.set_result(job(check))
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            future.set_exception(error)

    # Not joined, because Python 3.11 marks a thread as ended if its join is interrupted.
    thread = threading.Thread(target=run, name="kerasfeed-write")
    try:
        start_thread(thread, "kf.write_hdf5")
        wait([future])
    except BaseException:
        stop.set()
        while thread.ident is not None and not future.done():
            with contextlib.suppress(KeyboardInterrupt):  # another Ctrl-C; the job is stopping already
                wait([future])
        raise
    return future.result()


class _InterruptedError(Exception):
    """Internal: the waiting thread was interrupted."""
