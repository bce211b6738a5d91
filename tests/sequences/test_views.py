"""Subset, Concat, Zip and Map: their scenes, alone, in feeds, and in programs."""

import pickle

import cloudpickle
import numpy as np
import optree
import pandas as pd
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_kinds import InlineLoader
from programs import finish, launch
from scenes_drawn import assert_same
from scenes_views import Hooked, Noisy, NoisyBatches, NoisyBatchesInto, NoisyInto, in_dict, jittered, tripled

import kerasfeed as kf
from kerasfeed.loaders.base import Job
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan
from kerasfeed.sequences.optional_methods import optional_method

# ---- slices and indices


def test_a_slice_of_a_sequence_is_a_subset():
    clouds = scenes.Clouds(20)
    part = clouds[10:20]
    assert type(part) is kf.Subset
    assert part.indices == range(10, 20)
    assert [label for _, label in part] == list(range(10, 20))
    assert [label for _, label in clouds[::-7]] == [19, 12, 5]
    assert [label for _, label in clouds[10:20][2:-5][::2]] == [12, 14]
    assert len(clouds[30:]) == 0
    assert list(clouds[30:]) == []
    assert repr(part) == "Subset of Clouds, 10 of 20 scenes"


def test_every_view_is_sliceable():
    a, b = scenes.Clouds(5), scenes.Clouds(4)
    views = [kf.Subset(a, [1, 2]), kf.Concat(a, b), kf.Zip(a, a), kf.Map(a, tripled), kf.Mixture([a, b], [1, 1])]
    boxes = [kf.Patches(np.arange(4), (2,)), kf.Windows(np.arange(4), 2, offset=0)]
    for view in [*views, *boxes, kf.Cached(a)]:
        assert type(view[1:2]) is kf.Subset
        assert len(view[1:2]) == 1
        assert optree.tree_all(optree.tree_map(np.array_equal, view[1:2][0], view[1]))


class Recording(kf.SceneSequence):
    """Accepts any index."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    "index",
    [
        [1, 3], np.array([1, 3]), range(1, 4, 2), [False, True, False, True, False, False],
        np.array([False, True, False, True, False, False]), pd.Series([1, 3]), [1, -3],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_list_array_or_mask_selects_a_subset(index):
    part = Recording()[index]
    assert type(part) is kf.Subset
    assert list(part) == [1, 3]
    assert list(kf.Map(Recording(), abs)[index]) == [1, 3]


@pytest.mark.parametrize("index", [3, np.int64(3), np.array(3), (1, 2), "a"], ids=repr)
def test_a_single_index_is_passed_to_the_class(index):
    assert Recording()[index] is index


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match="the mask has 2 values, but Recording has 6 scenes"):
        Recording()[[True, False]]
    assert len(Recording()[[]]) == 0


class Sliceable(scenes.Clouds):
    """Handles slices itself, and calls its base class."""

    def __getitem__(self, index):
        assert not isinstance(index, slice)
        points, label = super().__getitem__(index)
        return points, -label


class Plain:
    """Not a SceneSequence, but defines the `__getitem__`."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index * 10


class Mixed(Plain, kf.SceneSequence):
    pass


def test_getitem_of_a_subclass_receives_only_integers():
    assert [label for _, label in Sliceable(5)[1:3]] == [-1, -2]
    assert type(Mixed()[1:3]) is kf.Subset
    assert list(Mixed()[1:3]) == [10, 20]
    with pytest.raises(TypeError, match=r"without an implementation|abstract"):
        type("Without", (kf.SceneSequence,), {"__len__": Plain.__len__})()


