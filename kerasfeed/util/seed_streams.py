"""The streams of random numbers of one seed, one for each purpose.

Invariant: no two purposes share a number. A number never changes, because the draws of a seed depend on it.
"""

from enum import IntEnum


class SeedStream(IntEnum):
    """The purpose of the numbers."""

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
