"""The cost of an order on a file of large chunks: counted, reported once, in the right thread, and only if true."""

import re
import threading
import warnings

import h5py
import keras
import numpy as np
import pytest
from scenes_chunks import Clouds, Direct, Labelled, Taken

import kerasfeed as kf
from kerasfeed.feeds.display import waste_text
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.readers import read_cost

KINDS = ["inline", "thread", "process"]
CHUNK = 64 * 128 * 3 * 4
SCENES = 640


CASES = [(kind, make) for kind in ("inline", "thread") for make in (Clouds, Direct, Taken)] + [("process", Direct)]
light_cases = pytest.mark.light(
    where=lambda kind, make: (kind, make) in [("inline", Clouds), ("thread", Taken), ("process", Direct)]
)


@pytest.fixture
def path(tmp_path):
    """A file of 640 scenes in 10 chunks of 64; for one test only, because open files share caches and counters."""
    where = tmp_path / "clouds.h5"
    data = np.random.default_rng(0).normal(size=(SCENES, 128, 3)).astype(np.float32).round(1)
    with h5py.File(where, "w") as file:
        file.create_dataset("points", data=data, chunks=(64, 128, 3), compression="gzip", shuffle=True)
    return where


def _feed(sequence, kind, **arguments):
    workers = {"workers": 0} if kind == "inline" else {"workers": 2, "worker_type": kind}
    return kf.Feed(sequence, 16, seed=1, **workers, **arguments)


def _epochs(feed, count):
    return [np.concatenate(list(feed)) for _ in range(count)]


@pytest.mark.heavy
@light_cases
@pytest.mark.parametrize(("kind", "make"), CASES)
def test_a_full_shuffle_of_large_chunks_warns_once_with_measured_costs(path, kind, make):
    sequence = make(path, 2 * CHUNK)
    with _feed(sequence, kind, shuffle=True) as feed:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _epochs(feed, 3)
        texts = [str(warning.message) for warning in caught if warning.category is kf.errors.ReadCostWarning]
        assert len(texts) == 1, texts
        for part in (
            "shuffle=True is slow on this file: ",
            f" chunks of 'points' of '{path}' decoded for ",
            " of them again (",
            " s wasted)",
            " MB a scene of 0.00154 MB",
            "A chunk holds 64 scenes",
            "order=kf.BlockShuffled(file['points'].block_size), which reads each chunk",
            f"chunk_cache={SCENES * 128 * 12:_}",
            "kf.write_hdf5(scenes, path, scenes_per_chunk=1)",
        ):
            assert part in texts[0]
        assert ("worker_type='thread'" in texts[0]) == (kind == "process")
        found = re.search(r"file: ([0-9,]+) chunks .* for ([0-9,]+) scenes, ([0-9,]+) of them again", texts[0])
        decoded, scenes, again = (int(number.replace(",", "")) for number in found.groups())
        assert decoded > again > 0
        assert scenes >= 32


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_the_consumer_can_continue_after_a_warning_raised_as_an_error(path, kind):
    with _feed(Clouds(path, 2 * CHUNK), kind, shuffle=True) as feed:
        with pytest.raises(kf.errors.ReadCostWarning):
            _epochs(feed, 3)
        assert len(np.concatenate(list(feed))) == SCENES


@pytest.mark.light(where=lambda kind: kind != "process")
@pytest.mark.parametrize("kind", KINDS)
def test_indexing_a_feed_warns_too(path, kind):
    with _feed(Clouds(path, 2 * CHUNK), kind, shuffle=True) as feed, pytest.raises(kf.errors.ReadCostWarning):
        _ = [feed[step] for _ in range(10) for step in range(len(feed))]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_the_warning_is_issued_in_the_thread_of_the_consumer(path, kind, monkeypatch):
    threads = []
    monkeypatch.setattr(warnings, "warn_explicit", lambda *_: threads.append(threading.current_thread()))
    with _feed(Clouds(path, 2 * CHUNK), kind, shuffle=True) as feed:
        _epochs(feed, 2)
    assert threads == [threading.main_thread()]


