"""The snippets of the page on generators and live data, run with other data than the page's own."""

import os
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
from places import ROOT
from waits import PROGRAM_SECONDS

PAGE = ROOT / "docs" / "how-to" / "generators.md"


@pytest.fixture
def names(tmp_path):
    """The names that the snippets assume, and those of earlier snippets."""
    paths = [str(tmp_path / f"{number}.h5") for number in range(4)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["points"] = np.full((20, 4, 3), number, np.float32)
            file["labels"] = np.arange(20)

    class Model:
        def fit(self, feed, epochs, verbose):
            self.epochs = [sum(len(labels) for _, labels in feed) for _ in range(epochs)]

    return {"paths": paths, "model": Model()}


def _snippet(name):
    found = re.search(rf"<!-- (?:streams|tested): {name} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, f"the page has no snippet {name!r}"
    return found[1]


def _run(name, names):
    exec(_snippet(name), names)


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


def test_an_exception_that_a_thread_puts_into_a_queue_reaches_the_consumer(names, capsys):
    exec("import numpy as np\nimport kerasfeed as kf", names)
    _run("queue", names)
    _run("exception", names)
    assert capsys.readouterr().out == "[0]\nthe camera is gone\n"


def _program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_another_process_fills_a_queue_that_a_stream_reads(tmp_path):
    run = _program(tmp_path, _snippet("processes"))
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        f"{epoch} {labels}" for epoch in (0, 1) for labels in ("[0 1 2 3 4]", "[5 6 7 8 9]")
    ]


@pytest.mark.heavy
def test_a_process_that_is_killed_before_the_end_is_an_error_in_the_consumer(tmp_path):
    text = _snippet("processes").replace("        received.put(None)\n", "        os._exit(3)\n", 1)
    run = _program(tmp_path, "import os\n" + text)
    assert "RuntimeError: the producer ended with exit code 3" in run.stderr
