"""`kf.check_sequence`: a zoo of classes, each with the check that finds its fault, and classes without a fault."""

import contextlib
import json
import threading
import time

import numpy as np
import pytest
import scenes_bad as bad
import scenes_bad_elsewhere as elsewhere
import scenes_bad_methods as methods
from places import ROOT
from reader_kinds import READERS
from scenes import Batched, Clouds, Nested, Sized
from scenes_views import Hooked, Noisy, NoisyInto, Squares, in_dict, tripled

import kerasfeed as kf
from kerasfeed.explore.check import case as case_module
from kerasfeed.explore.check import reading
from kerasfeed.explore.check.check import CHECKS
from kerasfeed.explore.check.reading import reading_of
from kerasfeed.feeds.base import BaseFeed

# The class, its check, the message; the named index and field; other checks that find it, too.
ZOO = [
    (bad.Lengthless, "length", "len(sequence) raises FileNotFoundError: rooms.h5", None, None, ()),
    (bad.Shrinking, "length", "len(sequence) was 10 at first and 9 when called again", None, None, ()),
    (lambda: bad.Sound(0), "length", "the sequence is empty", None, None, ()),
    (bad.ClaimsMore, "scenes_load", "scene 12 raises IndexError: 12, but len(sequence) is 13", 12, None, ()),
    (bad.Missing, "scenes_load", "scene 7 raises OSError: 7.npy is cut off", 7, None, ()),
    (bad.Objects, "fields", "scene 0: field 'room' is of type Room", 0, None, ()),
    (bad.OtherDtype, "same_spec", "field '0' is float32[3] in scene 0 and float64[3] in scene 4", 4, "0", ()),
    (bad.OtherStructure, "same_spec", "scenes 0 and 4 have different structures: (*, *) and (*,)", 4, None, ()),
    (bad.OtherShape, "same_spec", "field '0' differs in shape: float32[3] in scene 0, float32[4] in", 4, "0", ()),
    (bad.NotANumber, "finite", "scene 5, field '0': 1 NaN of 3 values, the first at [1]", 5, "0", ()),
    (bad.Counting, "same_twice", "scene 0, field '1': 3 when it is read first, 4 when it is read again", 0, "1", ()),
    (bad.AugmentsInPlace, "same_twice", "scene 0, field '0': [", 0, "0", ()),
    (bad.Forward, "any_order", "in ascending order, ", None, "0", ()),
    (bad.NumbersLabels, "any_order", "in a new copy that reads the first scene first, ", None, "1", ()),
    (bad.CentredOnTheFirst, "any_order", "in one that reads the last scene first", None, "0", ()),
    (bad.Refilled, "own_arrays", "scene 0, field '0': [0.0, 1.0, 2.0] as it was returned, [10.0, 11.0,",
     0, "0", ()),
    (bad.DrawsGlobally, "global_random", "scene 0 draws from, or seeds, the global generators of numpy.random", 0, None,
     ("same_twice",)),
    (bad.SeedsGlobally, "global_random", "scene 0 draws from, or seeds, the global generators of random", 0, None,
     ("threads",)),
    (elsewhere.NotForThreads, "threads", "while other threads read, too,", None, "0", ()),
    (elsewhere.OneThread, "threads", "scene 0 in a worker thread raises RuntimeError: made in another", 0, None, ()),
    (elsewhere.Locked, "pickle", "the sequence cannot be pickled: TypeError: cannot pickle '_thread.lock'",
     None, None, ()),
    (elsewhere.Forgetful, "pickle", "scene 0, field '0': [5.0, 6.0, 7.0] in the sequence, [0.0, 1.0, 2.0] in", 0, "0",
     ()),
    (elsewhere.ReadsAGlobal, "process", "scene 11, field '1': 15 in this process, 11 in a worker process", 11, "1", ()),
    (elsewhere.NumbersForAll, "process", "in a worker process that reads the last scene first", None, "1", ()),
    (elsewhere.ReadsTheProcessId, "process", "scene 11, field '1': ", 11, "1", ()),
    (elsewhere.Hashing, "process", " in this process, ", 11, "1", ()),
    (elsewhere.DiesElsewhere, "process", "ended with exit code 3 while it loaded scene 4", 4, None, ()),
    (methods.SortedBatches, "get_batch",
     "scene 11, field '0': [110.0, 111.0, 112.0] as sequence[11], [0.0, 1.0, 2.0] from", 11, "0", ()),
    (methods.ShortBatches, "get_batch", "returns 11 rows in field '0' for 12 scenes", 0, None, ()),
    (methods.BatchesDrawDifferently, "get_batch", "self.rng belongs to one scene, but get_batch and", 0, None, ()),
    (methods.HalfOfOut, "get_batch", "out=...)", 0, "1", ()),
    (methods.BatchesOfNoSequence, "get_batch", "get_batch is never called", None, None, ()),
    (methods.HalfWritten, "read_into", "scene 0, field '1': 0 from __getitem__, -6510615555426900571 written by", 0,
     "1", ()),
    (methods.WritesNothingAt, "read_into", "scene 0, field '0': [0.0, 1.0, 2.0] from __getitem__", 0, "0", ()),
    (methods.NeverCalled, "read_into", "read_into is never called: it has no parameter named out", None, None, ()),
]  # fmt: skip
NAMES = [f"{getattr(kind, '__name__', 'Empty')}" for kind, *_ in ZOO]


