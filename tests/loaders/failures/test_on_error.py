"""Scenes that fail: replaced, masked or skipped in the same way by every loader, and always reported."""

import numpy as np
import pytest
import scenes
import scenes_faulty as faulty
from scenes_sized import KINDS

import kerasfeed as kf


def _labels(feed, epoch=0):
    return [batch[1].tolist() for batch in feed.epoch(epoch)]


def _bits(batches):
    return [[np.asarray(field).tobytes() for field in batch] for batch in batches]


@pytest.mark.light(where=lambda kind, sequence: kind != "process" or type(sequence) is faulty.Raising)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sequence", [faulty.Raising((7, 20)), faulty.RaisingBatches((7, 20))], ids=["scene", "batch"])
def test_replace_substitutes_a_scene_and_changes_no_other_row(feed_on, kind, sequence):
    whole = np.concatenate(_labels(feed_on("inline", scenes.Clouds())))
    found = np.concatenate(_labels(feed_on(kind, sequence, on_error="replace")))
    differ = np.flatnonzero(whole != found)
    assert sorted(whole[differ].tolist()) == [7, 20]
    assert not {7, 20} & set(found.tolist())


@pytest.mark.light(
    where=lambda kind, on_error, sequence: (
        kind != "process"
        or (type(sequence), on_error) in [(faulty.Raising, "replace"), (faulty.RaisingBatches, "mask")]
    )
)
@pytest.mark.parametrize("kind", ["thread", "process"])
@pytest.mark.parametrize("on_error", ["replace", "mask", "skip"])
@pytest.mark.parametrize(
    "sequence", [faulty.Raising((0, 7, 8, 36)), faulty.RaisingBatches((0, 7, 8, 36))], ids=["scene", "batch"]
)
def test_all_loaders_handle_failed_scenes_identically(feed_on, kind, on_error, sequence):
    reference = feed_on("inline", faulty.Raising(sequence.bad), on_error=on_error, max_failures=10)
    other = feed_on(kind, sequence, on_error=on_error, max_failures=10, workers=2)
    for epoch in (0, 3):
        assert _bits(other.epoch(epoch)) == _bits(reference.epoch(epoch))


def test_a_replacement_uses_the_random_numbers_of_its_own_scene(feed_on):
    class Augmented(scenes.Augmented):
        def __getitem__(self, index):
            if index == 7:
                raise ValueError
            return super().__getitem__(index)

    whole = {tuple(p.ravel()) for batch in feed_on("inline", scenes.Augmented()).epoch(0) for p in batch[0]}
    found = [
        tuple(p.ravel()) for batch in feed_on("process", Augmented(), on_error="replace").epoch(0) for p in batch[0]
    ]
    assert set(found) < whole
    assert len(found) == len(whole)


def test_replacements_differ_from_epoch_to_epoch_and_agree_between_shards(feed_on):
    sequence = faulty.Raising((7,), length=40)
    whole = feed_on("inline", sequence, 8, on_error="replace")
    shards = [
        feed_on("thread", sequence, 4, on_error="replace", shard_index=index, shard_count=2) for index in range(2)
    ]
    epochs = []
    for epoch in range(6):
        joined = [a + b for a, b in zip(*(_labels(shard, epoch) for shard in shards), strict=True)]
        assert joined == _labels(whole, epoch)
        epochs.append(sum(map(sum, joined)))
    assert len(set(epochs)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_mask_zeroes_the_row_and_its_weight_and_keeps_every_shape(feed_on, kind):
    feed = feed_on(kind, faulty.Raising((7, 20)), on_error="mask")
    weights = []
    for step, (points, labels, weight) in enumerate(feed.epoch(0)):
        rows = len(feed.plan.indices(0, step))
        assert points.shape == (rows, 4, 3)
        assert weight.shape == (rows,)
        assert weight.dtype == np.float32
        blank = weight == 0
        assert not points[blank].any()
        assert not labels[blank].any()
        assert np.array_equal(feed.plan.indices(0, step)[~blank], labels[~blank])
        weights.append(weight)
    assert np.concatenate(weights).sum() == 35
    assert [str(field) for field in feed.element_spec] == ["float32[?, 4, 3]", "int64[?]", "float32[?]"]


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_mask_zeroes_weights_provided_by_scenes(feed_on, kind):
    batches = list(feed_on(kind, faulty.Weighted((7,)), on_error="mask").epoch(0))
    weights = np.concatenate([weight for _, _, weight in batches])
    assert sorted(weights.tolist()) == [0.0] + [0.5] * 36


@pytest.mark.light(where=lambda kind, on_error: kind != "process" or on_error == "mask")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_error", ["mask", "skip", "replace"])
def test_every_kind_of_field_can_be_masked_skipped_and_replaced(feed_on, kind, on_error):
    feed = feed_on(kind, faulty.RaisingNested(), 4, on_error=on_error, shuffle=False)
    batches = list(feed.epoch(0))
    second = batches[1][0]  # scenes 4 to 7, or 5 to 7
    assert second["name"].dtype == object
    if on_error == "skip":
        assert second["name"].tolist() == [f"scene é {index}" for index in (5, 6, 7)]
        assert second["x"][1][:, 0].tolist() == [5, 6, 7]
    if on_error == "mask":
        assert second["name"].tolist()[:2] == ["", "scene é 5"]
        assert second["raw"].tolist()[0] == b""
        assert second["words"].tolist()[0] == ["", ""]
        assert second["flag"].tolist() == [False, False, True, False]
        assert batches[1][2].tolist() == [0, 1, 1, 1]
    if on_error == "replace":
        assert "scene é 4" not in second["name"].tolist()


@pytest.mark.light(where=lambda kind, bad: kind != "process" or bad == (3, 4, 5))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [(4,), (3, 4), (9, 11), (3, 4, 5)])
def test_a_masked_row_has_the_shape_of_its_batch(feed_on, kind, bad):
    feed = feed_on(kind, faulty.RaisingSized(bad), 3, on_error="mask", shuffle=False, max_failures=5)
    for step, (values, labels, weights) in enumerate(feed.epoch(0)):
        good = [index for index in range(3 * step, 3 * step + 3) if index not in bad]
        assert labels[weights == 1].tolist() == good
        assert len(values) == 3
        if good:
            assert values.shape[1] == step * step * 50 + 1
            assert np.array_equal(values[weights == 1][0], np.arange(values.shape[1]))
        assert not values[weights == 0].any()


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_skip_drops_rows_and_batches_without_rows(feed_on, kind):
    feed = feed_on(
        kind, faulty.Raising((0, 8, 9, 10, 11, 12, 13, 14, 15)), on_error="skip", shuffle=False, max_failures=9
    )
    labels = _labels(feed)
    assert labels == [[*range(1, 8)], [*range(16, 24)], [*range(24, 32)], [*range(32, 37)]]
    assert feed[0][1].tolist() == [*range(1, 8)]
    with pytest.raises(kf.errors.SceneError, match=r"every scene of step 1 of epoch \d+ failed and was skipped"):
        feed[1]


