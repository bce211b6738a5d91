"""Patches of arrays as scenes, and arrays assembled from a model's outputs."""

import pickle

import h5py
import numpy as np
import pytest
import zarr

import kerasfeed as kf
from kerasfeed.errors import SpecError
from kerasfeed.orders.blocks import BlockShuffled

RNG = np.random.default_rng(0)
CASES = [
    ((7, 9, 2), (3, 4), (2, 3)),
    ((10,), (4,), 3),
    ((10,), (4,), 1),
    ((5, 6), (2, 4), None),
    ((5, 6), (5, 6), 1),
    ((9, 8, 7, 3), (4, 8, 2), (1, 5, 2)),
    ((5, 6), (2, 2), (3, 4)),
]


def covered(patches, shape):
    found = np.zeros(shape, bool)
    for index in range(len(patches)):
        corner = patches.corner(index)
        found[tuple(slice(start, start + size) for start, size in zip(corner, patches.size, strict=True))] = True
    return found


@pytest.fixture
def volume(tmp_path):
    """A file with an image in chunks, a mask of the same axes, and one that is contiguous."""
    image = RNG.integers(0, 255, (24, 24, 24)).astype(np.uint8)
    with h5py.File(tmp_path / "volume.h5", "w") as file:
        file.create_dataset("image", data=image, chunks=(8, 8, 8), compression="gzip")
        file.create_dataset("mask", data=image[..., None] > 100, chunks=(8, 24, 24, 1))
        file.create_dataset("plain", data=image)
    return kf.HDF5File(tmp_path / "volume.h5")


# ---- the scenes


@pytest.mark.parametrize("border", ["inside", "shift", "pad"])
@pytest.mark.parametrize(("shape", "size", "stride"), CASES)
def test_a_patch_equals_the_array_at_its_corner(shape, size, stride, border):
    array = RNG.normal(size=shape)
    patches = kf.Patches(array, size, stride=stride, border=border, fill=-1)
    larger = np.pad(array, [(0, 10)] * len(size) + [(0, 0)] * (len(shape) - len(size)), constant_values=-1)
    assert len(patches) == np.prod(patches.grid)
    seen = [patches.corner(index) for index in range(len(patches))]
    assert seen == sorted(set(seen))
    for index, corner in enumerate(seen):
        part = larger[tuple(slice(start, start + items) for start, items in zip(corner, size, strict=True))]
        assert np.array_equal(patches[index], part)
        out = np.empty_like(part)
        patches.read_into(index, out)
        assert np.array_equal(out, part)
        assert border == "pad" or -1 not in part
    gaps = stride is not None and np.any(np.array(stride) > size)
    assert border == "inside" or gaps or covered(patches, shape).all()


def test_patches_of_several_arrays_keep_their_nesting():
    image, mask = np.zeros((4, 6, 3), np.float32), np.ones((4, 6), np.uint8)
    scene = kf.Patches({"image": image, "masks": (mask, mask[..., None])}, (3, 4), border="pad", fill=9)[3]
    assert scene["image"].shape == (3, 4, 3)
    assert scene["masks"][0].tolist() == [[1, 1, 9, 9], [9, 9, 9, 9], [9, 9, 9, 9]]
    assert scene["masks"][1].dtype == np.uint8
    fills = {"image": np.nan, "masks": (1, 2)}
    scene = kf.Patches({"image": image, "masks": (mask, mask[..., None])}, (3, 4), border="pad", fill=fills)[3]
    assert np.isnan(scene["image"][2, 3, 0])
    assert (scene["masks"][0][2, 3], scene["masks"][1][2, 3, 0]) == (1, 2)


def test_an_array_smaller_than_a_patch_gives_one_padded_patch():
    assert kf.Patches(np.ones(2), (5,), border="pad").grid == (1,)
    assert kf.Patches(np.ones(2), (5,), border="pad")[0].tolist() == [1, 1, 0, 0, 0]
    assert kf.Patches(np.ones(10), (2,), stride=12, border="pad").grid == (1,)


