"""Tables of pandas and polars, and arrays without a length, by position.

Errors for lists of columns, generators, datasets and tensors name the alternative.
"""

import datetime
import pickle

import numpy as np
import pytest
from streams import WAYS

import kerasfeed as kf
from kerasfeed.errors import SpecError


@pytest.fixture
def pd():
    return pytest.importorskip("pandas", reason="pandas is not installed (pip install kerasfeed[test])")


@pytest.fixture
def frame(pd):
    columns = {
        "x": np.arange(10) / 2,
        "count": np.arange(10, dtype=np.int32),
        "name": [f"é{k}" for k in range(10)],
        "kind": pd.Categorical(["a", "b"] * 5),
        "grade": pd.Categorical([3, 4] * 5),
        "seen": pd.array([True, False] * 5, dtype="boolean"),
        "total": pd.array(range(10), dtype="Int64"),
    }
    return pd.DataFrame(columns, index=[f"row {k}" for k in range(10)])


def check_frame(batches):
    for step, batch in enumerate(batches):
        rows = [4 * step + row for row in range(len(batch["x"]))]
        assert batch["x"].tolist() == [row / 2 for row in rows]
        assert (batch["count"].dtype, batch["count"].tolist()) == (np.int32, rows)
        assert batch["name"].tolist() == [f"é{row}" for row in rows]
        assert batch["kind"].tolist() == ["ab"[row % 2] for row in rows]
        assert batch["grade"].tolist() == [3 + row % 2 for row in rows]
        assert (batch["seen"].dtype, batch["seen"].tolist()) == (bool, [row % 2 == 0 for row in rows])
        assert (batch["total"].dtype, batch["total"].tolist()) == (np.int64, rows)
    assert step == 2


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_rows_of_a_frame_are_dicts_by_position(frame, workers, worker_type):
    with kf.Feed(frame, 4, workers=workers, worker_type=worker_type) as feed:
        check_frame(feed)
        with pickle.loads(pickle.dumps(feed)) as copy:
            check_frame(copy)


def test_a_frame_of_numbers_is_read_a_batch_at_a_time(frame):
    numbers = frame[["x", "count"]]
    with kf.Feed(numbers, 4, workers=0) as feed, kf.Feed(kf.Map(numbers, dict), 4, workers=0) as scenes:
        for found, wanted in zip(feed, scenes, strict=True):
            assert [part.tolist() for part in found.values()] == [part.tolist() for part in wanted.values()]
    assert "get_batch" in dir(feed.sequence)


@pytest.mark.parametrize("index", [[5, 6, 7, 9, 12], list("vwxyz"), [3, 3, 1, 1, 0]], ids=str)
def test_a_series_is_read_by_position_with_any_index(pd, index):
    series = pd.Series([10.0, 11, 12, 13, 14], index=index)
    with kf.Feed(series, 5, workers=0) as feed:
        assert next(iter(feed)).tolist() == [10, 11, 12, 13, 14]
    assert kf.labels_of(kf.Zip(series, series), 1, progress=False, workers=0).tolist() == series.tolist()
    assert kf.labels_of(series.astype(str), "scene", progress=False).tolist() == [
        "10.0",
        "11.0",
        "12.0",
        "13.0",
        "14.0",
    ]


def test_views_accept_frames_and_series(pd, frame):
    pairs = kf.Zip(x=frame[["x", "count"]], y=frame["name"])
    assert pairs[3] == {"x": {"x": 1.5, "count": 3}, "y": "é3"}
    assert kf.Concat(frame, frame)[13] == frame_row(frame, 3)
    assert kf.Subset(frame, pd.Series([7, 2], index=[1, 0]))[0]["count"] == 7
    assert len(kf.Subset(frame, frame["seen"])) == 5
    assert kf.Map(frame, lambda row: row["x"])[2] == 1.0
    assert kf.Mixture([frame, frame], [1, 1])[0]["count"] in range(10)
    assert kf.Cached(frame)[9]["total"] == 9
    train, test = kf.split(frame, (0.5, 0.5), seed=0, stratify=frame["kind"])
    assert sorted(scene["count"] for part in (train, test) for scene in part) == list(range(10))


def frame_row(frame, position):
    return frame.iloc[position].to_dict()


