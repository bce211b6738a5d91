"""Cached: scenes are kept unchanged, and random or damaged ones are never returned."""

import os
import pickle
import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import optree
import pytest
import scenes
from scenes_views import Squares, jittered

import kerasfeed as kf
from kerasfeed.sequences.cache_store import SceneFiles, encoded, frozen_leaves
from kerasfeed.spec.nesting import structure_text


@pytest.fixture
def read_once(monkeypatch):
    """Let caches read no scene twice."""
    monkeypatch.setattr("kerasfeed.sequences.cached._PROBED", 0)


def _assert_scene(scene, expected):
    leaves, treespec = optree.tree_flatten(scene)
    others, other_treespec = optree.tree_flatten(expected)
    assert treespec == other_treespec
    for leaf, other in zip(leaves, others, strict=True):
        assert type(leaf) is type(other)
        if isinstance(leaf, np.ndarray):
            assert (leaf.dtype, leaf.shape, leaf.tolist()) == (other.dtype, other.shape, other.tolist())
        else:
            assert leaf == other


def test_scenes_with_every_kind_of_field_are_read_once_and_kept_unchanged(where, log, read_once):
    cached = kf.Cached(Squares(7, log=log), **where)
    for _ in range(3):
        for index, scene in enumerate(cached):
            _assert_scene(scene, Squares(7)[index])
    assert log.lines() == [str(index) for index in range(7)]
    assert repr(cached).startswith("Cached of Squares in ")
    cached.clear()
    _assert_scene(cached[-1], Squares(7)[6])
    assert len(log.lines()) == 8


def test_a_scene_that_is_changed_in_place_is_not_changed_in_the_cache(where):
    cached = kf.Cached(scenes.Clouds(3), **where)
    for _ in range(3):
        points, _ = cached[1]
        assert points.sum() == scenes.Clouds(3)[1][0].sum()
        points[...] = -1


def test_a_cache_on_disk_serves_the_next_program(tmp_path, log):
    for _ in range(3):
        for index, scene in enumerate(kf.Cached(Squares(7, log=log), tmp_path / "kept", key="v1")):
            _assert_scene(scene, Squares(7)[index])
    # The first reads three scenes twice; each later one reads one scene twice, to learn the nesting.
    assert len(log.lines()) == 7 + 3 + 2 * 2


@pytest.mark.heavy
def test_feeds_over_a_cache_are_the_same_on_every_kind_of_worker(tmp_path):
    expected = None
    for arguments in ({}, {"path": tmp_path / "kept", "key": "v1"}):
        for workers, worker_type in ((0, "thread"), (2, "thread"), (2, "process")):
            view = kf.Map(kf.Cached(scenes.Clouds(20), **arguments), jittered)
            with kf.Feed(view, 6, shuffle=True, seed=1, workers=workers, worker_type=worker_type) as feed:
                batches = [batch[0].tobytes() for epoch in (0, 1, 0) for batch in feed.epoch(epoch)]
            expected = expected or batches
            assert batches == expected
    assert len(list((tmp_path / "kept").rglob("*.scene"))) == 20
    assert not list((tmp_path / "kept").rglob("*.part"))


def test_memory_is_bounded():
    cached = kf.Cached(np.zeros((10, 1000)), max_memory=25_000)
    for _ in range(2):
        assert [scene.sum() for scene in cached] == [0] * 10
        assert cached.nbytes == 24_000


# ---- files


class PathTouch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (self.path,)


def _encoded(scene):
    leaves, treespec = frozen_leaves(scene)
    return encoded(leaves, structure_text(treespec))


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no such dtype")
def test_strings_of_any_length_are_kept_in_files(tmp_path):
    words = np.array([["a", "é" * 99]], np.dtypes.StringDType())
    files = SceneFiles(tmp_path)
    files.write(0, _encoded(words))
    [[found], _] = files.read(0)
    assert (found.dtype, found.tolist()) == (words.dtype, words.tolist())
    with pytest.raises(kf.errors.SpecError, match="an object array holding nan"):
        frozen_leaves(np.array([["a", np.nan]], np.dtypes.StringDType(na_object=np.nan)))