@contextlib.contextmanager
def made(kind, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "offset.txt").write_text("3")
    yield kind()


def flagged(report):
    return {result.name for result in report.results if result.status in ("failed", "warned")}


@pytest.mark.parametrize(("kind", "check", "message", "index", "field", "others"), ZOO, ids=NAMES)
def test_a_check_finds_its_fault_and_names_index_field_and_remedy(
    kind, check, message, index, field, others, tmp_path, monkeypatch
):
    with made(kind, tmp_path, monkeypatch) as sequence:
        report = kf.check_sequence(sequence, checks=[check])
    found = report[check]
    assert message in found.message
    assert found.status in ("failed", "warned")
    assert (found.index, found.field) == (index, field) or index is None
    assert found.reason
    assert found.remedy or "Return" in found.message
    assert report.ok == (found.status == "warned")


# These checks start processes, so they run only on one class per fault, on the classes whose fault they find, and
# on the classes without a fault that behave differently in processes.
STARTING = ("process", "threads")


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "check", "others"), [(row[0], row[1], row[5]) for row in ZOO], ids=NAMES)
def test_no_other_check_finds_the_fault(kind, check, others, tmp_path, monkeypatch):
    skip = [] if kind is next(row[0] for row in ZOO if row[1] == check) else STARTING
    skip = [name for name in skip if name not in (check, *others)]
    with made(kind, tmp_path, monkeypatch) as sequence:
        report = kf.check_sequence(sequence, checks=CHECKS, skip=skip)
    assert check in flagged(report)
    assert flagged(report) <= {check, *others}


def test_every_check_finds_a_fault_that_no_other_check_finds():
    assert {check for _, check, _, _, _, others in ZOO if not others} | {"global_random"} == set(CHECKS)


GOOD = {
    "Sound": lambda folder: bad.Sound(),
    "noise from self.rng": lambda folder: Noisy(),
    "read_into and read_ahead": lambda folder: NoisyInto(),
    "get_batch": lambda folder: Batched(),
    "hooks": lambda folder: Hooked(),
    "every kind of field": lambda folder: Nested(),
    "more kinds of field": lambda folder: Squares(),
    "of many lengths": lambda folder: Sized(),
    "unbounded": lambda folder: Clouds(),
    "list": lambda folder: [(np.zeros(3), k) for k in range(5)],
    "one scene": lambda folder: bad.Sound(1),
    "array": lambda folder: np.arange(12.0).reshape(4, 3),
    "Subset": lambda folder: NoisyInto()[2:9],
    "Concat": lambda folder: kf.Concat(Noisy(), NoisyInto()),
    "Zip": lambda folder: kf.Zip(Noisy(), np.arange(11)),
    "Map": lambda folder: kf.Map(Noisy(), tripled),
    "Mixture": lambda folder: kf.Mixture([Noisy(), Noisy(base=1)], [1, 2]),
    "Packed": lambda folder: kf.Packed(kf.Map(Noisy(), in_dict), 7),
    "Cached": lambda folder: kf.Cached(Squares()),  # they count their reads
    **{
        name: lambda folder, make=make: make(folder, [(np.full(3, k, np.float32), np.int64(k)) for k in range(12)])
        for name, make in READERS.items()
    },
}
LIGHT = ("Sound", "HDF5File")
UNSTARTED = ("more kinds of field", "of many lengths", "unbounded", "list", "Subset", "Zip", "Map", "HDF5Scenes")
WARNED = {"of many lengths": {"same_spec"}}


@pytest.mark.light(where=lambda name: name in LIGHT)
@pytest.mark.parametrize("name", GOOD)
def test_a_class_without_a_fault_passes_all_checks(name, tmp_path):
    report = kf.check_sequence(GOOD[name](tmp_path), checks=CHECKS, skip=STARTING if name in UNSTARTED else ())
    assert report.ok, report
    assert flagged(report) <= WARNED.get(name, set()), report