def test_skip_is_refused_by_fit_and_to_tf_dataset(feed_on):
    import keras

    feed = feed_on("thread", faulty.Raising(), on_error="skip")
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"plain loops, not in fit\(\): use on_error='replace', or 'mask'"):
        model.fit(feed, verbose=0)
    with pytest.raises(ValueError, match=r"plain loops, not in to_tf_dataset\(\)"):
        feed.to_tf_dataset()


@pytest.mark.heavy
@pytest.mark.parametrize("on_error", ["replace", "mask"])
def test_fit_and_tf_data_train_on_a_feed_with_bad_scenes(feed_on, on_error):
    import keras

    feed = feed_on("process", faulty.Raising((7, 20)), on_error=on_error)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    model.fit(feed, epochs=2, verbose=0)
    dataset = feed.to_tf_dataset()
    model.fit(dataset, epochs=1, verbose=0, shuffle=False)
    batches = list(dataset)
    assert sum(len(batch[1]) for batch in batches) == 37
    if on_error == "mask":
        assert sum(float(batch[2].numpy().sum()) for batch in batches) == 35


@pytest.mark.heavy
def test_the_loss_of_a_masked_batch_uses_only_its_other_scenes(feed_on):
    import keras

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    masked = feed_on("thread", faulty.Raising((7, 20)), on_error="mask", shuffle=False)
    found = model.evaluate(masked, verbose=0, return_dict=True)["mae"]
    good = [scenes.Clouds()[index] for index in range(37) if index not in (7, 20)]
    expected = np.mean([abs(points.sum() - label) for points, label in good])
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.light(where=lambda kind, on_error: kind != "process" or on_error == "replace")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_error", ["replace", "mask", "skip"])
def test_on_error_applies_to_scenes_read_for_the_spec(feed_on, kind, on_error):
    feed = feed_on(kind, faulty.Raising((0, 9, 18, 36)), on_error=on_error, max_failures=4, shuffle=False)
    assert sum(len(labels) for labels in _labels(feed)) == (33 if on_error == "skip" else 37)


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_if_every_scene_fails_the_first_error_is_raised(feed_on, kind):
    feed = feed_on(kind, faulty.Raising(range(37)), on_error="replace", max_failures=1.0)
    with pytest.raises(ValueError, match="scene 0 is broken"):
        next(iter(feed))


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_more_failures_than_max_failures_raise_with_the_last_as_cause(feed_on, kind):
    feed = feed_on(kind, faulty.Raising((5, 6, 7)), on_error="replace", max_failures=2, shuffle=False)
    with pytest.raises(
        kf.errors.TooManyFailuresError,
        match=r"3 of 37 scenes failed and on_error='replace' allows 2 \(max_failures: 2\)",
    ) as caught:
        list(feed)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "feed.failures lists them" in str(caught.value)