def test_no_damaged_file_is_served(tmp_path, log, read_once):
    cached = kf.Cached(Squares(2, log=log), tmp_path / "kept", key="v1")
    expected = [cached[0], cached[1]]
    path, other = (next((tmp_path / "kept").rglob(f"{index}.scene")) for index in (1, 0))
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    damages = [b"", whole[:10], whole[:-1], whole + b"x", other.read_bytes(), b"\0" * len(whole), *flipped]
    for count, damage in enumerate(damages, 3):
        path.write_bytes(damage)
        _assert_scene(cached[1], expected[1])
        assert len(log.lines()) == count  # it was read again
        assert path.read_bytes() == whole  # and cached again


def test_a_file_cannot_run_code(tmp_path):
    files = SceneFiles(tmp_path)
    ran = tmp_path / "ran"
    head = pickle.dumps(("*", [PathTouch(str(ran))]))
    files.write(0, len(head).to_bytes(8, "little") + head)
    assert files.read(0) is None
    assert not ran.exists()


def test_temporary_files_of_a_crash_are_ignored(tmp_path, log):
    cached = kf.Cached(Squares(3, log=log), tmp_path / "kept", key="v1")
    assert cached[0]
    folder = next((tmp_path / "kept").rglob("0.scene")).parent
    (folder / ".1.scene.01234567.part").write_bytes(b"half")
    _assert_scene(cached[1], Squares(3)[1])


def test_many_concurrent_writers_leave_complete_files(tmp_path):
    files = SceneFiles(tmp_path / "kept")
    data = _encoded(np.arange(20_000.0))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: (files.write(5, data), files.read(5))[1], range(200)))
    assert all(each is not None and np.array_equal(each[0][0], np.arange(20_000.0)) for each in found)
    assert [path.name for path in (tmp_path / "kept" / "0").iterdir()] == ["5.scene"]


def test_a_full_disk_disables_the_cache_and_loses_no_scene(tmp_path, monkeypatch, log, read_once):
    cached = kf.Cached(Squares(4, log=log), tmp_path / "kept", key="v1")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kerasfeed.util.atomic_write._rename", full)
    with pytest.warns(kf.FeedWarning, match=r"cannot write to .*kept.*No space left.*Free some space, or pass"):
        _assert_scene(cached[1], Squares(4)[1])
    for _ in range(2):
        _assert_scene(cached[1], Squares(4)[1])  # warned once
    assert len(log.lines()) == 3
    assert not list((tmp_path / "kept").rglob("*.part"))


def test_a_cache_that_is_cleared_by_another_program_keeps_scenes_afterwards(tmp_path, log, read_once):
    cached, other = (kf.Cached(Squares(4, log=log), tmp_path / "kept", key="v1") for _ in range(2))
    over = threading.Event()

    def clear():
        while not over.is_set():
            other.clear()

    with ThreadPoolExecutor(1) as pool, warnings.catch_warnings():
        warnings.simplefilter("error")
        clearing = pool.submit(clear)
        try:
            for number in range(2000):
                _assert_scene(cached[number % 4], Squares(4)[number % 4])
        finally:
            over.set()
        clearing.result()
    kept = list(cached)
    before = len(log.lines())
    for scene, again in zip(kept, cached, strict=True):
        _assert_scene(again, scene)
    assert len(log.lines()) == before


def test_a_deleted_folder_is_created_again(tmp_path, log, read_once):
    cached = kf.Cached(Squares(4, log=log), tmp_path / "kept", key="v1")
    assert cached[1]
    shutil.rmtree(tmp_path / "kept")
    _assert_scene(cached[1], Squares(4)[1])
    _assert_scene(cached[1], Squares(4)[1])
    assert len(log.lines()) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"path": "x", "max_memory": 5}, ValueError, "on disk .path. or in memory .max_memory.: give one of them"),
        ({"max_memory": 0}, ValueError, "max_memory must be at least 1 byte, received 0"),
        ({"max_memory": "1 GB"}, TypeError, "max_memory must be a number of bytes, received '1 GB'"),
        (
            {"path": "x"},
            TypeError,
            r"kf.Cached\(sequence, path\) needs a key: a string such as key='v1'. Change it",
        ),
        ({"path": "x", "key": 3}, TypeError, "a string such as key='v1', received 3 of type int"),
        ({"key": "v1"}, TypeError, "key= is for scenes kept on disk: pass a path, or leave key out"),
        ({"path": __file__, "key": "v1"}, OSError, "path='.*test_cached.py' must be a folder, or a name for a new one"),
    ],
)
def test_invalid_cache_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.Cached(scenes.Clouds(), **arguments)
