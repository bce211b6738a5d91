"""Some work shared between the caller and threads of the pool that happen to be free.

Invariant: the caller works too and waits only for what a helper has begun, so nothing can hang on a full pool; when
`share` returns or raises, nobody works on any more.
"""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from kerasfeed.readers.hdf5 import decode_pool

T = TypeVar("T")


def share(items: Iterator[T], work: Callable[[T], None], helpers: int) -> None:
    """Call `work` for each of `items`, each once, in any thread and order.

    Args:
        items: Taken one by one, under a lock.
        work: Called for each, several at a time.
        helpers: How many threads of the pool to ask; with 0 all is done here, in order.

    Raises:
        Exception: The first that `work` raised; the items not yet begun are left.
    """
    if helpers < 1:
        for item in items:
            work(item)
        return
    team = _Team(items, work)
    for _ in range(helpers):
        decode_pool.shared().submit(team.help, urgent=True)
    team.finish()


class _Team:
    def __init__(self, items: Iterator[object], work: Callable[..., None]) -> None:
        self._items: Iterator[object] = items
        self._work: Callable[..., None] | None = work
        self._changed = threading.Condition(threading.Lock())
        self._busy = 0
        self._error: BaseException | None = None

    def help(self) -> None:
        """Work as a thread of the pool, unless it is all done."""
        with self._changed:
            if self._work is None:
                return
            self._busy += 1
        try:
            self._drain()
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def finish(self) -> None:
        """Work as the caller, and wait for the others."""
        try:
            self._drain()
        finally:  # whoever interrupts the caller does not interrupt the helpers, which write to its memory
            with self._changed:
                self._work, self._items = None, iter(())  # tasks still in the pool's queue keep nothing alive
                while self._busy:
                    self._changed.wait()
        if self._error is not None:
            raise self._error

    def _drain(self) -> None:
        work = self._work
        while work is not None:
            try:
                with self._changed:
                    item = None if self._error is not None else next(self._items, None)
                if item is None:
                    return
                work(item)
            except BaseException as error:  # noqa: BLE001  # raised again by the caller
                with self._changed:
                    self._error = error if self._error is None else self._error
