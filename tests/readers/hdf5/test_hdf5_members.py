"""HDF5 files and groups as mappings, and files of very many datasets."""

import pickle
import re
import time
from itertools import pairwise

import h5py
import numpy as np
import pytest
from places import ROOT

import kerasfeed as kf
from kerasfeed.readers.hdf5 import describe
from kerasfeed.readers.hdf5 import open_files as registry

PAGE = ROOT / "docs" / "how-to" / "point-clouds.md"
LENGTHS = np.random.default_rng(0).integers(5, 30, 60)


def scene(number):
    return np.random.default_rng(number).normal(size=(LENGTHS[number], 3)).astype("f4")


@pytest.fixture
def path(tmp_path):
    """One group per scene, and other objects."""
    with h5py.File(tmp_path / "kerasfeed.h5", "w") as file:
        for number in range(len(LENGTHS)):
            how = {"compression": "gzip", "shuffle": True} if number % 2 else {}
            file.create_dataset(f"scene_{number:05d}/points", data=scene(number), **how)
            file[f"scene_{number:05d}/label"] = number
        file["loose"] = np.arange(3)
        file["nothing"] = h5py.SoftLink("/nowhere")
        file["kind"] = np.dtype("f4")
    return tmp_path / "kerasfeed.h5"


def test_files_and_groups_are_mappings_as_in_h5py(path):
    with h5py.File(path) as reference, kf.HDF5File(path) as file:
        assert list(file) == list(file.keys()) == list(reference)
        assert len(file) == len(file.keys()) == len(file.values()) == len(file.items()) == len(reference) == 63
        assert dict(file["scene_00003"].items()).keys() == {"label", "points"}
        assert [type(value).__name__ for value in file.values()][-3:] == ["HDF5Group", "HDF5Group", "HDF5Group"]
        pairs = dict(file.items())
        assert list(pairs) == list(reference)
        assert pairs["nothing"] is None
        assert pairs["kind"] is None
        assert np.array_equal(pairs["loose"][:], [0, 1, 2])
        group, theirs = file["scene_00001"], reference["scene_00001"]
        assert list(group) == list(group.keys()) == list(theirs)
        assert len(group) == 2
        assert "points" in group
        assert "points" in group.keys()  # noqa: SIM118
        assert "scene_00001/points" in file
        assert "scene_00001/nothing" not in file
        assert file.get("scene_00001/nothing", 5) == 5
        assert np.array_equal(file.get("scene_00001/points")[:], scene(1))
        assert {name: value.shape for name, value in group.items()} == {"label": (), "points": (LENGTHS[1], 3)}
        assert pickle.loads(pickle.dumps(group))["points"].shape == (LENGTHS[1], 3)
        assert file._ipython_key_completions_() == list(reference)
        assert len({file, group}) == 2
        paths = file.dataset_paths()
        assert len(paths) == 121
        assert {"loose", "scene_00059/points"} <= set(paths)
        assert group.dataset_paths() == ["label", "points"]


def test_names_are_listed_without_a_walk_of_the_file(path, monkeypatch):
    monkeypatch.setattr(describe, "entries", lambda *_: pytest.fail("walked"))
    with kf.HDF5File(path) as file:
        assert len(file) == len(list(file)) == len(list(file.keys())) == len(file["/"])
        assert "x" not in file
        assert next(iter(file.items()))[0] == "kind"


def test_the_error_for_an_unknown_name_in_a_large_file_lists_some_names(path, monkeypatch):
    with kf.HDF5File(path) as file:
        with pytest.raises(KeyError, match=r"holds the datasets loose, scene_00000/label, .* and 101 more"):
            file["x"]
        monkeypatch.setattr("kerasfeed.readers.hdf5.file._MOST_NAMES", 30)
        with pytest.raises(KeyError, match=r"holds the datasets loose, scene_00000/label, .*points and many more"):
            file["x"]


# ---- links and references


