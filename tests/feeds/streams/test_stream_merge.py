"""The merge of a stream: a pure state machine, compared with plain Python."""

import random

import numpy as np
import pytest
from scenes_streams import in_turn

from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.stream_merge import Dealer, Merge, Shuffler, positions
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.util.deferred_warnings import DeferredWarnings

ROWS = 3


def plain(lengths, fails, shard, buffer, repetition):
    """The batches of one shard, and whether an error comes after them."""
    dealt = len(lengths) < shard[1]
    own = range(len(lengths)) if dealt else range(len(lengths))[shard[0] :: shard[1]]
    scenes = in_turn(*([(n, k) for k in range(lengths[n])] + ["error"] * (n == fails) for n in own))
    failed = "error" in scenes
    scenes = scenes[: scenes.index("error")] if failed else scenes
    if dealt:
        rounds, rest = divmod(len(scenes), shard[1])
        if rest and rounds % ROWS == 0 and not failed:
            scenes = scenes[: rounds * shard[1]]  # they would give only some shards one batch more
        scenes = scenes[: rounds * shard[1] if failed else None][shard[0] :: shard[1]]
    if buffer:
        order = BufferShuffled(buffer).indices(0, len(scenes), length=len(scenes), seed=5, epoch=repetition)
        scenes = [scenes[index] for index in order]
    return [scenes[start : start + ROWS] for start in range(0, len(scenes), ROWS)], failed


def merged(lengths, fails, shard, buffer, repetition, chance, step=0, ended=()):
    """The same from the state machines, from a position on: each batch with the ends known after it."""
    dealt = len(lengths) < shard[1]
    numbers = range(len(lengths)) if dealt else range(len(lengths))[shard[0] :: shard[1]]
    order = Shuffler(BufferShuffled(buffer), 5, repetition, step * ROWS, DeferredWarnings()) if buffer else None
    first = order.first if order else step * ROWS
    merge = Merge(numbers, first * (shard[1] if dealt else 1), ended)

    def take(limit):
        while not (items := merge.take(limit)) and merge.lanes:
            lane = merge.lanes[0]
            lanes = [each for each in merge.lanes if each is lane or chance.random() < 0.3]
            for each in lanes:  # a block of scenes, from the next generator or another one
                stop = min(lengths[each.n], each.received + chance.randint(1, 4))
                each.add([(each.n, k) for k in range(each.received, stop)])
                if each.received >= lengths[each.n] and each.n != fails and chance.random() < 0.5:
                    each.ended = True
            if not lane.scenes and lane.received >= lengths[lane.n]:
                if lane.n == fails and lane.length is None:
                    raise LookupError
                lane.ended = True
        return items

    if dealt:
        take = Dealer(take, Shard(*shard), ROWS, first, DeferredWarnings(), whole_batches=False).take
    take = order.shuffled(take) if order else take
    batches, over, failed = [], False, False
    while not over:
        batch = []
        try:
            while len(batch) < ROWS and not over:
                found = take(ROWS - len(batch))
                batch += found
                over = not found
        except LookupError:
            over = failed = True
        if batch:
            batches.append((batch, merge.ended))
    return batches, failed


@pytest.mark.parametrize("seed", range(200))
def test_merge_deal_and_buffer_give_what_plain_python_gives_from_every_position_on(seed):
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
        assert merged(*given, chance, step, whole[-1][1])[0][: len(rest)] == [
            (batch, whole[-1][1]) for batch, _ in rest
        ]


@pytest.mark.parametrize("seed", range(50))
def test_positions_follow_from_the_scenes_joined_and_the_lengths_of_those_that_ended(seed):
    chance = random.Random(seed)
    lengths = [chance.randint(0, 6) for _ in range(chance.randint(1, 6))]
    scenes = in_turn(*([n] * length for n, length in enumerate(lengths)))
    for items in range(len(scenes)):
        given = np.bincount(scenes[:items], minlength=len(lengths))
        found = positions(range(len(lengths)), items, dict(enumerate(lengths)))
        living = {n: int(given[n]) for n in range(len(lengths)) if given[n] < lengths[n]}
        assert {n: position for n, position in found.items() if position < lengths[n]} == living
        assert next(n for n, position in found.items() if position < lengths[n]) == scenes[items]


def test_generators_that_take_no_turns_give_what_they_have():
    merge = Merge(range(3), in_turn=False)
    merge.lanes[1].add("ab")
    assert merge.take(5) == ["a", "b"]
    merge.lanes[0].add("c")
    merge.lanes[0].ended = True
    assert merge.take(5) == ["c"]
    assert len(merge.lanes) == 2
