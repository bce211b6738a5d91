"""Computed permutations: the k-th value of a random order, without a table.

Invariant: `permute` is a bijection of `range(length)` for every key, computed from the key alone in O(1) memory.

Method: a Feistel network over the smallest power of two that holds `length` (Luby and Rackoff, 1988, with halves of
unequal width allowed). Cycle walking makes it a bijection of `range(length)` (Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002): a value outside the range is encrypted again until it falls inside. The round
function is the finaliser of MurmurHash3's 64-bit variant (Appleby, public domain).

A permutation, like any other draw, has a stream: a tuple of integers, by convention (number of the purpose, epoch,
...). Streams separate the draws of one seed. Two purposes never share a number and a length.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.util.array_bits import frozen

_ROUNDS = 8
# For the small domains of `permute_each`. In a domain of five, 8 rounds put some values first up to 5 % too often, and
# give some pairs of neighbours 10 % too often; with 24 rounds a million draws show no bias.
SMALL_ROUNDS = 24
BLOCK = 2048  # positions computed at once: about 0.25 ms, hardly more than for 32 positions, and 16 KiB of cache
MOST_SCENES = 1 << 62  # in an epoch: the limit of permutations in 64 bits
_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
_WORD = (1 << 64) - 1
# Below this length an exact shuffle takes under 1 ms and 512 KiB, and small Feistel domains mix poorly.
EXACT_BELOW = 1 << 16


@lru_cache(maxsize=64)  # 20 us for each block
def stream_keys(seed: int, stream: tuple[int, ...], rounds: int = _ROUNDS) -> NDArray[np.uint64]:
    """Return the keys of Feistel rounds for (seed, stream), uint64[rounds], read-only."""
    return frozen(_source(seed, stream).generate_state(rounds, np.uint64).astype(np.uint64))


def generator(seed: int, stream: tuple[int, ...]) -> np.random.Generator:
    """Return a generator that depends only on (seed, stream)."""
    return np.random.Generator(np.random.PCG64(_source(seed, stream)))


def permute(positions: NDArray[np.int64], length: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the values of the permutation at `positions`.

    Args:
        positions: int64[P], each in [0, length).
        length: Size of the domain, from 1 to 2**62.
        keys: uint64[8] from `stream_keys`.

    Returns:
        int64[P], each in [0, length), distinct for distinct positions.
    """
    bits = max(2, int(length - 1).bit_length())
    values: NDArray[np.uint64] = _encrypt(positions.astype(np.uint64), bits, keys)
    while (outside := np.flatnonzero(values >= length)).size:
        values[outside] = _encrypt(values[outside], bits, keys)
    return values.astype(np.int64)


def permute_one(position: int, length: int, keys: tuple[int, ...]) -> int:
    """Return one value of `permute`, in 10 us instead of 100.

    Args:
        position: In [0, length).
        length: As for `permute`.
        keys: The values of `stream_keys`, as integers.
    """
    bits = max(2, (length - 1).bit_length())
    value: int = _encrypt(position, bits, keys)
    while value >= length:
        value = _encrypt(value, bits, keys)
    return value


def permute_each(
    positions: NDArray[np.int64], lengths: NDArray[np.int64], tweaks: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return one value from each of many permutations; 3 ms for 2,048.

    Args:
        positions: int64[P], each in [0, length of its permutation).
        lengths: int64[P], domain size of each permutation, from 1 to 2**53.
        tweaks: int64[P], at least 0: the number of each permutation. Equal lengths and tweaks are one permutation.
        keys: uint64[`SMALL_ROUNDS`] from `stream_keys`.

    Returns:
        int64[P], each in [0, its length), distinct for distinct positions of one permutation.
    """
    bits = np.maximum(2, np.frexp((lengths - 1).astype(np.float64))[1]).astype(np.uint64)
    keys = _mix(keys[:, None], tweaks.astype(np.uint64))
    values: NDArray[np.uint64] = _encrypt(positions.astype(np.uint64), bits, keys)
    limits = lengths.astype(np.uint64)
    outside = np.flatnonzero(values >= limits)
    while outside.size:  # a domain is less than twice its limit, so each round at least halves the rest on average
        values[outside] = _encrypt(values[outside], bits[outside], keys[:, outside])
        outside = outside[values[outside] >= limits[outside]]
    return values.astype(np.int64)


def uniforms(positions: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), float64[P], one for each position, int64[P]."""
    values: NDArray[np.uint64] = _mix(_mix(positions.astype(np.uint64), keys[0]), keys[1])
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _source(seed: int, stream: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed, spawn_key=stream)


def _mix(key: Any, values: Any) -> Any:
    """Mix uint64 arrays, or Python integers below 2**64, with a key."""
    mixed = values ^ key
    for factor in _FACTORS:
        mixed *= factor
        if isinstance(mixed, int):  # Python integers do not wrap around
            mixed &= _WORD
        mixed ^= mixed >> 33
    return mixed


def _encrypt(values: Any, bits: Any, keys: Any) -> Any:
    """Encrypt uint64[P] with keys uint64[rounds, P], or Python integers, of `bits` bits.

    The number of rounds must be even.
    """
    right_bits = bits >> 1
    right_mask, left_mask = (1 << right_bits) - 1, (1 << (bits - right_bits)) - 1
    left, right = values >> right_bits, values & right_mask
    for key in keys:
        left, right = right, left ^ (_mix(key, right) & left_mask)
        left_mask, right_mask = right_mask, left_mask  # the halves swap in each round, and so do their widths
    return (left << right_bits) | right


def shuffled(start: int, stop: int, length: int, seed: int, stream: tuple[int, ...]) -> NDArray[np.int64]:
    """Return positions [start, stop) of a permutation of `range(length)`, int64[stop - start].

    Do not modify the result, because it may be a view of a cache. Below `EXACT_BELOW` the permutation is drawn
    uniformly and cached; from there on, it is computed position by position.
    """
    if length < EXACT_BELOW:
        return _drawn(length, seed, stream)[start:stop]
    return in_blocks(start, stop, lambda block: _block(block, length, seed, stream))


def in_blocks(start: int, stop: int, block: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return positions [start, stop), joined from blocks of `BLOCK` positions.

    `block(number)` returns one block.
    """
    if start >= stop:
        return np.empty(0, dtype=np.int64)
    first, last = start // BLOCK, (stop - 1) // BLOCK
    blocks = [block(number) for number in range(first, last + 1)]
    joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return joined[start - first * BLOCK : stop - first * BLOCK]


@lru_cache(maxsize=32)  # at most 512 KiB each
def _drawn(length: int, seed: int, stream: tuple[int, ...]) -> NDArray[np.int64]:
    return frozen(generator(seed, stream).permutation(length))  # because callers get views of this cached array


@lru_cache(maxsize=512)
def _block(block: int, length: int, seed: int, stream: tuple[int, ...]) -> NDArray[np.int64]:
    positions = np.arange(block * BLOCK, min((block + 1) * BLOCK, length), dtype=np.int64)
    return frozen(permute(positions, length, stream_keys(seed, stream)))
