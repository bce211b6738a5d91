"""`kf.describe`: the right numbers, the same with any workers, despite scenes that fail."""

import json
import math
import os
import pickle
import threading
import time
import tracemalloc
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import scenes
from described_scenes import described, facts
from waits import SECONDS

import kerasfeed as kf
from kerasfeed.explore.describe import scene_statistics
from kerasfeed.explore.describe.field_statistics import nodes_of, pooled
from kerasfeed.explore.describe.scene_statistics import SceneStatistics


class Wild(kf.SceneSequence):
    """Fields of every kind, with values that lose digits in a naive sum."""

    def __init__(self, length=60):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index % 20 == 7:
            raise ValueError(f"scene {index} is damaged")
        rng = np.random.default_rng(index)
        far = rng.normal(1.7e9, 1.0, (rng.integers(3, 40), 3))
        if index % 10 == 3:
            far[0] = np.nan, np.inf, -np.inf
        return {
            "far": far,
            "wide": 10.0 ** rng.uniform(-200, 100, 4),
            "half": rng.normal(size=(2, 50)).astype(np.float16),
            "bytes": rng.integers(0, 256, (9, 9, 3), np.uint8),
            "mask": rng.integers(0, 3, (9, 9), np.uint8),
            "label": index % 4,
            "flag": index % 2 == 0,
            "name": "scene" * (index % 3),
            "words": np.array(["a", "bb"]),
            "complex": rng.normal(size=5) + 1j,
            "empty": np.zeros((0, 3), np.float32),
            "seen": self.rng.random(),
            "same": np.arange(3),
        }


def test_the_result_is_bit_for_bit_equal_with_any_workers():
    alone = described(Wild())
    assert facts(described(Wild(), workers=3, worker_type="thread")) == facts(alone)
    assert facts(described(Wild(), workers=2, worker_type="process")) == facts(alone)
    assert alone.failed == 3


def test_dividing_and_merging_scenes_changes_no_bit():
    sequence = [(np.random.default_rng(n).normal(1e8, 1, (5, 3)), n % 3, "abc"[: n % 4]) for n in range(40)]
    results = []
    for size in (1, 7, 39):
        parts = []
        for begin in range(0, 40, size):
            parts.append(SceneStatistics())
            for place in range(begin, min(40, begin + size)):
                if place % 5 != 2:  # like a failed scene
                    parts[-1].add(place, sequence[place], 0.0)
            parts[-1].close(begin, min(40, begin + size))
        whole = SceneStatistics()
        for part in np.random.default_rng(size).permutation(parts):
            whole.merge(part)
        moments = [each.tolist() for each in whole.fields["0"].columns.result()]
        counts, lengths = whole.fields["1"].few.counts, whole.fields["2"].whole.result()
        results.append((moments, counts, lengths, whole.table()["bits"].tolist()))
    assert results[0] == results[1] == results[2]


def test_memory_for_a_sparse_field_grows_logarithmically():
    sizes = []
    for count in (1_000, 4_000):
        found = SceneStatistics()
        for place in range(count):
            found.add(place, {"wide": np.ones(1_000)} if place % 2 else {"other": 1}, 0.0)
        found.close(0, count)
        sizes.append(len(pickle.dumps(found)))
    assert sizes[1] - sizes[0] < 2 * 4 * 8 * 1_000 + 3_000 * 40  # a node per doubling, and a row per scene


def test_mean_and_variance_are_exact_to_the_last_digits_far_from_zero():
    rng = np.random.default_rng(0)
    clouds = [rng.normal(1e9, 1e-2, (50, 3)) for _ in range(30)]
    found = described(clouds)["scene"]
    values = np.concatenate(clouds)
    for axis in range(3):
        mean = math.fsum(values[:, axis]) / len(values)
        variance = math.fsum((values[:, axis] - mean) ** 2) / len(values)
        assert found.mean[axis] == pytest.approx(mean, rel=1e-15)
        assert found.variance[axis] == pytest.approx(variance, rel=1e-6)


