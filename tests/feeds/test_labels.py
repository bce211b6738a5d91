"""`kf.labels_of`: one field of every scene, read once, and never an old one."""

import os
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
import scenes

import kerasfeed as kf
from kerasfeed.sequences.cache_key import key_of


class Shapes(kf.SceneSequence):
    """Scenes of all kinds of labels; counts how often they are read."""

    read = 0

    def __init__(self, length=40, path=None):
        self.length = length
        self.path = path

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        type(self).read += 1
        points = np.zeros((index % 4 + 1, 3), np.float32)
        return {"points": points}, {
            "label": np.uint8(index % 3),
            "one": [np.array([index])],
            "name": f"shape {index % 2}",
        }


def _read(sequence, field, **arguments):
    return kf.labels_of(sequence, field, worker_type="thread", progress=False, **arguments)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("1.label", np.arange(40, dtype=np.uint8) % 3),
        ("1.one.0", np.arange(40)),
        ("1.name", np.array(["shape 0", "shape 1"] * 20)),
        (lambda scene: len(scene[0]["points"]), np.arange(40) % 4 + 1),
    ],
    ids=["path", "list", "text", "function"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_field_is_named_by_its_place_or_by_a_function(field, expected, workers):
    found = _read(Shapes(), field, workers=workers)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


class Locked(Shapes):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_a_class_that_does_not_pickle_is_named_by_its_own_name():
    with pytest.warns(UserWarning, match=r"the sequence \(Locked\) .*may read Locked at once"):
        kf.labels_of(Locked(), "1.label", progress=False)
    with pytest.warns(UserWarning, match=r"the sequence \(Locked\)"), kf.Feed(kf.Map(Locked(), len), 4) as feed:
        feed[0]


def test_what_cannot_be_read_is_refused_by_the_name_of_the_function_that_was_called():
    with pytest.raises(TypeError, match=r"kf\.labels_of\(\) needs a sequence that can be indexed"):
        kf.labels_of(iter([1.0]), 0)


def test_processes_read_them_too_and_a_bar_tells_how_far_they_are(capsys):
    found = kf.labels_of(scenes.Clouds(), 1, workers=1, worker_type="process")
    assert found.tolist() == list(range(37))
    assert "37/37" in capsys.readouterr().err


def test_a_list_needs_no_processes():
    assert kf.labels_of([(0.5, 3), (0.5, 4)], 1, progress=False).tolist() == [3, 4]


def test_labels_read_are_what_an_order_takes():
    sequence = Shapes()
    assert kf.Balanced(_read(sequence, "1.name")).num_scenes(40) == 40
    assert kf.Bucketed(_read(sequence, lambda scene: len(scene[0]["points"])), [2]).bucket_sizes == (10, 30)


@pytest.mark.parametrize("kind", [str, "object"])
def test_values_are_kept_in_a_file_and_read_again_only_when_something_changed(tmp_path, kind):
    data = tmp_path / "data.bin"
    data.write_bytes(b"1234")
    cache = tmp_path / "labels.npz" if kind == "object" else str(tmp_path / "labels")

    def reads(sequence, field):
        Shapes.read = 0
        found = _read(sequence, field, cache=cache)
        assert len(found) == len(sequence)
        return Shapes.read > 0

    assert reads(Shapes(40, data), "1.label")
    assert not reads(Shapes(40, data), "1.label")
    assert reads(Shapes(40, data), "1.name")
    assert not reads(Shapes(40, data), "1.name")
    assert reads(Shapes(41, data), "1.name")
    data.write_bytes(b"12345")
    assert reads(Shapes(41, data), "1.name")
    os.utime(data, ns=(1, 1))
    assert reads(Shapes(41, data), "1.name")
    assert not reads(Shapes(41, data), "1.name")
    assert {path.name for path in tmp_path.iterdir()} == {"data.bin", Path(cache).name}


def test_a_file_that_is_no_cache_is_left_alone(tmp_path):
    for name, content in (("mine.txt", b"my thesis"), ("cut.npz", b"PK\x03\x04"), ("empty", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}' exists and was not written by kf.labels_of .*remove it"):
            _read(Shapes(), "1.label", cache=path)
        assert path.read_bytes() == content
    np.save(tmp_path / "labels.npy", np.arange(40))
    with pytest.raises(ValueError, match="exists and was not written"):
        _read(Shapes(), "1.label", cache=tmp_path / "labels.npy")


def test_a_cache_in_no_folder_is_refused_before_anything_is_read(tmp_path):
    Shapes.read = 0
    with pytest.raises(ValueError, match=r"cache=.*no.labels.npz' is in a folder that does not exist"):
        _read(Shapes(), "1.label", cache=tmp_path / "no" / "labels.npz")
    assert Shapes.read == 0


def test_labels_that_cannot_be_kept_are_not_lost(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.warns(kf.FeedWarning, match=r"has read all labels and cannot keep them in .*No space left"):
        assert len(_read(Shapes(), "1.label", cache=tmp_path / "labels")) == 40
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "error", "message"),
    [
        (7, ValueError, "no field '7': it has '0.points', '1.label'.*give a function of the scene"),
        ("0.points", ValueError, r"must be a single value, received shape \(1, 3\): give a function"),
        (1.5, TypeError, "field must be an integer, a path such as '1.label', or a function.*received 1.5"),
        (True, TypeError, "received True of type bool"),
    ],
)
def test_a_field_that_is_no_label_is_refused(field, error, message):
    with pytest.raises(error, match=message):
        _read(Shapes(), field)


class Holder:
    """A sequence with any attribute."""

    def __init__(self, held):
        self.held = held

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


class Other(Holder):
    def __getitem__(self, index):
        return index + 1


def test_a_key_changes_with_class_attributes_and_files_and_not_without(tmp_path):
    path = tmp_path / "scans.h5"
    with h5py.File(path, "w") as file:
        file["points"] = np.zeros((3, 2))
    file = kf.HDF5File(path)
    makers = [
        lambda: Holder(1), lambda: Other(1), lambda: Holder(2), lambda: Holder("a"), lambda: Holder(str(path)),
        lambda: Holder(np.arange(3)), lambda: Holder([1, {"a": 2}]), lambda: Holder([1, {"a": 3}]),
        lambda: Holder(file), lambda: Holder(file["points"]),
        lambda: Holder(Holder(1)), lambda: Holder(slice(3)), lambda: Holder(slice(4)),
    ]  # fmt: skip
    keys = [key_of(make()).digest for make in makers]
    assert len(set(keys)) == len(keys)
    assert [key_of(make()).digest for make in makers] == keys
    _ = file["points"][0]
    assert [key_of(make()).digest for make in makers] == keys
    file.close()
    os.utime(path, ns=(5, 5))
    changed = [one != other for one, other in zip(keys, [key_of(make()).digest for make in makers], strict=True)]
    assert [place for place, is_new in enumerate(changed) if is_new] == [4, 8, 9]


SCALE = {"by": 1}


def _scaled(scene):
    return scene * SCALE["by"]


class Helped(Holder):
    def __getitem__(self, index):
        return self.helper(index)

    def helper(self, index):
        return index


def test_code_that_the_sequence_or_the_field_calls_is_part_of_the_key(tmp_path, monkeypatch):
    def read(sequence, field):
        return _read(sequence, field, workers=0, cache=tmp_path / "labels").tolist()

    assert read(kf.Map(range(3), _scaled), lambda scene: scene) == [0, 1, 2]
    assert read(Helped(0), _scaled) == [0, 1, 2]
    monkeypatch.setitem(SCALE, "by", 2)
    assert read(Helped(0), _scaled) == [0, 2, 4]
    assert read(kf.Map(range(3), _scaled), lambda scene: scene) == [0, 2, 4]
    assert read(Helped(0), lambda scene: scene) == [0, 1, 2]
    monkeypatch.setattr(Helped, "helper", lambda self, index: 7)
    assert read(Helped(0), lambda scene: scene) == [7, 7, 7]


def test_what_cannot_be_compared_is_refused_a_cache_and_read_without(tmp_path):
    sequence = Holder(each for each in range(3))
    message = (
        r"kf.labels_of\(cache=...\) cannot compare Holder.held, a builtins.generator, "
        r".*__getstate__.*, or leave cache out"
    )
    with pytest.raises(TypeError, match=message):
        _read(sequence, lambda scene: scene, workers=0, cache=tmp_path / "labels")
    assert _read(sequence, lambda scene: scene, workers=0).tolist() == [0, 1, 2]
