"""Computed permutations: the k-th value of a random order, with no table behind it.

Invariant: `permute` is a bijection of `range(length)` for every key, computed from the key alone in O(1) memory.

Method: a Feistel network over the smallest power of two that holds `length` (Luby and Rackoff, 1988, with the halves
of unequal width allowed), made a bijection of `range(length)` by cycle walking (Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002): a value that falls outside is encrypted again until it falls inside. The
round function is the finaliser of MurmurHash3's 64-bit variant (Appleby, public domain).
"""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
_MULTIPLIER_1 = np.uint64(0xFF51AFD7ED558CCD)
_MULTIPLIER_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)
# Below this length an exact shuffle costs under 1 ms and 512 KiB, and small Feistel domains mix poorly.
EXACT_BELOW = 1 << 16


def round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    """Keys of the Feistel rounds, uint64[8], a function of (seed, epoch) alone."""
    return (
        np.random.SeedSequence(entropy=seed, spawn_key=(0, epoch)).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    )


def permute(positions: NDArray[np.int64], length: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Values of the permutation at `positions`.

    Args:
        positions: int64[P], each in [0, length).
        length: Size of the domain, from 1 to 2**62.
        keys: uint64[8] from `round_keys`.

    Returns:
        int64[P], each in [0, length), distinct for distinct positions.
    """
    if length == 1:
        return np.zeros_like(positions)
    bits = max(2, int(length - 1).bit_length())
    values = _encrypt(positions.astype(np.uint64), bits, keys)
    limit = np.uint64(length)
    outside = np.flatnonzero(values >= limit)
    while outside.size:  # each round at least halves the rest on average: the domain is under 2 * length
        walked = _encrypt(values[outside], bits, keys)
        values[outside] = walked
        outside = outside[walked >= limit]
    return values.astype(np.int64)


def _encrypt(values: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    right_bits = bits // 2
    left_bits = bits - right_bits
    right = values & np.uint64((1 << right_bits) - 1)
    left = values >> np.uint64(right_bits)
    for key in keys:
        # The halves trade places each round, so their widths do too.
        left, right = right, left ^ (_mix(right, key) & np.uint64((1 << left_bits) - 1))
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mix(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    mixed = (values ^ key) * _MULTIPLIER_1
    mixed ^= mixed >> _SHIFT
    mixed *= _MULTIPLIER_2
    mixed ^= mixed >> _SHIFT
    return mixed


def shuffle_exactly(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A uniformly drawn permutation, int64[length], for lengths below `EXACT_BELOW`."""
    source = np.random.SeedSequence(entropy=seed, spawn_key=(0, epoch))
    return np.random.Generator(np.random.PCG64(source)).permutation(length)