def test_every_statistic_equals_numpy_on_all_scenes_at_once():
    rng = np.random.default_rng(1)
    images = rng.integers(0, 3, (25, 8, 8, 2)).astype(np.float32)
    found = described(kf.Zip(images, np.arange(25) % 5))
    image, label = found["0"], found[1]
    assert (image.min, image.max, image.values) == (0, 2, images.size)
    assert image.zeros == np.count_nonzero(images == 0)
    assert np.allclose(image.mean, images.mean(axis=(0, 1, 2), dtype=np.float64), rtol=1e-14)
    assert np.allclose(image.std, images.std(axis=(0, 1, 2), dtype=np.float64), rtol=1e-14)
    assert (image.shape, image.dtypes, image.axis) == ((8, 8, 2), {"float32": 25}, -1)
    assert label.classes == dict.fromkeys(range(5), 5)
    assert (label.mean, label.axis) == (2.0, None)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_histogram_of_small_scenes_covers_all_values(offset):
    rows = np.random.default_rng(3).normal(offset, 2.0, (60, 40))
    field = described(rows)["scene"]
    assert (field.edges[0], field.edges[-1]) == (rows.min(), rows.max())
    assert np.histogram(rows, field.edges)[0] / rows.size == pytest.approx(field.shares, abs=0.02)


def test_keras_normalization_accepts_mean_variance_and_axis_unchanged():
    import keras

    rng = np.random.default_rng(2)
    clouds = rng.normal([1, 10, -5], [1, 2, 3], (20, 64, 3)).astype(np.float32)
    grey = rng.normal(3, 2, (20, 28, 28)).astype(np.float32)
    rows = rng.normal(3, 2, (20, 7)).astype(np.float32)
    found = described(kf.Zip(clouds, grey, rows))
    for path, data in zip("012", (clouds, grey, rows), strict=True):
        field = found[path]
        layer = keras.layers.Normalization(axis=field.axis, mean=field.mean, variance=field.variance)
        normalized = keras.ops.convert_to_numpy(layer(data))
        learnt = keras.layers.Normalization(axis=field.axis)
        learnt.adapt(data)
        assert np.allclose(normalized, keras.ops.convert_to_numpy(learnt(data)), atol=1e-4)
    assert [found[path].axis for path in "012"] == [-1, None, -1]


def test_non_finite_values_are_counted_and_excluded():
    values = np.array([[1.0, np.nan], [3.0, np.inf], [5.0, 7.0]])
    field = described([values, values])["scene"]
    assert (field.nan, field.infinite, field.min, field.max) == (2, 2, 1.0, 7.0)
    assert field.mean.tolist() == [3.0, 7.0]
    assert field.variance.tolist() == pytest.approx([8 / 3, 0])
    nothing = described([np.array([np.nan])] * 2)["scene"]
    assert nothing.min is None
    assert np.isnan(nothing.mean).all()


def test_a_scene_that_fails_is_reported_and_the_others_are_described():
    found = described(Wild(30))
    assert found.failures == ((7, "ValueError: scene 7 is damaged"), (27, "ValueError: scene 27 is damaged"))
    assert found["label"].scenes == 28
    assert "failed" in found.to_text()


def test_a_sequence_with_only_failing_scenes_can_be_described():
    def broken(scene):
        raise OSError("gone")

    found = described(kf.Map(np.arange(30), broken))
    assert (found.failed, len(found)) == (30, 0)
    assert found.timing.seconds != found.timing.seconds
    assert "30" in repr(found)
    assert "gone" in found._repr_html_()


class Deadly(scenes.Clouds):
    def __getitem__(self, index):
        if index == 5:
            os._exit(3)
        return super().__getitem__(index)


def test_scenes_with_the_same_error_are_reported_together():
    def scene(index):
        if index % 2:
            raise ValueError("damaged" if index < 14 else f"damaged in row {index}")
        return index

    failed = described(kf.Map(range(24), scene)).to_text().partition("failed")[2].partition("slowest")[0]
    assert " ".join(failed.split()) == (
        "12: 1, 3, 5, 7, 9, … (7) (ValueError: damaged); 15 (ValueError: damaged in row 15); "
        "17 (ValueError: damaged in row 17); 3 more errors"
    )


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (1, "1,250: 0, 1, 2, 3, 4, … (ValueError: 0)"),
        (5000, "1,250: 0 (ValueError: 0); 1 (ValueError: 1); 2 (ValueError: 2); 997 other errors, at least"),
    ],
)
def test_no_count_is_shown_as_complete_if_not_all_errors_are_kept(texts, told):
    def scene(index):
        if index < 1_250:
            raise ValueError(index % texts)
        return index

    failed = described(kf.Map(range(1_300), scene)).to_text().partition("failed")[2].partition("slowest")[0]
    assert " ".join(failed.split()) == f"{told}; the errors of 250 scenes were not kept"