@pytest.mark.parametrize("dtype", ["U4", object])
def test_patches_of_text_are_padded_with_text(dtype):
    patches = kf.Patches(np.array(["a", "bb", "c"], dtype), (2,), border="pad", fill="none")
    assert patches[1].tolist() == ["c", "none"]


def test_the_caller_owns_each_patch():
    array = np.zeros((4, 4))
    kf.Patches(array, (2, 2))[0][:] = 1
    assert not array.any()
    array.setflags(write=False)
    kf.Patches(array, (2, 2))[0][:] = 1


def test_billions_of_patches_need_no_memory():
    patches = kf.Patches(np.broadcast_to(np.float32(1), (100_000, 100_000, 3)), (64, 64), stride=1)
    assert len(patches) == 99_937**2
    assert patches.corner(-1) == (99_936, 99_936)
    assert patches[-1].shape == (64, 64, 3)


@pytest.mark.parametrize("border", ["shift", "pad"])
@pytest.mark.parametrize("kind", ["HDF5File", "zarr", "memmap"])
def test_patches_of_stored_arrays_equal_the_arrays(volume, kind, border, tmp_path):
    image = np.asarray(volume["image"])
    if kind == "zarr":
        source = zarr.create_array(tmp_path / "a.zarr", data=image, chunks=(8, 8, 8))
    elif kind == "memmap":
        source = np.memmap(tmp_path / "a.bin", np.uint8, "w+", shape=image.shape)
        source[:] = image
    else:
        source = volume["image"]
    patches = kf.Patches(source, (10, 8, 7), stride=5, border=border, fill=9)
    expected = list(kf.Patches(image, (10, 8, 7), stride=5, border=border, fill=9))
    assert np.array_equal(list(patches), expected)
    assert patches.thread_safe == (kind != "zarr")
    assert np.array_equal(pickle.loads(pickle.dumps(patches))[3], expected[3])
    with kf.Feed(patches, 7, workers=0) as feed:
        assert np.array_equal(np.concatenate(list(feed)), expected)


def test_only_the_chunks_that_a_patch_touches_are_read(volume):
    patches = kf.Patches(volume["image"], (8, 8, 8))
    assert patches[0].shape == (8, 8, 8)
    assert volume["image"].stats().decoded == 1
    patches.read_into(26, np.empty((8, 8, 8), np.uint8))
    assert volume["image"].stats().decoded == 2


def test_worker_processes_give_the_same_patches(volume):
    patches = kf.Patches((volume["image"], volume["mask"]), (8, 8, 8), stride=4)
    with kf.Feed(patches, 25, workers=0) as one, kf.Feed(patches, 25, workers=2, worker_type="process") as two:
        for (image, mask), (image_of_two, mask_of_two) in zip(one, two, strict=True):
            assert np.array_equal(image, image_of_two)
            assert np.array_equal(mask, mask_of_two)


def test_views_and_caches_accept_patches(volume):
    patches = kf.Patches(volume["image"], (8, 8, 8))
    for view in (kf.Concat(patches, patches)[27:], kf.Map(patches, np.copy), kf.Cached(patches), patches[:]):
        assert np.array_equal(view[5], patches[5])
        assert np.array_equal(view[5], patches[5])


@pytest.mark.heavy
def test_patches_pass_the_checks_of_a_class(volume):
    patches = kf.Patches((volume["image"], volume["mask"]), (8, 8, 8), stride=4, border="pad")
    checked = kf.check_sequence(patches, scenes=8)
    assert not checked.of("failed"), checked
    assert not checked.of("warned"), checked


# ---- blocks


