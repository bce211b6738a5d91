"""Loops of frameworks: the consumer's position in a feed whose batches are converted ahead."""

import gc
import pickle
import threading

import numpy as np
import pytest
from adapter_kinds import Ahead
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.feeds.batch_loop import BatchLoop


class Numbers(kf.SceneSequence):
    def __init__(self, count=12, bad=()):
        self.count = count
        self.bad = bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.bad:
            raise LookupError(f"bad scan {index}")
        return np.full(3, index, np.float32)


class Noting(Ahead):
    """Logs the first scene of each batch whose conversion was started."""

    def __init__(self):
        self.begun = []

    def begin(self, batch):
        self.begun.append(int(batch[0, 0]))
        return super().begin(batch)


def looped(feed, epochs=1, conversion=None):
    conversion = Ahead() if conversion is None else conversion
    return BatchLoop(feed, lambda: feed.begin_loop(epochs), conversion, epochs)


def firsts(batches):
    return [int(batch[0, 0]) for batch in batches]


def feed_of(sequence=None, **arguments):
    arguments = {"workers": 2, "worker_type": "thread", **arguments}
    return kf.Feed(Numbers() if sequence is None else sequence, 2, **arguments)


def take_until_ahead(feed, conversion, iterator, count):
    """Take batches until the conversion of `count` batches was started."""
    seen = firsts([next(iterator)])
    wait_until(lambda: feed.stats().batches >= len(feed))
    seen += firsts([next(iterator)])
    assert len(conversion.begun) >= count
    return seen


def test_the_state_follows_the_consumer_not_the_conversion():
    conversion = Noting()
    with feed_of() as feed:
        iterator = iter(looped(feed, conversion=conversion))
        assert take_until_ahead(feed, conversion, iterator, 4) == [0, 2]
        state = feed.get_state()
        assert (state["epoch"], state["step"]) == (0, 2)
        feed.set_state(state)
        assert firsts(looped(feed)) == [4, 6, 8, 10]