@pytest.mark.heavy
def test_a_scene_that_kills_its_worker_counts_as_failed():
    found = described(Deadly(12), workers=1, worker_type="process")
    assert [index for index, _ in found.failures] == [5]
    assert "ended with exit code 3" in found.failures[0][1]
    assert found["1"].scenes == 11


def test_bitwise_equal_scenes_are_reported_as_duplicates():
    clouds = [np.full((4, 3), value, np.float32) for value in (1, 2, 1, 3, 2, 1)]
    assert described(clouds).duplicates == ((0, 2, 5), (1, 4))
    assert described([(clouds[0], 0), (clouds[0], 1)]).duplicates == ()
    assert described([np.zeros(6), np.zeros((2, 3)), np.zeros(6, np.int64)]).duplicates == ()
    assert described(clouds, [0, 0, 1]).duplicates == ()
    assert described([{"a": 1}, {"b": 1}]).duplicates == ()


def test_text_is_described_by_its_lengths_and_its_most_frequent_values():
    field = described(["a", "", "bbb", "a"])["scene"]
    assert (field.min, field.max, field.mean, field.zeros) == (0, 3, 1.25, 1)
    assert field.classes == {"": 1, "a": 2, "bbb": 1}
    assert field.std == pytest.approx(np.std([1, 0, 3, 1]))


class Different(kf.SceneSequence):
    """Each scene has its own field; if `waits`, the last is read before the one in the middle."""

    def __init__(self, waits):
        self.last_is_read = threading.Event() if waits else None

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if self.last_is_read is not None and index == 1:
            assert self.last_is_read.wait(SECONDS)
            time.sleep(0.2)  # so that the last one finishes first
        if self.last_is_read is not None and index == 2:
            self.last_is_read.set()
        return {"zyx"[index]: index}


def test_fields_are_listed_in_scene_order_with_any_workers():
    alone = kf.describe(Different(waits=False), workers=0, progress=False)
    found = kf.describe(Different(waits=True), workers=2, worker_type="thread", progress=False)
    assert list(found) == list(alone) == ["z", "y", "x"]


def test_constant_fields_and_fields_of_some_scenes_are_reported():
    found = described([{"a": np.zeros(3), "b": 1}, {"a": np.zeros(3)}, {"a": np.zeros(3), "b": 2.5}])
    assert (found["a"].constant, found["b"].constant, found["b"].scenes) == (True, False, 2)
    text = found.to_text()
    assert "the same in all scenes" in text
    assert "only in 2 of 3 scenes" in text
    assert found["b"].dtypes == {"float64": 1, "int64": 1}
    with pytest.raises(KeyError, match="no scene has a field 'c': there are 'a', 'b'"):
        found["c"]


def test_many_classes_or_shapes_are_not_counted():
    found = described(kf.Zip(np.arange(1500), [np.zeros(1 + n % 20) for n in range(1500)]))
    assert found["0"].classes == {}
    assert found["1"].shapes == {}
    assert found["1"].sizes == ((1, 20),)
    assert (found["1"].shape, found["1"].axis) == ((None,), None)


def test_the_slowest_scenes_are_named_and_nbytes_is_the_size_of_arrays(monkeypatch):
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)  # with a real clock, another scene may be delayed
    monkeypatch.setattr(scene_statistics, "time", clock)

    class Slow(scenes.Clouds):
        def __getitem__(self, index):
            if index == 11:
                clock.now += 0.05
            return super().__getitem__(index)

    found = described(Slow(20))
    assert found.timing.slowest[0][0] == 11
    assert found.timing.slowest[0][1] > 0.04
    assert found.nbytes == 4 * 3 * 4 + 8


class Hooked(scenes.Clouds):
    def on_worker_end(self):
        raise OSError("cannot be closed")


@pytest.mark.parametrize("look", [described, kf.show])
def test_a_hook_that_fails_at_the_end_is_reported(look):
    with pytest.warns(kf.FeedWarning, match="cannot be closed"):
        look(Hooked())


def test_no_scene_is_kept():
    clouds = kf.Map(np.arange(400), lambda index: np.full(25_000, index, np.float64))
    described(clouds, 3)
    tracemalloc.start()
    try:
        described(clouds)
        assert tracemalloc.get_traced_memory()[1] < 20 * 25_000 * 8  # of 400 scenes
    finally:
        tracemalloc.stop()