def test_indices_may_be_integers_a_slice_a_range_or_a_mask():
    letters = list("abcdef")
    for indices, expected in [
        ([0, -1, 0], "afa"), (np.array([2, 1], np.uint8), "cb"), ((), ""), (np.empty(0), ""), (range(4, 0, -2), "ec"),
        (range(-3, 0), "def"), (range(-1, 2), "fab"), (slice(None, None, 2), "ace"), ([True, False] * 3, "ace"),
        (np.array([5]), "f"),
    ]:  # fmt: skip
        assert "".join(kf.Subset(letters, indices)) == expected
    assert isinstance(kf.Subset(letters, slice(1, 3)).indices, range)
    assert kf.Subset(range(10**15), slice(7, None, 3))[-1] == 999_999_999_999_997  # makes no object of that length
    assert kf.Subset(range(10**15), range(-1, -(10**15), -2)).indices == range(10**15 - 1, 0, -2)
    given = np.array([1, 2])
    subset = kf.Subset(letters, given)
    given[0] = 5
    assert subset[0] == "b"
    with pytest.raises(ValueError, match="read-only"):
        subset.indices[0] = 1


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ([0, 6], IndexError, r"indices\[1\] is 6, out of range: list has 6 scenes"),
        ([-7], IndexError, r"indices\[0\] is -7"),
        (range(3, 9), IndexError, r"indices\[3\] is 6"),
        ([0.5], TypeError, "must be integers or bools, received dtype float64"),
        (["a"], TypeError, "must be integers or bools, received dtype <U1"),
        ("ab", TypeError, "must be integers in a list or array, .* received 'ab' of type str"),
        (3, TypeError, "must be integers in a list or array, .* received 3 of type int"),
        ([[1]], ValueError, r"one axis, received shape \(1, 1\)"),
        ([True], ValueError, "the mask has 1 value, but list has 6 scenes"),
    ],
)
def test_invalid_indices_are_refused(indices, error, message):
    with pytest.raises(error, match=message):
        kf.Subset(list("abcdef"), indices)


def test_an_index_of_a_view_is_normalized_or_refused():
    view = kf.Map(range(5), lambda scene: scene + 100)
    assert view[np.int64(2)] == 102
    assert view[-1] == 104
    assert list(view) == list(reversed(view))[::-1] == [100, 101, 102, 103, 104]
    for index in (5, -6):
        with pytest.raises(
            IndexError, match=f"index {index} is out of range: Map of <lambda> over range, 5 scenes has"
        ):
            view[index]
    with pytest.raises(TypeError, match=r"a Map is indexed by an integer, a slice, a list .*\(1, 2\).*kf.Subset"):
        view[1, 2]
    with pytest.raises(TypeError, match="received 'a' of type str"):
        view["a"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (iter([1]), "can be indexed, received a list_iterator, which can only be read forward.*pass list"),
        ({"a": 1}, "received a dict"),
        (scenes.Clouds, "needs an instance, received the class Clouds"),
        (5, "received a int without __len__ and __getitem__"),
    ],
)
def test_views_refuse_objects_that_cannot_be_indexed(part, message):
    for make in (lambda: kf.Subset(part, [0]), lambda: kf.Concat([part]), lambda: kf.Map(part, abs)):
        with pytest.raises(TypeError, match=message):
            make()


def test_views_refuse_feeds():
    with (
        kf.Feed(scenes.Clouds(), 4, workers=0) as feed,
        pytest.raises(
            TypeError,
            match=r"kf.Concat needs a sequence of scenes .*the Feed is a Feed already, .*: pass feed.sequence",
        ),
    ):
        kf.Concat(feed)


def test_zip_map_and_concat_refuse_invalid_arguments():
    with pytest.raises(ValueError, match=r"0: list has 2, 1: Clouds has 37 scenes. Cut them, for example sequence.:2"):
        kf.Zip([1, 2], scenes.Clouds())
    with pytest.raises(ValueError, match="x: list has 2, y: range has 3 scenes"):
        kf.Zip(x=[1, 2], y=range(3))
    with pytest.raises(TypeError, match="name all sequences or none"):
        kf.Zip([1], y=[1])
    with pytest.raises(TypeError, match=r"received one list of sequences, .*: write kf.Zip\(\*sequences"):
        kf.Zip([scenes.Clouds(), scenes.Clouds()])
    with pytest.raises(ValueError, match=r"kf.Zip needs at least one"):
        kf.Zip()
    with pytest.raises(ValueError, match=r"kf.Concat needs at least one"):
        kf.Concat([])
    with pytest.raises(TypeError, match=r"kf.Map needs a function of one scene, received 3"):
        kf.Map([1], 3)


def test_scenes_of_zip_are_tuples_or_dicts_and_one_argument_of_map():
    assert list(kf.Zip(["ab"], [1])) == [("ab", 1)]
    assert kf.Zip(image=[5, 6], label=[0, 1])[1] == {"image": 6, "label": 1}
    assert kf.Map(kf.Zip([5, 6], [0, 1]), sum)[1] == 7
    assert repr(kf.Zip([1], (2,))) == "Zip of list and tuple, 1 scene"
    assert repr(kf.Concat([1], (2,), scenes.Clouds(3))) == "Concat of list, tuple and Clouds, 5 scenes"


