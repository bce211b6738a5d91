"""Streams from the user's view: in a plain script without a `__main__` guard, and in a notebook."""

import pytest
from programs import ROOT, finish, launch

SCRIPT = """
    import sys

    import lean_keras
    import keras
    import numpy as np

    import kerasfeed as kf


    class Rooms:
        def __init__(self):
            self.scenes = np.arange(40, dtype=np.float32)

        def generate_data(self):
            while True:
                for number in self.scenes:
                    yield np.full(3, number), loaded()


    def loaded():
        return sorted({"keras", "tensorflow", "jax"} & sys.modules.keys()) == []


    feed = kf.StreamFeed(Rooms().generate_data, 8, workers=1, worker_type="process")
    for _, clean in feed:
        print(clean.all())
        break

    mapped = kf.StreamFeed(lambda n, count: range(n, 20, count), 5, count=2, workers=2, worker_type="process")
    mapped = mapped.map(lambda number: (np.full(3, number, np.float32), number, loaded()))
    print([labels.tolist() for _, labels, clean in mapped if clean.all()])
"""


@pytest.mark.heavy
def test_a_script_without_a_guard_exits_with_unclosed_streams(tmp_path):
    printed = finish(launch(tmp_path, SCRIPT)).splitlines()
    assert printed == [
        "True",
        "[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]",
    ]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_generators_and_functions_of_a_notebook_s_cells_run_in_worker_processes(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat (pip install kerasfeed[test])")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient (pip install kerasfeed[test])")
    pytest.importorskip("ipykernel", reason="needs ipykernel (pip install kerasfeed[test])")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cells = [
        f"import sys; sys.path.insert(0, {ROOT!r})\nimport numpy as np, kerasfeed as kf",
        "def scenes(n, count):\n    for number in range(n, 10, count):\n        yield number\n"
        "def load(number):\n    return np.full(2, number, np.float32), number",
        "with kf.StreamFeed(scenes, 4, count=2, worker_type='process') as feed:\n"
        "    plain = [batch.tolist() for batch in feed]\n"
        "with kf.StreamFeed(scenes, 4, count=2, workers=2, worker_type='process').map(load) as feed:\n"
        "    mapped = [batch[1].tolist() for batch in feed]\n"
        "    print(plain == mapped, mapped)\n"
        "feed",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    printed, shown = notebook.cells[-1].outputs
    assert printed.text == "True [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]\n"
    assert "StreamFeed" in shown.data["text/html"]