def test_text_and_html_work_for_any_sequence_and_escape_user_text():
    found = described([{"<b>": np.arange(4.0), "s": "<i>" * 9}] * 3)
    html = found._repr_html_()
    assert "<b>" not in html.replace("<b></b>", "")
    assert "&lt;b&gt;" in html
    assert "background-color" in html
    assert max(map(len, described(Wild()).to_text().splitlines())) <= 140
    json.dumps(described(Wild()).to_dict(), allow_nan=False)


def test_values_with_overflowing_squares_have_nan_as_mean():
    found = described([np.full(4, value) for value in (1e200, -1e200, 1e200)])["scene"]
    assert np.isnan([found.mean, found.variance]).all()
    assert (found.min, found.max, found.values) == (-1e200, 1e200, 12)


def test_the_largest_numbers_have_no_histogram_and_cause_no_warning():
    found = described([np.full(4, 1.7e308), np.full(4, -1.7e308)])
    assert found["scene"].edges == ()
    assert "1.7e+308" in found.to_text()


def test_integers_beyond_int64_and_all_int8_values_are_counted():
    large = [2**64 - 1 - np.arange(size, dtype=np.uint64) % 9 for size in (12, 900, 5000)]
    found = described(large)
    assert found.failed == 0
    assert sum(found["scene"].classes.values()) == 5912
    assert found["scene"].max == 2**64 - 1
    bytes_ = np.tile(np.array([-128, 0, 127], np.int8), 1000)
    assert described([bytes_, bytes_[:3]])["scene"].classes == {-128: 1001, 0: 1001, 127: 1001}


def test_features_are_reported_if_the_first_scene_is_empty():
    found = described([np.full((5 * index, 3), [1.0, 2.0, 3.0]) for index in range(4)])["scene"]
    assert (found.mean.tolist(), found.axis) == ([1.0, 2.0, 3.0], -1)


def test_features_are_reported_if_many_first_scenes_fail():
    def scene(index):
        if index < 20:
            raise ValueError("damaged")
        return np.full(3, float(index))

    found = described(kf.Map(list(range(40)), scene))
    assert (found.failed, found["scene"].axis) == (20, -1)


def test_lengths_of_text_are_not_mixed_with_numbers_of_the_same_field():
    found = described(["abc", 7, "abcde", 2.5])["scene"]
    assert (found.dtypes, found.values) == ({"float64": 1, "int64": 1, "str": 2}, 4)
    stats = found.to_dict()
    assert (found.min, found.max, stats["mean"], stats["variance"], found.edges) == (None, None, None, None, ())


def test_a_field_present_only_in_the_last_scenes_is_described():
    found = described([{"a": 1.0}, {"a": 2.0}, {"a": 3.0, "b": 4.0}])
    assert (found["b"].values, found["b"].mean) == (1, 4.0)


def test_numbers_wider_than_python_floats_become_python_floats():
    found = described([np.array([1.5, index], np.longdouble) for index in range(3)])
    assert json.dumps(found["scene"].to_dict())
    assert type(found["scene"].max) is float