@pytest.mark.parametrize("compared", [64, 2])
def test_a_hanging_scene_is_named_and_waited_for_only_once(compared):
    bad.Hanging.release.clear()
    try:
        report = kf.check_sequence(bad.Hanging(), scenes=compared, seconds=3.0)
    finally:
        bad.Hanging.release.set()
        for thread in threading.enumerate():
            if thread.name.startswith("kerasfeed-worker"):
                thread.join()
    found = report["scenes_load"]
    assert (found.message, found.index) == ("scene 3 takes more than 1 s in a worker thread", 3)
    assert report["same_twice"].message == "scenes_load has failed"
    assert report["finite"].message == "scenes_load has failed"


@pytest.mark.heavy
def test_a_scene_that_hangs_in_a_worker_process_is_named(monkeypatch):
    monkeypatch.setattr(case_module, "_HANG_MOST", 3.0)
    found = kf.check_sequence(elsewhere.HangsElsewhere(), seconds=120.0, checks=["process"])["process"]
    assert (found.message, found.index) == ("scene 4 takes more than 3 s in a worker process", 4)


def test_checks_that_run_out_of_time_are_reported_as_skipped():
    report = kf.check_sequence(bad.Sound(), seconds=1e-3)
    assert report.ok
    assert "pass a larger seconds=" in report["get_batch"].message


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        ("error", "scenes_load", "scene 45 raises OSError: 45.npy is cut off"),
        ("set", "fields", "scene 45: field '0' is of type set"),
        ("shape", "same_spec", "field '0' differs in shape: float32[3] in scene 0, float32[4] in scene 45"),
        ("NaN", "finite", "scene 45, field '0': 3 NaN of 3 values, the first at [0]"),
    ],
)
def test_one_faulty_scene_among_many_is_found_and_other_checks_continue(fault, check, message):
    report = kf.check_sequence(bad.OneOfMany(fault), checks=[check, "same_twice", "any_order"])
    assert message in report[check].message
    assert (report[check].index, report.read, report.length, report.scenes) == (45, 640, 640, 64)
    assert report["any_order"].status == "passed"
    assert "(640 of 640 scenes read, 64 compared, " in str(report)


def test_a_scene_with_another_number_of_axes_is_named_and_hides_no_wrong_get_batch():
    class Rows(kf.SceneSequence):
        def __len__(self):
            return 300

        def __getitem__(self, index):
            return {"n": 1.5 if index == 19 else 1, "x": np.float32(index) if index == 137 else np.full(8, index, "f4")}

        def get_batch(self, indices):
            return {"n": np.ones(len(indices)), "x": np.stack([np.full(8, index + 1, "f4") for index in indices])}

    report = kf.check_sequence(Rows(), scenes=16, checks=["same_spec", "get_batch"])
    assert (report["same_spec"].status, report["same_spec"].index) == ("failed", 137)
    assert report["same_spec"].field == "x"
    assert report["get_batch"].status == "failed"


def test_items_of_a_pydataset_are_batches_and_the_last_is_shorter():
    import keras  # here: workers that read other classes of this module would import it

    class Batches(keras.utils.PyDataset):
        """Batches of 4 of 10 scenes."""

        @property
        def num_batches(self):
            return 3

        def __getitem__(self, index):
            if not 0 <= index < 3:
                raise IndexError(index)
            rows = np.arange(4 * index, min(10, 4 * index + 4))
            return np.zeros((len(rows), 3), np.float32), rows

    report = kf.check_sequence(Batches(), checks=["length", "same_spec", "any_order"])
    assert not flagged(report), report
    assert report["same_spec"].message == "the same in 3 of 3 scenes, except for the shapes of batches"


def test_an_unpicklable_thread_safe_class_is_checked_in_this_process():
    report = kf.check_sequence(elsewhere.LockedButSafe(), checks=["threads"])
    assert report["threads"].status == "passed"
    report = kf.check_sequence(elsewhere.Locked(), checks=["threads"])
    assert "its class does not set thread_safe" in report["threads"].message


class ClaimsThreadSafe(elsewhere.NotForThreads):
    thread_safe = True


@pytest.mark.heavy
def test_a_wrongly_declared_thread_safe_class_fails():
    assert kf.check_sequence(ClaimsThreadSafe(), checks=["threads"])["threads"].status == "failed"
    assert kf.check_sequence(elsewhere.NotForThreads(), checks=["threads"])["threads"].status == "warned"


