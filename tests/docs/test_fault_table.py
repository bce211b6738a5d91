"""The fault table distinguishes every kind of failure of a library."""

import json
import sys
from dataclasses import replace

import pytest

psutil = pytest.importorskip("psutil", reason="needs the extra `bench`")
if sys.platform != "linux":
    pytest.skip("processes are watched in /proc", allow_module_level=True)

from benchmarks.faults import harness, table  # noqa: E402
from benchmarks.faults.case import names_scene  # noqa: E402
from benchmarks.faults.catalog import FAULTS, Case, Fault, Library, select_cases  # noqa: E402
from benchmarks.faults.observation import Observation, words  # noqa: E402
from benchmarks.faults.scenes import FAULTS as SCENE_FAULTS  # noqa: E402

SMALL = Fault("sound", "nothing goes wrong", patience=5.0, length=32, seconds=0.0, values=16)
LATE = replace(SMALL, name="raise", length=144)
TRIALS = {
    "sound": SMALL,
    "losing": SMALL,
    "repeating": SMALL,
    "damaging": SMALL,
    "replacing": SMALL,
    "overwriting": replace(SMALL, consumer="hoards"),
    "hanging": SMALL,
    "crashing": SMALL,
    "leaving": SMALL,
    "staying": SMALL,
    "unable": SMALL,
}


def case_of(function, fault, workers="process"):
    library = Library(function, function, "tests.support.fault_fakes", function, "numpy", workers)
    return Case(library, fault, "loop")


def observe(function, fault):
    return harness.run_case(case_of(function, fault))


@pytest.fixture(scope="module", autouse=True)
def short_waits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "GRACE", 0.5)
        yield


@pytest.fixture(scope="module")
def seen(short_waits):
    cases = [case_of(function, fault) for function, fault in TRIALS.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "EXIT_PATIENCE", 8.0)
        results = harness.run_all(cases, 2, lambda case, observation: None)
    return {case.peer.name: results[case.name] for case in cases}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("sound", "all scenes once"),
        ("losing", "**loses 8 scenes**"),
        ("repeating", "**8 scenes twice**"),
        ("damaging", "all scenes once, **4 scenes wrong**"),
        ("replacing", "**loses 1 scene**, **1 scene twice**"),
        ("hanging", "**hangs**, warns naming the scene"),
        ("crashing", "**the program dies** (SIGSEGV)"),
        ("leaving", "all scenes once, **leaves 1 process**"),
        ("staying", "all scenes once, **hangs at exit**"),
        ("unable", "not available"),
    ],
)
def test_each_kind_of_failure_is_distinguished_from_the_others(seen, function, expected):
    assert words(seen[function], TRIALS[function]) == expected


@pytest.mark.heavy
def test_a_batch_that_changes_after_it_came_is_seen(seen):
    assert words(seen["overwriting"], TRIALS["overwriting"]).endswith("MB, **24 scenes overwritten**")


@pytest.mark.heavy
def test_a_scene_replaced_is_no_loss_for_a_library_that_was_asked_to_replace(seen):
    assert words(seen["replacing"], SMALL, replaces=True) == "1 scene replaced"
    assert words(seen["losing"], SMALL, replaces=True) == "**loses 8 scenes**"


def test_an_exception_of_a_scene_is_reported_with_its_message_and_whether_it_names_the_scene():
    result = observe("sound", LATE)
    assert words(result, LATE) == "raises `ValueError`"
    assert (result.message, len(result.labels)) == ("the points are not finite", 136)


@pytest.mark.heavy
def test_a_worker_is_killed_for_real_and_only_a_worker():
    fault = replace(SMALL, strikes="worker", seconds=0.01, length=64, names_scene=False)
    result = observe("forking", fault)
    assert (result.kills, result.message) == (1, "the worker was killed by signal 9")
    assert words(result, fault) == "raises `RuntimeError`"


