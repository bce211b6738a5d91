"""What the README says of records, as it stands there."""

import re

import numpy as np
import pytest
import tensorflow as tf
from places import README
from scenes_records import Small, listing

import kerasfeed as kf

pytestmark = pytest.mark.usefixtures("memory_freed")


@pytest.mark.heavy
def test_the_readmes_snippets_on_records_run(tmp_path, monkeypatch):
    snippets = re.findall(r"<!-- records: .*?-->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
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