@pytest.mark.parametrize(("given", "borne"), [(None, 10), (0.05, 5), (0.29, 29), (1, 1)])
def test_max_failures_is_a_count_or_a_fraction_and_defaults_to_a_tenth(feed_on, given, borne):
    feed = feed_on("inline", faulty.Raising(range(50, 50 + borne), length=100), on_error="skip", max_failures=given)
    assert sum(map(len, _labels(feed))) == 100 - borne
    feed = feed_on("inline", faulty.Raising(range(50, 51 + borne), length=100), on_error="skip", max_failures=given)
    with pytest.raises(kf.errors.TooManyFailuresError):
        list(feed)


def test_a_scene_that_fails_in_every_epoch_counts_once_against_max_failures(feed_on):
    feed = feed_on("thread", faulty.Raising((7,)), on_error="replace", max_failures=1)
    for epoch in range(5):
        list(feed.epoch(epoch))
    assert [(row.index, row.epoch, row.count) for row in feed.failures] == [(7, 4, 5)]
    assert feed.stats().failed == 1


class Announced(faulty.Raising):
    """Scenes that cannot be announced; some raise as well."""

    def read_ahead(self, indices):
        raise OSError("the network is gone")


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_scenes_are_read_although_read_ahead_fails(feed_on, kind):
    feed = feed_on(kind, Announced(), on_error="replace")
    assert _labels(feed) == _labels(feed_on("inline", faulty.Raising(), on_error="replace"))
    assert {row.index for row in feed.failures} == {None, 7}
    assert feed.stats().failed == 1
    feed = feed_on(kind, Announced())
    with pytest.raises(OSError, match="the network is gone"):
        _labels(feed)
    assert feed.failures[0].exception == "OSError: the network is gone"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"on_error": "ignore"},
            ValueError,
            "on_error must be one of 'raise', 'replace', 'mask', 'skip', received 'ignore'",
        ),
        ({"max_failures": 0}, ValueError, "max_failures must be at least 1, received 0"),
        ({"max_failures": 1.5}, ValueError, r"an integer of at least 1, or a share in \(0, 1\], received 1.5"),
        ({"max_failures": "3"}, TypeError, "max_failures must be an integer, received '3'"),
        ({"timeout": 0, "workers": 1}, ValueError, "timeout must be a positive number of seconds"),
        ({"timeout": "1", "workers": 1}, TypeError, "timeout must be a positive number of seconds.*received '1'"),
        ({"timeout": 1, "workers": 0}, ValueError, "timeout needs workers"),
        ({"error_log": 3}, TypeError, "error_log must be a path, received 3"),
        ({"error_log": "/no/such/folder/log"}, ValueError, "is in a folder that does not exist"),
        ({"error_log": "/"}, ValueError, "is a folder"),
        ({"on_error": "mask", "batch_size": None}, ValueError, "'mask' needs a batch_size"),
    ],
)
def test_invalid_on_error_arguments_are_refused(arguments, error, message):
    arguments = {"batch_size": 8, "workers": 0, **arguments}
    with pytest.raises(error, match=message):
        kf.Feed(scenes.Clouds(), **arguments)


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_mask_refuses_scenes_of_a_structure_without_weights(feed_on, kind):
    feed = feed_on(kind, scenes.Nested(), on_error="mask")
    with pytest.raises(
        kf.errors.SpecError, match=r"a scene must be \(x, y\) or \(x, y, sample_weight\); received the structure {"
    ):
        next(iter(feed))


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_items_that_are_batches_can_be_replaced_or_skipped(feed_on, on_error):
    class Batches(scenes.Reshuffled):
        def __getitem__(self, index):
            if index == 1:
                raise ValueError
            return np.full((2, 1), index, np.float32), np.array([index] * 2)

        on_epoch_begin = on_epoch_end = None

    found = [labels[0] for _, labels in feed_on("thread", Batches(), None, on_error=on_error, shuffle=False)]
    assert found == [0, 2] if on_error == "skip" else len(found) == 3 and 1 not in found


@pytest.mark.heavy
def test_a_failed_replacement_is_replaced_again(feed_on):
    good = set(range(0, 37, 3))
    feed = feed_on("process", faulty.Raising(set(range(37)) - good), on_error="replace", max_failures=1.0)
    labels = np.concatenate(_labels(feed))
    assert set(labels.tolist()) <= good
    assert len(labels) == 37
    assert max(row.count for row in feed.failures) > 1


def test_a_single_scene_that_fails_has_no_replacement(feed_on):
    class Once(scenes.Clouds):
        reads = 0

        def __getitem__(self, index):
            Once.reads += 1
            if Once.reads > 1:
                raise ValueError("no more")
            return super().__getitem__(index)

    with pytest.raises(kf.errors.SceneError, match="scene 0 failed, and no other scene could be loaded to replace it"):
        list(feed_on("inline", Once(1), on_error="replace"))