@pytest.mark.heavy
def test_scenes_slowed_down_by_threads_are_not_a_fault():
    found = kf.check_sequence(elsewhere.SlowElsewhere(), seconds=9.0, checks=["threads"])["threads"]
    assert found.status in ("passed", "skipped"), found.message  # 12 scenes exceed the limit of one scene, 3 s
    assert "hang" not in found.message


class Here(bad.Sound):
    """Logs how many threads of this process read it at once."""

    at_once, most, lock = 0, 0, threading.Lock()

    def __reduce__(self):  # other processes log nothing
        return bad.Sound, ()

    def scene(self, index):
        with Here.lock:
            Here.at_once += 1
            Here.most = max(Here.most, Here.at_once)
        threading.Event().wait(0.001)
        with Here.lock:
            Here.at_once -= 1
        return super().scene(index)


def test_a_class_not_declared_thread_safe_is_read_by_threads_only_in_another_process():
    report = kf.check_sequence(Here(), checks=["threads"])
    assert report["threads"].message.endswith("the class may set thread_safe = True")
    assert Here.most <= 1


def test_a_fast_sequence_starts_no_process_unless_requested():
    report = kf.check_sequence(elsewhere.ReadsAGlobal())
    assert report.ok
    assert [result.name for result in report.of("skipped")] == ["process", "threads", "get_batch", "read_into"]
    assert "reading all scenes takes less than a second" in report["process"].message
    assert not kf.check_sequence(elsewhere.ReadsAGlobal(), checks=["process"]).ok


def test_skipped_checks_are_one_line_of_the_report():
    lines = str(kf.check_sequence(bad.Counting(), checks=["length", "same_twice", "any_order", "pickle"])).splitlines()
    assert len([line for line in lines if line.startswith("skipped")]) == 1


def test_skipped_checks_are_listed_with_their_reason_on_short_lines():
    class Broken(bad.Sound):
        def scene(self, index):
            raise OSError("the disk is gone")

    report = str(kf.check_sequence(Broken()))
    assert max(map(len, report.splitlines())) <= 120
    assert "pickle, process, threads, get_batch, read_into: scenes_load has failed" in " ".join(report.split())


def test_an_index_error_of_one_scene_is_not_reported_as_wrong_length():
    class Broken(bad.Sound):
        def scene(self, index):
            return super().scene([0][index] if index == 7 else index)

    found = kf.check_sequence(Broken(), checks=["scenes_load"])["scenes_load"]
    assert found.message == "scene 7 raises IndexError: list index out of range"
    assert "__len__" not in found.remedy


def test_a_class_that_opens_its_file_lazily_is_pickled_before_reading():
    class Lazy(bad.Sound):
        file = None

        def scene(self, index):
            if self.file is None:
                self.file = threading.Lock()  # replaces an open file, which cannot be pickled either
            return super().scene(index)

    found = kf.check_sequence(Lazy(), checks=["pickle"])["pickle"]
    assert found.status == "warned"
    assert "can be pickled before a scene is read, but not afterwards: TypeError" in found.message


def test_fewer_slow_scenes_are_compared():
    class Slow(bad.Sound):
        def scene(self, index):
            threading.Event().wait(0.05)
            return super().scene(index)

    assert kf.check_sequence(Slow(), seconds=6.0, checks=["any_order"]).scenes == 2


def test_fewer_scenes_are_compared_if_comparing_is_slow(monkeypatch):
    def slowly(*given):
        time.sleep(0.05)
        return reading_of(*given)

    monkeypatch.setattr(reading, "reading_of", slowly)
    report = kf.check_sequence([1.0] * 64, seconds=4, checks=["same_twice"])
    assert (report["same_twice"].status, report.scenes) == ("passed", 2)


def test_check_sequence_restores_the_global_generators():
    np.random.seed(4)
    expected = np.random.get_state()[1].tolist()
    kf.check_sequence(bad.DrawsGlobally(), checks=["length"])
    kf.check_sequence(bad.Sound(), checks=["global_random"])
    assert np.random.get_state()[1].tolist() == expected


def test_checks_that_depend_on_a_failed_check_are_skipped():
    report = kf.check_sequence(bad.Counting(), checks=["threads", "process"])
    assert [result.status for result in report.results] == ["skipped", "skipped"]
    assert report["process"].message == "same_twice has failed"


def test_arrays_that_the_sequence_keeps_are_reported():
    class Views(bad.Sound):
        points = np.zeros((12, 3))

        def scene(self, index):
            return self.points[index], index

    result = kf.check_sequence(Views(), checks=["own_arrays"])["own_arrays"]
    assert result.status == "passed"
    assert "field '0' is a view of data in the sequence" in result.message