@pytest.mark.heavy
@light_cases
@pytest.mark.parametrize(("kind", "make"), CASES)
def test_a_cache_larger_than_the_dataset_decodes_each_chunk_once_without_warning(path, kind, make):
    sequence = make(path, 20 * CHUNK)
    with _feed(sequence, kind, shuffle=True) as feed:
        _epochs(feed, 3)
    if kind != "process":  # in processes, the worker counts
        stats = sequence.file["points"].stats()
        assert stats.decoded == 10
        assert stats.again == 0


@pytest.mark.heavy
@light_cases
@pytest.mark.parametrize(("kind", "make"), CASES)
def test_block_shuffling_decodes_each_chunk_once_per_epoch_with_a_small_cache(path, kind, make):
    sequence = make(path, 6 * CHUNK)  # windows of 2: this one and the next, and some more
    order = kf.BlockShuffled(sequence.file["points"], window=2)
    with _feed(sequence, kind, order=order, max_queue_size=2) as feed:
        _ = feed.element_spec
        probed = sequence.file["points"].stats().decoded
        found = _epochs(feed, 3)
    if kind != "process":  # in processes, the worker counts
        assert order.reads_per_epoch(SCENES) == 10
        decoded = sequence.file["points"].stats().decoded - probed
        assert 3 * (10 - 6) <= decoded <= 3 * 10  # an epoch may begin with chunks that the last one left in the cache
    with h5py.File(path) as file:
        stored = file["points"][...]
    for epoch, scenes in enumerate(found):
        indices = order.indices(0, SCENES, length=SCENES, seed=1, epoch=epoch)
        assert np.array_equal(scenes, stored[indices])


def test_two_feeds_of_one_file_each_get_their_own_cost(path):
    sequence = Clouds(path, 2 * CHUNK)
    with _feed(sequence, "thread", shuffle=True) as random, _feed(sequence, "thread") as sequential:
        for _ in range(2):
            for _ in sequential:  # warnings are errors here
                pass
        with pytest.raises(kf.errors.ReadCostWarning):
            _epochs(random, 2)


def test_earlier_reads_of_the_file_do_not_count_for_a_feed(path):
    sequence = Clouds(path, 5 * CHUNK)
    for _ in sequence.file["points"]:
        pass
    sequence.file["points"].take(np.arange(SCENES))
    with _feed(sequence, "thread", order=kf.BlockShuffled(64), max_queue_size=1) as feed:
        batches = iter(feed)
        for _ in range(12):  # the first window; warnings are errors here
            next(batches)


class Stacks(Clouds):
    """16 neighbouring scenes at a time."""

    def __len__(self):
        return super().__len__() // 16

    def __getitem__(self, index):
        return self.file["points"][16 * index : 16 * (index + 1)]


@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_sequential_scenes_of_several_rows_draw_no_warning(path, kind):
    with _feed(Stacks(path, 3 * CHUNK), kind) as feed:
        _epochs(feed, 5)


def test_a_bare_dataset_is_decoded_ahead_and_into_the_slot(path, monkeypatch):
    dataset = kf.HDF5File(path)["points"]
    ahead, into = [], []
    kind = type(dataset)
    read_ahead, read_into = kind.read_ahead, kind.read_into
    monkeypatch.setattr(
        kind, "read_ahead", lambda self, indices: (ahead.append(len(indices)), read_ahead(self, indices))
    )

    def noted(self, selection, out):
        into.append(selection)
        return read_into(self, selection, out)

    monkeypatch.setattr(kind, "read_into", noted)
    with _feed(dataset, "thread", shuffle=True) as feed:
        found = _epochs(feed, 1)[0]
    assert sum(ahead) == len(into) == SCENES
    with h5py.File(path) as file:
        order = kf.Shuffled().indices(0, SCENES, length=SCENES, seed=1, epoch=0)
        assert np.array_equal(found, file["points"][...][order])


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [">f4", "<i2", "?", "<c8"])
@pytest.mark.parametrize("shape", [(40,), (40, 5)])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_dataset_of_any_dtype_fills_the_slot_with_its_scenes(tmp_path, dtype, shape, compression):
    data = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=data, compression=compression)
    # In processes, only the slot differs, so one dataset per dtype is enough.
    in_processes = (len(shape) == 2) == (compression == "gzip") and (dtype in ">f4<c8") == (compression == "gzip")
    for kind in KINDS[: 3 if in_processes else 2]:
        with _feed(kf.HDF5File(tmp_path / "in.h5")["x"], kind) as feed:
            found = np.concatenate(list(feed))
        assert found.dtype == data.dtype.newbyteorder("=")
        assert np.array_equal(found, data)


