"""The page on TFRecords: its calls, on other scenes than its own."""

import re

import numpy as np
import pytest
import tensorflow as tf
from places import ROOT
from scenes_records import Small, listing

import kerasfeed as kf

PAGE = ROOT / "docs" / "how-to" / "tfrecords.md"


@pytest.mark.heavy
def test_the_calls_of_the_page_write_and_read_scenes_of_another_kind(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    snippets = [block for block in blocks if block.startswith(("paths = kf.write_tfrecords(", "kf.write_hdf5("))]
    assert len(snippets) == 2
    monkeypatch.chdir(tmp_path)
    names = {"kf": kf, "tf": tf, "np": np, "rooms": Small(70)}
    exec(snippets[0], names)
    with names["feed"] as feed:
        assert sorted(int(index) for _, indices in feed for index in indices) == list(range(70))
    assert sorted(int(index) for _, index in names["dataset"]) == list(range(70))
    for record in tf.data.TFRecordDataset(names["paths"]).take(1):
        assert tf.io.parse_single_example(record, names["features"])["1"] == 0
    exec(snippets[1], names)
    with names["feed"] as feed:
        assert sorted(int(index) for _, indices in feed for index in indices) == list(range(70))
    assert "copy.h5" in listing(tmp_path)