def test_the_state_is_correct_in_later_epochs_of_an_iteration():
    with feed_of() as feed:
        loop = looped(feed, epochs=3)
        assert len(loop) == 18
        places = [(feed.get_state()["epoch"], feed.get_state()["step"], feed.clock.current) for _ in loop]
        assert places == [((k + 1) // 6, (k + 1) % 6, k // 6) for k in range(18)]
        assert feed.get_state()["epoch"] == 3


def test_the_current_epoch_follows_the_consumer_after_a_resumed_epoch():
    with feed_of() as feed:
        feed.set_state(feed.get_state(epoch=0, step=4))
        assert [feed.clock.current for _ in looped(feed, epochs=3)] == [0] * 2 + [1] * 6 + [2] * 6


def test_a_loop_left_early_releases_its_memory_and_the_next_is_the_next_epoch():
    with feed_of(shuffle=True, seed=3) as feed:
        expected = [firsts(feed.epoch(number)) for number in range(4)]
        for number in range(3):
            for batch in looped(feed):
                assert int(batch[0, 0]) == expected[number][0]
                break
        assert firsts(looped(feed)) == expected[3]
        assert feed.stats().slots < 2 * 10 + 6


def test_after_set_state_a_loop_finishes_the_epoch_and_continues_with_whole_ones():
    with feed_of(shuffle=True, seed=3) as feed:
        expected = firsts(feed.epoch(1))[4:] + firsts(feed.epoch(2))
        feed.set_state(feed.get_state(epoch=1, step=4))
        assert firsts(looped(feed, epochs=2)) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_scene_is_raised_in_its_turn(workers):
    with feed_of(Numbers(bad=(5,)), workers=workers) as feed:
        iterator = iter(looped(feed))
        assert firsts([next(iterator), next(iterator)]) == [0, 2]
        assert feed.get_state()["step"] == 2
        with pytest.raises(LookupError, match=r"^bad scan 5"):
            next(iterator)
        assert list(iterator) == []


def test_an_error_of_a_conversion_is_raised_in_its_turn():
    class Picky(Ahead):
        def begin(self, batch):
            if batch[0, 0] == 4:
                raise TypeError("no four")
            return super().begin(batch)

    with feed_of() as feed:
        seen = []
        with pytest.raises(TypeError, match="no four"):
            seen.extend(int(batch[0, 0]) for batch in looped(feed, conversion=Picky()))
        iterator = iter(looped(feed, conversion=Picky()))
        assert firsts([next(iterator), next(iterator)]) == [0, 2]
        with pytest.raises(TypeError, match="no four"):
            next(iterator)


def test_batches_of_only_skipped_scenes_are_left_out_and_counted():
    with feed_of(Numbers(bad=(4, 5, 10, 11)), on_error="skip", max_failures=10) as feed:
        assert firsts(looped(feed)) == [0, 2, 6, 8]
        assert feed.get_state()["epoch"] == 1


def test_hooks_of_a_sequence_are_called_once_per_epoch_in_order():
    class Hooked(Numbers):
        calls = []

        def on_epoch_begin(self):
            self.calls.append("begin")

        def on_epoch_end(self):
            self.calls.append("end")

    with feed_of(Hooked()) as feed:
        assert firsts(looped(feed, epochs=2)) == [0, 2, 4, 6, 8, 10] * 2
    assert Hooked.calls == ["begin", "end"] * 2


def test_on_epoch_end_is_called_after_the_consumer_received_all_batches():
    class Hooked(Numbers):
        def on_epoch_end(self):
            order.append("end")

    order = []
    with feed_of(Hooked()) as feed:
        for number, batch in enumerate(looped(feed, epochs=2)):
            order.append(int(batch[0, 0]))
            wait_until(lambda number=number: feed.stats().batches >= len(feed) * (1 + number // len(feed)))
    assert order == [0, 2, 4, 6, 8, 10, "end"] * 2


def test_leaving_the_with_block_of_a_loop_ends_iterators_but_not_the_feed():
    with feed_of() as feed:
        with looped(feed) as loop:
            iterator = iter(loop)
            next(iterator)
            unbegun = iter(loop)
        with pytest.raises(kf.errors.FeedClosedError, match="this loop was closed"):
            next(iterator)
        with pytest.raises(kf.errors.FeedClosedError, match="this loop was closed"):
            next(unbegun)
        assert feed.get_state()["step"] == 1
        assert len(list(feed)) == 6


def test_a_loop_keeps_its_feed_alive():
    loop = looped(feed_of())
    gc.collect()
    assert firsts(loop) == [0, 2, 4, 6, 8, 10]
    iterator = iter(looped(feed_of()))
    gc.collect()
    assert firsts(iterator) == [0, 2, 4, 6, 8, 10]


def test_a_loop_is_truthy_and_cannot_be_pickled():
    with feed_of() as feed:
        assert looped(feed)
        with pytest.raises(TypeError, match="pickle the feed"):
            pickle.dumps(looped(feed))


def test_arrays_without_references_are_reused():
    with feed_of(Numbers(400)) as feed:
        for _ in range(2):
            for _batch in looped(feed):
                pass
        assert feed.stats().slots <= 32


# ---- streams


def numbers():
    for number in range(8):
        yield np.full(3, number, np.float32)


def stream_of(generate=numbers, **arguments):
    return kf.StreamFeed(generate, 2, workers=1, worker_type="thread", **arguments)


def test_a_stream_loop_repeats_once_per_epoch():
    with stream_of() as feed:
        loop = looped(feed, epochs=2)
        assert firsts(loop) == [0, 2, 4, 6] * 2
        with pytest.raises(TypeError, match="has no length"):
            len(loop)


def test_a_stream_loop_left_early_starts_over():
    with stream_of() as feed:
        for batch in looped(feed):
            assert batch[0, 0] == 0
            break
        assert firsts(looped(feed)) == [0, 2, 4, 6]


def test_an_error_of_a_generator_follows_its_scenes():
    def failing():
        yield from (np.full(3, number, np.float32) for number in range(4))
        raise LookupError("no more tapes")

    with stream_of(failing) as feed:
        seen = []
        with pytest.raises(LookupError, match="no more tapes"):
            seen.extend(int(batch[0, 0]) for batch in looped(feed))
        iterator = iter(looped(feed))
        assert firsts([next(iterator), next(iterator)]) == [0, 2]
        with pytest.raises(LookupError, match="no more tapes"):
            next(iterator)


def test_the_state_of_a_stream_follows_the_consumer_not_the_conversion():
    def numbers_from(start):
        yield from (np.full(3, number, np.float32) for number in range(start, 8))

    with stream_of(numbers_from, seed=0) as feed:
        states = [feed.get_state() for _ in looped(feed, epochs=2)]
        states.append(feed.get_state())
    for received, state in zip([*range(1, 9), 8], states, strict=True):
        with stream_of(numbers_from, seed=0) as feed:
            feed.set_state(state)
            assert firsts(looped(feed, epochs=2)) == [*[0, 2, 4, 6][received % 4 :], 0, 2, 4, 6]


def test_closing_a_loop_from_another_thread_ends_its_wait():
    raised = []
    held = threading.Event()

    def held_back():
        held.wait(SECONDS)
        yield from (np.full(3, number, np.float32) for number in range(4))

    def consume():
        iterator = iter(loop)
        begun.set()
        with pytest.raises(kf.errors.FeedClosedError, match="this loop was closed") as caught:
            next(iterator)
        raised.append(str(caught.value))

    with stream_of(held_back) as feed:
        loop, begun = looped(feed), threading.Event()
        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        assert begun.wait(SECONDS)
        wait_until(lambda: feed._stream_loader is not None)
        loop.close()
        thread.join(SECONDS)
        held.set()
        assert len(raised) == 1
        assert firsts(looped(feed)) == [0, 2]
