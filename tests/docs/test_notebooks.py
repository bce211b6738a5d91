"""The notebooks run from top to bottom, and are kept with their outputs."""

import re

import pytest
from places import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs nbformat (pip install kerasfeed[test])")

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_with_outputs_and_without_errors(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run docs/run_notebooks.py"
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert "/tmp/" not in str(outputs)
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_says_what_it_needs_and_begins_with_an_import_and_a_class(path):
    notebook = nbformat.read(path, as_version=4)
    assert "pip install jupyterlab ipywidgets" in notebook.cells[0].source
    first = next(cell for cell in notebook.cells if cell.cell_type == "code").source
    assert "import kerasfeed as kf" in first
    assert "(kf.SceneSequence):" in first
    assert "kf.show(" in str(notebook.cells)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a notebook, or its cells before the one called `until`, in a new folder; return its cells by their ids."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient (pip install kerasfeed[test])")
    pytest.importorskip("ipykernel", reason="needs ipykernel (pip install kerasfeed[test])")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))

    def run(name, until=None):
        notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        if until is not None:
            notebook.cells = notebook.cells[: [cell.id for cell in notebook.cells].index(until)]
        nbclient.NotebookClient(
            notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
        return {cell.id: cell for cell in notebook.cells}

    return run


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_the_quickstart_runs_and_learns(run):
    cells = run("01_quickstart.ipynb")
    assert cells["sequence"].outputs[0].data["text/plain"] == "Shapes, 240 scenes"
    assert "2 process workers" in cells["feed"].outputs[0].data["text/html"]
    assert "(16, 256, 3) float32 True" in _printed(cells["again"])
    accuracies = [float(found) for found in re.findall(r"validation accuracy ([\d.]+)", _printed(cells["fit"]))]
    assert len(accuracies) == 10
    for name in ("picture", "fit"):
        assert [output for output in cells[name].outputs if "image/png" in output.get("data", {})], name
    assert _warnings(cells) == []
    assert max(accuracies) > 0.4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
@pytest.mark.heavy
def test_the_hdf5_notebook_draws_what_chunks_cost_and_counts_fewer_decodes_in_block_order(run):
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install kerasfeed[test])")
    cells = run("02_hdf5.ipynb")
    assert "(21, 256, 1)" in cells["file"].outputs[0].data["text/html"]
    assert "[direct]" in _printed(cells["tree"])
    for name in ("touched", "decode_picture", "rates"):
        assert [output for output in cells[name].outputs if "image/png" in output.get("data", {})], name
    found = re.findall(r"(\w+) +(\d+) decodes of 128 chunks", _printed(cells["decodes"]))
    decodes = {name: int(count) for name, count in found}
    assert 128 <= decodes["BlockShuffled"] < 200
    assert decodes["shuffled"] > 4 * decodes["BlockShuffled"]
    assert "order=kf.BlockShuffled(file['many_a_chunk'].block_size)" in _printed(cells["warned"])
    assert "decoded=" in cells["stats"].outputs[0].data["text/plain"]
    assert "a scene touches 1 and decodes 1x its size" in _printed(cells["rechunked"])
    assert "equal  True" in _printed(cells["rechunked"])
    assert "64 batches" in _printed(cells["sequence"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
@pytest.mark.heavy
def test_the_notebook_looks_describes_checks_and_ends_what_training_waits_for(run):
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install kerasfeed[test])")
    cells = run("03_explore.ipynb")
    _assert_looks_and_checks(cells, "shapes.h5")
    assert [output for output in cells["batch"].outputs if "image/png" in output.get("data", {})]
    before = [int(share) for share in re.findall(r"(\d+)% of the time", _printed(cells["model"]))]
    after = [int(share) for share in re.findall(r"(\d+)% of the time", _printed(cells["cached"]))]
    assert before[-1] > after[-1]  # 90 and 3 on a quiet machine
    # A busy machine prints a range: "58 to 80 scenes/s".
    assert re.match(r"1 thread loads [\d,]+( to [\d,]+)? scenes/s", _printed(cells["verdict"]))
    assert _warnings(cells) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
@pytest.mark.heavy
def test_the_notebook_looks_at_real_data_as_at_what_it_makes(run, monkeypatch, real_data):
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install kerasfeed[test])")
    monkeypatch.setenv("BIMNET10", str(real_data))
    cells = run("03_explore.ipynb", until="batch")
    _assert_looks_and_checks(cells, "bimnet10_train.h5")
    assert _warnings(cells) == []


def _assert_looks_and_checks(cells, name):
    """The output for this file of the cells before the first batch."""
    assert name in _printed(cells["setup"])
    for look in ("look", "look_at_one"):
        assert [output for output in cells[look].outputs if "image/png" in output.get("data", {})], look
    assert "background-color" in cells["describe"].outputs[0].data["text/html"]
    report = cells["check"].outputs[0].data["text/plain"]
    assert "failed   same_twice" in report
    assert "failed   global_random" in report
    assert _printed(cells["second_class"]) == "True\n"


def _warnings(cells):
    """The content of stderr, without TensorFlow's logs before it reads a setting."""
    texts = [
        output.text for cell in cells.values() for output in cell.get("outputs", []) if output.get("name") == "stderr"
    ]
    logged = ("WARNING: All log messages before absl", "I0000 ", "W0000 ", "E0000 ")
    return [line for text in texts for line in text.splitlines() if line.strip() and not line.startswith(logged)]


def _printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")