@pytest.mark.heavy
def test_fit_with_default_arguments_keeps_block_order(path):
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(loss="mse")
    sequence = Labelled(path, 6 * CHUNK)
    with _feed(sequence, "thread", order=kf.BlockShuffled(64, window=2), max_queue_size=2) as feed:
        _ = feed.element_spec
        before = sequence.file["points"].stats().decoded
        model.fit(feed, epochs=3, verbose=0)
        assert sequence.file["points"].stats().decoded - before <= 3 * 10 + 2  # Keras reads the first batches twice


@pytest.mark.heavy
def test_a_tf_dataset_warns_its_consumer(path):
    with _feed(Clouds(path, 2 * CHUNK), "thread", shuffle=True) as feed:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in feed.to_tf_dataset(epochs=2):
                pass
        assert [warning.category for warning in caught].count(kf.errors.ReadCostWarning) == 1


def test_real_files_in_random_scene_order_decode_each_chunk_once(real_data):
    file = kf.HDF5File(real_data / "bimnet10_train.h5")
    with _feed(file["data"], "thread", shuffle=True) as feed:
        _epochs(feed, 2)
    assert file["data"].chunks == (21, 256, 1)
    assert file["data"].reader.kind == "direct"
    assert file["data"].stats().decoded == 8 * 8 * 3
    assert file["data"].stats().again == 0


@pytest.mark.heavy
def test_real_files_and_a_small_cache_warn(real_data):
    file = kf.HDF5File(real_data / "bimnet10_train.h5", chunk_cache=1 << 20)
    with (
        _feed(file["data"], "thread", shuffle=True) as feed,
        pytest.raises(kf.errors.ReadCostWarning, match="21 scenes"),
    ):
        _epochs(feed, 3)


# ---- the meter


def _storage(**changes):
    values = {"name": "'x' of 'f'", "short_name": "x", "block_size": 10, "row_bytes": 100, "nbytes": 10_000}
    return read_cost.Storage(**{**values, "cache_bytes": 2000, **changes})


def _metered(decoded, again, scenes, storage=None, length=100):
    meter = read_cost.Meter(length)
    for number in range(decoded):
        meter.record(storage or _storage(), number % (decoded - again), nbytes=1000, seconds=0.5)
    meter.record_scenes(scenes)
    return meter


@pytest.mark.parametrize(
    ("decoded", "again", "scenes", "wasteful"),
    [
        (100, 90, 100, True),
        (100, 0, 100, False),  # not decoded twice: it is still in the cache
        (29, 9, 100, False),  # 2.9 bytes decoded for each byte wanted
        (30, 9, 100, True),
        (30, 7, 100, False),  # where blocks meet, a few are decoded again
        (31, 30, 31, False),  # too early to tell
    ],
)
def test_waste_is_reported_if_repeated_decoding_exceeds_the_scene_bytes(decoded, again, scenes, wasteful):
    found = _metered(decoded, again, scenes).waste()
    assert (found is not None) == wasteful
    if found is not None:
        assert (found.decoded, found.again, found.scenes) == (decoded, again, scenes)
        assert found.nbytes == 1000 * decoded
        assert found.seconds == decoded * 0.5
        assert found.seconds_again == again * 0.5
        assert found.amplification == decoded * 10 / scenes


def test_the_most_expensive_dataset_is_reported_with_scenes_since_its_first_read():
    meter = _metered(40, 5, 40, _storage(name="small", short_name="s"))
    for _ in range(90):
        meter.record(_storage(name="large", short_name="l"), 0, nbytes=1000, seconds=0.1)
    meter.record_scenes(32)
    found = meter.waste()
    assert found is not None
    assert found.storage.name == "large"
    assert found.scenes == 32
    assert [cost.storage.name for cost in meter.costs()] == ["large", "small"]


