"""Change the number of threads that decode chunks."""

from concurrent.futures import ThreadPoolExecutor

from kerasfeed.readers.hdf5 import chunked
from kerasfeed.util.lru import PerProcess


def set_threads(monkeypatch, count):
    """Use `count` new threads, as in a process with one core more."""
    monkeypatch.setattr(chunked, "cores", lambda: count + 1)
    monkeypatch.setattr(chunked, "_threads", PerProcess(lambda: ThreadPoolExecutor(count, "kerasfeed-decode")))
