"""States of a feed and its datasets: a dataset continues after a loop, and a loop after a dataset."""

import pytest
import scenes
from tf_batches import indices_of, order_of

import kerasfeed as kf


def make_feed(**arguments):
    return kf.Feed(scenes.Clouds(37), 8, shuffle=True, seed=1, workers=2, worker_type="thread", **arguments)  # 5 steps


def orders(feed, *epochs):
    return [index for epoch in epochs for index in order_of(feed, epoch)]


@pytest.mark.parametrize("made_before", [True, False])
def test_a_loop_over_a_dataset_finishes_the_epoch_and_the_next_one_is_whole(made_before):
    with make_feed() as feed:
        dataset = feed.to_tf_dataset() if made_before else None
        feed.set_state(feed.get_state(epoch=2, step=3))
        dataset = dataset or feed.to_tf_dataset()
        assert indices_of(dataset) == order_of(feed, 2)[24:]
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (3, 0)
        assert indices_of(dataset) == order_of(feed, 3)
        assert [index for _, labels in feed for index in labels.tolist()] == order_of(feed, 4)


def test_a_loop_over_a_dataset_of_several_epochs_ends_with_an_epoch():
    with make_feed() as feed:
        dataset = feed.to_tf_dataset(epochs=2)
        feed.set_state(feed.get_state(epoch=2, step=3))
        assert indices_of(dataset) == order_of(feed, 2)[24:] + order_of(feed, 3)
        assert indices_of(dataset) == orders(feed, 4, 5)


def test_a_loop_over_a_dataset_knows_what_it_has_consumed_and_not_what_was_prefetched():
    with make_feed() as feed:
        feed.set_state(feed.get_state(epoch=1, step=1))
        places = []
        for _ in feed.to_tf_dataset():
            state = feed.get_state()
            places.append((state["epoch"], state["step"]))
        assert places == [(1, 2), (1, 3), (1, 4), (2, 0)]
        for _ in feed.to_tf_dataset():
            state = feed.get_state()
            break
    with make_feed() as feed:
        feed.set_state(state)
        assert [index for _, labels in feed for index in labels.tolist()] == order_of(feed, 2)[8:]


def test_derived_datasets_continue_the_stream_without_the_consumer_s_position():
    with make_feed() as feed:
        mapped = feed.to_tf_dataset().map(lambda points, labels: (points, labels))
        feed.set_state(feed.get_state(epoch=2, step=3))
        found = indices_of(mapped)
        assert found == order_of(feed, 2)[24:] + order_of(feed, 3)[:24]  # as many batches as ever
        assert indices_of(mapped)[:13] == order_of(feed, 3)[24:]
        with pytest.raises(RuntimeError, match=r"only the consumer knows which batch is next.*get_state\(epoch=\.\.\."):
            feed.get_state()
        assert feed.get_state(epoch=3, step=1)["step"] == 1


def test_batches_in_any_order_do_not_tell_what_is_consumed():
    with make_feed() as feed:
        for _ in feed.to_tf_dataset(deterministic=False):
            with pytest.raises(RuntimeError, match="only the consumer knows"):
                feed.get_state()