def test_orders_and_writers_accept_series_and_frames(pd, frame, tmp_path):
    nullable = pd.Series([1, 2] * 5, dtype="Int64", index=range(5, 15))
    for order in (kf.Balanced(nullable), kf.Balanced(frame["kind"]), kf.Weighted(nullable), kf.Bucketed(nullable, [2])):
        with kf.Feed(frame, 2, order=order, seed=0, workers=0) as feed:
            assert sum(len(batch["x"]) for batch in feed) == 10
    kf.write_tfrecords(frame, tmp_path / "a-{shard}.tfrecord", num_shards=1, workers=0, progress=False)
    with kf.Feed(kf.TFRecordSequence(tmp_path / "a-{shard}.tfrecord"), 4, workers=0) as feed:
        check_frame(feed)
    kf.write_hdf5(frame, tmp_path / "a.h5", workers=0, progress=False)
    with kf.Feed(kf.HDF5Scenes(tmp_path / "a.h5"), 4, workers=0) as feed:
        check_frame(feed)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lambda pd: pd.array([1, None], dtype="Int64"), r"column 'c' \(Int64\) has no value in row 1.*'c'\].fillna"),
        (lambda pd: ["a", None], r"column 'c' \(.*\) has no value in row 1 \(by position\)"),
        (lambda pd: pd.Categorical(["a", None]), r"column 'c' \(category\) has no value in row 1"),
        (
            lambda pd: pd.to_datetime(["2020-01-01"] * 2),
            r"column 'c' holds dates or times.*frame\['c'\].astype\('int64'\)",
        ),
        (lambda pd: pd.to_datetime(["2020-01-01"] * 2, utc=True), r"column 'c' holds dates or times \(.*UTC"),
        (lambda pd: pd.to_timedelta([1, 2]), r"column 'c' holds dates or times"),
    ],
)
def test_the_error_for_an_unsupported_column_names_it(pd, column, message):
    frame = pd.DataFrame({"x": [1, 2], "c": column(pd)}, index=["r", "s"])
    for take in (lambda: kf.Feed(frame, 2), lambda: kf.Zip(frame, [1, 2])):
        with pytest.raises(SpecError, match=message):
            take()
    with pytest.raises(SpecError, match=r"the Series 'c'"):
        kf.Feed(frame["c"], 2)


def test_columns_need_unique_names(pd):
    with pytest.raises(SpecError, match="two columns of the DataFrame have the name 'a'"):
        kf.Feed(pd.DataFrame([[1, 2]], columns=["a", "a"]), 1)
    with pytest.raises(SpecError, match=r"name \('a', 1\) of type tuple.*frame.columns"):
        kf.Feed(pd.DataFrame({("a", 1): [1]}), 1)
    with kf.Feed(pd.DataFrame(np.eye(2)), 2, workers=0) as feed:
        assert next(iter(feed))[1].tolist() == [0, 1]


# ---- tables of polars


@pytest.fixture
def pl():
    return pytest.importorskip("polars", reason="polars is not installed (pip install polars)")


@pytest.fixture
def table(pl, frame):
    columns = {name: frame[name].tolist() for name in frame}
    return pl.DataFrame(columns, schema_overrides={"count": pl.Int32, "kind": pl.Categorical})


def test_rows_of_a_table_of_polars_are_dicts_by_position(table):
    with kf.Feed(table, 4, workers=0) as feed:
        check_frame(feed)
        with pickle.loads(pickle.dumps(feed)) as copy:
            check_frame(copy)
    with kf.Feed(kf.FileSequence(["a"], lambda path: table), 4, workers=0) as feed:
        check_frame(feed)
    numbers = table.select(["x", "count"])
    with kf.Feed(numbers, 10, workers=0) as feed:
        assert next(iter(feed))["count"].tolist() == list(range(10))
        assert "get_batch" in dir(feed.sequence)
    assert kf.describe(numbers, progress=False)["x"].max == 4.5


def test_views_orders_and_splits_accept_tables_and_their_columns(table):
    pairs = kf.Zip(x=table.select(["x", "count"]), y=table["name"])
    assert pairs[3] == {"x": {"x": 1.5, "count": 3}, "y": "é3"}
    assert kf.Concat(table, table)[13]["name"] == "é3"
    assert len(kf.Subset(table, table["seen"])) == 5
    with kf.Feed(table, 2, order=kf.Balanced(table["kind"]), seed=0, workers=0) as feed:
        assert sum(len(batch["x"]) for batch in feed) == 10
    train, test = kf.split(table, (0.5, 0.5), seed=0, stratify=table["kind"])
    assert sorted(scene["count"] for part in (train, test) for scene in part) == list(range(10))


