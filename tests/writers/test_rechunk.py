"""`rechunk`: other chunks, the same file, and never half of one."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rechunked import listing, rechunk

import kerasfeed as kf
from kerasfeed.cli.main import main
from kerasfeed.writers.hdf5 import rechunk as room

pytestmark = pytest.mark.usefixtures("no_signal_left")


def test_a_scene_is_a_chunk_afterwards_and_everything_else_is_what_it_was(points, tmp_path):
    report = rechunk(points, tmp_path / "out.h5", "points", 1)
    with h5py.File(points) as old, h5py.File(tmp_path / "out.h5") as new:
        assert new["points"].chunks == (1, 8, 3)
        assert new["points"].dtype == old["points"].dtype
        assert new["points"].maxshape == (None, 8, 3)
        assert new["points"].fillvalue == -1
        assert new["points"].attrs["unit"] == "metres"
        assert new["points"].compression == "gzip"
        assert new["points"].shuffle
        assert np.array_equal(new["points"][...], old["points"][...])
        assert np.array_equal(new["labels"][...], old["labels"][...])
        assert new["labels"].chunks is None
        assert new.attrs["title"] == "é"
    assert report.datasets[0].name == "/points"
    assert report.datasets[0].chunks_before == (7, 4, 1)
    assert report.datasets[0].chunks == (1, 8, 3)
    assert report.datasets[0].count == 50
    assert report.bytes_before == points.stat().st_size
    assert report.bytes_after == (tmp_path / "out.h5").stat().st_size
    assert report.seconds > 0
    assert "chunks (7, 4, 1) -> chunks (1, 8, 3) (50 of them)" in str(report)
    assert listing(tmp_path) == ["in.h5", "out.h5"]


@pytest.mark.parametrize("shape", [(7,), (1,), (4, 2), (4, 1)])
@pytest.mark.parametrize(("item", "length"), [(np.int32, 0), (np.int32, 1), (np.int32, 3), ("S3", 3)])
def test_rows_of_variable_length_that_are_all_equally_long_are_kept(tmp_path, shape, length, item):
    dtype = h5py.vlen_dtype(np.dtype(item))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        ragged = file.create_dataset("ragged", shape, dtype)
        for number, place in enumerate(np.ndindex(shape)):
            ragged[place] = np.arange(number, number + length).astype(item)
    rechunk(tmp_path / "in.h5", tmp_path / "out.h5", "ragged", 2)
    with h5py.File(tmp_path / "in.h5") as old, h5py.File(tmp_path / "out.h5") as new:
        assert new["ragged"].dtype == dtype
        for place in np.ndindex(shape):
            assert np.array_equal(new["ragged"][place], old["ragged"][place])


def test_items_that_are_arrays_of_text_are_kept(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("names", (5,), np.dtype((h5py.string_dtype(), (3,))))
        file["names"][...] = np.array([["a", "bb", f"{row}"] for row in range(5)], object)
    rechunk(tmp_path / "in.h5", tmp_path / "out.h5", "names", 2)
    with h5py.File(tmp_path / "out.h5") as new:
        assert new["names"][4].tolist() == [b"a", b"bb", b"4"]


def _fill_with_everything(file):
    """Datasets of every dtype h5py writes, in groups, with links, references, scales and attributes of many kinds."""
    rng = np.random.default_rng(1)
    for number, dtype in enumerate(
        ["<f4", ">f8", "<f2", ">i2", "u1", "?", "<c8", "S5", [("a", "<i4"), ("b", ">f8", (2,))], "V3"]
    ):
        raw = rng.integers(0, 2 if dtype == "?" else 256, (13, 4, np.dtype(dtype).itemsize), np.uint8)
        file[f"dtypes/{number}"] = raw.view(dtype)[..., 0]
    file["dtypes/text"] = np.array([["ab", "é"]] * 13, h5py.string_dtype())
    file.create_dataset("dtypes/ragged", 13, h5py.vlen_dtype(np.int32))
    for row in range(13):
        file["dtypes/ragged"][row] = np.arange(row)
    file["dtypes/enum"] = np.zeros(13, h5py.enum_dtype({"A": 0, "B": 1}, "u1"))
    file["dtypes/scalar"] = 3.5
    file["dtypes/null"] = h5py.Empty("f4")
    sparse = file.create_dataset("sparse", (40, 5), "i4", chunks=(3, 5), fillvalue=7, fletcher32=True)
    sparse[10:12] = 1
    file.create_dataset("growing", (0, 5), "f4", maxshape=(None, 5), chunks=(2, 5))
    file.create_dataset("empty", (0, 5), "f4")
    file["deep/a/b/c"] = np.arange(4)
    file["hard"] = file["deep/a/b/c"]
    file["deep/loop"] = file["deep"]
    file["soft"] = h5py.SoftLink("/dtypes/0")
    file["dangling"] = h5py.SoftLink("/nowhere")
    file["outside"] = h5py.ExternalLink("other.h5", "/x")
    file["type"] = np.dtype("<f8")
    file["x"] = np.arange(13)
    file["x"].make_scale("the x")
    file["dtypes/0"].dims[0].attach_scale(file["x"])
    file["dtypes/0"].dims[0].label = "x"
    file["pointers"] = np.array([file["deep"].ref, h5py.Reference(), file["dtypes/0"].ref], h5py.ref_dtype)
    file["deep"].attrs["points to"] = file["dtypes/0"].ref
    file["dtypes/0"].attrs["points to"] = file["x"].ref
    attributes = file["dtypes/0"].attrs
    attributes["list"] = [1, 2, 3]
    attributes["text"] = ["a", "é"]
    attributes["null"] = h5py.Empty("S3")
    attributes["bytes"] = np.bytes_(b"abc")
    attributes["big"] = np.arange(6, dtype=">i2").reshape(2, 3)


def _described(file):
    """Everything a file holds, as one comparable value."""
    found = {}

    def attributes(item):
        shown = {}
        for name in item.attrs:
            if name in ("DIMENSION_LIST", "REFERENCE_LIST"):
                continue
            value = item.attrs[name]
            stored = item.attrs.get_id(name)
            shown[name] = (
                str(stored.dtype),
                stored.shape,
                file[value].name if isinstance(value, h5py.Reference) else repr(value),
            )
        return shown

    def visit(group, seen):
        for name in group:
            link = group.get(name, getlink=True)
            path = f"{group.name.rstrip('/')}/{name}"
            if not isinstance(link, h5py.HardLink):
                found[path] = (type(link).__name__, link.path, getattr(link, "filename", None))
                continue
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                found[path] = ("same as", seen[address])
                continue
            seen[address] = path
            if isinstance(item, h5py.Group):
                found[path] = ("group", attributes(item))
                visit(item, seen)
            elif isinstance(item, h5py.Dataset):
                if item.shape is None:
                    value = None
                elif h5py.check_ref_dtype(item.dtype):
                    value = [file[reference].name if reference else None for reference in item[...]]
                else:
                    value = repr(item[()].tolist())
                scales = [[scale.name for scale in dimension.values()] for dimension in item.dims] if item.shape else []
                labels = [dimension.label for dimension in item.dims] if item.shape else []
                fill = repr(item.fillvalue)
                found[path] = (
                    str(item.dtype),
                    item.shape,
                    item.maxshape,
                    value,
                    attributes(item),
                    scales,
                    labels,
                    fill,
                )
            else:
                found[path] = ("type", str(item.dtype))

    visit(file["/"], {h5py.h5o.get_info(file.id).addr: "/"})
    return found, attributes(file)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("name", [None, "dtypes/0", ["sparse", "/dtypes/ragged", "hard"]])
def test_a_file_with_everything_in_it_keeps_everything(tmp_path, libver, name):
    with h5py.File(tmp_path / "in.h5", "w", libver=libver, userblock_size=1024) as file:
        _fill_with_everything(file)
    with (tmp_path / "in.h5").open("r+b") as raw:
        raw.write(b"in front of it all")
    report = rechunk(tmp_path / "in.h5", tmp_path / "out.h5", name, 3)
    with h5py.File(tmp_path / "in.h5") as old, h5py.File(tmp_path / "out.h5") as new:
        expected, found = _described(old), _described(new)
        assert found[1] == expected[1]
        assert found[0].keys() == expected[0].keys()
        for path, value in expected[0].items():
            assert found[0][path] == value, path
        for item in report.datasets:
            assert new[item.name].chunks == item.chunks
            assert new[item.name].chunks[0] == min(3, new[item.name].maxshape[0] or 3)
        assert new["sparse"].fletcher32
    assert (tmp_path / "out.h5").read_bytes()[:18] == b"in front of it all"
    if name is None:
        assert {"/growing", "/sparse", "/dtypes/text", "/x"} <= {item.name for item in report.datasets}
        assert not {"/empty", "/dtypes/scalar", "/dtypes/null", "/pointers"} & {item.name for item in report.datasets}


def test_the_order_in_which_things_were_made_is_kept(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w", track_order=True) as file:
        for name in "zebra", "ant", "mole":
            file.create_group(name, track_order=True).attrs["k"] = name
            file[name]["y"], file[name]["b"] = np.arange(3), np.arange(3)
    rechunk(tmp_path / "in.h5", tmp_path / "out.h5", "zebra/y", 1)
    with h5py.File(tmp_path / "out.h5") as new:
        assert list(new) == ["zebra", "ant", "mole"]
        assert list(new["zebra"]) == ["y", "b"]


@settings(deadline=None, max_examples=40)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    chunk=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    scenes=st.integers(1, 12),
    contiguous=st.booleans(),
    memory=st.sampled_from([64, 1 << 12, 1 << 28]),
)
def test_values_are_kept_whatever_the_shapes_and_the_memory(tmp_path_factory, shape, chunk, scenes, contiguous, memory):
    folder = tmp_path_factory.mktemp("shapes")
    data = np.random.default_rng(0).integers(0, 1 << 40, shape)
    chunks = None if contiguous else tuple(min(a, b) for a, b in zip(chunk, shape, strict=False))
    with h5py.File(folder / "in.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=chunks)
    before = room._MEMORY
    room._MEMORY = memory
    try:
        rechunk(folder / "in.h5", folder / "out.h5", "x", scenes, None)
    finally:
        room._MEMORY = before
    with h5py.File(folder / "out.h5") as new:
        assert new["x"].chunks == (min(scenes, shape[0]), *shape[1:])
        assert np.array_equal(new["x"][...], data)


@pytest.mark.parametrize(
    ("compression", "shown"), [(None, None), (0, "gzip"), (9, "gzip"), ("gzip", "gzip"), ("lzf", "lzf")]
)
def test_each_compression_is_what_the_file_then_has(points, tmp_path, compression, shown):
    rechunk(points, tmp_path / "out.h5", "points", 5, compression)
    with h5py.File(points) as old, h5py.File(tmp_path / "out.h5") as new:
        assert new["points"].compression == shown
        assert new["points"].compression_opts == {9: 9, 0: 0, "gzip": 4}.get(compression)
        assert np.array_equal(new["points"][...], old["points"][...])


@pytest.mark.parametrize("compression", ["blosc", "zstd", "lz4"])
def test_filters_of_plugins_are_offered_where_they_are(points, tmp_path, compression):
    pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    rechunk(points, tmp_path / "out.h5", "points", 5, compression)
    with h5py.File(points) as old, h5py.File(tmp_path / "out.h5") as new:
        assert new["points"].id.get_create_plist().get_nfilters() == 1
        assert np.array_equal(new["points"][...], old["points"][...])


def test_an_existing_file_is_replaced_only_when_asked(points, tmp_path):
    out = tmp_path / "out.h5"
    out.write_text("precious")
    with pytest.raises(FileExistsError, match=r"out.h5' exists already; .*overwrite=True"):
        rechunk(points, out, "points", 1)
    assert out.read_text() == "precious"
    rechunk(points, out, "points", 1, overwrite=True)
    with h5py.File(out) as new:
        assert new["points"].chunks == (1, 8, 3)


def test_a_file_may_be_replaced_by_its_own_copy_through_a_link_too(points, tmp_path):
    with h5py.File(points) as old:
        data = old["points"][...]
    link = tmp_path / "link.h5"
    link.symlink_to(points)
    with pytest.raises(FileExistsError):
        rechunk(points, link, "points", 2)
    rechunk(points, link, "points", 2, overwrite=True)
    assert link.is_symlink()
    with h5py.File(points) as new:
        assert new["points"].chunks == (2, 8, 3)
        assert np.array_equal(new["points"][...], data)
    assert listing(tmp_path) == ["in.h5", "link.h5"]


def test_the_progress_bar_is_drawn_on_stderr(points, tmp_path, capsys):
    kf.rechunk(points, tmp_path / "out.h5", "points", 1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "rechunking" in shown.err


def test_real_data_are_rewritten_so_that_a_scene_is_a_chunk(real_data, tmp_path):
    source = real_data / "bimnet10_train.h5"
    report = rechunk(source, tmp_path / "out.h5", "data", 1)
    assert report.datasets[0].chunks_before == (21, 256, 1)
    with h5py.File(source) as old, h5py.File(tmp_path / "out.h5") as new:
        assert new["data"].chunks == (1, 2048, 3)
        assert np.array_equal(new["data"][...], old["data"][...])
        assert np.array_equal(new["label"][...], old["label"][...])


def test_the_command_rewrites_a_file_and_says_what_it_did(points, tmp_path, capsys):
    from kerasfeed.cli.main import main

    out = str(tmp_path / "out.h5")
    assert main(["rechunk", str(points), out, "--dataset", "points", "--scenes-per-chunk", "5"]) == 0
    assert "chunks (7, 4, 1) -> chunks (5, 8, 3)" in capsys.readouterr().out
    assert main(["rechunk", str(points), out, "--dataset", "points", "--scenes-per-chunk", "5"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("kerasfeed rechunk: ")
    assert shown.count("\n") == 1
    assert "exists already" in shown
    assert main(["rechunk", str(points), out, "--dataset", "no", "--scenes-per-chunk", "5", "--overwrite"]) == 2
    assert "kerasfeed rechunk: 'no' is not in the file; " in capsys.readouterr().err
    arguments = ["--scenes-per-chunk", "50", "--compression", "3", "--overwrite"]
    assert main(["rechunk", str(points), out, *arguments]) == 0
    with h5py.File(out) as new:
        assert new["points"].chunks == (50, 8, 3)
        assert new["labels"].chunks == (50,)
        assert new["labels"].compression_opts == 3


def test_a_dataset_of_another_file_is_refused_by_the_name_of_that_file(points, tmp_path):
    with h5py.File(tmp_path / "outer.h5", "w") as file:
        file["there"] = h5py.ExternalLink("in.h5", "/points")
        file["here"] = np.arange(3)
    with pytest.raises(ValueError, match=r"'there' of .*outer.h5' is a link to '.*in.h5': rechunk that file"):
        rechunk(tmp_path / "outer.h5", tmp_path / "out.h5", "there", 1)
    rechunk(tmp_path / "outer.h5", tmp_path / "out.h5", None, 1)
    with h5py.File(tmp_path / "out.h5") as new:
        assert isinstance(new.get("there", getlink=True), h5py.ExternalLink)
        assert new["here"].chunks == (1,)


def test_the_new_file_has_the_permissions_that_any_new_file_has(points, tmp_path):
    rechunk(points, tmp_path / "out.h5", "points", 1)
    (tmp_path / "other").touch()
    assert (tmp_path / "out.h5").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_virtual_dataset_becomes_an_ordinary_one(points, tmp_path):
    layout = h5py.VirtualLayout((50, 8, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(points), "points", (50, 8, 3))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    rechunk(tmp_path / "virtual.h5", tmp_path / "out.h5", "v", 1)
    with h5py.File(points) as old, h5py.File(tmp_path / "out.h5") as new:
        assert not new["v"].is_virtual
        assert np.array_equal(new["v"][...], old["points"][...])


def test_chunks_that_nobody_asked_for_hold_16_kib_or_the_whole_dataset_in_python_and_from_a_shell(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["labels"] = np.arange(100_000)
        file["large"] = np.zeros((5, 5000), np.float32)
        file["few"] = np.arange(5)
        file.create_dataset("growing", (5, 3), "u1", maxshape=(None, 3))
    expected = {"labels": (2048,), "large": (1, 5000), "few": (5,), "growing": (5462, 3)}
    rechunk(tmp_path / "in.h5", tmp_path / "python.h5")
    assert main(["rechunk", str(tmp_path / "in.h5"), str(tmp_path / "shell.h5")]) == 0
    for out in (tmp_path / "python.h5", tmp_path / "shell.h5"):
        with h5py.File(out) as file:
            assert {name: item.chunks for name, item in file.items()} == expected
            assert file["labels"].compression == "gzip"
            assert np.array_equal(file["labels"], np.arange(100_000))
        assert out.stat().st_size < (tmp_path / "in.h5").stat().st_size
