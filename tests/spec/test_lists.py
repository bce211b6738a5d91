"""Lists of numbers and text inside a scene are arrays, on every path a scene can take."""

import collections

import numpy as np
import optree
import pytest
from scenes_lists import Even, Lists, listed, lists_at
from streams import WAYS

import kerasfeed as kf
from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import coerce
from kerasfeed.spec.inference import describe, merge
from kerasfeed.spec.nesting import flatten
from kerasfeed.spec.scene_spec import BYTES, TEXT, ArraySpec

Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        ([1, 2, 3], (3,), np.int64),
        ([1, 2.5], (2,), np.float64),
        ([True, False], (2,), bool),
        ([True, 2], (2,), np.int64),
        ([1j, 2], (2,), np.complex128),
        ([2**63], (1,), np.uint64),
        ([np.float32(1), np.float32(2)], (2,), np.float32),
        ([np.array(1, np.int8), np.int8(2)], (2,), np.int8),
        ([[1, 2], [3, 4], [5, 6]], (3, 2), np.int64),
        ([[[1]], [[2.5]]], (2, 1, 1), np.float64),
        (["ab", "c"], (2,), TEXT),
        ([b"ab\0", np.bytes_(b"c")], (2,), BYTES),
        ([["a"], ["b"]], (2, 1), TEXT),
        ([], (0,), np.float64),
        ([[], []], (2, 0), np.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("wrap", [lambda v: (v, 1), lambda v: {"a": v}, lambda v: [v], lambda v: Pair(v, 1)])
def test_a_list_of_numbers_or_text_inside_a_scene_is_one_field(value, shape, dtype, wrap):
    field = describe(wrap(value)).fields[0]
    assert field == ArraySpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("scene", "paths"),
    [
        ([1, 2], ("0", "1")),  # the whole scene, as Keras takes it
        ([[1, 2], [3]], ("0", "1")),
        (([np.zeros(2), np.zeros(2)], 1), ("0.0", "0.1", "1")),
        (([np.zeros(2), [1, 2]], 1), ("0.0", "0.1", "1")),
        (([(1, 2), (3, 4)], 1), ("0.0.0", "0.0.1", "0.1.0", "0.1.1", "1")),
        (([{"a": 1}], 1), ("0.0.a", "1")),
        ((["a", 1], 1), ("0.0", "0.1", "1")),
        (((1, 2), 1), ("0.0", "0.1", "1")),
    ],
    ids=str,
)
def test_tuples_dicts_lists_of_arrays_and_a_list_that_is_the_scene_are_nesting(scene, paths):
    assert describe(scene).paths == paths


def test_dtypes_of_lists_are_promoted_like_python_numbers():
    specs = [(k, describe((values, 0))) for k, values in enumerate([[], [1, 2], [True, False], [1.5]])]
    assert merge(specs).fields[0] == ArraySpec((None,), np.dtype(np.float64))
    with pytest.raises(SpecError, match=r"field '0' is int64.*float32"):
        merge([(0, describe(([1], 0))), (1, describe(([np.float32(1)], 0)))])


@pytest.mark.parametrize(
    ("other", "merged"),
    [
        ([1, 2], ArraySpec((None,), np.dtype(np.int64))),
        (np.zeros((3, 4), np.float16), ArraySpec((None, 4), np.dtype(np.float16))),
        (["a"], ArraySpec((None,), TEXT)),
        ([], ArraySpec((0,), np.dtype(np.float64))),
    ],
    ids=str,
)
def test_an_empty_list_has_the_dtype_and_further_axes_of_other_scenes(other, merged):
    for scenes in ([[], other], [other, []]):
        field = merge([(k, describe((value, 0))) for k, value in enumerate(scenes)]).fields[0]
        assert field == merged
    assert np.shape(coerce([], merged, "0")) == (0, *merged.shape[1:])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1, 2], [3]], r"scene 0: field '0' is a list that is nested unevenly.*shape \(2,\).*\(1,\).*pad"),
        ([1, [2]], r"scene 0: field '0' is a list that is nested unevenly.*a single value and a list of shape \(1,\)"),
        ([2**64], r"scene 0: field '0' is a list with the integer 18446744073709551616.*uint64 at.*Return smaller"),
        ([2**63, -1], r"scene 0: field '0' is a list with the integer 9223372036854775808, but no integer dtype holds"),
        ([1.5, 2**70], r"scene 0: field '0' is a list with the integer 1180591620717411303424"),
        (2**64, r"scene 0: field '0' is the integer 18446744073709551616"),
        ([np.datetime64("2020-01-01")], r"scene 0: field '0' has dtype datetime64"),
    ],
    ids=str,
)
def test_the_error_for_an_irregular_list_names_index_field_and_remedy(value, message):
    with kf.Feed([(value, 1)], 1, workers=0) as feed, pytest.raises(SpecError, match=message):
        next(iter(feed))