def test_nested_columns_are_nested_scenes(pl):
    columns = {"where": [{"x": 1.0, "name": "a"}, {"x": 2.0, "name": "b"}], "pair": [[1, 2], [3, 4]]}
    with kf.Feed(pl.DataFrame(columns), 2, workers=0) as feed:
        batch = next(iter(feed))
    assert batch["where"]["x"].tolist() == [1, 2]
    assert batch["where"]["name"].tolist() == ["a", "b"]
    assert batch["pair"].tolist() == [[1, 2], [3, 4]]


def test_the_error_for_an_unsupported_polars_column_names_it(pl):
    day = datetime.date(2020, 1, 1)
    for values, message in [
        (
            [1, None, None],
            r"column 'c' \(Int64\) has no value in row 1 \(by position\), and 1 more.*'c'\].fill_null.*drop_nulls",
        ),
        ([day] * 3, r"column 'c' holds dates or times \(Date\).*frame\['c'\].cast\(polars.Int64\)"),
    ]:
        with pytest.raises(SpecError, match=message):
            kf.Feed(pl.DataFrame({"c": values}), 2)
        with pytest.raises(SpecError, match=r"^the Series 'c'"):
            kf.Feed(pl.Series("c", values), 2)
    with pytest.raises(TypeError, match=r"the LazyFrame has rows once it is run: pass frame.collect\(\)"):
        kf.Feed(pl.DataFrame({"c": [1]}).lazy(), 1)


def test_the_error_for_a_table_of_arrow_names_to_pandas(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install kerasfeed[test])")
    dataset, parquet = pytest.importorskip("pyarrow.dataset"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"c": [1, 2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    for given, message in [
        (table, r"the Table is read by column: pass table.to_pandas\(\)"),
        (table["c"], r"the ChunkedArray holds values of Arrow: pass column.to_numpy\(\)"),
        (dataset.dataset(tmp_path / "a.parquet"), r"the FileSystemDataset holds tables .*: pass dataset.to_table\(\)"),
        (table.to_batches()[0], r"RecordBatch is a part of a table: pass batch.to_pandas\(\)"),
    ]:
        for take in (lambda value: kf.Feed(value, 1), lambda value: kf.Zip(value, value)):
            with pytest.raises(TypeError, match=message):
                take(given)
    with kf.Feed(table.to_pandas(), 1, workers=0) as feed:
        assert feed[1] == {"c": 2}


# ---- arrays that have a shape, and no length


class Stored:
    """An array like zarr's arrays: without a length, read by position."""

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, index):
        return self._array[index]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype)


ROWS = np.arange(30).reshape(10, 3).tolist()


@pytest.fixture
def zarr_array(tmp_path):
    zarr = pytest.importorskip("zarr", "3", reason="zarr 3 is not installed (pip install kerasfeed[test])")
    array = zarr.create_array(tmp_path / "a.zarr", shape=(10, 3), chunks=(4, 3), dtype=np.float32)
    array[:] = np.array(ROWS)
    return array


@pytest.fixture(params=["class", "zarr"])
def stored(request):
    if request.param == "class":
        return Stored(np.array(ROWS, np.float32))
    return request.getfixturevalue("zarr_array")


def test_an_array_without_a_length_is_read_along_its_first_axis(stored):
    for workers in (0, 2):
        with kf.Feed(stored, 4, workers=workers, worker_type="thread") as feed:
            assert np.concatenate(list(feed)).tolist() == ROWS
            with pickle.loads(pickle.dumps(feed)) as copy:
                assert len(copy[2]) == 2


def test_a_zarr_array_can_be_sent_to_worker_processes(zarr_array):
    with kf.Feed(kf.Zip(zarr_array, range(10)), 4, workers=1, worker_type="process") as feed:
        assert np.concatenate([rows for rows, _ in feed]).tolist() == ROWS


def test_functions_of_sequences_accept_arrays_without_a_length(stored):
    pairs = kf.Zip(x=stored, y=np.arange(10))
    assert (len(pairs), len(pairs[2:5])) == (10, 3)
    assert pairs[2:5][1]["x"].tolist() == [9, 10, 11]
    assert kf.Subset(stored, slice(4, None))[0].tolist() == [12, 13, 14]
    assert kf.describe(stored, progress=False)["scene"].max == 29
    assert kf.show(stored) is not None
    files = kf.FileSequence(["a"], lambda path: stored)
    assert files[9].tolist() == [27, 28, 29]


