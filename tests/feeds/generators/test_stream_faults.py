"""Items of a stream whose function fails: from the first one on, repeatedly, and with their workers."""

import itertools
import json
import os
import pickle
import signal
import traceback

import numpy as np
import pytest
from streams import WAYS

import kerasfeed as kf
from kerasfeed.feeds.stream_loader import ItemFile
from kerasfeed.loaders.failures.failure_log import FailureLog, FailurePolicy
from kerasfeed.pool.task import CancelledTaskError

SPEC = (kf.ArraySpec((1,), np.float32), kf.ArraySpec((), np.int64))


def numbers():
    yield from range(60)


def scene(number):
    return np.full(1, number, np.float32), number


@pytest.fixture
def mapped():
    made = []

    def make(function, batch_size=4, generator=numbers, **arguments):
        arguments = {"workers": 2, "worker_type": "thread", "on_error": "skip", **arguments}
        made.append(kf.StreamFeed(generator, batch_size, **arguments).map(function))
        return made[-1]

    yield make
    for feed in made:
        feed.close()


def labels(feed):
    return [label for batch in feed for label in batch[1].tolist()]


def failing(numbers):
    def made(number):
        if number in numbers:
            raise RuntimeError(f"{number} is broken")
        return scene(number)

    return made


def test_failures_are_counted_in_each_repetition(mapped):
    feed = mapped(failing({7, 27, 47}))
    for _ in range(4):
        assert len(labels(feed)) == 57
    assert feed.stats().failed == 12


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_the_first_items_may_fail_and_are_skipped(mapped, batch_size, workers, worker_type):
    feed = mapped(failing({0, 1, 2, 4, 5}), batch_size, workers=workers, worker_type=worker_type, max_failures=8)
    assert labels(feed) == [3, *range(6, 60)]
    assert {failed.index for failed in feed.failures} == {0, 1, 2, 4, 5}


def test_a_first_batch_without_a_readable_item_is_masked(mapped):
    batches = list(mapped(failing({0, 1}), 2, on_error="mask"))
    assert batches[0][1].tolist() == batches[0][2].tolist() == [0, 0]
    assert batches[1][2].tolist() == [1, 1]
    assert len(batches) == 30


def test_a_stream_without_a_readable_item_raises_its_first_error(mapped):
    def few():
        yield from (8, 9)

    feed = mapped(failing({8, 9}), 1, few, max_failures=5)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="8 is broken"):
            list(feed)


def test_messages_do_not_suggest_loading_an_item_by_its_index(mapped, tmp_path):
    log = tmp_path / "errors.json"
    feed = mapped(failing({2, 3, 5, 9}), on_error="skip", max_failures=0.001, error_log=log, workers=1)
    with pytest.raises(kf.errors.TooManyFailuresError, match="4 of 10 scenes of repetition 0 failed") as caught:
        list(feed)
    logged = json.loads(log.read_text().splitlines()[-1])["traceback"]
    text = "".join(traceback.format_exception(caught.value)) + logged
    assert "the item was " in text
    assert "kf.load" not in text
    assert "sequence[" not in text


@pytest.mark.parametrize("first", [0, 9, 40])
def test_max_failures_as_a_share_allows_three_early_failures(mapped, first):
    assert len(labels(mapped(failing({first}), max_failures=0.05))) == 59
    assert len(labels(mapped(failing({first, first + 1, first + 2}), max_failures=0.05, workers=0))) == 57
    with pytest.raises(kf.errors.TooManyFailuresError, match=f"4 of {first + 4} scenes of repetition 0 .* allows 3"):
        list(mapped(failing(set(range(first, first + 4))), max_failures=0.05, workers=0))


