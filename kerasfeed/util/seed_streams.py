"""The streams of random numbers that are drawn from one seed: each is the first part of a spawn key of its own.

Invariant: no two purposes share a number, and a number never changes: it decides what a seed draws.
"""

from enum import IntEnum


class SeedStream(IntEnum):
    """What the numbers are for."""

    SHUFFLE = 0
    SCENE = 1
    SHORT_BLOCK = 2
    BLOCK_WINDOW = 3
    NAMED_BLOCK = 4
    NAMED_WINDOW = 5
    WEIGHTED = 6
    CLASS = 7
    CLASS_MEMBER = 8
    BUCKET_MEMBER = 9
    BUCKET_STEP = 10
    HASH = 11
    GLOBAL_RANDOM = 12
    REPLACEMENT = 13
    GENERATOR = 14
    STREAM_BUFFER = 15
    COLLATE = 16
    MIXTURE = 0x6D6978
    SPLIT = 0x73706C
    PACKED = 0x70636B
