"""Decode the filters of HDF5 chunks without any lock.

Invariant: a pipeline returns exactly the bytes of the chunk or raises `DecodeError`. It never returns more or fewer
bytes, and checks them if the codec can. Each codec is one entry of `_DECODERS`. Only this module imports the optional
packages, once. A dataset with a filter without a decoder is read through h5py.

Measured on 147 KB chunks of float32 (shuffle + gzip), one thread: isal 281 us (zlib 573), libdeflate (`deflate`)
243 us; unshuffling 43 us with NumPy, 3 us with `zlib_into`. In 48 combinations of data, level and shuffle, libdeflate
took 0.58 to 1.08 of isal's time, and less than isal in 45. `imagecodecs` has all other codecs; with its libdeflate, a
scene takes 7 % longer, and its unshuffling is slower than NumPy's.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from isal import isal_zlib

from kerasfeed.util.error_text import summary

DEFLATE, SHUFFLE, FLETCHER32, LZF, BLOSC, BITSHUFFLE, ZSTD = 1, 2, 3, 32000, 32001, 32008, 32015

NAMES = {
    DEFLATE: "gzip", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", 4: "szip", 5: "n-bit", 6: "scale-offset",
    307: "bzip2", LZF: "lzf", BLOSC: "blosc", 32004: "lz4", BITSHUFFLE: "bitshuffle", 32013: "zfp", ZSTD: "zstd",
    32017: "sz", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
}  # fmt: skip

Bytes = Any  # bytes, bytearray or uint8[n]: input and output of codecs
Decoder = Callable[[Bytes, int | None], Bytes]  # data, and the size of the result, if known


class Declined(Exception):
    """h5py must read a dataset or a selection.

    The message is the reason.
    """


class DecodeError(Declined):
    """A chunk does not match its filters.

    It is damaged, or written in an unknown way.
    """


@dataclass(frozen=True)
class Filter:
    """One filter of a dataset.

    Attributes:
        code: Its registered number.
        values: Its parameters, as stored in the file.
    """

    code: int
    values: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its name in messages."""
        return NAMES.get(self.code, f"filter {self.code}")


def optional(name: str) -> ModuleType | None:
    """Import an optional package.

    None if it is missing or does not load.
    """
    try:
        return import_module(name)
    except Exception:  # noqa: BLE001  # a package built for another NumPy fails in its own ways
        return None


class Pipeline:
    """Decode the filters of a dataset. May be used from several threads.

    Attributes:
        refusal: The reason if only HDF5 can decode; empty if `decode` can.
    """

    def __init__(self, filters: tuple[Filter, ...], nbytes: int) -> None:
        """Prepare to decode chunks.

        Args:
            filters: The filters in the order of writing.
            nbytes: Bytes of a decoded chunk.
        """
        self.filters = filters
        self.nbytes = nbytes
        self.refusal = ""
        self._stages: list[tuple[int, Decoder, int | None]] = []  # bit of the mask, decoder, size of its result
        size: int | None = nbytes
        for bit, each in enumerate(filters):
            decoder = decoder_of(each)
            if decoder is None:
                more = "; pip install imagecodecs" if each.code in _DECODERS else ""
                self.refusal = f"no decoder for {each.name}{more}"
                return
            self._stages.insert(0, (1 << bit, decoder, size))
            if each.code == FLETCHER32:
                size = None if size is None else size + 4
            elif each.code != SHUFFLE:
                size = None

    def decode(self, data: bytes, mask: int) -> Bytes:
        """Return the bytes of a chunk.

        Args:
            data: The stored bytes.
            mask: Bit i is set if filter i was skipped.

        Returns:
            bytes, bytearray or uint8[nbytes].

        Raises:
            DecodeError: The data are damaged.
        """
        out: Bytes = data
        for bit, decode, size in self._stages:
            if mask & bit:
                continue
            try:
                out = decode(out, size if not mask else None)
            except DecodeError:
                raise
            except Exception as error:
                raise DecodeError(summary(error)) from error
        if len(out) != self.nbytes:
            raise DecodeError(f"{len(out):,} bytes instead of {self.nbytes:,}")
        return out


def decoder_of(each: Filter) -> Decoder | None:
    """Decoder of a filter.

    None if the filter or its parameters are unknown, or its package is not installed.
    """
    make = _DECODERS.get(each.code)
    return None if make is None else make(each.values)


def _imagecodecs(*names: str) -> ModuleType | None:
    """The package, if it is installed and has these codecs."""
    module = optional("imagecodecs")
    return module if all(getattr(getattr(module, name, None), "available", False) for name in names) else None


def _deflate(_: tuple[int, ...]) -> Decoder:
    libdeflate = optional("deflate")

    def decode(data: Bytes, size: int | None) -> Bytes:
        if size is None:
            return isal_zlib.decompress(data)
        if libdeflate is not None:
            return libdeflate.zlib_decompress(data, size)
        # isal doubles a buffer that is exactly full before it sees the end of the stream. This cost 38 page faults per
        # chunk of 147 KB, and two threads were hardly faster than one.
        return isal_zlib.decompress(data, 15, size + _SLACK)

    return decode