@pytest.fixture
def linked(tmp_path):
    """Links of every kind, some of them broken, and a dataset with the same name in this file and in another."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = np.arange(10)
        file["group/data"] = np.arange(4)
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["data"] = np.arange(3)
        file["same"] = h5py.SoftLink("/data")
        file["soft"] = h5py.SoftLink("/nowhere")
        file["circle"] = h5py.SoftLink("/circle")
        file["gone"] = h5py.ExternalLink("gone.h5", "/data")
        file["there"] = h5py.ExternalLink("other.h5", "/data")
        file["folder"] = h5py.ExternalLink("other.h5", "/group")
        file["kind"] = np.dtype("f4")
        file["references"] = np.array([file["data"].ref, None], h5py.ref_dtype)
    return tmp_path / "linked.h5"


def test_a_linked_dataset_is_not_confused_with_a_local_one_of_the_same_name(linked):
    with kf.HDF5File(linked) as file:
        assert np.array_equal(file["there"][:], np.arange(10))
        assert np.array_equal(file["data"][:], np.arange(3))
        assert str(file["data"].reader) == "direct"
        assert str(file["there"].reader) == "h5py: stored in another file, by an external link"


def test_errors_name_broken_links_and_datatypes(linked):
    with kf.HDF5File(linked) as file:
        for name, target in (("soft", "/nowhere"), ("circle", "/circle"), ("gone", "gone.h5:/data")):
            with pytest.raises(KeyError, match=rf"'{name}' in '.*' is a link to '{target}', which does not exist"):
                file[name]
            assert name not in file
            assert file.get(name) is None
        with pytest.raises(KeyError, match=r"'soft' in .* is a link to '/nowhere'"):
            file["soft/deeper"]
        with pytest.raises(KeyError, match=r"'kind' in .* is a datatype, which holds no data"):
            file["kind"]


def test_dataset_paths_and_tree_follow_links_once_and_show_broken_ones(linked):
    with kf.HDF5File(linked) as file:
        assert file.dataset_paths() == ["data", "references", "folder/data", "there"]
        assert all(file[path].shape for path in file.dataset_paths())
        lines = file.tree().splitlines()
    for line in (
        "  circle  -> /circle (missing)",
        "  data  int64 (3,)  contiguous  none  [direct]",
        "  folder/  -> other.h5:/group",
        "    data  int64 (4,)  contiguous  none  [h5py: stored in another file, by an external link]",
        "  gone  -> gone.h5:/data (missing)",
        "  kind  datatype",
        "  same  -> /data",
        "  soft  -> /nowhere (missing)",
        "  there  int64 (10,)  contiguous  none  [h5py: stored in another file, by an external link]"
        "  -> other.h5:/data",
    ):
        assert line in lines


def test_a_reference_returns_its_object(linked):
    with kf.HDF5File(linked) as file:
        there, empty = file["references"][:]
        assert np.array_equal(file[there][:], np.arange(3))
        assert np.array_equal(file["/"][there][:], np.arange(3))
        assert pickle.loads(pickle.dumps(file[there])).shape == (3,)
        with pytest.raises(KeyError, match="the reference points to nothing: it is empty in"):
            file[empty]


def test_a_damaged_file_is_not_listed_after_an_hdf5_error(tmp_path, monkeypatch):
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(12):  # names in a heap with checksums
            file[f"{number}"] = np.arange(3)
    damaged = path.read_bytes().replace(b"FHDB", b"FHDX")
    assert damaged.count(b"FHDX") == 1
    path.write_bytes(damaged)
    with kf.HDF5File(path) as file:
        with pytest.raises(OSError, match=r"cannot open '3' of .*damaged.h5': the file is damaged"):
            file["3"]
        monkeypatch.setattr(describe, "entries", lambda *_: pytest.fail("walked"))
        with pytest.raises(
            KeyError, match=r"'nope' is not in '.*'\. The file is damaged, so its datasets are not listed"
        ):
            file["nope"]


# ---- very many files


def test_the_least_recently_used_files_are_closed_at_the_descriptor_limit(tmp_path, monkeypatch):
    paths = [tmp_path / f"{number}.h5" for number in range(12)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(number, number + 3)
    monkeypatch.setattr(registry, "descriptors", lambda: 8)
    files = [kf.HDF5File(path) for path in paths]
    datasets = [file["x"] for file in files]
    for _ in range(2):
        for number, (file, dataset) in enumerate(zip(files, datasets, strict=True)):
            assert dataset[1] == number + 1
            assert file["x"][2] == number + 2
            assert files[0]["x"][0] == 0  # used repeatedly, so it stays
            assert sum(each._opened is not None for each in files) <= 6
    paths[3].write_bytes(paths[4].read_bytes())  # closed meanwhile, but still known
    with pytest.raises(OSError, match="changed since it was first opened"):
        datasets[3][0]


# ---- very many small datasets


def test_many_small_datasets_equal_h5py(path):
    places = np.array([3, 0, 3])
    with h5py.File(path) as reference, kf.HDF5File(path) as file:
        for number in range(len(LENGTHS)):
            name = f"scene_{number:05d}/points"
            ours, theirs = file[name], reference[name]
            for _ in range(2):
                assert (ours.shape, ours.dtype, ours.chunks, len(ours)) == (
                    theirs.shape, theirs.dtype, theirs.chunks, len(theirs)
                )  # fmt: skip
                for selection in ((), 2, -1, slice(1, 5), (slice(None), 1), (Ellipsis, slice(0, 2)), [1, 4], (2, 2)):
                    found, expected = ours[selection], theirs[selection]
                    assert type(found) is type(expected)
                    assert np.array_equal(found, expected)
                assert np.array_equal(ours[::-1, places[:2] % 3], theirs[()][::-1, places[:2] % 3])
                assert np.array_equal(ours.take(places), theirs[()][places])
                out = np.empty((2, 3), ">f4")
                ours.read_into(slice(1, 3), out)
                assert np.array_equal(out, theirs[1:3])
                ours.read_into(4, out[0])
                assert np.array_equal(out[0], theirs[4])
                ours[0][...] = 7  # no reader sees the changes of another
                ours.read_ahead([1, 2])


def test_one_of_many_small_datasets_is_examined_at_its_second_read(path, monkeypatch):
    examined, original = [], registry.examine
    monkeypatch.setattr(registry, "_EXAMINED_AT_ONCE", 2)
    monkeypatch.setattr(
        registry,
        "examine",
        lambda file, dataset, size: (examined.append(dataset.name), original(file, dataset, size))[1],
    )
    names = [f"scene_{number:05d}/points" for number in range(5)]
    with kf.HDF5File(path) as file:
        for _ in range(2):
            assert [file[name].shape for name in names] == [(LENGTHS[number], 3) for number in range(5)]
            assert examined == [f"/{name}" for name in names[:2]]
        for times in range(1, 4):  # each time through another HDF5Dataset
            assert all(np.array_equal(file[name][:], scene(number)) for number, name in enumerate(names))
            assert examined == [f"/{name}" for name in names[: 2 if times == 1 else 5]]
        held = [file[f"scene_{number:05d}/points"] for number in range(10, 13)]
        for _ in range(3):
            assert all(np.array_equal(data[:], scene(10 + number)) for number, data in enumerate(held))
        assert len(examined) == 8
        assert held[1].stats().hits == 1
        assert str(file["scene_00020/points"].reader) == "direct"  # which needs an examination
        assert examined[-1] == "/scene_00020/points"


def test_a_damaged_small_dataset_returns_its_intact_rows(tmp_path):
    path = tmp_path / "kerasfeed.h5"
    with h5py.File(path, "w") as file:
        for number in range(4):
            file.create_dataset(f"{number}", data=np.arange(40).reshape(8, 5), chunks=(2, 5), compression="gzip")
        place = file["3"].id.get_chunk_info(1)
    damaged = bytearray(path.read_bytes())
    damaged[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(damaged)
    with kf.HDF5File(path) as file:
        for number in range(4):
            assert np.array_equal(file[f"{number}"][0], np.arange(5))
        with pytest.raises(OSError, match=r"cannot read '3'\[2\] of"):
            file["3"][2]
        assert np.array_equal(file["3"][7], np.arange(35, 40))


def test_many_small_datasets_raise_if_the_file_changes(path):
    with kf.HDF5File(path) as file:
        for number in range(5):
            file[f"scene_{number:05d}/points"][:]
        data = path.read_bytes()
        path.write_bytes(data + b"more")
        time.sleep(0.25)  # it is checked five times a second
        with pytest.raises(OSError, match="changed since it was first opened: its size is"):
            file["scene_00007/points"][:]
        file.close()
        assert np.array_equal(file["scene_00007/points"][:], scene(7))


def test_data_of_other_files_is_not_cached_as_part_of_this_one(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(4)
    with h5py.File(tmp_path / "kerasfeed.h5", "w") as file:
        for number in range(3):
            file[f"{number}"] = np.arange(4)
        file["linked"] = h5py.ExternalLink("other.h5", "/x")
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", (4,), "u1", external=[("raw", 0, 4)])
    with kf.HDF5File(tmp_path / "kerasfeed.h5") as file:
        for name in ("0", "1", "2", "linked", "virtual"):
            assert np.array_equal(file[name][:], np.arange(4))
        for name in ("linked", "virtual", "external"):
            assert file._open().dataset(name, None).choice.kind == "h5py"  # which examines the other file each time
        assert str(file["external"].reader) == "h5py: external storage"


def rows_of(batch):
    if not isinstance(batch, kf.RaggedArray):
        return batch
    return [batch.values[first:last] for first, last in pairwise(batch.row_splits)]


@pytest.mark.parametrize("collate", ["pad", "ragged"])
def test_the_recipe_for_scenes_in_groups_works_in_every_loader(tmp_path, monkeypatch, collate):
    monkeypatch.chdir(tmp_path)
    lengths = [5, 9, 2, 7, 30, 1]
    scans = [np.random.default_rng(n).normal(size=(length, 3)).astype("f4") for n, length in enumerate(lengths)]
    with h5py.File("scans.h5", "w") as file:
        for number, points in enumerate(scans):
            file[f"scan_{number:05d}/points"], file[f"scan_{number:05d}/label"] = points, number
    text = re.search(r"```python\n(class Scans\(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    names = {"kf": kf, "__name__": "recipe"}
    exec(text, names)
    for workers, worker_type in ((0, "thread"), (2, "thread"), (1, "process")):
        sequence = names["Scans"]("scans.h5")
        with kf.Feed(sequence, 4, collate=collate, workers=workers, worker_type=worker_type) as feed:
            found = [
                (points[row][: lengths[label]], label)
                for points, labels in ((rows_of(points), labels) for points, labels in feed)
                for row, label in enumerate(np.asarray(labels).tolist())
            ]
        sequence.file.close()
        assert [label for _, label in found] == list(range(6))
        for points, label in found:
            assert np.array_equal(np.asarray(points), scans[label])
