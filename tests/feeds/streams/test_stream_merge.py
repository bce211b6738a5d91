"""The merge of a stream: a pure state machine, compared with plain Python."""

import random
from itertools import islice

import numpy as np
import pytest
from scenes_streams import in_turn

from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.stream_merge import Merge, Shuffler, dealt, positions
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.util.deferred_warnings import DeferredWarnings

ROWS = 3


def plain(lengths, fails, shard, buffer, repetition):
    """The batches of one shard, and whether an error comes after them."""
    is_dealt = len(lengths) < shard[1]
    own = range(len(lengths)) if is_dealt else range(len(lengths))[shard[0] :: shard[1]]
    scenes = in_turn(*([(n, k) for k in range(lengths[n])] + ["error"] * (n == fails) for n in own))
    failed = "error" in scenes
    scenes = scenes[: scenes.index("error")] if failed else scenes
    if is_dealt:  # an incomplete last round is dropped
        scenes = scenes[: len(scenes) // shard[1] * shard[1]][shard[0] :: shard[1]]
    if buffer:
        order = BufferShuffled(buffer).indices(0, len(scenes), length=len(scenes), seed=5, epoch=repetition)
        scenes = [scenes[index] for index in order]
    return [scenes[start : start + ROWS] for start in range(0, len(scenes), ROWS)], failed


def merged(lengths, fails, shard, buffer, repetition, chance, step=0, ended=()):
    """The same by the merge, from a position on: each batch with the ends that are known after it."""
    is_dealt = len(lengths) < shard[1]
    numbers = range(len(lengths)) if is_dealt else range(len(lengths))[shard[0] :: shard[1]]
    order = Shuffler(BufferShuffled(buffer), 5, repetition, step * ROWS) if buffer else None
    first = order.first if order else step * ROWS
    merge = Merge(numbers, first * (shard[1] if is_dealt else 1), ended)

    def supply(awaited):
        (lane,) = awaited
        assert lane is merge.lanes[0]
        assert not lane.scenes
        for each in [each for each in merge.lanes if each is lane or chance.random() < 0.3]:
            # some scenes of the awaited generator, or of others
            stop = min(lengths[each.n], each.received + chance.randint(1, 4))
            each.scenes.extend((each.n, k) for k in range(each.received, stop))
            if each.received >= lengths[each.n] and each.n != fails and chance.random() < 0.5:
                each.ended = True
        if not lane.scenes and lane.received >= lengths[lane.n]:
            if lane.n == fails:
                raise LookupError
            lane.ended = True

    items = merge.joined(supply)
    items = dealt(items, Shard(*shard), DeferredWarnings()) if is_dealt else items
    items = order.shuffled(items) if order else items
    batches, over, failed = [], False, False
    while not over:
        batch = []
        try:
            batch.extend(islice(items, ROWS))
        except LookupError:
            failed = True
        over = len(batch) < ROWS
        if batch:
            batches.append((batch, merge.ended))
    return batches, failed


@pytest.mark.parametrize("seed", range(200))
def test_the_merge_gives_the_right_batches_from_every_position(seed):
    chance = random.Random(seed)
    lengths = [chance.choice([0, 1, 2, 5, 9, 14]) for _ in range(chance.randint(1, 5))]
    fails = chance.choice([None, None, *range(len(lengths))])
    shard = chance.choice([(0, 1), (0, 1), (1, 2), (2, 3), (0, 7)])
    buffer = chance.choice([None, 1, 4, 11, 100])
    given = lengths, fails, shard, buffer, seed % 3
    wanted, fails_after = plain(*given)
    whole, failed = merged(*given, chance)
    assert [batch for batch, _ in whole] == wanted
    assert failed == fails_after
    for step, (batch, ended) in enumerate(whole, 1):
        if failed and len(batch) < ROWS:  # the error comes next, so there is no continuation
            break
        rest, fails_again = merged(*given, chance, step, ended)
        assert rest == whole[step:]  # including the known ends
        assert fails_again == fails_after
        with_later_ends, _ = merged(*given, chance, step, whole[-1][1])
        assert [batch for batch, _ in with_later_ends] == [batch for batch, _ in rest]


@pytest.mark.parametrize("seed", range(50))
def test_positions_follow_from_the_number_of_scenes_and_the_known_lengths(seed):
    chance = random.Random(seed)
    lengths = [chance.randint(0, 6) for _ in range(chance.randint(1, 6))]
    scenes = in_turn(*([n] * length for n, length in enumerate(lengths)))
    for items in range(len(scenes)):
        given = np.bincount(scenes[:items], minlength=len(lengths))
        found_positions = positions(range(len(lengths)), items, dict(enumerate(lengths)))
        living = {n: int(given[n]) for n in range(len(lengths)) if given[n] < lengths[n]}
        assert {n: position for n, position in found_positions.items() if position < lengths[n]} == living
        assert next(n for n, position in found_positions.items() if position < lengths[n]) == scenes[items]


def test_without_turns_any_generator_with_a_scene_gives_the_next_one():
    merge = Merge(range(3), in_turn=False)
    rounds = iter([{1: "ab"}, {0: "c"}, {2: "de", 1: "f"}])

    def supply(lanes):
        if (block := next(rounds, None)) is None:
            for lane in lanes:
                lane.ended = True
            return
        for lane in lanes:
            lane.scenes.extend(block.get(lane.n, ""))

    assert "".join(merge.joined(supply)) == "abcfde"
    assert dict(merge.ended) == {0: 1, 1: 3, 2: 2}