@pytest.mark.heavy
def test_the_killer_strikes_as_long_as_batches_come_and_its_strikes_are_counted():
    fault = replace(SMALL, strikes="often", seconds=0.01, length=160)
    result = observe("respawning", fault)
    assert result.kills >= 3
    assert words(result, fault) == f"all scenes once ({result.kills} kills)"


@pytest.mark.heavy
def test_a_program_is_killed_for_real_and_what_outlives_it_is_counted_and_ended():
    fault = replace(SMALL, strikes="program", seconds=0.01, length=64)
    result = observe("forking", fault)
    assert (result.ending, words(result, fault)) == ("killed", "**leaves 1 process**")
    assert not [child for child in psutil.process_iter(["cmdline"]) if "fault_fakes" in str(child.info["cmdline"])]


@pytest.mark.heavy
def test_a_consumer_that_breaks_off_takes_no_more_batches():
    fault = replace(SMALL, consumer="breaks", length=80)
    result = observe("sound", fault)
    assert (len(result.labels), words(result, fault)) == (40, "nothing is left")


@pytest.mark.heavy
def test_fit_tells_every_batch_that_it_trains_on():
    fault = replace(SMALL, length=80)
    case = replace(case_of("sound", fault), consumer="fit")
    assert words(harness.run_case(case), fault) == "all scenes once"


def test_a_library_that_is_not_installed_is_reported():
    case = case_of("sound", SMALL)
    absent = replace(case, peer=replace(case.peer, package="no_such_library"))
    assert words(harness.run_case(absent), SMALL) == "not installed"


def test_a_scene_is_named_by_its_index_and_not_by_a_line_of_code():
    assert names_scene("loading scene 137 failed")
    assert names_scene("sequence[137]")
    assert not names_scene('File "x.py", line 137, in f')
    assert not names_scene("process 4137, 137.5 s")


def test_every_scene_at_fault_has_a_row_and_every_row_a_fault():
    assert {name for name, fault in FAULTS.items() if fault.names_scene} == set(SCENE_FAULTS)
    assert all(fault.length % 8 == 0 for fault in FAULTS.values())


def test_threads_are_spared_what_befalls_processes_only():
    names = {case.name for case in select_cases(["*"], ["range_map", "torch"])}
    assert "torch/worker-killed/loop" in names
    assert "range_map/worker-killed/loop" not in names


def test_the_table_has_a_line_a_fault_and_a_column_a_library_and_comes_back_from_json():
    results = {
        "torch/hang/loop": Observation("hung", warned=("UserWarning",)),
        "torch/raise/loop": Observation("raised", error="ValueError", names_scene=True),
        "kerasfeed_process/raise/loop": Observation("raised", error="ValueError", names_scene=True),
        "kerasfeed_process/raise/fit": Observation("raised", error="UnknownError", exit_seconds=17.4),
    }
    results["kerasfeed_process/segfault/loop"] = Observation("raised", error="SceneError", names_scene=True)
    results["kerasfeed_process/segfault/fit"] = Observation("raised", error="UnknownError", names_scene=True)
    text = table.markdown(results, {"torch": "2.13.0"})
    assert text.splitlines() == [
        "| worker processes | torch DataLoader (2.13.0) | **kerasfeed** |",
        "| --- | --- | --- |",
        "| a scene crashes in C, always |  | raises `SceneError`, in `fit` `UnknownError`, naming the scene |",
        "| a scene hangs (`time.sleep`) | **hangs**, warns |  |",
        "| a scene raises `ValueError` | raises `ValueError` naming the scene | in a loop: raises `ValueError` naming "
        "the scene; in `fit`: raises `UnknownError`, ends after 17 s |",
    ]
    again, versions = table.load([json.dumps({"versions": {}, "cases": {}}), table.dump(results, {"torch": "2.13.0"})])
    assert (again, versions) == (results, {"torch": "2.13.0"})


def test_the_table_takes_its_marked_place_in_a_document():
    document = f"before\n{table.BEGIN}\nold\n{table.END}\nafter"
    assert table.spliced(document, "new") == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter"
    with pytest.raises(ValueError, match="add them there"):
        table.spliced("before", "new")
