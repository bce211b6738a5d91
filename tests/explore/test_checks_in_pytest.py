"""The checks as tests of users: `parametrize_with_checks`, and the plugin."""

import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import scenes_bad as bad
from places import ROOT
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.explore.check import CHECKS

QUICK = {"process", "hash_seed", "directory", "memory", "descriptors", "threads"}


def parameters(*arguments, **options):
    return {parameter.id: parameter for parameter in kf.testing.parametrize_with_checks(*arguments, **options).args[1]}


def test_each_check_of_each_sequence_is_a_test_with_a_readable_id():
    found = parameters([bad.Sound(), bad.Counting(), bad.Sound()])
    assert list(found)[: len(CHECKS)] == [f"Sound-{name}" for name in CHECKS]
    assert {"Counting-same_twice", "Sound2-views"} <= set(found)
    assert len(found) == 3 * len(CHECKS)


@kf.testing.parametrize_with_checks([bad.Sound()], skip=QUICK)
def test_a_sequence_without_a_fault_passes(check):
    check()


@kf.testing.parametrize_with_checks([bad.NotANumber], xfail={"finite": "it is made so"}, skip=QUICK | {"views"})
def test_an_expected_failure_fails_as_expected_and_no_other_check_does(check):
    check()


def test_a_failure_names_check_index_field_reason_and_remedy():
    check = parameters([bad.NotANumber()])["NotANumber-finite"].values[0]
    with pytest.raises(AssertionError) as caught:
        check()
    lines = str(caught.value).splitlines()
    assert lines[0] == "finite: scene 5, field '0': 1 NaN of 3 values, the first at [1]"
    assert [line.split(":")[0] for line in lines[1:]] == ["Why", "Remedy"]


def test_what_does_not_concern_a_sequence_is_skipped_and_what_costs_warns():
    found = parameters([bad.Unbounded()])
    with pytest.raises(pytest.skip.Exception, match="the class does not define get_batch"):
        found["Unbounded-get_batch"].values[0]()
    with pytest.warns(kf.FeedWarning, match=r"indices: sequence\[12\] returns a scene") as caught:
        found["Unbounded-indices"].values[0]()
    assert caught[0].filename == __file__


def test_a_function_that_makes_the_sequence_is_called_once_and_not_before_the_first_check():
    made = []

    def rooms():
        made.append(bad.Sound())
        return made[-1]

    found = parameters([rooms])
    assert made == []
    found["rooms-length"].values[0]()
    found["rooms-fields"].values[0]()
    assert len(made) == 1


def test_expected_failures_may_be_told_by_a_function_of_the_sequence():
    found = parameters(
        [bad.Sound(), bad.Sound(3)], xfail=lambda sequence: {"views": "short"} if len(sequence) == 3 else {}
    )
    assert not found["Sound-views"].marks
    assert found["Sound2-views"].marks[0].kwargs["reason"] == "short"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: parameters([bad.Sound()], xfail={"view": ""}), ValueError, "xfail names 'view', and there is no such"),
        (lambda: parameters([bad.Sound()], skip="views"), TypeError, r"write \['views'\]"),
        (lambda: parameters([3]), TypeError, "received a int without __len__ and __getitem__"),
    ],
)
def test_a_wrong_argument_is_refused_where_tests_are_collected(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def run_pytest(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rooms.py").write_text(
        "import numpy as np\n"
        "class Rooms:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index):\n"
        "        if not 0 <= index < 4: raise IndexError(index)\n"
        "        return np.float32(np.nan if index == 2 else index)\n"
    )
    return tmp_path


def test_the_plugin_makes_tests_of_the_checks_of_a_sequence_that_it_is_given(folder):
    done = run_pytest(folder, "-p", "kerasfeed.pytest_plugin", "--kerasfeed-sequence", "rooms:Rooms")
    assert "finite: scene 2, field 'scene': 1 NaN of 1 values\nWhy: " in done.stdout
    counts = re.search(r"1 failed, (\d+) passed, (\d+) skipped", done.stdout)
    assert counts, done.stdout
    assert 1 + int(counts[1]) + int(counts[2]) == len(CHECKS)
    assert done.returncode == 1


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("rooms:Room", "has no attribute 'Room'"),
        ("rooms", "needs MODULE:OBJECT, for example rooms:Rooms"),
        ("room:Rooms", "No module named"),
        ("rooms:__name__", "needs a sequence of scenes"),
        ("broken:Rooms", "module 'broken' cannot be imported: ValueError: no data"),
    ],
)
def test_the_plugin_says_what_it_cannot_find(place, message, folder):
    (folder / "broken.py").write_text("raise ValueError('no data')")
    done = run_pytest(folder, "-p", "kerasfeed.pytest_plugin", "--kerasfeed-sequence", place)
    assert message in done.stderr
    assert done.returncode == 4


def test_what_is_expected_to_fail_by_a_check_fails_nevertheless_where_another_error_is_raised(folder):
    (folder / "test_rooms.py").write_text(
        "import kerasfeed.testing\n"
        "def rooms(): raise RuntimeError('the disk is gone')\n"
        "@kerasfeed.testing.parametrize_with_checks([rooms], xfail={'length': 'too short'})\n"
        "def test_rooms(check): check()\n"
    )
    done = run_pytest(folder, "test_rooms.py", "-k", "length")
    assert "1 failed" in done.stdout, done.stdout
    assert "the disk is gone" in done.stdout, done.stdout


def test_who_does_not_ask_for_the_plugin_does_not_get_it():
    assert not [each for each in entry_points(group="pytest11") if each.value.startswith("kerasfeed")]


def test_importing_the_tests_part_loads_no_pytest_and_no_framework():
    code = "import sys, kerasfeed as kf; kf.testing; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=True
    )
    assert not {"pytest", "keras", "tensorflow", "torch", "h5py", "matplotlib"} & set(done.stdout.split())