def test_scenes_with_equal_crc32_are_not_reported_as_duplicates():
    # About 5 pairs of 200,000 scenes have the same checksum.
    seen, pair = {}, None
    for number in range(1_000_000):
        data = (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little")
        other = seen.setdefault(zlib.crc32(data), data)
        if other != data:
            pair = other, data
            break
    long = [bytes(5_000) + data for data in pair]
    assert zlib.crc32(long[0]) == zlib.crc32(long[1])
    assert described([*pair, *long]).duplicates == ()


def test_all_groups_of_duplicates_are_reported():
    found = described([float(index // 2) for index in range(3000)])
    assert len(found.duplicates) == 1500


def test_a_non_finite_value_does_not_copy_a_large_scene():
    large = np.zeros((1_500_000, 3), np.float32)
    large[5, 1] = np.nan
    tracemalloc.start()
    try:
        found = described([large])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found["scene"].nan == 1
    assert peak < 4 * large.nbytes


# ---- which scenes


class Damaged(kf.SceneSequence):
    """60 scenes; NaN in every seventh, infinity in 12, an empty mask in every fifth, the extremes in 31 and 17."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        image = np.random.default_rng(index).random((40, 40), np.float32)
        image[0, 0] = {31: -5, 17: 7, 12: np.inf}.get(index, 0.5)
        if index % 7 == 3:
            image[2, :3] = np.nan
        mask = np.zeros((40, 40), np.uint8)
        mask[:9, :9] = bool(index % 5)
        return {"image": image, "mask": mask, "row": np.full(3, index % 2, np.float32)}


def test_constant_scenes_are_named_among_scenes_without_finite_values():
    scenes = np.random.default_rng(0).random((60, 3, 2))
    scenes[33], scenes[5, 0, 0], scenes[7] = 1, np.nan, np.inf
    assert described(scenes)["scene"].uniform_scenes.tolist() == [33]


@pytest.mark.parametrize("more", [{}, {"workers": 3, "worker_type": "thread"}])
def test_the_scenes_of_nan_infinities_extremes_and_constant_fields_are_named(more):
    found = described(Damaged(), **more)
    image, mask = found["image"], found["mask"]
    assert image.nan_scenes.tolist() == list(range(3, 60, 7))
    assert image.infinite_scenes.tolist() == [12]
    assert (image.min_scene, image.max_scene) == (31, 17)
    assert mask.uniform_scenes.tolist() == list(range(0, 60, 5))
    assert found["row"].uniform_scenes.tolist() == list(range(60))
    assert (found["row"].min_scene, found["row"].max_scene) == (0, 1)
    text = " ".join(found.to_text().split())
    assert "27 NaN in 9 scenes: 3, 10, 17, 24, 31, …; 1 infinite in 1 scene: 12; min in scene 31, max in" in text
    assert "one value in 12 scenes: 0, 5, 10, 15, 20, …" in text
    json.dumps(found.to_dict(), allow_nan=False)


def test_chosen_scenes_are_named_by_their_index_in_the_sequence():
    image = described(Damaged(), [12, 24, 31, 59])["image"]
    assert (image.nan_scenes.tolist(), image.infinite_scenes.tolist(), image.min_scene) == ([24, 31, 59], [12], 31)


def test_notes_are_not_truncated():
    message = "a file that is far down in a tree of folders " * 4

    def scene(index):
        if index == 3:
            raise OSError(message)
        return {f"field_{place}": np.array([np.nan, index, place]) for place in range(3)}

    text = " ".join(described(kf.Map(np.arange(8), scene)).to_text().split())
    assert message.strip() in text
    assert "…" not in text.replace("0, 1, 2, 4, 5, …", "")


class Seen(kf.SceneSequence):
    """Logs which process reads it."""

    def __init__(self, length, seconds=0.0):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return os.getpid()


class SeenBySeveral(Seen):
    """Its scenes are slow until a second process has read one."""

    def __init__(self, length, folder):
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / str(os.getpid())).touch()
        time.sleep(0.05 if len(list(self.folder.iterdir())) == 1 else 0)
        return os.getpid()


def test_few_scenes_are_read_in_the_calling_process_and_many_by_worker_processes(tmp_path):
    here = kf.describe(Seen(15), progress=False)["scene"].classes
    assert list(here) == [os.getpid()]
    there = kf.describe(SeenBySeveral(600, tmp_path), progress=False)["scene"].classes
    assert len(there) > 1


class Unpicklable(Seen):
    threads = set()

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lock = threading.Lock()

    def __getitem__(self, index):
        self.threads.add(threading.get_ident())
        return super().__getitem__(index)


class ClaimsThreadSafe(Unpicklable):
    thread_safe = True
    threads = set()


def test_an_unpicklable_class_is_read_by_several_threads_only_if_thread_safe():
    with pytest.warns(UserWarning, match="worker_type='auto' uses one worker thread: the sequence"):
        kf.describe(Unpicklable(30, 0.05), progress=False)
    assert len(Unpicklable.threads - {threading.get_ident()}) == 1
    with pytest.warns(UserWarning, match="worker_type='auto' uses worker threads"):
        kf.describe(ClaimsThreadSafe(30, 0.05), progress=False)
    assert len(ClaimsThreadSafe.threads - {threading.get_ident()}) > 1


@pytest.mark.parametrize("columns", [1, 3, 100])
def test_moments_computed_together_equal_moments_computed_separately(columns):
    rows = np.random.default_rng(columns).normal(1e9, 1.0, (20, 7 * columns))
    rows[3, columns] = rows[9, 0] = np.nan
    finite = np.isfinite(rows)
    together = nodes_of(rows, columns, finite)
    for row, its_own in enumerate(finite):
        alone = nodes_of(rows[row : row + 1], columns, None if its_own.all() else its_own[None])
        for one, other in zip((*together, *pooled(*together)), (*alone, *pooled(*alone)), strict=True):
            assert one[row].tolist() == other[0].tolist()