# ---- every kind of sequence inside every view, from every loader


KINDS = {"one by one": Noisy, "get_batch": NoisyBatches, "get_batch(out)": NoisyBatchesInto, "read_into": NoisyInto}
VIEWS = {
    "slice": lambda kind: kind(19)[2:17],
    "subset with repeats": lambda kind: kf.Subset(kind(5), [4, 0, 0, -1, 2, 2, 2, 3, 0]),
    "concat": lambda kind: kf.Concat(kind(5), kind(7, 100), kind(4, 200)),
    "concat of kinds": lambda kind: kf.Concat(kind(5), NoisyInto(7, 100), Noisy(4, 200)),
    "zip": lambda kind: kf.Zip(kind(11), kind(11, 100)),
    "named zip with an array": lambda kind: kf.Zip(x=kind(9), y=np.arange(18.0).reshape(9, 2)),
    "map": lambda kind: kf.Map(kind(9), tripled),
    "map that draws": lambda kind: kf.Map(kf.Zip(kind(9), kind(9))[1:], lambda scene, rng: jittered(scene[0], rng)),
    "mixture": lambda kind: kf.Mixture([kind(5), kind(4, 100)], [2, 1], num_scenes=15),
    "packed": lambda kind: kf.Packed(kf.Map(kind(19), in_dict), 7, lengths=[2] * 19),
    "nested": lambda kind: kf.Concat(kf.Subset(kf.Concat(kind(5), kind(4, 50))[::-1], [0, 8, 8, 1]), kind(6, 90))[1:],
    "one sequence twice": lambda kind: (lambda shared: kf.Concat(shared[3:], shared, shared[::2]))(kind(9)),
}


def plain(view):
    """The same view of sequences that are read one by one."""
    return VIEWS[view](Noisy)


def _epoch(feed):
    return list(feed.epoch(0)) + list(feed.epoch(1))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_gives_the_same_bits_with_any_read_method_and_worker(view):
    arguments = {"batch_size": 4, "shuffle": True, "seed": 3}
    with kf.Feed(plain(view), workers=0, **arguments) as feed:
        expected = _epoch(feed)
    assert not np.array_equal(optree.tree_leaves(expected[0])[0], optree.tree_leaves(expected[-1])[0])
    for kind in KINDS.values():
        for workers in (0, 2):
            with kf.Feed(VIEWS[view](kind), workers=workers, worker_type="thread", **arguments) as feed:
                assert_same(_epoch(feed), expected)


@pytest.mark.heavy
def test_views_give_the_same_bits_in_worker_processes(feed_of):
    made = [VIEWS[view](kind) for view in ("nested", "zip") for kind in KINDS.values()]
    for view in made:  # a separate feed for each
        with kf.Feed(view, 4, shuffle=True, seed=3, workers=0) as feed:
            expected = _epoch(feed)
        assert_same(_epoch(feed_of(view, 4, workers=1)), expected)


OFFERED = {
    "slice": {"get_batch": {1, 2}, "read_into": {3}, "read_ahead": {3}},
    "concat": {"get_batch": {1, 2}, "read_into": {3}, "read_ahead": {3}},
    "concat of kinds": {"get_batch": set(), "read_into": {0, 1, 2, 3}, "read_ahead": {0, 1, 2, 3}},
    "zip": {"get_batch": {1, 2}, "read_into": {3}, "read_ahead": {3}},
    "map": {"get_batch": set(), "read_into": set(), "read_ahead": {3}},
}


@pytest.mark.parametrize("view", OFFERED)
def test_a_view_has_the_optional_methods_that_its_sequences_allow(view):
    made = [VIEWS[view](kind) for kind in KINDS.values()]
    for name, kinds in OFFERED[view].items():
        assert {number for number, each in enumerate(made) if optional_method(each, name)} == kinds
    for name in ("on_worker_begin", "on_worker_end", "on_epoch_begin", "on_epoch_end"):
        assert not any(optional_method(each, name) for each in made)
        assert optional_method(kf.Concat(made[0], kf.Map(Hooked(), tripled)), name)


# ---- calls of PyTorch's DataLoader


