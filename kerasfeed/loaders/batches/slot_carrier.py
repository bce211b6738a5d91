"""How slots travel: what a host needs of one to load rows into a slot of its own, and what it sends back.

Invariant: the driver's slot then holds, wherever its consumer looks, what a worker process of this machine would have
written; room that rows have left stays behind.
"""

import threading
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from kerasfeed.loaders.batches.filler import MANY
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.loaders.batches.slots import SlotPool
from kerasfeed.loaders.batches.variable_rows import EXPANDED
from kerasfeed.pool.hosts.dispatch import MOST_GROUPS
from kerasfeed.pool.hosts.messages import Carrier, Region
from kerasfeed.pool.task import Record
from kerasfeed.spec.field_forms import Padded
from kerasfeed.util.resources import memory as machine_memory

_HEAD = 64  # of a slot: the bytes before the indices
_MEMORY_SHARE = 4
_Extent = tuple[int, int]  # [begin, end) of a slot, bytes


class SlotCarrier(Carrier):
    """Carries slots of one layout at a time."""

    def __init__(self) -> None:
        self._slots: tuple[Any, SlotPool] | None = None
        self._lock = threading.Lock()

    def outgoing(self, memory: Any, posted: Any, record: Record) -> bytes:
        """See `Carrier.outgoing`: control words and indices."""
        if len(record) < 8 or not isinstance(posted, Layout):
            return b""
        _, _, segment_offset, segment_bytes, offset, *_ = record
        return bytes(memory.at(segment_offset, segment_bytes)[offset : offset + _HEAD + 8 * posted.rows])

    def incoming(self, memory: Any, record: Record, places: Sequence[int], buffers: Sequence[Any]) -> None:
        """See `Carrier.incoming`."""
        _, _, segment_offset, segment_bytes, offset, *_ = record
        slot = np.frombuffer(memory.at(segment_offset, segment_bytes), np.uint8)
        for place, buffer in zip(places, buffers, strict=True):
            slot[offset + place : offset + place + len(buffer)] = np.frombuffer(buffer, np.uint8)

    def region(self, memory: Any, posted: Any, records: Sequence[Record], outgoing: bytes) -> "SlotRegion":
        """See `Carrier.region`."""
        with self._lock:
            slots = self._slots
            if slots is None or slots[0] is not posted:
                ceiling = max(machine_memory() // _MEMORY_SHARE, 2 * posted.nbytes)
                slots = self._slots = (posted, SlotPool(posted, memory, max_memory=ceiling, in_flight=MOST_GROUPS))
        return SlotRegion(slots[1], posted, records, outgoing)


class SlotRegion(Region):
    """A slot of a host."""

    def __init__(self, slots: SlotPool, layout: Layout, records: Sequence[Record], outgoing: bytes) -> None:
        self._slots, self._layout = slots, layout
        self._held = slots.acquire()
        self._slot = self._held[0]
        self._slot.memory[self._slot.offset : self._slot.offset + len(outgoing)] = outgoing
        place = self._slot.segment_offset, len(self._slot.memory), self._slot.offset
        self.records = tuple((kind, serial, *place, *rest) for kind, serial, _, _, _, *rest in records)

    def text(self, record: Record, note: int) -> str:
        """See `Region.text`."""
        *_, epoch, start, stop = record
        if note == MANY and stop - start == 1:
            note = start
        if not start <= note < stop:
            return f"several scenes at once (epoch {epoch})"
        return f"scene {self._slot.view.indices[note]} (epoch {epoch})"

    def written(self, done: Sequence[bool]) -> list[tuple[int, Any]]:
        """See `Region.written`; the slot is free again when nothing refers to what is returned."""
        slot = self._slot
        rows = [tuple(record[-2:]) for record, is_done in zip(self.records, done, strict=True) if is_done]
        extents = _joined(extent for start, stop in rows for extent in extents_of(self._layout, slot.view, start, stop))
        exporter = self._slots.lease(self._held) if extents else None
        if exporter is None:
            whole = np.frombuffer(slot.memory, np.uint8, self._layout.nbytes, slot.offset)
        else:
            whole = np.frombuffer(exporter, np.uint8)
        found = [(begin, whole[begin:end]) for begin, end in extents]
        if exporter is None:  # at the ceiling
            found = [(begin, array.copy()) for begin, array in found]
            self._slots.release(self._held)
        return found


def extents_of(layout: Layout, view: SlotView, start: int, stop: int) -> Iterator[_Extent]:
    """Where in a slot that holds them the rows [start, stop) of one task stand, which has loaded them."""
    rows = int(view.control[1])
    if not layout.batched:
        start, stop = 0, 1
    for number, (field, place) in enumerate(zip(layout.spec.fields, layout.places, strict=True)):
        shapes, starts, axes = view.shapes[number], view.starts[number], len(field.shape)
        if shapes is not None:
            yield place.shapes + 8 * axes * start, place.shapes + 8 * axes * stop
        if starts is not None:
            yield place.starts + 8 * start, place.starts + 8 * stop
        itemsize = field.dtype.itemsize
        if layout.fixed_shape(number) is not None:
            yield place.offset + place.row_bytes * start, place.offset + place.row_bytes * stop
        elif starts is not None and shapes is not None:
            form = layout.form(number)
            if start == 0 and starts[0] == EXPANDED and isinstance(form, Padded):
                yield place.offset, place.offset + itemsize * rows * prod(form.target(shapes[:rows]))
                continue
            end = stop * (place.row_bytes // max(1, itemsize))
            sizes = np.prod(shapes[start:stop], axis=1)
            for first, size in zip(starts[start:stop].tolist(), sizes.tolist(), strict=True):
                if first + size <= end:  # else it had no room, and travels beside
                    yield place.offset + itemsize * first, place.offset + itemsize * (first + size)
        elif shapes is not None:
            for row, size in enumerate(np.prod(shapes[start:stop], axis=1).tolist(), start):
                if size * itemsize <= place.row_bytes:
                    yield place.offset + row * size * itemsize, place.offset + (row + 1) * size * itemsize


def _joined(extents: Iterator[_Extent]) -> list[_Extent]:
    """The same, in order, those that touch as one."""
    found: list[_Extent] = []
    for begin, end in sorted(extent for extent in extents if extent[0] < extent[1]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found
