"""Collations: the padded and ragged fields, their shapes, and the errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes_sized import padded

import kerasfeed as kf
from kerasfeed.errors import SpecError
from kerasfeed.loaders.arguments import check_collate
from kerasfeed.orders.plan import Plan
from kerasfeed.spec.collation import Custom, Stack
from kerasfeed.spec.field_forms import Padded, PaddedAxis, RaggedRows, batch_structure
from kerasfeed.spec.inference import describe, merge
from kerasfeed.spec.scene_spec import ArraySpec

F4, I8 = np.dtype("float32"), np.dtype("int64")


def _spec(*scenes):
    return merge(list(enumerate(map(describe, scenes))))


def _clouds(*lengths):
    return _spec(*({"p": np.zeros((n, 3), np.float32), "n": "text", "fixed": np.zeros(4)} for n in lengths))


def test_differing_fields_are_padded_on_differing_axes_and_others_are_stacked():
    spec, forms = kf.Pad().resolve(_clouds(3, 5))
    assert forms == (None, None, Padded((PaddedAxis(0),), np.float32(0)))
    structure = batch_structure(spec, forms, 8)
    assert structure["p"] == ArraySpec((8, None, 3), F4)
    assert structure["fixed"] == ArraySpec((8, 4), np.dtype("float64"))


def test_a_fixed_length_is_in_the_spec():
    spec, forms = kf.Pad(length={"p": 16}).resolve(_clouds(3, 5))
    assert batch_structure(spec, forms, 8)["p"] == ArraySpec((8, 16, 3), F4)


@pytest.mark.parametrize(
    "collation",
    [kf.Pad(fields="p"), kf.Pad(length={"p": 9}), kf.Pad(multiple_of={"p": 2}), kf.Pad({"p": 1}), kf.Pad(mask="p")],
    ids=str,
)
def test_a_named_field_is_padded_even_if_the_first_scenes_agree(collation):
    spec, forms = collation.resolve(_clouds(3, 3))
    assert isinstance(forms[2], Padded)
    assert spec.fields[2].shape == (None, 3)


def test_scenes_of_equal_shape_are_stacked_with_any_collate():
    for collation in (kf.Pad(), kf.Ragged(), Stack(), kf.Pad(length=4, mask=True)):
        assert collation.resolve(_clouds(3, 3)) == (_clouds(3, 3), ())


def test_a_mask_is_a_dict_entry_next_to_its_field_or_part_of_a_pair():
    scenes = [({"p": np.zeros((n, 3)), "q": np.zeros(2)}, [np.zeros((n, n + 1))]) for n in (2, 4)]
    spec, forms = kf.Pad(mask=True).resolve(_spec(*scenes))
    structure = batch_structure(spec, forms, None)
    assert set(structure[0]) == {"p", "p_mask", "q"}
    assert structure[0]["p_mask"] == ArraySpec((None, None), np.dtype(bool))
    ((array, mask),) = structure[1]
    assert array == ArraySpec((None, None, None), np.dtype("float64"))
    assert mask == ArraySpec((None, None, None), np.dtype(bool))


def test_a_ragged_field_is_described_as_values_and_row_splits():
    spec, forms = kf.Ragged().resolve(_clouds(3, 5))
    assert forms == (None, None, RaggedRows())
    assert batch_structure(spec, forms, 8)["p"] == kf.RaggedArray(ArraySpec((None, 3), F4), ArraySpec((9,), I8))
    assert batch_structure(spec, forms, None)["p"].row_splits == ArraySpec((None,), I8)


@pytest.mark.parametrize(
    ("collation", "message"),
    [
        (kf.Pad(value=-1.5), "field 'ids' is uint8.*no element of it can be -1.5. Pass another value for this field"),
        (kf.Pad(value=np.nan), "field 'ids' is uint8.*can be nan.*kf.Pad\\(value=\\{'ids': ...\\}\\)"),
        (kf.Pad(value="x"), "can be 'x'"),
        (kf.Pad(value={"ids": 300}), "can be 300"),
        (kf.Pad(value={"p": 1j}), "field 'p' is float64.*no element of it can be 1j"),
        (kf.Pad(value={0: 1, "1": 2}), "kf.Pad names the field 0, which scenes do not have: .* 'ids', 'n', 'p'"),
        (kf.Pad(value={"id": 3}), "kf.Pad names the field 'id', which scenes do not have: .* 'ids', 'n', 'p'"),
        (kf.Pad(mask="n"), "names the field 'n', which is str.*text and single numbers have no axis"),
        (kf.Pad(length={"p": (4, 4)}), r"length\['p'\] has 2 sizes, \(4, 4\), but field 'p', .* has 1 padded axes"),
        (kf.Ragged("q"), "kf.Ragged names the field 'q', which scenes do not have"),
        (kf.Ragged("n"), "text and single numbers have no axis to pad or to join"),
    ],
    ids=str,
)
def test_the_error_for_a_collate_that_does_not_fit_names_the_field(collation, message):
    scenes = [{"p": np.zeros((n, 3)), "ids": np.zeros(n, np.uint8), "n": "a"} for n in (2, 4)]
    with pytest.raises(SpecError, match=message):
        collation.resolve(_spec(*scenes))


def test_a_field_that_differs_on_a_later_axis_cannot_be_ragged():
    with pytest.raises(SpecError, match=r"field 'scene' is float64\[3, \?\]: a ragged field may differ only on"):
        kf.Ragged().resolve(_spec(np.zeros((3, 2)), np.zeros((3, 4))))


def test_a_mask_cannot_use_the_key_of_a_field():
    for there in (np.zeros(2), {"a": np.zeros(2)}):
        scenes = [{"p": np.zeros(n), "p_mask": there} for n in (2, 4)]
        with pytest.raises(SpecError, match="field 'p' needs the key 'p_mask', but scenes already have a field"):
            kf.Pad(mask=True).resolve(_spec(*scenes))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kf.Pad(length=0), ValueError, "length must be at least 1, received 0"),
        (lambda: kf.Pad(multiple_of=2.5), TypeError, "multiple_of must be an integer, a dict .* received 2.5"),
        (lambda: kf.Pad(length={"0": "x"}), TypeError, r"length\['0'\] must be an integer, a tuple"),
        (lambda: kf.Pad(mask=3), TypeError, "mask must be True, False, a field such as '0' or '1.points'"),
        (lambda: kf.Ragged(fields=[0]), TypeError, "fields must be a field such as '0'"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


PLAN = Plan(10, 4)


@pytest.mark.parametrize(
    ("collate", "plan", "on_error", "error", "message"),
    [
        ("padded", PLAN, "raise", ValueError, "collate must be one of 'stack', 'pad', 'ragged', received 'padded'"),
        (3, PLAN, "raise", TypeError, "collate must be a str, received 3 of type int .or kf.Pad"),
        (kf.Pad, PLAN, "raise", TypeError, r"received the class Pad: write kf.Pad\(\)"),
        ("pad", Plan(10, None), "raise", ValueError, "batch_size=None means that items are batches already"),
        (len, PLAN, "mask", ValueError, "on_error='mask' gives single rows.*use collate='pad'.*on_error='replace'"),
        (len, Plan(10, 4, pad_remainder=True), "raise", ValueError, "pad_remainder=True gives.*drop_remainder=True"),
    ],
)
def test_conflicting_collate_options_are_refused(collate, plan, on_error, error, message):
    with pytest.raises(error, match=message):
        check_collate(collate, plan, on_error)


@pytest.mark.parametrize(
    ("plan", "on_error", "sizes"),
    [
        (Plan(12, 4), "raise", (4,)),
        (Plan(10, 4), "raise", (2, 4)),
        (Plan(12, 4), "skip", (3, 4)),
        (Plan(1, 1), "skip", (1,)),
        (Plan(11, 4, shard_count=2), "raise", (1, 2, 4)),
    ],
)
def test_a_function_is_tried_with_the_sizes_that_batches_have(plan, on_error, sizes):
    assert check_collate(len, plan, on_error) == Custom(len, sizes)


@pytest.mark.parametrize("collation", [kf.Ragged(), kf.Pad(1), kf.Pad(mask=True)], ids=["ragged", "value", "mask"])
def test_weights_of_scenes_that_could_not_be_zero_are_refused(collation):
    scenes = [(np.zeros(n), 1, np.ones(n)) for n in (3, 4, 5)]
    feed = kf.Feed(scenes, 2, collate=collation, on_error="mask", workers=0)
    with pytest.raises(SpecError, match=r"field '2' is part of sample_weight.*padded with 0 and without a mask"):
        list(feed)
    feed.close()
    with kf.Feed(scenes, 2, collate=kf.Pad({"0": 1}, mask="0"), on_error="mask", workers=0) as feed:
        assert [weight.shape for _, _, weight in feed] == [(2, 4), (1, 5)]


@given(
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=9),
    dtype=st.sampled_from(["u1", "f4", "c16", "V12"]),
    multiple=st.integers(1, 5),
)
def test_rows_are_padded_as_in_numpy(lengths, dtype, multiple):
    rng = np.random.default_rng(0)
    itemsize = np.dtype(dtype).itemsize
    rows = [np.frombuffer(rng.bytes(size * itemsize), dtype) for size in lengths]
    collate = kf.Pad(np.zeros((), dtype)[()], multiple_of=multiple, fields="scene")
    with kf.Feed(rows, len(rows), collate=collate, workers=0) as feed:
        found = feed[0]
    expected = np.zeros((len(rows), -(-max(lengths) // multiple) * multiple), dtype)
    for row, array in zip(expected, rows, strict=True):
        row[: len(array)] = array
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5))
def test_a_mask_is_true_at_the_values_of_a_row(shapes):
    form = Padded((PaddedAxis(0), PaddedAxis(1)), 0, True)
    arrays = [np.ones(shape) for shape in shapes]
    expected = padded(arrays)[1]
    found = np.empty(expected.shape, bool)
    form.fill_mask(found, np.array(shapes))
    assert np.array_equal(found, expected)
