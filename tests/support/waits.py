"""Waits with deadlines that only a defect can miss, even on a busy machine; usually they end early."""

import contextlib
import threading
import time

SECONDS = 60.0  # for work that takes milliseconds
PROGRAM_SECONDS = 240.0  # for a program; one that imports Keras takes 3 s; below the timeout in setup.cfg


def wait_until(holds, seconds=SECONDS):
    """Poll until `holds()`; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not so after {seconds:g} s"
        time.sleep(0.005)


def wait_until_nothing_follows(read):
    """Wait until a list does not grow for a second."""

    def nothing_follows():
        before = len(read)
        time.sleep(1.0)
        return len(read) == before

    wait_until(nothing_follows)


@contextlib.contextmanager
def once_told(caught, act, after=0.0, what=""):
    """Call `act` in another thread, some seconds after a warning that contains `what` was caught."""

    def run():
        try:
            wait_until(lambda: any(what in str(each.message) for each in list(caught)))
            time.sleep(after)
        finally:
            act()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
