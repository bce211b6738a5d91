"""Scenes packed into bytes and taken out again."""

import numpy as np
import pytest

from kerasfeed.errors import SpecError
from kerasfeed.loaders.generators import BlockWriter, scenes_in


def taken_out(writer):
    return list(scenes_in(writer.data.copy(), {}))


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for scene, other in zip(found, wanted, strict=True):
        assert type(scene) is type(other)
        np.testing.assert_array_equal(scene, other)


def test_a_block_keeps_the_order_of_scenes_of_different_types():
    scenes = [
        np.zeros(3), np.ones(3), np.ones(4), np.zeros(0), np.float32(3), 4, 5.0, "a", b"b", True, np.arange(6)[::2],
        np.array(["x", "y"], object), np.arange(4, dtype=">i2"), np.zeros((2, 2)), np.zeros((1, 2)), np.ones(3), 2j,
    ]  # fmt: skip
    writer = BlockWriter(np.empty(4096, np.uint8))
    for scene in scenes:
        writer.add(scene)
    assert_same(taken_out(writer), scenes)


@pytest.mark.parametrize("even", [True, False])
def test_a_block_has_a_limit_of_bytes_and_holds_one_scene_of_any_size(even):
    memory = np.empty(10_240, np.uint8)
    for nbytes, wanted in ((1000, (8, 11)), (10_240, (1, 1)), (50_000, (1, 1)), (4000, (2, 2))):
        writer = BlockWriter(memory)
        scenes = []
        while not writer.is_full:
            scenes.append(np.full(nbytes - (0 if even else len(scenes)), 7, np.uint8))
            writer.add(scenes[-1])
        assert wanted[0] <= len(scenes) <= wanted[1]
        assert writer.fits == (nbytes < 10_240)
        assert_same(taken_out(writer), scenes)


def test_text_counts_toward_the_bytes_of_a_block():
    writer = BlockWriter(np.empty(10_000, np.uint8))
    while not writer.is_full:
        writer.add("x" * 1000)
    assert taken_out(writer) == ["x" * 1000] * 8


def test_a_scene_without_room_is_the_last_of_its_block():
    writer = BlockWriter(np.empty(10_000, np.uint8))
    scenes = [np.full(nbytes, nbytes % 251, np.uint8) for nbytes in (100, 200, 50_000)]
    for scene in scenes:
        assert writer.fits
        assert not writer.is_full
        writer.add(scene)
    assert writer.is_full
    assert not writer.fits
    assert_same(taken_out(writer), scenes)


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        ({}, r"the scene holds no field: the generator yielded \{\}"),
        ({"a": None}, r"the generator yielded \{'a': None\} \(.*\), with None at 'a'. Yield an array"),
        ((1, {2}), "field '1' is of type set"),
    ],
    ids=["empty", "field of None", "set"],
)
def test_a_scene_that_no_batch_can_hold_raises_an_error(scene, message):
    writer = BlockWriter(np.empty(2000, np.uint8))
    with pytest.raises(SpecError, match=message):
        writer.add(scene)