def _shuffle(values: tuple[int, ...]) -> Decoder | None:
    if len(values) != 1 or values[0] < 1:
        return None
    width = values[0]
    module = optional("zlib_into")
    fast = module.unshuffle if module is not None and width in (2, 4, 8) else None

    def decode(data: Bytes, _: int | None) -> Bytes:
        source = np.frombuffer(data, np.uint8)
        out = np.empty(len(source), np.uint8)
        whole = len(source) // width * width  # HDF5 does not move the odd bytes at the end
        if fast is not None and whole:
            fast(source[:whole], out[:whole], width)
        else:
            planes, mixed = source[:whole].reshape(width, -1), out[:whole].reshape(-1, width)
            for offset in range(width):  # 3 times faster than one transposed copy
                mixed[:, offset] = planes[offset]
        out[whole:] = source[whole:]
        return out

    return decode


def _fletcher32(_: tuple[int, ...]) -> Decoder | None:
    module = _imagecodecs("H5CHECKSUM")
    if module is None:
        return None

    def decode(data: Bytes, _: int | None) -> Bytes:
        content, stored = memoryview(data)[:-4], bytes(data[-4:])
        if module.h5checksum_fletcher32(content) != int.from_bytes(stored, "little"):
            raise DecodeError("wrong checksum")
        return content

    return decode


def _sized(codec: str) -> Callable[[tuple[int, ...]], Decoder | None]:
    """A codec of imagecodecs that takes the size of its result."""

    def make(_: tuple[int, ...]) -> Decoder | None:
        module = _imagecodecs(codec)
        if module is None:
            return None
        undo = getattr(module, f"{codec.lower()}_decode")
        return lambda data, size: undo(data, out=size)

    return make


def _blosc(_: tuple[int, ...]) -> Decoder | None:
    module = _imagecodecs("BLOSC")
    if module is None:
        return None

    def decode(data: Bytes, size: int | None) -> Bytes:
        # The header: version, version of the codec, flags, item size, then three 32-bit sizes.
        if len(data) < 16:
            raise DecodeError("no blosc header")
        nbytes, _, stored = struct.unpack("<III", data[4:16])
        if stored != len(data) or (size is not None and nbytes != size):
            raise DecodeError(f"a blosc header of {nbytes:,} bytes from {stored:,}, but {len(data):,} are stored")
        return module.blosc_decode(data, numthreads=1, out=nbytes)

    return decode


def _bitshuffle(values: tuple[int, ...]) -> Decoder | None:
    # Parameters: two for the version, item size, items per block (0: chosen from the item size), compression.
    module = _imagecodecs("BITSHUFFLE", "LZ4")
    if module is None or len(values) < 3 or (len(values) > 4 and values[4] not in (0, 2)):
        return None
    width = values[2]
    compressed = len(values) > 4 and values[4] == 2
    items = values[3] if len(values) > 3 and values[3] else max(8192 // width // 8 * 8, 128)

    def decode(data: Bytes, size: int | None) -> Bytes:
        block = items
        if compressed:
            data, block = _lz4_blocks(module, bytes(data), width, size)
        # As bytes, because imagecodecs would use the item size of an array.
        return module.bitshuffle_decode(bytes(data), itemsize=width, blocksize=block)

    return decode


def _lz4_blocks(module: ModuleType, data: bytes, width: int, size: int | None) -> tuple[Bytes, int]:
    """Decode the LZ4 part of bitshuffle.

    Return the bytes, still bit-shuffled, and the items per block.

    Layout: total bytes (64 bits) and bytes per block (32 bits), big-endian; then each block of whole groups of eight
    items, as its stored size (32 bits) and LZ4 data; then the odd items, unchanged.
    """
    total, block = struct.unpack(">QI", data[:12])
    if (size is not None and total != size) or not block or block % (8 * width):
        raise DecodeError(f"a bitshuffle header of {total:,} bytes in blocks of {block:,}")
    pieces: list[Bytes] = []
    offset, grouped = 12, total // (8 * width) * 8 * width
    for done in range(0, grouped, block):
        (stored,) = struct.unpack(">I", data[offset : offset + 4])
        offset += 4
        if stored > len(data) - offset:
            raise DecodeError("a bitshuffle block reaches beyond the chunk")
        pieces.append(module.lz4_decode(data[offset : offset + stored], out=min(block, grouped - done)))
        offset += stored
    return b"".join((*pieces, data[offset:])), block // width


_SLACK = 64

_DECODERS: dict[int, Callable[[tuple[int, ...]], Decoder | None]] = {
    DEFLATE: _deflate,
    SHUFFLE: _shuffle,
    FLETCHER32: _fletcher32,
    LZF: _sized("LZF"),
    BLOSC: _blosc,
    BITSHUFFLE: _bitshuffle,
    ZSTD: _sized("ZSTD"),
}