def test_a_class_of_a_notebook_passes():
    scope = {"kf": kf, "np": np, "__name__": "__main__"}
    exec(
        "class Rooms(kf.SceneSequence):\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, index):\n"
        "        if not 0 <= index < 3: raise IndexError(index)\n"
        "        return np.float32(index)",
        scope,
    )
    assert not flagged(kf.check_sequence(scope["Rooms"](), checks=["pickle", "process"]))


def test_the_process_check_works_in_a_deleted_current_directory(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    report = kf.check_sequence(bad.Sound(), checks=["process"])
    assert [result.status for result in report.results] == ["passed"], report


# ---- the report


@pytest.fixture(scope="module")
def report():
    return kf.check_sequence(bad.Counting(), checks=["length", "same_twice", "any_order"])


def test_the_text_of_a_report_lists_faults_first_with_reason_and_remedy(report):
    lines = str(report).splitlines()
    assert lines[0].startswith("Counting: 1 passed, 1 failed, 1 skipped (12 of 12 scenes read, 12 compared, ")
    assert lines[2].startswith("failed   same_twice  scene 0, field '1': 3 when it is read first, 4")
    assert any(line.lstrip().startswith("Remedy: Draw random numbers from self.rng") for line in lines)
    assert lines[-2].split() == ["passed", "length", "12", "scenes"]
    assert lines[-1].split() == ["skipped", "any_order", "same_twice", "has", "failed"]


def test_the_html_of_a_report_escapes_user_text(report):
    class Loud(bad.Sound):
        def scene(self, index):
            raise OSError("<script>")

    text = kf.check_sequence(Loud(), checks=["scenes_load"])._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "Remedy:" in report._repr_html_()


def test_a_report_converts_to_json_and_raises_its_failures(report):
    read = json.loads(json.dumps(report.to_dict()))
    assert (read["ok"], read["results"][1]["index"], read["results"][1]["field"]) == (False, 0, "1")
    with pytest.raises(AssertionError, match="failed   same_twice"):
        report.raise_if_failed()
    with pytest.raises(KeyError, match="these did: length, same_twice, any_order"):
        report["finite"]


# ---- arguments


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: kf.check_sequence(bad.Sound), TypeError, "received the class Sound: write Sound"),
        (
            lambda: kf.check_sequence(iter([1])),
            TypeError,
            r"kf.check_sequence\(\) needs a sequence that can be indexed",
        ),
        (lambda: kf.check_sequence(bad.Sound(), checks="length"), TypeError, r"write \['length'\]"),
        (
            lambda: kf.check_sequence(bad.Sound(), checks=["lenght"]),
            ValueError,
            "not a check. The checks are: length, ",
        ),
        (lambda: kf.check_sequence(bad.Sound(), skip=["x"]), ValueError, "skip names 'x'"),
        (lambda: kf.check_sequence(bad.Sound(), seconds=0), ValueError, "seconds must be a positive number"),
        (lambda: kf.check_sequence(bad.Sound(), scenes=0), ValueError, "scenes must be"),
        (lambda: kf.check_sequence(bad.Sound(), seconds=float("inf")), ValueError, "at most a day"),
        (lambda: kf.check_sequence(bad.Sound(), checks=5), TypeError, "checks must be a list of names of checks"),
    ],
)
def test_the_error_for_a_wrong_argument_says_what_to_write(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_feed_is_refused():
    with BaseFeed([1.0], 1, workers=0) as feed, pytest.raises(TypeError, match=r"pass feed\.sequence"):
        kf.check_sequence(feed)


def test_a_stream_is_refused():
    with pytest.raises(TypeError, match="by index, and a StreamFeed cannot be indexed"):
        kf.check_sequence(kf.StreamFeed(lambda: iter([1.0]), 1))


def test_a_class_with_plan_and_sequence_attributes_is_not_taken_for_a_feed():
    class Plans(Squares):
        plan, sequence = "by hand", ()

    assert kf.check_sequence(Plans(), checks=["length"], progress=False).ok


def test_values_of_extension_dtypes_are_checked():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    found = kf.check_sequence([np.array([1, np.nan], ml_dtypes.bfloat16)] * 2, checks=["finite"], progress=False)
    assert "1 NaN of 2 values, the first at [1]" in found["finite"].message


# ---- the page


def test_the_page_lists_every_check_with_its_description():
    page = (ROOT / "docs" / "how-to" / "check-a-class.md").read_text()
    rows = [f"| `{check.name}` | {check.run.__doc__.splitlines()[0]} |" for check in CHECKS.values()]
    assert "\n".join(rows) in page
