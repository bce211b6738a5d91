"""The snippets of the page on generators and live data, run with other data than the page's own."""

import re

import h5py
import numpy as np
import pytest
from places import ROOT

PAGE = ROOT / "docs" / "how-to" / "generators.md"


@pytest.fixture
def names(tmp_path):
    """What the snippets take as given, and what those before have made."""
    paths = [str(tmp_path / f"{number}.h5") for number in range(4)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["points"] = np.full((20, 4, 3), number, np.float32)
            file["labels"] = np.arange(20)

    class Model:
        def fit(self, feed, epochs, verbose):
            self.epochs = [sum(len(labels) for _, labels in feed) for _ in range(epochs)]

    return {"paths": paths, "model": Model()}


def _run(name, names):
    found = re.search(rf"<!-- streams: {name} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, f"the page has no snippet {name!r}"
    exec(found[1], names)


@pytest.mark.heavy
def test_the_snippet_of_generators_is_true(names):
    _run("generators", names)
    with names["feed"] as feed:
        assert names["model"].epochs == [80] * 3
        assert next(iter(feed))[0][:, 0, 0].tolist() == [0, 1, 2, 3] * 8


@pytest.mark.heavy
def test_the_snippet_of_map_is_true(names):
    _run("generators", names)
    names["feed"].close()
    _run("map", names)
    with names["feed"] as feed:
        assert [batch[1].tolist() for batch in feed] == [names["paths"][:2], names["paths"][2:]]


def test_the_snippet_of_a_queue_is_true(names):
    exec("import numpy as np\nimport kerasfeed as kf", names)
    _run("queue", names)
    assert names["epochs"] == [[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]] * 2
