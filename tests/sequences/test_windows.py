"""Windows of time series as scenes."""

import pickle

import h5py
import numpy as np
import pandas as pd
import pytest

import kerasfeed as kf

SERIES = np.arange(40).reshape(20, 2)


def lists(windows):
    return [window.tolist() for window in windows]


def test_a_window_has_length_rows_from_its_start():
    windows = kf.Windows(np.arange(10), 3, stride=2, sampling_rate=2)
    assert lists(windows) == [[0, 2, 4], [2, 4, 6], [4, 6, 8]]
    assert [windows.start(index) for index in range(3)] == [0, 2, 4]
    assert windows.start(-1) == 4
    assert lists(kf.Windows(SERIES, 20)) == [SERIES.tolist()]
    assert lists(kf.Windows(np.arange(3), 1)) == [[0], [1], [2]]
    out = np.empty((3, 2), int)
    kf.Windows(SERIES, 3, sampling_rate=5).read_into(2, out)
    assert out.tolist() == SERIES[2:13:5].tolist()


def test_targets_belong_to_the_first_row_of_a_window():
    windows = kf.Windows(SERIES, 3, stride=4, targets=np.arange(100, 120))
    assert [int(target) for _, target in windows] == [100, 104, 108, 112, 116]
    assert [window.tolist() for window, _ in windows] == lists(kf.Windows(SERIES, 3, stride=4))
    # Fewer targets than windows, and more.
    assert len(kf.Windows(SERIES, 3, targets=np.arange(5))) == 5
    assert len(kf.Windows(SERIES, 3, targets=np.arange(50))) == 18


def test_offset_selects_the_target_of_a_later_row():
    windows = kf.Windows(SERIES, 3, targets=SERIES[:, 1], offset=10)
    assert len(windows) == 10
    assert windows[9][1] == SERIES[19, 1]
    own = kf.Windows(SERIES, 3, stride=3, offset=3)
    assert [(window[0].tolist(), target.tolist()) for window, target in own][:2] == [
        ([0, 1], [6, 7]),
        ([6, 7], [12, 13]),
    ]
    assert len(own) == 6
    assert kf.Windows(SERIES, 3, offset=0)[4][1].tolist() == SERIES[4].tolist()


def test_several_series_keep_their_nesting():
    windows = kf.Windows({"a": SERIES, "b": SERIES[:, 0]}, 2, targets=(SERIES[:, 1], SERIES), offset=2)
    window, (first, second) = windows[1]
    assert window["a"].tolist() == [[2, 3], [4, 5]]
    assert window["b"].tolist() == [2, 4]
    assert (int(first), second.tolist()) == (7, [6, 7])
    with kf.Feed(windows, 4, workers=0) as feed:
        window, (first, second) = feed[0]
        assert (window["a"].shape, window["b"].shape, first.tolist()) == ((4, 2, 2), (4, 2), [5, 7, 9, 11])


@pytest.mark.parametrize("options", [{}, {"stride": 3}, {"sampling_rate": 2, "stride": 2}, {"offset": 5}])
@pytest.mark.parametrize("kind", ["array", "memmap", "transposed", "hdf5"])
def test_many_windows_are_read_at_once_with_the_same_bits(tmp_path, options, kind):
    series = SERIES
    if kind == "memmap":
        SERIES.tofile(tmp_path / "series")
        series = np.memmap(tmp_path / "series", SERIES.dtype, "r", shape=SERIES.shape)
    if kind == "transposed":
        series = np.asfortranarray(SERIES)[::-1]
    if kind == "hdf5":
        with h5py.File(tmp_path / "series.h5", "w") as file:
            file.create_dataset("x", data=SERIES, chunks=(5, 1), compression="gzip")
        series = kf.HDF5File(tmp_path / "series.h5")["x"]
    windows = kf.Windows({"a": series, "b": SERIES[:, 0] > 7}, 4, targets=SERIES[:, 1].astype(">f4"), **options)
    indices = np.array([len(windows) - 1, 0, 1, 0])
    batch = windows.get_batch(indices)
    for row, index in enumerate(indices):
        scene, target = windows[index]
        assert batch[0]["a"][row].tolist() == scene["a"].tolist()
        assert batch[0]["b"][row].tolist() == scene["b"].tolist()
        assert batch[1][row] == target
    assert batch[1].dtype == ">f4"
    batch[0]["a"][:] = 0  # a copy
    with kf.Feed(windows, 4, workers=0) as feed:
        assert feed[0][0]["a"].tolist() == [windows[index][0]["a"].tolist() for index in range(4)]