@pytest.mark.parametrize("shard_count", [1, 4])
def test_the_limit_of_failures_does_not_depend_on_the_order_of_workers(shard_count):
    failed = [places * shard_count + shard_count - 1 for places in (2, 3, 5, 7, 90)]
    for order in itertools.permutations(failed):
        log = FailureLog(FailurePolicy("skip", max_failures=0.1), 0, shard_count)
        refused = [log.refusal(index, 0, ValueError("broken")) for index in order]
        assert any("4 of 8 scenes of repetition 0" in str(error) for error in refused)
        few = FailureLog(FailurePolicy("skip", max_failures=0.1), 0, shard_count)
        assert not any(few.refusal(index, 0, ValueError()) for index in order if index != failed[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loop", [iter, lambda feed: feed.to_jax()], ids=["batches", "jax"])
def test_a_warning_turned_into_an_error_is_raised_at_a_batch_of_skipped_scenes(mapped, tmp_path, workers, loop):
    if loop is not iter:
        pytest.importorskip("jax")
    log = tmp_path / "errors.json"
    feed = mapped(failing(range(4)), 4, max_failures=9, error_log=log, workers=workers, output_signature=SPEC)
    log.mkdir()
    with pytest.raises(kf.FeedWarning, match="cannot be written"):
        list(loop(feed))
    log.rmdir()
    assert labels(feed) == list(range(4, 60))


def test_the_error_for_skip_in_a_dataset_suggests_mask(mapped):
    with pytest.raises(ValueError, match=r"on_error='skip' .*: use on_error='mask'"):
        mapped(scene).to_tf_dataset()


@pytest.mark.heavy
def test_the_error_for_an_item_that_kills_its_worker_names_the_item_and_the_remedy(mapped):
    def deadly(number):
        if number == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return scene(number)

    feed = mapped(deadly, worker_type="process", on_error="raise", max_failures=1)
    with pytest.raises(kf.errors.WorkerDiedError, match=r"The item was 9\..*on_error='skip'") as caught:
        list(feed)
    with pytest.warns(kf.FeedWarning, match="A new process has replaced it"):
        feed.issue_warnings()
    assert "sequence[" not in str(caught.value)


@pytest.mark.heavy
def test_an_item_that_killed_its_workers_does_not_block_its_index_in_later_repetitions(mapped):
    rounds = iter(range(9))

    def shifting():
        first = 9 * next(rounds)
        yield from range(first, first + 12)

    def deadly(number):
        if number == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return scene(number)

    feed = mapped(deadly, 4, shifting, worker_type="process", max_failures=1, workers=1)
    with pytest.warns(kf.FeedWarning):
        assert labels(feed) == [*range(9), 10, 11]
    assert labels(feed) == [*range(10, 21)]
    assert labels(feed) == [*range(18, 30)]


def test_the_item_file_holds_all_batches_in_flight():
    items = ItemFile(2, 1400)
    try:
        for step in range(1400):
            items.put(3, step, [f"{step}a", f"{step}b"])
        assert [items.item(3, index) for index in (0, 1, 2798, 2799)] == ["0a", "0b", "1399a", "1399b"]
    finally:
        items.close()


def test_a_worker_reads_items_that_were_written_again():
    items = ItemFile(2, 8)
    reader = pickle.loads(pickle.dumps(items))
    try:
        items.put(0, 1, ["a", "b"])
        assert reader.item(0, 2) == "a"
        items.drop(0, 1)
        items.put(0, 0, ["c", "d"])
        items.put(0, 1, ["a", "b"])
        assert reader.item(0, 2) == "a"
        items.drop(0, 1)
        items.put(0, 1, ["longer", "b"])
        assert [reader.item(0, 2), reader.item(0, 3)] == ["longer", "b"]
    finally:
        items.close()


def test_a_batch_replaces_the_same_step_of_a_closed_repetition():
    items = ItemFile(2, 8)
    reader = pickle.loads(pickle.dumps(items))
    try:
        items.put(0, 1, ["a", "b"])
        items.put(1, 1, ["c", "d"])
        with pytest.raises(CancelledTaskError):
            reader.item(0, 2)
        items.drop(0, 1)  # because its batch is over
        assert reader.item(1, 3) == "d"
        items.drop(1, 1)
        with pytest.raises(CancelledTaskError):
            reader.item(1, 3)
    finally:
        items.close()
