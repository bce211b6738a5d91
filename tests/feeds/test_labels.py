"""`kf.labels_of`: one field of every scene, read once, and never outdated."""

import threading

import numpy as np
import pytest
import scenes

import kerasfeed as kf


class Shapes(kf.SceneSequence):
    """Scenes with all kinds of labels; counts its reads."""

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
def test_labels_of_selects_a_field_by_path_or_by_a_function(field, expected, workers):
    found = _read(Shapes(), field, workers=workers)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


class Locked(Shapes):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_a_warning_names_an_unpicklable_class():
    with pytest.warns(UserWarning, match=r"the sequence \(Locked\) .*may read Locked at once"):
        kf.labels_of(Locked(), "1.label", progress=False)
    with pytest.warns(UserWarning, match=r"the sequence \(Locked\)"), kf.Feed(kf.Map(Locked(), len), 4) as feed:
        feed[0]


def test_the_error_for_an_iterator_names_labels_of():
    with pytest.raises(TypeError, match=r"kf\.labels_of\(\) needs a sequence that can be indexed"):
        kf.labels_of(iter([1.0]), 0)


def test_labels_of_reads_in_processes_and_shows_progress(capsys):
    found = kf.labels_of(scenes.Clouds(), 1, workers=1, worker_type="process")
    assert found.tolist() == list(range(37))
    assert "37/37" in capsys.readouterr().err


def test_a_list_needs_no_processes():
    assert kf.labels_of([(0.5, 3), (0.5, 4)], 1, progress=False).tolist() == [3, 4]


def test_orders_accept_the_result_of_labels_of():
    sequence = Shapes()
    assert kf.Balanced(_read(sequence, "1.name")).num_scenes(40) == 40
    assert kf.Bucketed(_read(sequence, lambda scene: len(scene[0]["points"])), [2]).bucket_sizes == (10, 30)


@pytest.mark.parametrize(
    ("field", "error", "message"),
    [
        (7, ValueError, "no field '7': it has '0.points', '1.label'.*pass a function of the scene"),
        ("0.points", ValueError, r"must be a single value, received shape \(1, 3\): pass a function"),
        (1.5, TypeError, "field must be an integer, a path such as '1.label', or a function.*received 1.5"),
        (True, TypeError, "received True of type bool"),
    ],
)
def test_labels_of_refuses_a_field_that_is_not_a_label(field, error, message):
    with pytest.raises(error, match=message):
        _read(Shapes(), field)
