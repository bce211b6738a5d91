"""The page on versions matches the tested versions."""

import re
import subprocess
import sys

from places import ROOT

PAGE = (ROOT / "docs" / "understand" / "versions.md").read_text()
CONSTRAINTS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_the_table_of_versions_is_what_is_run():
    command = [sys.executable, str(ROOT / ".ci" / "versions.py"), "--table"]
    table = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert table in PAGE


def test_the_versions_of_all_other_runs_are_those_of_the_constraints():
    said = dict(re.findall(r"(Keras|TensorFlow|JAX|PyTorch|NumPy|h5py|Ray) (\d[\d.]*\d)", PAGE.split("|")[0]))
    found = {name: CONSTRAINTS[{"PyTorch": "torch"}.get(name, name.lower())] for name in said}
    assert len(said) == 7
    assert said == found