def test_scenes_of_several_rows_are_not_reported_as_waste():
    found = _metered(60, 30, 20, length=10).costs()[0]  # 10 scenes of 10 rows; two epochs, each chunk once in each
    assert found.scene_bytes == 1000
    assert not found.wasteful
    assert _metered(200, 150, 50, length=10).waste() is not None


def test_datasets_of_one_name_in_many_files_are_judged_together():
    meter = read_cost.Meter(1000)
    for number in range(400):  # one scene each, from 10 files in turn, whose caches are empty
        meter.record(_storage(name=f"'x' of '{number % 10}'"), number // 10 % 10, nbytes=1000, seconds=0.1)
        meter.record_scenes(1)
    found = meter.waste()
    assert found is not None
    assert (found.files, found.decoded, found.again, found.scenes, found.scene_bytes) == (10, 400, 300, 400, 100)
    assert "400 chunks of 'x' of '0' and 9 other files decoded for 400 scenes, 300 of them again" in str(found)


def test_a_meter_applies_only_to_the_thread_that_entered_it():
    meter, seen = read_cost.Meter(1), []
    assert read_cost.enter(meter) is None
    try:
        thread = threading.Thread(target=lambda: seen.append(read_cost.current()))
        thread.start()
        thread.join()
        assert seen == [None]
        assert read_cost.current() is meter
    finally:
        assert read_cost.enter(None) is meter


STATS = LoaderStats("thread", 2, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("order", "parts"),
    [
        (kf.Shuffled(), ["shuffle=True is slow", "order=kf.BlockShuffled(file['x'].block_size), which reads each"]),
        (kf.Sequential(), ["order=Sequential() is slow", "Remedies: kf.HDF5File(path, chunk_cache=10_000)"]),
        (kf.BlockShuffled(7), ["order=kf.BlockShuffled(file['x'].block_size, window=1); or"]),
        (kf.BlockShuffled(block_of=[1, 2]), ["BlockShuffled(block_of=<2 blocks>, window=4) is slow"]),
        (kf.Weighted([1, 2]), ["Weighted(<2 weights>, num_scenes=2) is slow", "Remedies: order=kf.BlockShuffled("]),
    ],
)  # fmt: skip
def test_the_remedies_fit_the_order(order, parts):
    text = waste_text(_metered(100, 90, 100).waste(), order, STATS)
    for part in parts:
        assert part in text


def test_the_remedies_fit_processes_and_scenes_of_several_rows():
    processes = LoaderStats("process", 8, 0, 0, 0, 0)
    text = waste_text(_metered(100, 90, 100).waste(), kf.BlockShuffled(10), processes)
    assert "or worker_type='thread': threads share one cache" in text
    several = _metered(1000, 990, 100, length=20).waste()
    text = waste_text(several, kf.Shuffled(), STATS)
    assert "A chunk holds 10 rows, " in text
    assert "order=kf.BlockShuffled(2), which" in text


def test_the_warning_suggests_block_shuffling_for_patches_and_windows(tmp_path):
    with h5py.File(tmp_path / "volume.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((64, 64)), chunks=(16, 16), compression="gzip")
    data = kf.HDF5File(tmp_path / "volume.h5", chunk_cache=0)["x"]
    patches = kf.Map(kf.Concat(kf.Patches(data, (16, 16), stride=4), kf.Patches(data, (16, 16))), np.copy)
    with (
        kf.Feed(patches, 4, shuffle=True, seed=0, workers=0) as feed,
        pytest.warns(kf.errors.ReadCostWarning) as caught,
    ):
        list(feed)
    assert "order=kf.BlockShuffled(sequence), which reads each chunk" in str(caught[0].message)
    assert "A chunk holds 16 rows" in str(caught[0].message)


def test_a_feed_stops_checking_once_it_has_warned(monkeypatch):
    asked = []

    def waste():
        asked.append(1)
        return _metered(100, 90, 100).waste()

    with kf.Feed(np.arange(8.0), 2, shuffle=True, seed=0, workers=0) as feed:
        monkeypatch.setattr(feed._loader, "waste", waste)
        with pytest.warns(kf.errors.ReadCostWarning):
            list(feed)
        list(feed)
    assert len(asked) == 1