class Quiet(NoisyInto):
    """Scenes without noise; stores the last announcement."""

    announced = ()

    def _scene(self, index, rng):
        return np.full((2, 3), self.base + index, np.float32), self.base + index

    def read_ahead(self, indices):
        super().read_ahead(indices)
        self.announced = indices.tolist()

    def get_batch(self, indices):
        raise AssertionError("a batch of arrays is no list of scenes")


@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"map that draws", "concat of kinds"}))
def test_getitems_of_any_view_returns_its_scenes(view):
    sequence = VIEWS[view](Quiet)
    for indices in ([3, 0, 3, 1], [-1, np.int64(2)], (2, 1), np.array([4, 0]), []):
        found = sequence.__getitems__(indices)
        assert type(found) is list
        assert_same(found, [sequence[index] for index in indices])


def test_getitems_reads_ahead_its_valid_indices():
    sequence = Quiet(9)
    sequence[2:].__getitems__([4, -1, 0])
    assert sequence.announced == [2, 6]
    with pytest.raises(IndexError, match="index 9 is out of range"):
        sequence[:].__getitems__([3, 9])
    assert sequence.announced == [3]


class WithGetitems(Noisy):
    def __getitems__(self, indices):
        raise AssertionError("kerasfeed asks for scenes")


class ListWithGetitems(list):
    __getitems__ = WithGetitems.__getitems__


def test_feeds_and_views_never_call_getitems():
    for inside in (WithGetitems(9), ListWithGetitems([(1, 2)] * 9)):
        for sequence in (inside, kf.Subset(inside, range(9)), kf.Map(inside, tripled)):
            with kf.Feed(sequence, 4, workers=0) as feed:
                assert len(list(feed)) == 3


def test_sequences_inside_zip_draw_the_same_numbers():
    with kf.Feed(kf.Zip(Noisy(5), Noisy(5)), 5, workers=0, seed=1) as feed:
        [(one, other)] = list(feed)
    assert np.array_equal(one[0], other[0])


def test_views_keep_block_size_if_blocks_stay_whole():
    class Blocks(scenes.Clouds):
        block_size = 4

    blocks = Blocks(16)
    for view in (blocks[4:], kf.Map(blocks, tripled), kf.Zip(blocks, range(16)), kf.Cached(blocks)):
        assert view.block_size == 4
        assert kf.BlockShuffled(view).block_size == 4
    for view in (blocks[3:], blocks[::2], kf.Concat(blocks), scenes.Clouds()[4:]):
        assert not hasattr(view, "block_size")


@pytest.mark.parametrize("of", [lambda view: kf.Map(view, tripled), lambda view: view[1:], kf.Zip, kf.Concat])
def test_nested_views_read_the_block_attributes_once(of):
    asked = []

    class Blocks(scenes.Clouds):
        @property
        def block_size(self):
            asked.append("block_size")
            return 4

    view = Blocks(16)
    for _ in range(4):
        view = of(view)
    assert hasattr(view, "block_size") != hasattr(view, "block_of")
    assert asked == ["block_size"] * 2


# ---- pickling, programs, other people's sequences


def test_pickled_views_keep_shared_sequences_shared():
    for dumps in (pickle.dumps, cloudpickle.dumps):
        shared = Noisy(9)
        view = pickle.loads(dumps(kf.Zip(kf.Concat(shared[:4], shared[4:]), kf.Subset(shared, np.arange(9)))))
        concat, subset = view.sequences
        assert concat.sequences[0].sequence is concat.sequences[1].sequence is subset.sequence
        assert repr(view) == "Zip of Concat and Subset, 9 scenes"
        assert view[8][0][1] == 8


@pytest.mark.heavy
def test_views_of_classes_of_a_script_work_in_worker_processes(tmp_path):
    program = launch(
        tmp_path,
        """
        import light_keras
        import numpy as np
        import kerasfeed as kf

        class Rooms(kf.SceneSequence):
            def __len__(self):
                return 12
            def __getitem__(self, index):
                return np.float32([index]), index

        class Halls(Rooms):
            def __getitem__(self, index):
                points, label = super().__getitem__(index)
                return points + offset, label + offset

        offset = 100
        train, rest = kf.split(kf.Concat(Rooms(), Halls()), (0.75, 0.25), 0)
        train = kf.Map(train, lambda scene: (scene[0] * scale, scene[1]))
        scale = 2
        cached = kf.Cached(kf.Zip(Rooms(), Halls()), "kept", key="v1")
        with kf.Feed(train, 6, workers=1, worker_type="process") as feed:
            seen = [label for points, labels in feed for label in labels.tolist()]
            assert len(seen) == 18 and set(seen) | {label for _, label in rest} == {*range(12), *range(100, 112)}
        for _ in range(2):
            with kf.Feed(cached, 6, workers=1, worker_type="process") as feed:
                assert sum(int(batch[1][1].sum()) for batch in feed) == sum(range(100, 112))
        assert cached[3][1][1] == 103
        import pathlib
        [folder] = pathlib.Path("kept").iterdir()
        print(len(list(folder.rglob("*.scene"))))
        """,
    )
    assert finish(program) == "12\n"


