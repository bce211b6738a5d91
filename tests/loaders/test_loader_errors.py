"""The loaders' treatment of scenes that fail, or that no batch can hold."""

import dataclasses
import threading
import time

import numpy as np
import pytest
import scenes
from loader_kinds import HOSTS, LOADERS, PARALLEL, crossed

import kerasfeed as kf
from kerasfeed.errors import SceneError, SpecError, WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan


class TwoArgumentsError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class UnpicklableError(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Raising(scenes.Clouds):
    """Clouds whose scene 7 makes and raises an error."""

    def __init__(self, make_error):
        super().__init__()
        self.make_error = make_error

    def __getitem__(self, index):
        if index == 7:
            raise self.make_error()
        return super().__getitem__(index)


@pytest.fixture
def make(make):
    """Loaders of one worker, which is enough to fail."""
    return lambda *given, **arguments: make(*given, **{"workers": 1, **arguments})


ERRORS = [ValueError("bad scan"), KeyError("points"), OSError(5, "io"), IndexError("beyond")]


@pytest.mark.parametrize(("kind", "error"), crossed(LOADERS, [(error,) for error in ERRORS]))
def test_an_exception_keeps_its_type_and_names_its_location(make, kind, error):
    loader = make(kind, scenes.Failing(7, error))
    plan = Plan(37, 8, Shuffled(), 3)
    step = next(step for step in range(plan.steps) if 7 in plan.indices(2, step))
    with pytest.raises(type(error)) as caught:
        loader.submit(2, step).result(timeout=30)
    assert str(caught.value) == str(error)
    note = "\n".join(caught.value.__notes__)
    assert f"scene 7, epoch 2, step {step}" in note
    if kind == "process":
        assert "Traceback in the worker" in note
        assert "scenes.py" in note
        assert "in __getitem__" in note
    good = (step + 1) % plan.steps
    assert len(loader.submit(2, good).result(timeout=30)[1])


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_the_failed_scene_in_the_lowest_row_is_reported(make, kind):
    class Bad(scenes.Clouds):
        def __getitem__(self, index):
            if index % 2:
                time.sleep(0.02 if index % 4 == 1 else 0)
                raise ValueError(f"scene {index}")
            return super().__getitem__(index)

    class Wrapped(Bad):  # probes would fail first
        def __getitem__(self, index):
            return scenes.Clouds.__getitem__(self, index) if index in (0, 9, 18, 27, 36) else super().__getitem__(index)

    plan = Plan(37, 37, Shuffled(), 3)
    lowest = next(i for i in plan.indices(0, 0) if i % 2 and i not in (9, 27))
    with pytest.raises(ValueError, match=rf"^scene {lowest}\n"):
        make(kind, Wrapped(), 37, workers=3).submit(0, 0).result(timeout=30)


STEERING = [SystemExit(3), StopIteration("done"), KeyboardInterrupt(), GeneratorExit()]


@pytest.mark.parametrize(("kind", "error"), crossed(PARALLEL, [(error,) for error in STEERING]))
def test_an_exception_with_a_meaning_for_loops_is_raised_as_scene_error(make, kind, error):
    with pytest.raises(SceneError, match=f"the sequence raised {type(error).__name__}"):
        make(kind, scenes.Failing(7, error), 37).submit(0, 0).result(timeout=30)


@pytest.mark.heavy
def test_an_unpicklable_exception_is_raised_as_text_with_its_traceback(make):
    with pytest.raises(SceneError, match="the sequence raised UnpicklableError: holds a lock") as caught:
        make("process", Raising(UnpicklableError), 37).submit(0, 0).result(timeout=30)
    assert "raise self.make_error()" in caught.value.__notes__[1]
    assert "scene 7, epoch 0, step 0" in caught.value.__notes__[0]
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_an_exception_with_several_constructor_arguments_is_raised_unchanged(make, kind):
    with pytest.raises(TwoArgumentsError, match=r"^1 and 2\n"):
        make(kind, Raising(lambda: TwoArgumentsError(1, 2)), 37).submit(0, 0).result(timeout=30)


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_an_exception_group_and_a_huge_message_are_raised_unchanged(make, kind):
    def group():
        return ExceptionGroup("several", [ValueError("x" * 2_000_000), KeyError("y")])

    with pytest.raises(ExceptionGroup) as caught:
        make(kind, Raising(group), 37).submit(0, 0).result(timeout=30)
    assert len(str(caught.value.exceptions[0])) == 2_000_000


class Deviant(scenes.Clouds):
    """Clouds; one scene differs from the others."""

    def __init__(self, scene):
        super().__init__()
        self.scene = scene

    def __getitem__(self, index):
        return self.scene if index == 7 else super().__getitem__(index)


UNLIKE = [
    ((np.zeros((4, 3)), 1), r"scene 7: field '0': expected float32\[4, 3\], received float64\[4, 3\]"),
    ((np.zeros((5, 3), np.float32), 1), r"scene 7: field '0': expected float32\[4, 3\], received float32\[5, 3\]"),
    ((np.zeros((4, 3), np.float32), "one"), r"scene 7: field '1': expected int64\[\], received str\[\]"),
    ((np.zeros((4, 3), np.float32),), r"scene 7: expected the structure \(\*, \*\), received \(\*,\)"),
    ({"x": 1}, r"scene 7: expected the structure .* received \{'x': \*\} \(x: int64\[\]\)"),
    ((np.zeros((4, 3), np.float32), object()), r"scene 7: field '1' is of type object"),
    (None, r"scene 7: the scene holds no field"),
]


@pytest.mark.parametrize(("kind", "scene", "message"), crossed(LOADERS, UNLIKE))
def test_a_scene_unlike_the_spec_names_index_field_expected_and_received(make, kind, scene, message):
    with pytest.raises(SpecError, match=message):
        make(kind, Deviant(scene), 37).submit(0, 0).result(timeout=30)


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", LOADERS)
def test_scenes_of_unequal_shape_in_one_batch_name_both(make, kind):
    with pytest.raises(SpecError, match=r"field '0' cannot be stacked: scene \d+ has shape .* and scene \d+ has shape"):
        make(kind, scenes.Sized(), 4).submit(0, 0).result(timeout=30)


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", LOADERS)
def test_a_get_batch_of_the_wrong_length_is_refused(make, kind):
    class Short(scenes.Batched):
        def get_batch(self, indices):
            points, labels = super().get_batch(indices)
            return points[:-1], labels

    with pytest.raises(SpecError, match=r"get_batch, field '0': expected a leading axis of \d+"):
        make(kind, Short()).submit(0, 0).result(timeout=30)


@pytest.mark.parametrize(
    "change",
    [
        lambda points, labels: points,
        lambda points, labels: None,
        lambda points, labels: [points, labels],
        lambda points, labels: (points, labels, labels),
        lambda points, labels: (points, (labels, labels)),
        lambda points, labels: (points, {"label": labels}),
        lambda points, labels: (points, [labels, labels]),
    ],
)
def test_a_get_batch_of_another_structure_is_refused(make, change):
    class Other(scenes.Batched):
        def get_batch(self, indices):
            return change(*super().get_batch(indices))

    message = r"get_batch returned the structure .*, but __getitem__ returns \(\*, \*\). Return the same nesting"
    with pytest.raises(SpecError, match=message):
        make("inline", Other()).submit(0, 0).result(timeout=30)


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_an_error_during_spec_inference_says_so(make, kind):
    loader = make(kind, scenes.Failing(0, ValueError("no data")))
    for _ in range(2):
        with pytest.raises(ValueError, match="no data") as caught:
            _ = loader.spec
        assert "scene 0, while inferring the spec" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_a_bad_step_raises_index_error_immediately(make, kind):
    with pytest.raises(IndexError, match="step 5 is out of range"):
        make(kind, scenes.Clouds()).submit(0, 5)


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    code: int


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_an_exception_that_accepts_no_note_is_still_raised(make, kind):
    with pytest.raises((SceneError, FrozenError), match="FrozenError"):
        make(kind, Raising(lambda: FrozenError(3)), 37).submit(0, 0).result(timeout=30)


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_a_failing_on_worker_begin_raises_worker_start_error(make, kind):
    class Bad(scenes.Clouds):
        def on_worker_begin(self, worker):
            raise RuntimeError("no licence")

    with pytest.raises(WorkerStartError, match="RuntimeError: no licence"):
        make(kind, Bad()).submit(0, 0).result(timeout=30)


class Reused(kf.SceneSequence):
    """Scenes that are views of one array, some far larger than those the spec is inferred from (0, 2, 4, 6, 8)."""

    def __init__(self):
        self.array = np.zeros(6000)

    def __len__(self):
        return 9

    def __getitem__(self, index):
        self.array[:] = index
        return self.array[: 5000 if index % 2 else 10 + index]


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_a_sequence_may_reuse_one_array_for_all_scenes(make, kind):
    loader = make(kind, Reused(), 1, workers=1)
    plan = Plan(9, 1, Shuffled(), 3)
    for step in range(9):
        assert set(loader.submit(0, step).result().ravel()) == {float(plan.indices(0, step)[0])}


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_large_rows_of_one_batch_do_not_share_a_reused_array(kind):
    loader = LOADERS[kind](Job(Wide(), Plan(9, 4), 1, 1 << 30, 4))
    assert loader.submit(0, 1).result()[:, -1].tolist() == [4, 5, 6, 7]
    loader.close()


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_padded_and_ragged_rows_of_one_batch_do_not_share_a_reused_array(kind):
    for collate in (kf.Pad(), kf.Ragged()):
        loader = LOADERS[kind](Job(Reused(), Plan(9, 4), 1, 1 << 30, 4, collate=collate))
        batch = loader.submit(0, 1).result()
        rows = np.split(batch.values, batch.row_splits[1:-1]) if isinstance(collate, kf.Ragged) else batch
        assert [set(row.tolist()) - {0} for row in rows] == [{4}, {5}, {6}, {7}]
        loader.close()


class Wide(Reused):
    """Scenes 0 and 8 are short, those between are long; 2, 4 and 6 only after the spec was inferred."""

    def __init__(self):
        super().__init__()
        self.reads = 0

    def __getitem__(self, index):
        self.reads += 1
        self.array[:] = index
        return self.array[: 10 + index if self.reads <= 5 else 5000]


REFUSED = [
    (np.ma.masked_equal(np.arange(3), 1), "field 'scene' is a masked array.*filled"),
    (np.array([(1, "a")], [("a", "i4"), ("b", "O")]), "whose member 'b' is object"),
    (np.array([(1, 0)], [("a", "i4"), ("b", "M8[s]")]), "whose member 'b' is datetime64"),
]


@pytest.mark.parametrize(("kind", "scene", "message"), crossed(LOADERS, REFUSED))
def test_unsupported_values_are_refused_when_they_are_read(make, kind, scene, message):
    with pytest.raises(SpecError, match=message):
        make(kind, [scene] * 4, 2).submit(0, 0).result(timeout=30)


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", LOADERS)
def test_an_empty_numpy_string_is_a_string(make, kind):
    words = np.array(["", "ab", "c"])
    assert sorted(make(kind, [words[k] for k in range(3)], 3).submit(0, 0).result().tolist()) == ["", "ab", "c"]


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", LOADERS)
def test_the_error_for_a_too_large_integer_names_scene_and_field(make, kind):
    class Large(scenes.Clouds):
        def __getitem__(self, index):
            return 2**70 if index == 7 else index

    with pytest.raises(SpecError, match=r"scene 7.*scene"):
        make(kind, Large(), 37).submit(0, 0).result(timeout=30)


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_a_huge_batch_size_allocates_memory_only_for_the_sequence(make, kind):
    loader = make(kind, scenes.Clouds(), 10**9)
    assert len(loader.submit(0, 0).result()[1]) == 37
    assert loader.stats().slot_bytes < 1 << 20