@pytest.mark.parametrize("collate", ["stack", "pad"])
def test_uneven_lists_in_later_scenes_are_refused_when_read(collate):
    scenes = [([[1, 2], [3, 4]], k) for k in range(40)]
    scenes[3] = ([[1, 2], [3]], 3)
    with (
        kf.Feed(scenes, 8, workers=0, collate=collate) as feed,
        pytest.raises(SpecError, match=r"scene 3: field '0' is a list that is nested unevenly"),
    ):
        next(iter(feed))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_for_lists_of_different_length_names_field_and_collate(workers):
    remedy = "field '0' cannot be stacked: scene 0 has shape .0,. and scene 1 has shape .1,.*'pad'.*'ragged'"
    with (
        kf.Feed([(list(range(k)), k) for k in range(8)], 8, workers=workers) as feed,
        pytest.raises(SpecError, match=remedy),
    ):
        next(iter(feed))
    rare = [([1, 2], k) for k in range(40)]
    rare[3] = ([1, 2, 3], 3)
    with (
        kf.Feed(rare, 8, workers=workers) as feed,
        pytest.raises(SpecError, match=r"scene 3.*unlike the few.*kf.Pad\(fields='0'\).*kf.Ragged\('0'\)"),
    ):
        next(iter(feed))


def test_a_field_with_only_empty_lists_cannot_be_padded_by_name():
    with (
        kf.Feed([([], 1)] * 3, 1, workers=0, collate=kf.Pad(fields="0")) as feed,
        pytest.raises(SpecError, match=r"field '0'.*only empty lists.*np.asarray\(values, dtype=...\)"),
    ):
        next(iter(feed))


def test_a_single_number_is_never_broadcast_over_the_row_of_a_list():
    scenes = [([1, 2], k) for k in range(20)]
    scenes[3] = (5, 3)
    with (
        kf.Feed(scenes, 8, workers=0) as feed,
        pytest.raises(SpecError, match=r"scene 3: field '0': expected int64\[2\], received int64\[\]"),
    ):
        next(iter(feed))


@pytest.mark.parametrize("late", [[np.zeros(2), np.zeros(2)], [(1, 2)], {"a": 1}, ["a", 1]], ids=str)
def test_nesting_instead_of_an_array_is_refused(late):
    scenes = [([1, 2], k) for k in range(20)]
    scenes[3] = (late, 3)
    with (
        kf.Feed(scenes, 8, workers=0) as feed,
        pytest.raises(SpecError, match=r"scene 3: expected the structure \(\*, \*\), received \("),
    ):
        next(iter(feed))


def test_a_list_instead_of_a_scene_that_is_an_array_is_refused():
    scenes = [np.array([1, 2])] * 20
    scenes[3] = [1, 2]
    with (
        kf.Feed(scenes, 8, workers=0) as feed,
        pytest.raises(SpecError, match=r"scene 3: expected the structure \*, received \[\*, \*\]"),
    ):
        next(iter(feed))


# ---- every path gives the same


