"""Integers as protocol buffers pack them: seven bits a byte, lowest first, the eighth set where more follow.

Invariant: `decode(encode(values))` gives `values` for every int64; negative ones take ten bytes, as two's complement.
"""

import numpy as np
from numpy.typing import NDArray

_FEW = 8  # below, a loop takes 1 us a number, and NumPy's calls 20 us in all
_LONGEST = 10
_LAST_64 = (1 << 64) - 1
_SHORT = [bytes([value]) for value in range(0x80)]
_CUT_OFF = "a list of integers ends in the middle of a number"


def encode(values: NDArray[np.int64] | list[int]) -> bytes:
    """The bytes of int64[N], one number after the other."""
    if len(values) < _FEW:
        few = values if isinstance(values, list) else values.tolist()
        return b"".join([_encode_one(value & _LAST_64) for value in few])
    bits = np.ascontiguousarray(values).view(np.uint64)
    if not (bits >> np.uint64(7)).any():
        return bits.astype(np.uint8).tobytes()
    sizes = np.ones(len(bits), np.int64)
    for place in range(1, _LONGEST):
        longer = bits >= np.uint64(1 << 7 * place)
        if not longer.any():
            break
        sizes += longer
    stops = np.cumsum(sizes)
    starts = stops - sizes
    out = np.empty(int(stops[-1]), np.uint8)
    for place in range(int(sizes.max())):
        some = np.flatnonzero(sizes > place)
        seven = ((bits[some] >> np.uint64(7 * place)) & np.uint64(0x7F)).astype(np.uint8)
        out[starts[some] + place] = seven | np.where(sizes[some] > place + 1, np.uint8(0x80), np.uint8(0))
    return out.tobytes()


def _encode_one(value: int) -> bytes:
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: bytes) -> NDArray[np.int64]:
    """int64[N], the numbers that stand one after the other in `data`.

    Raises:
        ValueError: The last number is cut off, or one takes more than ten bytes.
    """
    if len(data) < _FEW:
        return np.array(_decode_few(data), np.int64)
    raw = np.frombuffer(data, np.uint8)
    is_last = raw < 0x80
    if is_last.all():
        return raw.astype(np.int64)
    if not is_last[-1]:
        raise ValueError(_CUT_OFF)
    stops = np.flatnonzero(is_last) + 1
    starts = np.concatenate([[0], stops[:-1]])
    sizes = stops - starts
    if sizes.max() > _LONGEST:
        raise ValueError(f"a number takes {sizes.max()} bytes, and int64 at most {_LONGEST}")
    values = np.zeros(len(starts), np.uint64)
    for place in range(int(sizes.max())):
        some = np.flatnonzero(sizes > place)
        seven = (raw[starts[some] + place] & 0x7F).astype(np.uint64)
        values[some] |= seven << np.uint64(7 * place)
    return values.view(np.int64)


def _decode_few(data: bytes) -> list[int]:
    """Numbers of less than 8 bytes: none reaches the sign."""
    values = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    if shift:
        raise ValueError(_CUT_OFF)
    return values