def test_patches_that_start_in_one_chunk_form_a_block(volume):
    patches = kf.Patches(volume["image"], (4, 8, 8), stride=(4, 8, 8))
    blocks = patches.block_of
    assert np.array_equal(blocks, [patches.corner(k)[0] // 8 * 9 + k % 9 for k in range(len(patches))])
    # A patch larger than a chunk: blocks of whole chunks that hold one.
    larger = kf.Patches(volume["image"], (12, 12, 12), stride=4)
    corners = [larger.corner(k) for k in range(len(larger))]
    assert len(np.unique(larger.block_of)) == 1  # all of them start before 16
    assert max(corners) == (12, 12, 12)


def test_blocks_follow_the_largest_chunked_array(volume):
    assert len(np.unique(kf.Patches(volume["mask"], (8, 8, 8)).block_of)) == 3
    wide = np.zeros((24, 24, 24, 9))  # larger, and without chunks
    assert len(np.unique(kf.Patches((volume["image"], volume["image"], wide), (8, 8, 8)).block_of)) == 27
    assert len(np.unique(kf.Patches((volume["plain"], volume["image"]), (8, 8, 8)).block_of)) == 27
    for source in (np.zeros((24, 24, 24)), volume["plain"]):
        with pytest.raises(AttributeError, match="Patches, 27 scenes has no block_of: its arrays are not stored in ch"):
            _ = kf.Patches(source, (8, 8, 8)).block_of


def test_blocks_of_a_zarr_array_are_its_shards(tmp_path):
    source = zarr.create_array(tmp_path / "a.zarr", data=np.zeros((24, 24)), chunks=(4, 4), shards=(12, 24))
    assert len(np.unique(kf.Patches(source, (4, 4)).block_of)) == 2
    assert len(np.unique(kf.Windows(source, 4).block_of)) == 2


def test_a_shuffle_in_blocks_visits_every_patch_once_and_decodes_less(volume):
    def decoded(order):
        file = kf.HDF5File(volume.path, chunk_cache=10 * 512)
        patches = kf.Patches(file["image"], (8, 8, 8), stride=2)
        before = file["image"].stats().decoded
        order = BlockShuffled(patches, window=1) if order == "blocks" else order
        with kf.Feed(patches, 9, order=order, seed=0, workers=0) as feed:
            assert sorted(feed.indices()) == list(range(729))
            assert sum(map(len, feed)) == 729
        return file["image"].stats().decoded - before

    assert decoded("blocks") * 2 < decoded(kf.Shuffled())


def test_concatenated_volumes_keep_the_blocks_of_each(volume):
    both = kf.Concat(kf.Patches(volume["image"], (8, 8, 8)), kf.Patches(volume["mask"], (8, 8, 8)))
    assert len(np.unique(both.block_of)) == 27 + 3
    assert len(BlockShuffled(both).indices(0, 54, length=54, seed=0, epoch=0)) == 54


# ---- errors


class Bare:
    shape, dtype = 3, np.dtype(float)


@pytest.mark.parametrize(
    ("source", "arguments", "error", "message"),
    [
        (np.zeros((4, 4)), {"size": 2}, TypeError, r"size must hold an integer for each .* received 2"),
        (np.zeros((4, 4)), {"size": ()}, TypeError, r"received \(\)"),
        (np.zeros((4, 4)), {"size": (2, 0)}, ValueError, r"size\[1\] must be at least 1, received 0"),
        (np.zeros((4, 4)), {"size": (2, 1.5)}, TypeError, r"size\[1\] must be an integer, received 1.5"),
        (np.zeros((4, 4)), {"size": (2, 2), "stride": (1,)}, ValueError, r"stride must be one integer or 2, as size"),
        (np.zeros((4, 4)), {"size": (2, 2), "stride": (1, -1)}, ValueError, r"stride\[1\] must be at least 1"),
        (np.zeros((4, 4)), {"size": (2, 2), "border": "wrap"}, ValueError, "border must be 'inside', 'shift' or 'pad'"),
        (np.zeros((4, 4)), {"size": (2, 5)}, ValueError, "5 items on axis 1, but the source has 4: use border"),
        (np.zeros((4, 4)), {"size": (5, 2), "border": "shift"}, ValueError, "a patch has 5 items on axis 0"),
        (np.zeros((4, 0)), {"size": (2, 2), "border": "pad"}, ValueError, "but the source has 0: it has no items"),
        (np.zeros(4), {"size": (2, 2)}, ValueError, r"must have the same 2 leading axes, received 'scene'"),
        ((np.zeros(4), np.zeros(5)), {"size": (2,)}, ValueError, r"shape \(5,\), but '0' of shape \(4,\)"),
        ([1, 2, 3], {"size": (2,)}, TypeError, "received a int for '0': pass a dataset of a file"),
        ({"a": [1, 2, 3]}, {"size": (2,)}, TypeError, r"received a list for 'a': .* np.asarray\(...\) of a list"),
        ("scan.h5", {"size": (2,)}, TypeError, "needs arrays with a shape and a dtype, received a str"),
        ({}, {"size": (2,)}, TypeError, "needs an array, or a nesting of arrays, received {}"),
        (None, {"size": (2,)}, TypeError, "received None"),
        (np.ndarray, {"size": (2,)}, TypeError, "received a type"),
        (Bare(), {"size": (2,)}, TypeError, "received a Bare"),
        (kf.Zip([1], [2]), {"size": (2,)}, TypeError, "received a Zip"),
        (np.zeros(3, np.uint8), {"size": (2,), "border": "pad", "fill": -1}, ValueError, "a value of dtype uint8, as"),
        (np.zeros(3, int), {"size": (2,), "border": "pad", "fill": 0.5}, ValueError, "must be a value of dtype in"),
        (np.zeros(3, int), {"size": (2,), "border": "pad", "fill": np.nan}, ValueError, "received nan"),
        (np.zeros(3), {"size": (2,), "border": "pad", "fill": 1j}, ValueError, "dtype float64, .* received 1j"),
        (np.zeros(3), {"size": (2,), "border": "pad", "fill": "7"}, ValueError, "a value of dtype float64, as"),
        (np.zeros(3), {"size": (2,), "border": "pad", "fill": "a"}, ValueError, "as 'scene' has, received 'a'"),
        (np.zeros(3, np.float16), {"size": (2,), "border": "pad", "fill": 1e9}, ValueError, "of dtype float16"),
        (np.array(["a", "b", "c"]), {"size": (2,), "border": "pad"}, ValueError, "of dtype <U1, as .* received 0"),
        (np.array(["a"], object), {"size": (2,), "border": "pad"}, ValueError, "of dtype object, .* received 0"),
        (np.zeros(3), {"size": (2,), "border": "pad", "fill": None}, ValueError, "fill must be one number, or nested"),
        (np.zeros(3), {"size": (2,), "border": "pad", "fill": np.ones(3)}, ValueError, "fill must be a value of dtype"),
    ],
)  # fmt: skip
def test_patches_refuse_invalid_arrays_and_arguments(source, arguments, error, message):
    with pytest.raises(error, match=message):
        kf.Patches(source, **arguments)


def test_masked_values_are_refused():
    masked = np.ma.masked_equal(np.arange(8.0), 5)
    windows = kf.Windows(masked, 2, offset=2)
    assert windows[0][0].tolist() == [0, 1]
    for sequence, index in ((kf.Patches(masked, (2,)), 2), (windows, 3), (windows, 4)):
        with pytest.raises(SpecError, match=r"has masked values in this scene, .*: pass array.filled\(value\)"):
            sequence[index]


def test_the_error_for_a_file_says_how_to_name_its_datasets(volume):
    with pytest.raises(TypeError, match=r"received a HDF5File for 'scene': pass a dataset of a file, file\['image'\]"):
        kf.Patches(volume, (2,))


@pytest.mark.parametrize("index", [4, -5])
def test_a_patch_out_of_range_raises_index_error(index):
    patches = kf.Patches(np.zeros(8), (2,))
    with pytest.raises(IndexError, match="is out of range: Patches, 4 scenes has 4 scenes"):
        patches[index]
    with pytest.raises(IndexError, match="is out of range"):
        patches.corner(index)


# ---- assembled outputs


@pytest.mark.parametrize("weights", ["uniform", "gaussian"])
@pytest.mark.parametrize("border", ["inside", "shift", "pad"])
@pytest.mark.parametrize(("shape", "size", "stride"), CASES)
def test_assembled_patches_equal_the_array_and_gaps_are_nan(shape, size, stride, border, weights):
    array = RNG.normal(size=shape)
    patches = kf.Patches(array, size, stride=stride, border=border, fill=1e6)
    result = patches.assemble(np.stack(list(patches)), weights=weights)
    held = covered(patches, shape)
    assert (result.shape, result.dtype) == (shape, np.float64)
    np.testing.assert_allclose(result[held], array[held], rtol=1e-12)
    assert np.isnan(result[~held]).all()


def test_overlapping_outputs_are_averaged_by_their_weights():
    patches = kf.Patches(np.zeros((6, 5)), (4, 3), stride=(2, 1))
    outputs = RNG.normal(size=(len(patches), 4, 3, 2))
    for weights in ("uniform", "gaussian"):
        sums, counts = np.zeros((6, 5, 2)), np.zeros((6, 5, 1))
        line = [np.exp(-0.5 * ((np.arange(n) - (n - 1) / 2) / (n / 8)) ** 2) for n in (4, 3)]
        each = np.ones((4, 3, 1)) if weights == "uniform" else (line[0][:, None] * line[1])[..., None]
        for index, output in enumerate(outputs):
            row, column = patches.corner(index)
            sums[row : row + 4, column : column + 3] += each * output
            counts[row : row + 4, column : column + 3] += each
        np.testing.assert_allclose(patches.assemble(outputs, weights=weights), sums / counts, rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "mean"),
    [
        ("f2", "f2"),
        ("f4", "f4"),
        (">f4", ">f4"),
        ("f8", "f8"),
        ("?", "f4"),
        ("i2", "f4"),
        ("u1", "f4"),
        ("i8", "f8"),
        ("c8", "c8"),
    ],
)
def test_the_mean_has_the_dtype_of_the_outputs_or_float_for_integers(dtype, mean):
    patches = kf.Patches(np.zeros(3000), (1000,), stride=1)
    outputs = np.ones((len(patches), 1000), dtype)
    result = patches.assemble(outputs)
    assert result.dtype == mean
    np.testing.assert_allclose(result, 1, rtol=1e-6)  # a sum of 1000 of them, too large for float16


def test_assembling_batches_needs_memory_for_a_few_rows(monkeypatch):
    class Out:
        """Logs which rows are written, and the number of batches at that time."""

        shape, dtype = (1000, 300), np.dtype(np.float32)

        def __init__(self):
            self.kept, self.written = np.full(self.shape, -1, np.float32), []

        def __setitem__(self, rows, values):
            assert len(values) <= 250  # the open rows; 1 MiB is 873 rows
            assert (self.kept[rows] == -1).all()
            self.kept[rows] = values
            self.written.append((rows.start, rows.stop, batches))

    monkeypatch.setattr("kerasfeed.sequences.patches._SLACK", 0)
    array = RNG.normal(size=(1000, 300)).astype(np.float32)
    patches, out = kf.Patches(array, (250, 30), stride=(125, 30)), Out()
    batches = 0

    def outputs():
        nonlocal batches
        for start in range(0, len(patches), 16):  # the last batch is short
            batches += 1
            yield np.stack([patches[index] for index in range(start, min(start + 16, len(patches)))])

    assert len(patches) % 16
    assert patches.assemble(outputs(), out=out) is out
    np.testing.assert_allclose(out.kept, array, rtol=1e-6)
    assert [rows[:2] for rows in out.written] == [*((at, at + 125) for at in range(0, 750, 125)), (750, 1000)]
    assert next(came for *_, came in out.written) == 1  # by the first batch of the second row of patches


def test_a_loop_over_a_feed_can_be_assembled_into_an_hdf5_dataset(volume, tmp_path):
    patches = kf.Patches(volume["image"], (8, 8, 8), stride=5, border="shift")
    image = np.asarray(volume["image"]).astype(np.float32)
    with h5py.File(tmp_path / "out.h5", "w") as file, kf.Feed(patches, 10, workers=2, worker_type="thread") as feed:
        out = file.create_dataset("found", (24, 24, 24, 2), np.float16, chunks=(5, 24, 24, 2))
        outputs = (np.stack([batch, 255.0 - batch], axis=-1).astype(np.float32) for batch in feed)
        assert patches.assemble(outputs, weights="gaussian", out=out) is out
        np.testing.assert_allclose(out[..., 0], image, rtol=1e-3)
        np.testing.assert_allclose(out[..., 1], 255 - image, rtol=1e-3)
        outputs = file.create_dataset("outputs", data=np.stack(list(patches)))
        assert np.array_equal(patches.assemble(outputs), image)


class WithoutWriting:
    shape, dtype = (4,), np.dtype(float)


FOUR = np.zeros((4, 1))


def read_only(array):
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("outputs", "arguments", "error", "message"),
    [
        (np.zeros((3, 1)), {}, ValueError, r"for each of the 4 scenes, received shape \(3, 1\): predict"),
        (np.zeros((5, 1)), {}, ValueError, r"received shape \(5, 1\)"),
        (np.float64(1), {}, ValueError, r"received shape \(\)"),
        ([FOUR[:3]], {}, ValueError, "each of the 4 scenes, received 3: predict with a feed of all of them in"),
        ([], {}, ValueError, "received 0: predict"),
        ([np.zeros((3, 1))] * 4, {}, ValueError, r"that many arrays, each read as a batch of 3: pass np.stack\("),
        ([FOUR[:3], FOUR[:2]], {}, ValueError, "one output for each of the 4 scenes, received more"),
        ([FOUR, FOUR[:0]], {"weights": "hann"}, ValueError, "weights must be 'uniform' or 'gaussian', received 'hann'"),
        (np.zeros(4), {}, ValueError, r"outputs must be of shape \[B, 1, ...\], received \(4,\) in batch 0"),
        (np.zeros((4, 2)), {}, ValueError, r"outputs must be of shape \[B, 1, ...\], received \(4, 2\)"),
        ([FOUR[:2], np.zeros((2, 1, 3))], {}, ValueError, r"must be of one shape, received \(1, 3\) after \(1,\)"),
        ([(FOUR, FOUR)], {}, TypeError, r"batch 0 of the outputs must be one array .* received a tuple: as"),
        ({"a": FOUR}, {}, TypeError, r"outputs must be an array \[B, 1, ...\] or batches of one, received a dict"),
        (4, {}, TypeError, "received a int"),
        (np.full((4, 1), "a"), {}, TypeError, "outputs must be numbers, so that they have a mean, received dtype <U1"),
        (np.full((4, 1), None), {}, TypeError, "received dtype object"),
        (np.zeros((4, 1), "M8[s]"), {}, TypeError, "received dtype datetime64"),
        (np.zeros((4, 1), [("a", int)]), {}, TypeError, "received dtype "),
        (FOUR, {"out": np.zeros(5)}, ValueError, r"out must have the shape \(4,\), received \(5,\)"),
        (FOUR, {"out": np.zeros(4, int)}, TypeError, "must be able to hold means of dtype float64, received dtype int"),
        (FOUR, {"out": read_only(np.zeros(4))}, ValueError, "out is read-only"),
        (FOUR, {"out": [0.0] * 4}, TypeError, "out must be an array that can be written, .* received a list"),
        (FOUR, {"out": WithoutWriting()}, TypeError, "received a WithoutWriting"),
    ],
)  # fmt: skip
def test_outputs_that_do_not_fit_the_patches_are_refused(outputs, arguments, error, message):
    with pytest.raises(error, match=message):
        kf.Patches(np.zeros(4), (1,)).assemble(outputs, **arguments)
