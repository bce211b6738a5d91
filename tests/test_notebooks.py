"""The notebooks run from top to bottom, and are kept without their outputs."""

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbformat (pip install kerasfeed[test])")

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.timeout(150)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_the_quickstart_runs_and_learns(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient (pip install kerasfeed[test])")
    pytest.importorskip("ipykernel", reason="needs ipykernel (pip install kerasfeed[test])")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / "01_quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = {cell.id: cell for cell in notebook.cells}
    assert "<svg" in cells["sequence"].outputs[0].data["text/html"]
    assert "2 process workers" in cells["feed"].outputs[0].data["text/html"]
    assert "(16, 256, 3) float32 True" in _printed(cells["again"])
    accuracies = [float(found) for found in re.findall(r"validation accuracy ([\d.]+)", _printed(cells["fit"]))]
    assert len(accuracies) == 10
    assert max(accuracies) > 0.4


def _printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")