def test_columns_of_a_table_are_series_with_any_index():
    frame = pd.DataFrame({"a": np.arange(5.0), "b": np.arange(5)}, index=[0.5, 3.5, 1.5, 2.5, 0.0])
    assert lists(kf.Windows(frame["a"], 4)) == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert kf.Windows({"a": frame["a"]}, 2, targets=frame["b"])[1][1] == 1
    with pytest.raises(TypeError, match=r"received a DataFrameRows for 'scene': .* and to_numpy\(\) of a table"):
        kf.Windows(frame, 2)
    assert kf.Windows(frame.to_numpy(), 2)[0].shape == (2, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_windows_of_an_hdf5_file_are_read_by_workers(tmp_path, workers):
    with h5py.File(tmp_path / "series.h5", "w") as file:
        file.create_dataset("x", data=SERIES, chunks=(5, 2), compression="gzip")
        file["y"] = np.arange(20)
    file = kf.HDF5File(tmp_path / "series.h5")
    windows = kf.Windows(file["x"], 4, sampling_rate=2, targets=file["y"], offset=6)
    expected = kf.Windows(SERIES, 4, sampling_rate=2, targets=np.arange(20), offset=6)
    assert windows.thread_safe
    copy = pickle.loads(pickle.dumps(windows))
    with kf.Feed(copy, 5, workers=workers, worker_type="process" if workers else "auto") as feed:
        x, y = (np.concatenate(parts) for parts in zip(*feed, strict=True))
    assert np.array_equal(x, [window for window, _ in expected])
    assert np.array_equal(y, [target for _, target in expected])
    assert windows.block_of.tolist() == [start // 10 for start in range(14)]  # a window spans two chunks of 5
    with kf.Feed(windows, 5, order=kf.BlockShuffled(windows, window=1), seed=0, workers=0) as feed:
        assert sorted(np.concatenate([y for _, y in feed])) == list(range(6, 20))


def test_windows_and_targets_can_contain_text_of_a_file(tmp_path):
    with h5py.File(tmp_path / "text.h5", "w") as file:
        file.create_dataset("words", data=["a", "bb", "c", "dd"], dtype=h5py.string_dtype())
    windows = kf.Windows(kf.HDF5File(tmp_path / "text.h5")["words"], 2, offset=2)
    assert windows[1][0].tolist() == [b"bb", b"c"]
    assert windows[1][1] == b"dd"
    with kf.Feed(windows, 2, workers=0) as feed:
        assert feed[0][0].tolist() == [[b"a", b"bb"], [b"bb", b"c"]]


@pytest.mark.parametrize(
    ("source", "arguments", "error", "message"),
    [
        (SERIES, {"length": 0}, ValueError, "length must be at least 1, received 0"),
        (SERIES, {"length": 2.0}, TypeError, "length must be an integer, received 2.0"),
        (SERIES, {"length": (2,)}, TypeError, r"length must be an integer, received \(2,\)"),
        (SERIES, {"length": 2, "stride": 0}, ValueError, "stride must be at least 1"),
        (SERIES, {"length": 2, "sampling_rate": -1}, ValueError, "sampling_rate must be at least 1"),
        (SERIES, {"length": 2, "offset": -1}, ValueError, "offset must be at least 0, received -1"),
        (SERIES, {"length": 2, "offset": 20}, ValueError, "the target of the first window is row 20 of 20"),
        (SERIES, {"length": 2, "targets": np.zeros(0)}, ValueError, "the target of the first window is row 0 of 0"),
        (SERIES, {"length": 21}, ValueError, "a window spans 21 rows, but the source has 20"),
        (SERIES, {"length": 5, "sampling_rate": 5}, ValueError, "a window spans 21 rows, but the source has 20"),
        (SERIES[:0], {"length": 1}, ValueError, "a window spans 1 rows, but the source has 0"),
        (np.float64(1), {"length": 1}, ValueError, r"the same 1 leading axes, received 'scene' of shape \(\)"),
        ((SERIES, SERIES[1:]), {"length": 1}, ValueError, r"shape \(19, 2\), but '0' of shape \(20, 2\)"),
        ([1, 2, 3], {"length": 1}, TypeError, "kf.Windows needs arrays with a shape and a dtype"),
        (SERIES, {"length": 1, "targets": [1, 2]}, TypeError, "targets of kf.Windows needs arrays with a shape"),
    ],
)  # fmt: skip
def test_windows_refuse_invalid_series_and_arguments(source, arguments, error, message):
    with pytest.raises(error, match=message):
        kf.Windows(source, **arguments)


@pytest.mark.parametrize(("stride", "rate"), [(1, 1), (3, 1), (2, 3), (7, 2)])
def test_assemble_averages_the_outputs_of_every_row_over_its_windows(stride, rate):
    series = np.random.default_rng(0).normal(size=(30, 2))
    windows = kf.Windows(series, 4, stride=stride, sampling_rate=rate, targets=np.arange(25))
    outputs = np.stack([window + index for index, (window, _) in enumerate(windows)])
    sums, counts = np.zeros((30, 2)), np.zeros((30, 1))
    for index, output in enumerate(outputs):
        rows = windows.start(index) + rate * np.arange(4)
        sums[rows] += output
        counts[rows] += 1
    expected = np.divide(sums, counts, where=counts > 0, out=np.full((30, 2), np.nan))
    np.testing.assert_allclose(windows.assemble(outputs), expected, rtol=1e-12)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("length", "stride", "rate", "size", "count"),
    [(3, 1, 1, 4, None), (3, 2, 3, 5, 50), (1, 7, 2, 3, 31), (50, 1, 1, 8, 50), (10, 4, 5, 1, 3), (3, 1, 1, 64, 49)],
)
def test_batches_equal_keras_timeseries_dataset_from_array(length, stride, rate, size, count):
    import keras

    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    y = None if count is None else np.arange(count)
    dataset = keras.utils.timeseries_dataset_from_array(
        x, y, length, sequence_stride=stride, sampling_rate=rate, batch_size=size
    )
    with kf.Feed(kf.Windows(x, length, stride=stride, sampling_rate=rate, targets=y), size, workers=0) as feed:
        for ours, theirs in zip(feed, dataset.as_numpy_iterator(), strict=True):
            ours, theirs = ((each,) if y is None else each for each in (ours, theirs))
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.dtype == other.dtype
                assert np.array_equal(mine, other)


@pytest.mark.heavy
def test_windows_and_patches_train_a_model_with_two_workers():
    import keras

    series = np.sin(np.arange(300) / 5).astype(np.float32)[:, None]
    windows = kf.Windows(series, 16, offset=16)
    model = keras.Sequential([keras.Input((16, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    with kf.Feed(windows, 20, shuffle=True, seed=0, workers=2) as feed:
        history = model.fit(feed, epochs=5, verbose=0)
    assert history.history["loss"][-1] < 0.1 * history.history["loss"][0]
    image = np.random.default_rng(0).normal(size=(37, 41, 1)).astype(np.float32)
    patches = kf.Patches(image, (16, 16), stride=8, border="shift")
    model = keras.Sequential([keras.Input((16, 16, 1)), keras.layers.Rescaling(2.0)])
    with kf.Feed(patches, 7, workers=2, worker_type="process") as feed:
        rows = model.predict(feed, verbose=0)
    np.testing.assert_allclose(patches.assemble(rows, weights="gaussian"), 2 * image, rtol=1e-5)


def test_each_window_of_a_damaged_chunk_is_named(tmp_path):
    path = tmp_path / "series.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=np.random.default_rng(0).random((100, 4)), chunks=(10, 4), compression=4)
        chunk = data.id.get_chunk_info(5)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
    path.write_bytes(content)
    windows = kf.Windows(kf.HDF5File(path)["x"], 4, stride=4)
    with kf.Feed(windows, 5, workers=0, on_error="skip", max_failures=10) as feed:
        assert sum(len(batch) for batch in feed) == 22
        assert {12, 13, 14} <= {failure.index for failure in feed.failures}
