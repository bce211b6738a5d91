"""Run tests of Keras again on another of its backends: one case per file of tests, in one process.

An interpreter with Keras takes 4 s to start, and files share compiled models. So one process runs all selected
cases, and each case reports the failures of its file. JAX finds compiled steps of equal models in a cache folder, which
saves six sevenths of the time of such a `fit`.
"""

import functools
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from places import ROOT, TESTS
from scenes_frameworks import environment_of

# Files of tests that also run on JAX and on PyTorch.
FILES = [
    "collate_frameworks", "epochs_fit", "error_fit", "evaluate", "keras_adapter", "keras_fit", "keras_fit_errors",
    "keras_fit_models", "keras_processes", "keras_versions", "predicted_order", "resume_fit", "resume_refusals",
    "shards_evaluate", "stream_fit", "text_fit",
]  # fmt: skip
SECONDS = 1500  # for tests that take 100 s
_KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


each_file = pytest.mark.parametrize("file", FILES)


def assert_holds_on(backend, request):
    """Report the failures of this case's file, which `each_file` has run on another backend.

    The first case waits for the files of all selected cases of its test.
    """
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    own = request.node.callspec.params["file"]
    cases = [item for item in request.session.items if getattr(item, "obj", None) is request.function]
    failed = _failures(backend, tuple(case.callspec.params["file"] for case in cases))
    if own in failed:
        pytest.fail(f"on {backend}, test_{own}.py:\n{failed[own]}", pytrace=False)


@functools.cache
def _failures(backend, files):
    """Failures by file; files without failures are left out."""
    paths = [str(path) for name in files for path in TESTS.glob(f"adapters/*/test_{name}.py")]
    assert len(paths) == len(files)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        environment = environment_of(KERAS_BACKEND=backend, JAX_COMPILATION_CACHE_DIR=f"{folder}/compiled", **_KEEP_ALL)
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "lean_keras", "-p", "no:cacheprovider", "--tb=short",
             f"--junitxml={report}", "-m", "", *paths],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=SECONDS,
        )  # fmt: skip
        if not report.exists():  # it crashed; the end of its output names the test
            return dict.fromkeys(files, run.stdout[-8000:])
        tests = ElementTree.parse(report).iter("testcase")
    found = {name: [] for name in files}
    for test in tests:
        path = f"{test.get('classname')}.{test.get('name')}".split("[")[0].split(".")
        name = next(part for part in path if part.startswith("test_")).removeprefix("test_")
        found[name] += [f"{test.get('name')}: {each.text}" for each in test if each.tag in ("failure", "error")] or [""]
    failed = {
        name: "\n".join(filter(None, texts)) or (not texts and "no test of it ran") for name, texts in found.items()
    }
    failed = {name: text for name, text in failed.items() if text}
    return failed if failed or run.returncode == 0 else dict.fromkeys(files, run.stdout[-8000:])
