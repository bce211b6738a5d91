"""Calls to the sequences inside a view, and their errors."""

import numpy as np
import pytest
import scenes
from scenes_drawn import assert_same
from scenes_views import Hooked, NoisyBatches, NoisyInto, tripled

import kerasfeed as kf


def test_hooks_of_a_sequence_used_twice_are_called_once():
    shared, other = Hooked(9), Hooked(9, 100)
    view = kf.Concat(kf.Zip(shared, other), kf.Zip(kf.Map(shared, lambda scene: scene), other[::-1]))
    with kf.Feed(view, 6, workers=1, worker_type="thread") as feed:
        list(feed)
    expected = sorted(["epoch begins", "begin", "epoch ends", "end"])
    assert sorted(shared.hook_calls) == sorted(other.hook_calls) == expected


def test_a_failed_on_worker_begin_ends_the_sequences_already_begun():
    class Unready(Hooked):
        def on_worker_begin(self, worker):
            raise OSError("no licence")

    good, bad = Hooked(), Unready()
    with pytest.raises(OSError, match="no licence"):
        kf.Concat(good, bad).on_worker_begin(None)
    assert good.hook_calls == ["begin", "end"]
    assert bad.hook_calls == []


def test_load_calls_hooks_on_copies_of_the_inner_sequences():
    class Opened(Hooked):
        handle = None

        def on_worker_begin(self, worker):
            self.handle = "open"

        def on_worker_end(self):
            self.handle = None

    inside = Opened(8)
    view = kf.Concat(inside[:4], inside[4:])
    with kf.Feed(view, 4, workers=0, seed=0) as feed:
        [first, _] = list(feed)
        assert inside.handle == "open"
        assert_same(kf.load(feed, epoch=0, step=0), first)
        assert inside.handle == "open"


# ---- errors


def test_an_error_inside_views_is_unchanged_and_names_each_inner_scene():
    failing = scenes.Failing(57, ValueError("bad scan"), 100)
    view = kf.Map(kf.Concat(range(10), failing[50:60]), tripled)
    with pytest.raises(ValueError, match="bad scan") as caught:
        view[17]
    assert str(caught.value) == "bad scan"
    with pytest.raises(ValueError) as again:
        view[17]
    assert again.value is caught.value
    assert caught.value.__notes__ == [
        "scene 7 of Subset is scene 57 of Failing",
        "scene 17 of Concat is scene 7 of Subset (part 1)",
        "scene 17 of Map is scene 17 of Concat",
    ]
    with pytest.raises(TypeError) as caught:
        view[3]
    assert caught.value.__notes__ == ["in tripled, given scene 3 of Concat"]


def test_an_error_of_get_batch_names_outer_and_inner_scenes():
    class Broken(NoisyBatches):
        def get_batch(self, indices):
            raise OSError("gone")

    with pytest.raises(OSError, match="gone") as caught:
        Broken()[4:].get_batch(np.array([2, 0]))
    assert caught.value.__notes__ == ["scenes 2, 0 of Subset are scenes 6, 4 of Broken"]


def test_a_sequence_that_has_shrunk_is_reported():
    values = list(range(10))
    view = kf.Concat(values, [0])
    del values[5:]
    assert len(view) == 11
    with pytest.raises(IndexError) as caught:
        view[7]
    assert caught.value.__notes__[-1] == (
        "list had 10 scenes when Concat was made, and has 5 now: make the view again when the sequence has grown "
        "or shrunk"
    )


class Other(NoisyBatches):
    """Scenes of another shape, dtype or nesting."""

    def __init__(self, change):
        super().__init__(4)
        self.change = change

    def get_batch(self, indices):
        points, labels = super().get_batch(indices)
        match self.change:
            case "shape":
                return points[:, :1], labels
            case "dtype":
                return points.astype(np.float64), labels
            case "rows":
                return points[:1], labels
        return points


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("shape", r"field '0': the scenes of Other have the shape \(1, 3\), but the others have \(2, 3\)"),
        ("dtype", "field '0': the scenes of Other have dtype float64, but the others have float32. Return one dtype"),
        ("rows", "get_batch of Other, field '0': expected a leading axis of 2, one row per index"),
        ("nesting", "get_batch of Other returned the structure"),
    ],
)
def test_batches_of_parts_that_do_not_fit_together_are_refused(change, message):
    view = kf.Concat(NoisyBatches(4), Other(change))
    with pytest.raises(kf.errors.SpecError, match=message):
        view.get_batch(np.array([0, 5, 1, 6]))


@pytest.mark.parametrize("value", [np.zeros((2, 3)), np.zeros((1, 3), np.float32), (np.zeros(3, np.float32),)])
def test_a_scene_that_does_not_fit_its_row_is_refused(value):
    good = np.zeros((2, 3), np.float32)
    view = kf.Concat(NoisyInto(4), [(good, 1), (value, 1)])
    assert view.read_into(4, (np.ones((2, 3), np.float32), np.empty((), np.int64))) is None
    with pytest.raises(
        kf.errors.SpecError, match=r"field '0'(: expected float32\[2, 3\]| is of type tuple .* is not an array)"
    ):
        view.read_into(5, (np.empty((2, 3), np.float32), np.empty((), np.int64)))


def test_the_note_of_a_function_with_two_parameters_says_that_it_gets_one_tuple():
    pairs = kf.Zip(np.arange(4), np.arange(4))
    with pytest.raises(TypeError, match="missing 1 required") as caught:
        kf.Map(pairs, lambda x, y: x + y)[2]
    assert caught.value.__notes__[0].endswith("given scene 2 of Zip, one tuple of 2 fields")
