"""Files that each hold many scenes, with errors: damaged, uneven or changed files, and bad arguments."""

import threading
from pathlib import Path

import numpy as np
import pytest
from files_written import Noting, write_files

import kerasfeed as kf

FORMS = ["columns", "list"]
WORKERS = [(0, "thread"), (3, "thread"), (1, "process")]


@pytest.fixture
def paths(tmp_path):
    return write_files(tmp_path)


@pytest.mark.heavy
def test_the_error_of_a_file_names_file_and_row_and_keeps_its_type(paths, tmp_path):
    files = kf.FileSequence(paths, np.load)
    files.close()
    Path(paths[2]).write_bytes(b"no archive")
    with pytest.raises(Exception, match="pickle") as caught:
        files[8]
    assert f"kerasfeed: row 1 of file {paths[2]!r} (number 2 of 6)" in caught.value.__notes__
    for workers, worker_type in WORKERS:
        with (
            kf.Feed(files, 4, workers=workers, worker_type=worker_type) as feed,
            pytest.raises(type(caught.value), match="pickle") as there,
        ):
            list(feed)
        assert any("of file " + repr(paths[2]) in note for note in there.value.__notes__)


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_on_error_applies_to_scenes_of_a_damaged_file(paths, workers, worker_type):
    files = kf.FileSequence(paths, np.load)
    Path(paths[4]).write_bytes(b"")
    with kf.Feed(
        files, 4, workers=workers, worker_type=worker_type, on_error="replace", max_failures=10, seed=3
    ) as feed:
        found = [int(y) for batch in feed for y in batch["y"]]
        assert len(found) == 34
        assert not [y for y in found if y // 100 == 4]
        assert {row.index for row in feed.failures} == {20, 21, 22, 23, 24}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("change", "says"), [(-1, "has 8 scenes, but 9 were counted"), (1, "scenes, but 9 were")])
def test_the_error_for_a_file_with_a_changed_count_names_it(paths, tmp_path, form, change, says):
    files = kf.FileSequence(paths, Noting(tmp_path / "log", form))
    np.savez(paths[5], x=np.zeros((9 + change, 3), np.float32), y=np.arange(9 + change))
    with pytest.raises(ValueError, match=f"part-005.npz.*{says}.*Make a new FileSequence"):
        files[33]


def test_arrays_of_unequal_lengths_name_the_file_and_both_lengths(paths):
    def uneven(path):
        return {"a": np.zeros(4), "b": (np.zeros((4, 2)), np.zeros(3))}

    with pytest.raises(ValueError, match=r"part-000\.npz': .* field 'a' has 4 rows and field 'b.1' has 3"):
        kf.FileSequence(paths, uneven)
    with pytest.raises(ValueError, match=r"part-001.npz': .* 'a' has 4 rows") as caught:
        kf.FileSequence(paths, uneven, count=4)[5]
    assert f"row 1 of file {paths[1]!r}" in caught.value.__notes__[0]


def iterator():
    yield 1


class Frame:
    iloc = None


RETURNED = {
    "a NoneType.*is a `return` missing": None,
    "a str": "text",
    "a Frame. Return its columns as arrays": Frame(),
    "field '1' is of type int": (np.zeros(3), 5),
    "field 'x' is an array without axes": {"x": np.zeros(())},
    "holds no array": (),
    r"a generator, which cannot be indexed. Return list\(...\) of it; or, .*generator of a kf.StreamFeed": iterator(),
}


@pytest.mark.parametrize("says", RETURNED)
def test_the_error_for_an_unsupported_return_value_lists_the_supported_ones(says):
    with pytest.raises((TypeError, ValueError), match=says):
        kf.FileSequence(["a"], lambda path: RETURNED[says])


ARGUMENTS = [
    ("a.npz", np.load, {}, FileNotFoundError, "there is no file .*a.npz"),
    ("no*.npz", np.load, {}, FileNotFoundError, "no file matches"),
    ({"a", "b"}, np.load, {}, TypeError, r"in every run, received a set: write sorted"),
    (5, np.load, {}, TypeError, "needs a list of paths"),
    ([], np.load, {}, ValueError, "Check how the list was made"),
    (["a"], "load", {}, TypeError, "read_file must be a function of a path that returns"),
    (["a"], iterator(), {}, TypeError, "received a generator, .*pass the function itself"),
    (["a"], np.load, {"count": [1, 2]}, ValueError, "one number for each of the 1 files, received 2"),
    (["a"], np.load, {"count": [1.5]}, TypeError, r"count\[0\] must be a number of scenes"),
    (["a"], np.load, {"count": "x"}, TypeError, "count must be a number of scenes"),
    (["a"], np.load, {"count": -1}, ValueError, "count must be at least 0, received -1"),
    (["a"], np.load, {"count": lambda path: None}, TypeError, r"the result of count\('a'\) must be a number"),
    (["a"], np.load, {"count": 0}, ValueError, "there is no scene in any of the 1 files; the first is 'a'"),
    (["a"], np.load, {"cache_files": 0}, ValueError, "cache_files must be at least 1"),
    (["a"], np.load, {"cache_bytes": "all"}, ValueError, "cache_bytes must be 'auto' or a number of bytes"),
    (["a"], np.load, {"on_error": "mask"}, ValueError, "on_error must be 'raise' or 'skip' for counting"),
]


@pytest.mark.parametrize(("paths", "read_file", "options", "kind", "says"), ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_bad_arguments_are_refused_before_anything_is_read(paths, read_file, options, kind, says):
    with pytest.raises(kind, match=says):
        kf.FileSequence(paths, read_file, **options)


def test_the_first_of_several_uncountable_files_is_reported(paths):
    begun = threading.Event()

    def bad(path):
        if str(path) == str(paths[0]):
            assert begun.wait(60)  # for the second to fail
        else:
            begun.set()
        raise OSError("unreadable")

    bad.thread_safe = True
    with pytest.raises(OSError, match="unreadable") as caught:
        kf.FileSequence(paths, bad)
    assert str(paths[0]) in caught.value.__notes__[-1]