def expected(rows, collate):
    """The fields of these scenes, assembled by NumPy."""
    scenes = [lists_at(index) for index in rows]
    batch = {
        "pair": np.array([scene["pair"] for scene in scenes], np.float64),
        "single": np.array([scene["single"] for scene in scenes], np.float32),
        "arrays": [np.array([scene["arrays"][part] for scene in scenes]) for part in (0, 1)],
    }
    batch["words"] = np.empty((len(rows), 2), object)
    for row, scene in enumerate(scenes):
        batch["words"][row] = scene["words"]
    for name, inner in (("tokens", ()), ("boxes", (4,))):
        values = [np.array(scene[name], np.int64).reshape(-1, *inner) for scene in scenes]
        if collate == "ragged":
            batch[name] = kf.RaggedArray(np.concatenate(values), np.cumsum([0, *map(len, values)]))
            continue
        batch[name] = np.zeros((len(rows), max(map(len, values)), *inner), np.int64)
        for row, value in enumerate(values):
            batch[name][row, : len(value)] = value
    return batch


def check_same(found, wanted):
    leaves, treespec = optree.tree_flatten(found)
    other, other_spec = optree.tree_flatten(wanted)
    assert treespec == other_spec
    for one, two in zip(leaves, other, strict=True):
        assert (one.dtype, one.shape, one.tolist()) == (two.dtype, two.shape, two.tolist())


