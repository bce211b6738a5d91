"""States of a feed and its datasets: an iteration begins at the position of the feed, and does not report its own."""

import pytest
import scenes
from tf_batches import indices_of, order_of

import kerasfeed as kf


def make_feed(**arguments):
    return kf.Feed(scenes.Clouds(37), 8, shuffle=True, seed=1, workers=2, worker_type="thread", **arguments)  # 5 steps


@pytest.mark.parametrize("made_before", [True, False])
def test_an_iteration_begins_at_the_state_and_has_a_whole_epoch_of_batches(made_before):
    with make_feed() as feed:
        dataset = feed.to_tf_dataset() if made_before else None
        feed.set_state(feed.get_state(epoch=2, step=3))
        dataset = dataset or feed.to_tf_dataset()
        assert indices_of(dataset) == order_of(feed, 2)[24:] + order_of(feed, 3)[:24]
        assert indices_of(dataset)[:13] == order_of(feed, 3)[24:]


def test_a_loop_over_a_dataset_does_not_report_its_position_to_the_feed():
    with make_feed() as feed:
        for _ in feed.to_tf_dataset():
            with pytest.raises(RuntimeError, match=r"only the consumer knows which batch is next.*get_state\(epoch="):
                feed.get_state()
        assert feed.get_state(epoch=3, step=1)["step"] == 1
        assert [index for _, labels in feed for index in labels.tolist()] == order_of(feed, 1)
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (2, 0)
