"""The distribution of metrics over batches: compared with NumPy, and merged as if measured at once."""

import json

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.adapters.keras.evaluate import MetricDistribution


def distribution(values, rows=None, repeats=None, name="loss"):
    rows = [8] * len(values) if rows is None else rows
    repeats = [0] * len(values) if repeats is None else repeats
    return MetricDistribution(name, np.array(values, float), np.array(rows), np.array(repeats))


VALUES = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0]


def test_statistics_of_equal_batches_match_the_textbook_formulas():
    found = distribution(VALUES)
    assert found.count == 6
    assert found.mean == pytest.approx(np.mean(VALUES))
    assert found.std == pytest.approx(np.std(VALUES, ddof=1))
    assert found.standard_error == pytest.approx(np.std(VALUES, ddof=1) / np.sqrt(6))
    assert found.quantiles == pytest.approx(
        {0.0: 1.0, 0.05: 1.125, 0.25: 1.625, 0.5: 2.5, 0.75: 3.75, 0.95: 7.75, 1.0: 9.0}
    )


def test_batches_are_weighted_by_their_rows():
    found = distribution([1.0, 4.0], rows=[30, 10])
    assert found.mean == 1.75
    assert found.std == pytest.approx(np.sqrt((30 * 0.75**2 + 10 * 2.25**2) / (40 - 1000 / 40)))
    assert found.standard_error == pytest.approx(found.std / np.sqrt(40**2 / 1000))


def test_repeats_of_the_same_scenes_do_not_reduce_the_standard_error():
    once = distribution(VALUES)
    thrice = distribution(VALUES * 3, repeats=np.repeat([0, 1, 2], 6))
    assert thrice.standard_error == pytest.approx(thrice.std / np.sqrt(6))
    assert thrice.standard_error == pytest.approx(once.standard_error, rel=0.1)


def test_the_standard_error_predicts_the_spread_of_means():
    rng = np.random.default_rng(0)
    draws = [distribution(rng.normal(5, 2, 16)) for _ in range(2000)]
    assert np.std([draw.mean for draw in draws]) == pytest.approx(
        np.mean([draw.standard_error for draw in draws]), rel=0.05
    )


def test_one_batch_has_no_deviation_and_non_finite_values_stay_visible():
    assert np.isnan(distribution([2.0]).std)
    assert np.isnan(distribution([2.0, np.nan]).mean)
    assert np.isnan(distribution([2.0, np.inf]).std)
    assert distribution([2.0, np.inf]).mean == np.inf


def evaluation(seed, repeats=2):
    rng = np.random.default_rng(seed)
    rows, passes = rng.integers(1, 9, 10), np.repeat(np.arange(repeats), 10 // repeats)
    return kf.Evaluation([distribution(rng.normal(size=10), rows, passes, name) for name in ("loss", "accuracy")])


def test_evaluations_of_shards_merge_into_one_evaluation():
    shards = [evaluation(seed) for seed in range(3)]
    whole = shards[0].merge(shards[1:])
    assert list(whole) == ["loss", "accuracy"]
    for name, metric in whole.items():
        assert metric.values.tolist() == [value for shard in shards for value in shard[name].values]
        assert metric.rows.tolist() == [rows for shard in shards for rows in shard[name].rows]
        assert metric.mean == pytest.approx(np.average(metric.values, weights=metric.rows))
    batches = whole["loss"].rows.sum() ** 2 / (whole["loss"].rows ** 2).sum()
    assert whole["loss"].standard_error == pytest.approx(whole["loss"].std / np.sqrt(batches / 2))  # two repeats
    assert shards[0].merge(shards[1])["loss"].count == 20


def test_merge_refuses_different_metrics_and_other_objects():
    with pytest.raises(ValueError, match=r"different metrics cannot be merged: \['accuracy', 'loss'\] and \['loss'\]"):
        evaluation(0).merge(kf.Evaluation([distribution(VALUES)]))
    with pytest.raises(TypeError, match=r"received a dict; Evaluation\.from_dict"):
        evaluation(0).merge([{}])


def test_an_evaluation_round_trips_through_json():
    whole = evaluation(1)
    text = json.dumps(whole.to_dict())
    back = kf.Evaluation.from_dict(json.loads(text))
    assert json.dumps(back.to_dict()) == text
    assert json.loads(text)["metrics"]["loss"]["quantiles"].keys() == {"0", "0.05", "0.25", "0.5", "0.75", "0.95", "1"}
    for wrong in ({}, [], {"rows": [1], "repeats": [0], "metrics": {"loss": 3}}):
        with pytest.raises(ValueError, match="needs the result of to_dict"):
            kf.Evaluation.from_dict(wrong)


def test_an_evaluation_prints_as_a_table_in_text_and_html():
    text = str(kf.Evaluation([distribution(VALUES, name="<b>"), distribution([1e-7] * 6, name="accuracy")]))
    first, _, head, one, other = text.splitlines()
    assert first == "Evaluation: 6 batches, 48 scenes, 1 repeat"
    assert head.split("  ")[-1] == "max"
    assert one.split() == ["<b>", "3.4167", "1.2001", "2.9397", "1", "1.125", "1.625", "2.5", "3.75", "7.75", "9"]
    assert len({len(line) for line in (head, one, other)}) == 1
    html = kf.Evaluation([distribution(VALUES, name="<b>")])._repr_html_()
    assert "&lt;b&gt;" in html
    assert "3.4167" in html
    assert str(distribution(VALUES)) == "loss: 3.41667 ± 1.2 (std 2.9, 6 batches)"