def check_batches(batches, collate, size=6, length=22):
    batches = list(batches)
    assert len(batches) == -(-length // size)
    for step, batch in enumerate(batches):
        check_same(batch, expected(range(step * size, min(length, (step + 1) * size)), collate))


@pytest.mark.parametrize("collate", ["pad", "ragged"])
@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_every_loader_converts_lists_to_arrays(workers, worker_type, collate):
    with kf.Feed(Lists(), 6, workers=workers, worker_type=worker_type, collate=collate) as feed:
        check_batches(feed, collate)
        assert feed.element_spec["boxes" if collate == "pad" else "pair"].dtype == (
            "int64" if collate == "pad" else "f8"
        )


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_every_stream_converts_lists_to_arrays(workers, worker_type):
    with kf.StreamFeed(listed, 6, count=2, workers=workers, worker_type=worker_type, collate="pad") as feed:
        check_batches(feed, "pad")


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_lists_pass_through_the_functions_of_a_stream(worker_type):
    feed = kf.StreamFeed(lambda: iter(range(22)), 6, workers=1, worker_type=worker_type, collate="pad").map(lists_at)
    with feed:
        check_batches(feed, "pad")


@pytest.mark.parametrize("spec", [([ArraySpec((), np.int64)] * 2, ArraySpec((), str)), {"a": [ArraySpec((), str)]}])
def test_an_impossible_spec_is_refused(spec):
    with pytest.raises(SpecError, match=r"list of single values inside a scene is one array.*kf.ArraySpec\(\(n,\)"):
        kf.StreamFeed(lambda: iter([]), output_signature=spec)
    kf.StreamFeed(lambda: iter([]), output_signature=[ArraySpec((), np.int64)] * 2)  # the whole scene is nesting


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_cache_returns_lists_like_its_sequence(tmp_path, where):
    # The first scene and the last are enough for the spec: a busy machine has no time to read more of them.
    cached = kf.Cached(Lists(24), **({"path": tmp_path, "key": "v1"} if where == "disk" else {}))
    for _ in range(2):  # read, then kept
        with kf.Feed(cached, 6, workers=0, collate="pad") as feed:
            check_batches(feed, "pad", length=24)
    cached[3]["tokens"].append(77)
    assert cached[3]["tokens"] == [0, 1, 2]


def test_views_pass_lists_on():
    view = kf.Concat(kf.Map(Lists(10), lambda scene: scene), kf.Subset(Lists(), range(10, 22)))
    with kf.Feed(view, 6, workers=0, collate="pad") as feed:
        check_batches(feed, "pad")
    with kf.Feed(kf.Zip([[1, 2], [3], []], [4, 5, 6]), 3, workers=0, collate="pad") as feed:
        tokens, labels = next(iter(feed))
    assert tokens.tolist() == [[1, 2], [3, 0], [0, 0]]
    assert labels.tolist() == [4, 5, 6]


@pytest.mark.parametrize("sequence", [Even(), kf.Concat(Even(11), Even(11)), kf.Zip(Even(), np.arange(22))])
def test_get_batch_may_return_lists(sequence):
    plain = kf.Map(sequence, lambda scene: scene)  # it has no get_batch
    with kf.Feed(sequence, 5, workers=0) as feed, kf.Feed(plain, 5, workers=0) as other:
        for found, wanted in zip(feed, other, strict=True):
            check_same(found, wanted)


def test_a_collate_function_receives_and_returns_lists():
    def joined(scenes):
        assert all(type(scene["tokens"]) is list for scene in scenes)
        return np.array([len(scene["tokens"]) for scene in scenes]), [scene["pair"][0] for scene in scenes]

    for workers in (0, 1):
        with kf.Feed(Lists(), 6, workers=workers, collate=joined) as feed:
            lengths, firsts = next(iter(feed))
        assert lengths.tolist() == [0, 1, 2, 3, 0, 1]
        assert firsts.tolist() == list(range(6))


@pytest.mark.heavy
def test_records_store_lists_as_arrays(tmp_path):
    kf.write_tfrecords(Lists(), tmp_path / "a-{shard}.tfrecord", num_shards=1, workers=1, progress=False)
    records = kf.TFRecordSequence(tmp_path / "a-{shard}.tfrecord")
    with kf.Feed(records, 6, workers=0, collate="pad") as feed:
        check_batches(feed, "pad")
    even = kf.Map(Even(), lambda scene: (*scene[:2], [text.strip("\0") for text in scene[2]]))
    kf.write_hdf5(even, tmp_path / "even.h5", workers=1, progress=False)
    for scene, wanted in zip(kf.HDF5Scenes(tmp_path / "even.h5"), even, strict=True):
        assert [part.tolist() for part in scene] == [*wanted]


def test_files_that_store_a_list_as_several_fields_are_read_as_tuples():
    from kerasfeed.spec.spec_json import spec_from_json

    scalar = {"array": {"shape": [], "dtype": "int64"}}
    spec = spec_from_json(
        {"tuple": [{"list": [scalar, scalar]}, {"list": [{"array": {"shape": [2], "dtype": "int64"}}]}]}
    )
    assert spec.unflatten("abc") == (("a", "b"), ["c"])
    assert spec_from_json({"list": [scalar, scalar]}).unflatten("ab") == ["a", "b"]


def test_tensorflow_and_models_receive_lists_as_one_tensor():
    import keras

    scenes = [([float(k), 1.0], [k % 2]) for k in range(8)]
    with kf.Feed(scenes, 4, workers=0) as feed:
        x, y = next(iter(feed.to_tf_dataset()))
        assert x.shape == (4, 2)
        assert y.shape == (4, 1)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(feed, verbose=0)
        batch = [[float(k), 1.0] for k in range(8)], [[k % 2] for k in range(8)]
        assert kf.evaluate(model, feed)["loss"].mean == pytest.approx(kf.evaluate(model, [batch])["loss"].mean)
        assert kf.load(feed, epoch=0, step=1)[0].tolist() == [[4, 1], [5, 1], [6, 1], [7, 1]]
        assert kf.load(feed, epoch=0, index=3) == ([3.0, 1.0], [1])


def test_a_list_of_scalar_tensors_is_a_list_of_numbers():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    (field, _) = describe(([torch.tensor(1.5), torch.tensor(2.5)], 1)).fields
    assert field == ArraySpec((2,), np.dtype(np.float32))
    leaves, _ = flatten(([torch.zeros(2), torch.zeros(2)], 1))
    assert len(leaves) == 3


@pytest.mark.parametrize("arguments", [{"on_error": "mask"}, {"pad_remainder": True}])
def test_lists_keep_their_meaning_with_weights(arguments):
    scenes = [(([np.zeros(2), np.ones(3)], [k, 1]), [k]) for k in range(5)]
    with kf.Feed(scenes, 4, workers=0, **arguments) as feed:
        (arrays, pair), label, weight = next(iter(feed))
        assert [part.shape for part in (*arrays, pair, label, weight)] == [(4, 2), (4, 3), (4, 2), (4, 1), (4,)]
        assert len(optree.tree_leaves(feed.element_spec)) == 5
