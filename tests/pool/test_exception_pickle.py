"""Exceptions as bytes, from a worker process to whoever waits."""

import pytest
from error_kinds import KINDS

from kerasfeed.pool.exception_pickle import pack, unpack


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].make is not None])
def test_notes_travel_with_every_kind_of_exception(kind):
    error = KINDS[kind].make()
    error.add_note("first")
    error.add_note("second")
    packed = pack(error)
    assert unpack(packed.data).__notes__[:2] == ["first", "second"]
    assert packed.complete is (kind != "lock")


def test_an_exception_that_raises_when_it_is_looked_at_travels_as_text():
    class Hostile(Exception):
        @property
        def __dict__(self):
            raise MemoryError("not for you")

        def __reduce__(self):
            raise RuntimeError("nor for pickle")

    assert pack(Hostile("x")).data is None


def test_an_os_error_with_a_constructor_of_its_own_keeps_errno():
    class DiskError(OSError):
        def __init__(self, disk, code):
            super().__init__(code, f"disk {disk}")
            self.disk = disk

    error = unpack(pack(DiskError("sda", 5)).data)
    assert (error.errno, error.strerror, error.disk, str(error)) == (5, "disk sda", "sda", "[Errno 5] disk sda")
