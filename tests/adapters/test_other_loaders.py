"""A sequence in other loaders, and errors for a feed there."""

import multiprocessing
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from programs import finish, launch

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.sequences.context import current_rng

PAGE = (ROOT / "docs" / "how-to" / "jax-and-pytorch.md").read_text()
SNIPPETS = dict(re.findall(r"<!-- tested: (.*?) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


class Clouds(kf.SceneSequence):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"points": np.full((16, 3), index, np.float32), "label": np.int32(index)}


LOADED = """
import sys
import h5py, numpy as np
import kerasfeed as kf
from torch.utils.data import ConcatDataset, DataLoader

class Rooms(kf.SceneSequence):
    def __init__(self, path):
        self.file = kf.HDF5File(path)
        self.length = len(self.file["points"])

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.file["points"][index], self.file["labels"][index]

class Noise(kf.SceneSequence):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.rng.random()

if __name__ == "__main__":
    with h5py.File("rooms.h5", "w") as file:
        file["points"] = np.arange(20, dtype=np.float32)[:, None] * np.ones(3, np.float32)
        file["labels"] = np.arange(20)
    rooms = Rooms("rooms.h5")
    kinds = {"file": rooms, "part": rooms[:], "memory": kf.Cached(rooms), "cache": kf.Cached(rooms, "cache", key="v1")}
    noise = Noise()
    noise[0]

    def loaded(dataset):
        return list(DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=CONTEXT))

    for name in KINDS:
        assert kinds[name][3][1] == 3  # the file is open, and scenes are cached
    if CONTEXT == "spawn":  # the same workers load all of them, since each imports PyTorch
        batches = loaded(ConcatDataset([*(kinds[name] for name in KINDS), noise]))
        parts = [batches[5 * place : 5 * place + 5] for place in range(len(KINDS))]
        drawn = batches[5 * len(KINDS) :]
    else:
        parts = [loaded(kinds[name]) for name in KINDS]
        drawn = loaded(noise)
    for name, part in zip(KINDS, parts):
        points, labels = zip(*part)
        assert np.concatenate(labels).tolist() == list(range(20)), (name, labels)
        assert np.concatenate(points)[:, 1].tolist() == list(range(20)), (name, points)
    assert len(drawn) == 2, drawn  # one of each worker
    assert len(set(np.concatenate(drawn).tolist())) == 8, drawn
    if CONTEXT == "fork":
        with kf.Feed(rooms, 4, workers=2, worker_type="thread") as feed:
            assert len(feed[0][1]) == 4
            try:
                list(DataLoader(feed, batch_size=None, num_workers=1, multiprocessing_context="fork"))
            except kf.errors.FeedClosedError as error:
                assert "pass the sequence itself to the DataLoader" in str(error), error
            else:
                raise AssertionError("not refused")
    print("done")
"""


@pytest.mark.parametrize(
    ("context", "kinds"),
    [
        ("fork", ["file", "memory"]),
        pytest.param("fork", ["part", "cache"], marks=pytest.mark.heavy),
        pytest.param("spawn", ["file", "memory", "cache"], marks=pytest.mark.heavy),
    ],
)
def test_a_data_loader_accepts_a_sequence_as_dataset(context, kinds):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    code = LOADED.replace("CONTEXT", repr(context)).replace("KINDS", repr(kinds))
    # A short path: PyTorch's workers hang if the path of a socket in TMPDIR has more than 107 bytes.
    with tempfile.TemporaryDirectory() as folder:
        assert finish(launch(Path(folder), code)) == "done\n"


def run(name):
    exec(SNIPPETS[name], {"kf": kf, "np": np, "Clouds": Clouds})


def test_the_error_for_a_data_loader_suggests_its_dataset():
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(Clouds(), batch_size=4)
    with pytest.raises(TypeError, match=r"the DataLoader gives batches: pass loader\.dataset, and batch_size"):
        BaseFeed(loader, 4)
    with BaseFeed(loader.dataset, 4, workers=0) as feed:
        assert len(feed) == len(loader)


def test_grain_accepts_a_sequence_as_source(capsys):
    grain = pytest.importorskip("grain", reason="Grain is not installed")
    run("grain")
    assert capsys.readouterr().out == "4 (4, 16, 3)\n"
    batches = grain.MapDataset.source(Clouds()).shuffle(seed=0).batch(32)
    assert sorted(np.concatenate([batch["label"] for batch in batches]).tolist()) == list(range(100))
    options = grain.ReadOptions(num_threads=4, prefetch_buffer_size=4)
    found = [batch["label"].tolist() for batch in batches.to_iter_dataset(options)]
    assert found == [batch["label"].tolist() for batch in batches]


@pytest.mark.heavy
def test_a_network_of_flax_is_trained_on_a_feed(capsys):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    pytest.importorskip("flax", reason="Flax is not installed")
    clouds = re.search(r"class Clouds.*?\n\n\n", PAGE, re.DOTALL).group()
    names = {"kf": kf, "np": np, "jax": jax, "jnp": jax.numpy}
    exec(clouds + SNIPPETS["nnx"], names)
    names.clear()  # JAX keeps the compiled function, and that keeps its globals
    assert capsys.readouterr().out == "trained: True\n"


@pytest.mark.heavy
def test_a_sequence_converts_to_a_hugging_face_dataset_and_back(capsys, monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    run("datasets")
    assert capsys.readouterr().out.splitlines()[-1] == "4 (32, 16, 3)"


def test_every_marked_snippet_of_the_page_is_tested():
    assert set(SNIPPETS) == {"grain", "datasets", "nnx"}


def test_forked_processes_draw_different_numbers_outside_a_feed():
    current_rng().random()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        drawn = pool.map(_draw, range(2), chunksize=1)
    assert len({*drawn, current_rng().random()}) == 3


def _draw(number):
    return current_rng().random()