def test_views_accept_a_torch_dataset_and_an_hdf5_dataset(path):
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.arange(6.0), torch.arange(6))
    assert [int(label) for _, label in kf.Subset(dataset, [5, 0])] == [5, 0]
    points = kf.HDF5File(path)["points"]
    with kf.Feed(kf.Zip(points, range(24))[2:], 5, workers=0) as feed:
        assert [batch[1].tolist() for batch in feed][-1] == [22, 23]


# ---- random nests against lists


@st.composite
def nests(draw, depth=3):
    """A view, and the list that it should equal."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        kind = draw(st.sampled_from([*KINDS.values(), None]))
        length, base = draw(st.integers(1, 9)), draw(st.integers(0, 50))
        if kind is None:
            return [(np.zeros((2, 3), np.float32), base + k) for k in range(length)], [base + k for k in range(length)]
        return kind(length, base), [base + k for k in range(length)]
    inside, model = draw(nests(depth - 1))
    match draw(st.sampled_from(["slice", "subset", "concat", "map", "mixture"])):
        case "slice":
            part = draw(st.slices(len(model)).filter(lambda part: model[part]))
            return kf.Subset(inside, part), model[part]
        case "subset":
            picks = draw(st.lists(st.integers(-len(model), len(model) - 1), min_size=1, max_size=12))
            return kf.Subset(inside, picks), [model[pick] for pick in picks]
        case "concat":
            other, other_model = draw(nests(depth - 1))
            return kf.Concat(inside, other, inside), model + other_model + model
        case "map":
            return kf.Map(inside, lambda scene: (scene[0], scene[1] + 1)), [label + 1 for label in model]
    view = kf.Mixture([inside, inside[:1]], [3, 1])
    return view, [([*model, *model[:1]])[view._route(k)[1] + len(model) * view._route(k)[0]] for k in range(len(view))]


@pytest.mark.heavy
@settings(max_examples=60, deadline=None)
@given(nests(), st.integers(1, 5), st.integers(0, 100))
def test_any_nest_of_views_equals_a_list(nest, batch_size, seed):
    view, model = nest
    assert len(view) == len(model)
    assert [int(label) for _, label in view] == model
    plan = Plan(len(model), batch_size, Shuffled(), seed)
    loader = InlineLoader(Job(view, plan, 1, 1 << 30, 1))
    try:
        order = plan.order.indices(0, len(model), length=len(model), seed=seed, epoch=0)
        steps = -(-len(model) // batch_size)
        batches = [loader.submit(0, step).result() for step in range(steps)]
    finally:
        loader.close()
    assert np.concatenate([batch[1] for batch in batches]).tolist() == [model[index] for index in order]


def test_repeated_scenes_of_a_batch_are_read_in_one_call():
    calls = []

    class Counted(scenes.Batched):
        def get_batch(self, indices):
            calls.append(len(indices))
            return super().get_batch(indices)

    both = kf.Concat(Counted(), Counted())
    points, numbers = both.get_batch(np.array([3, 3, 40, 5, 3, 40]))
    assert sorted(calls) == [2, 4]
    assert numbers.tolist() == [3, 3, 3, 5, 3, 3]
    assert points[0].tolist() == both[3][0].tolist()


def test_neighbouring_rows_are_read_directly_into_the_batch():
    given = []

    class Into(kf.SceneSequence):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return np.float32(index)

        def get_batch(self, indices, out=None):
            given.append(out)
            out[...] = indices

    out = np.empty(4, np.float32)
    kf.Concat(Into(), Into()).get_batch(np.array([3, 1, 5, 9]), out=out)
    assert out.tolist() == [3, 1, 0, 4]
    assert all(part.base is out for part in given)
