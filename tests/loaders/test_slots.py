"""Slots: leased while anything refers to their memory, reused after, bounded by max_memory."""

import gc
import mmap
import sys
import threading
import time

import numpy as np
import pytest

from kerasfeed.loaders.batches.layout import Layout, SlotView, aligned_empty
from kerasfeed.loaders.batches.slots import SlotPool
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.spec.inference import describe, merge
from kerasfeed.util.polling import NotYet


def _layout(scene, rows=4, batched=True):
    spec = merge([(0, describe(scene))])
    return Layout(spec, rows, batched, tuple(field.nbytes for field in spec.fields))


@pytest.fixture(params=[False, True], ids=["anonymous", "shared"])
def pool(request):
    arena = PoolMemory(shared=request.param)
    made = SlotPool(_layout((np.zeros((5, 3), np.float32), 1)), arena, max_memory=1 << 20, in_flight=4)
    yield made
    made.free(may_deliver=False)
    arena.close()


def _lease_array(pool, slot):
    exporter = pool.lease(slot)
    return np.ndarray(15, np.float32, buffer=exporter, offset=pool.layout.locations[0].offset)


def test_every_field_of_every_slot_starts_on_64_bytes(pool):
    for _ in range(5):
        slot = pool.acquire()
        for field in slot.view.fields:
            assert field.ctypes.data % 64 == 0


def test_a_field_of_large_rows_starts_on_a_page():
    layout = _layout((np.zeros(3, np.float32), np.zeros(1 << 20, np.uint8), np.zeros(5, np.float32)))
    arena = PoolMemory(shared=False)
    pool = SlotPool(layout, arena, max_memory=1 << 26, in_flight=1)
    for _ in range(3):
        slot = pool.acquire()
        assert slot.view.fields[1].ctypes.data % mmap.PAGESIZE == 0
        for field in slot.view.fields:
            field[:] = 1
    pool.free(may_deliver=False)
    arena.close()


def test_a_slot_is_not_reused_while_a_view_of_a_view_refers_to_it(pool):
    slot = pool.acquire()
    array = _lease_array(pool, slot)
    array[:] = 7
    grandchild = array[2:][1:].reshape(3, 4)[1]
    del array
    gc.collect()
    taken = [pool.acquire() for _ in range(20)]
    assert slot not in taken
    for other in taken:
        other.view.fields[0][...] = -1
    assert (grandchild == 7).all()
    del grandchild
    assert pool.acquire() is slot


def test_a_memoryview_and_a_pickle_buffer_keep_the_lease(pool):
    slot = pool.acquire()
    array = _lease_array(pool, slot)
    view = memoryview(array)
    del array
    assert slot not in [pool.acquire() for _ in range(10)]
    del view
    assert pool.acquire() is slot


@pytest.mark.heavy
@pytest.mark.timeout(60)
def test_a_thread_that_loses_the_slot_to_another_keeps_its_timeout(pool):
    flying = [pool.acquire() for _ in range(pool.limit)]
    ended = []

    def wait():
        with pytest.raises(NotYet):
            pool.acquire(timeout=0.3)
        ended.append(None)

    interval = sys.getswitchinterval()
    for turn in range(8):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.06)
        sys.setswitchinterval(5)  # no other thread runs Python meanwhile
        try:
            pool.release(flying.pop())
            begun = time.monotonic()
            while time.monotonic() < begun + 0.08:
                pass
            flying.append(pool.acquire())
            with pytest.raises(NotYet):
                pool.acquire(timeout=0)
        finally:
            sys.setswitchinterval(interval)
        thread.join(5)
        if thread.is_alive():
            pool.release(flying[-1])  # wakes it
        assert len(ended) == turn + 1


def test_consecutive_slots_reuse_the_same_memory(pool):
    for _ in range(1000):
        array = _lease_array(pool, pool.acquire())
        del array
    assert pool.total <= 2


def test_at_the_limit_no_lease_is_given_and_slots_are_still_returned(pool):
    held = []
    while (exporter := pool.lease(last := pool.acquire())) is not None:
        held.append(exporter)
    pool.release(last)
    assert pool.total <= pool.limit
    assert pool.acquire() is not None


def test_a_ceiling_below_two_slots_is_refused_with_the_size_needed():
    layout = _layout(np.zeros(10_000))
    with pytest.raises(ValueError, match=rf"max_memory=1,000 bytes is too small.*>= {2 * layout.nbytes:,}"):
        SlotPool(layout, PoolMemory(shared=False), max_memory=1000, in_flight=1)


def test_unused_memory_is_returned_to_the_system():
    layout = _layout(np.zeros(1 << 17), rows=1)
    arena = PoolMemory(shared=True)
    pool = SlotPool(layout, arena, max_memory=1 << 28, in_flight=4)

    def resident():
        import os

        return os.fstat(arena.fd).st_blocks * 512

    hoard = []
    for _ in range(60):
        slot = pool.acquire()
        slot.view.fields[0][...] = 1
        hoard.append(pool.lease(slot))
    full = resident()
    assert full >= 60 << 20
    hoard.clear()
    for _ in range(400):
        slot = pool.acquire()
        slot.view.fields[0][...] = 1
        pool.release(slot)
    assert resident() < full / 4
    pool.close()
    arena.close()


def test_parent_and_worker_see_the_same_fields_at_the_same_offsets():
    layout = _layout({"a": np.zeros((2, 2)), "b": "text", "c": np.int8(1)}, rows=3)
    memory = bytearray(layout.nbytes)
    one, other = SlotView(layout, memory, 0), SlotView(layout, memory, 0)
    one.fields[0][1] = 5
    one.indices[2] = 9
    assert (other.fields[0][1] == 5).all()
    assert other.indices[2] == 9


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.complex128, bool])
def test_aligned_empty_is_aligned_and_writable(dtype):
    for shape in [(), (0,), (3, 5)]:
        array = aligned_empty(shape, np.dtype(dtype))
        assert array.shape == shape
        assert array.ctypes.data % 64 == 0 or array.size == 0
        array[...] = 1