def test_labels_may_be_an_array_without_a_length():
    labels = Stored(np.arange(10) % 2)
    with kf.Feed(np.arange(10), 2, order=kf.Balanced(labels), seed=0, workers=0) as feed:
        assert all(sorted(batch % 2) == [0, 1] for batch in feed)
    assert list(kf.Subset(range(10), Stored(np.array([3, 1])))) == [3, 1]


def test_an_object_with_the_shape_of_a_scene_needs_a_length():
    class Images:
        shape = (64, 64, 3)

        def __getitem__(self, index):
            return np.zeros(self.shape)

    for sequence in (Images(), Stored(np.array(3.0))):
        with pytest.raises(TypeError, match="without __len__"):
            kf.Feed(sequence, 4)


# ---- objects that are not sequences of scenes


X, Y = np.zeros((40, 3), np.float32), np.zeros(40, np.int64)


@pytest.mark.parametrize(
    ("sequence", "batch_size", "written"),
    [
        ([X, Y], 32, r"kf.Zip\(X, y\)"),
        ((X, Y), 2, r"kf.Zip\(X, y\)"),
        ([X, X[:, :1]], 8, r"kf.Zip\(X, y\)"),
        ([Y, Y], 8, r"kf.Zip\(X, y\)"),
        ([X, Y, np.ones(40)], 8, r"kf.Zip\(X, y, sample_weight\)"),
    ],
    ids=str,
)
def test_the_error_for_a_list_of_columns_names_zip(sequence, batch_size, written):
    with pytest.raises(TypeError, match=rf"of \d arrays of shapes .* would be . scenes.*write {written}$"):
        kf.Feed(sequence, batch_size)


@pytest.mark.parametrize(
    ("sequence", "batch_size"),
    [
        ([X, X], 2),
        ([X, X, X], 1),
        ([X] * 4, 32),
        ([X, X[1:]], 1),
        ([X[:2], Y[:2]], 2),
        ([[1, 2], [3, 4]], 32),
        ([X], 4),
    ],
    ids=str,
)
def test_a_list_of_scenes_that_look_alike_is_a_sequence(sequence, batch_size):
    kf.Feed(sequence, batch_size, workers=0).close()


def test_the_error_for_a_frame_and_its_labels_in_a_list_names_zip(frame):
    with pytest.raises(TypeError, match=r"kf.Zip\(X, y\)"):
        kf.Feed([frame, frame["x"]], 4)


def test_the_error_for_a_dict_of_arrays_names_zip():
    with pytest.raises(TypeError, match=r"received a dict. For a dict of arrays pass kf.Zip\(\*\*arrays\)"):
        kf.Feed({"x": X}, 4)
    assert kf.Zip(x=X, y=Y)[3].keys() == {"x", "y"}


def yields():
    yield 1


@pytest.mark.heavy
@pytest.mark.parametrize("take", [lambda value: kf.Feed(value, 4), lambda value: kf.Zip(value, value)])
def test_errors_for_other_model_inputs_name_the_alternative(take):
    import tensorflow as tf

    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    with pytest.raises(TypeError, match=r"generator function yields: kf.StreamFeed\(yields, batch_size\)"):
        take(yields)
    with pytest.raises(TypeError, match=r"received the function .*: call it if it makes one"):
        take(lambda: X)
    with pytest.raises(TypeError, match=r"is a tf.data.Dataset, which fit takes as it is: model.fit\(dataset"):
        take(tf.data.Dataset.range(3))
    with pytest.raises(TypeError, match=r"received a Tensor that requires grad: pass tensor.detach\(\)"):
        take(torch.zeros(3, requires_grad=True))


def test_the_error_for_a_generator_names_stream_feed():
    with pytest.raises(TypeError, match=r"received a generator.*kf.StreamFeed\(function, batch_size\)"):
        kf.Feed(yields(), 4)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_for_a_tensor_that_requires_grad_names_detach(workers):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    message = r"scene 0: field '0' is a Tensor that requires grad: return tensor.detach"
    scenes = [(torch.zeros(3, requires_grad=True), 1)] * 3
    with kf.Feed(scenes, 1, workers=workers) as feed, pytest.raises(SpecError, match=message):
        next(iter(feed))
