"""Failures are kept in a table of the feed, and written to a log on request."""

import json
import operator

import pytest
import scenes_faulty as faulty
from scenes_sized import KINDS

import kerasfeed as kf
from kerasfeed.loaders.failures.table import FailedScene, FailureTable


@pytest.mark.parametrize("kind", KINDS)
def test_failures_are_a_table_with_index_epoch_exception_and_count(feed_on, kind):
    feed = feed_on(kind, faulty.Raising((20, 7)), on_error="replace", shuffle=False)
    assert repr(feed.failures) == "no scene has failed"
    list(feed.epoch(2))
    assert list(feed.failures) == [
        FailedScene(7, 2, 0, "ValueError: scene 7 is broken", 1),
        FailedScene(20, 2, 2, "ValueError: scene 20 is broken", 1),
    ]
    assert "ValueError: scene 7 is broken" in repr(feed.failures)
    html = feed.failures._repr_html_()
    assert "<code>7</code>" in html
    assert "ValueError: scene 20 is broken" in html
    assert feed.failures[0].index == 7
    assert len(feed.failures[1:]) == 1


def test_raised_failures_are_recorded_in_the_table(feed_on):
    feed = feed_on("process", faulty.Raising((7,)), shuffle=False)
    with pytest.raises(ValueError, match="scene 7 is broken"):
        list(feed.epoch(0))
    assert [row.index for row in feed.failures] == [7]


def test_a_table_escapes_messages_and_shows_a_hundred_rows():
    rows = [FailedScene(index, 0, 0, "ValueError: <script>", 1) for index in range(130)]
    html = FailureTable(rows, forgotten=5)._repr_html_()
    assert "<script>" not in html
    assert "and 30 more rows; 5 further failures were not kept" in html
    assert html.count("<tr>") == 101


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_log_contains_a_json_line_per_failure(feed_on, kind, tmp_path):
    path = tmp_path / "failures.jsonl"
    path.write_text('{"earlier": true}\n')
    feed = feed_on(kind, faulty.Raising((7, 20)), on_error="replace", shuffle=False, error_log=path)
    list(feed.epoch(1))
    earlier, *lines = map(json.loads, path.read_text().splitlines())
    assert earlier == {"earlier": True}
    lines.sort(key=operator.itemgetter("index"))
    assert [(line["index"], line["epoch"], line["step"]) for line in lines] == [(7, 1, 0), (20, 1, 2)]
    assert lines[0]["exception"] == "ValueError: scene 7 is broken"
    assert lines[0]["action"] == "replace"
    assert "scene 7, epoch 1, step 0" in lines[0]["traceback"]


def test_an_unwritable_error_log_warns_once_and_loses_no_batch(feed_on, tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    feed = feed_on("thread", faulty.Raising((7, 20)), on_error="replace", error_log=folder / "log")
    folder.rmdir()
    with pytest.warns(kf.FeedWarning, match="error_log=.* cannot be written"):
        assert len(list(feed)) == 5
