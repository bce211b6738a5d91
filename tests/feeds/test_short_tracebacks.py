"""Tracebacks of what a loop raises: one line of kerasfeed's, then the user's."""

import traceback
from pathlib import Path

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.feeds import feed_cursor

PACKAGE = f"{Path(kf.__file__).parent}/"


class Broken(kf.SceneSequence):
    def __init__(self, found):
        self.found = found

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.zeros(3) if index != 13 else self.asked(index)

    def asked(self, index):
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


def generator():
    yield from (np.zeros(3) for _ in range(9))
    raise KeyError("generator")


def epoch(feed):
    return list(feed.epoch(2))


def to_torch(feed):
    pytest.importorskip("torch")
    return list(feed.to_torch())


def to_tf_dataset(feed):
    pytest.importorskip("tensorflow")
    return list(feed.to_tf_dataset())


def load(feed):
    return kf.load(feed, epoch=0, step=3)


def functions(raised):
    """Names of the functions of the traceback, with whether they are kerasfeed's."""
    frames = traceback.extract_tb(raised.__traceback__)
    return [(frame.name, frame.filename.startswith(PACKAGE)) for frame in frames]


@pytest.mark.parametrize("take", [list, epoch, to_torch, to_tf_dataset, load])
@pytest.mark.parametrize("worker_type", ["inline", "thread"])
def test_a_traceback_has_one_frame_between_the_loop_and_the_users_code(take, worker_type):
    options = {"workers": 0} if worker_type == "inline" else {"workers": 1, "worker_type": "thread"}
    with kf.Feed(Broken(KeyError("x")), 4, **options) as feed, pytest.raises(KeyError) as caught:
        take(feed)
    found = functions(caught.value)
    assert sum(own for _, own in found) == 1
    assert [name for name, own in found if not own][-2:] == ["__getitem__", "asked"]


def test_so_has_that_of_a_stream():
    with kf.StreamFeed(generator, 4, workers=0) as feed, pytest.raises(KeyError) as caught:
        list(feed)
    found = functions(caught.value)
    assert [own for _, own in found].count(True) == 1
    assert found[-1] == ("generator", False)


def test_so_has_that_of_fit():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    pairs = kf.Map(Broken(KeyError("x")), lambda scene: (scene, scene[:1]))
    with kf.Feed(pairs, 4, workers=0) as feed, pytest.raises(KeyError) as caught:
        model.fit(feed, verbose=0)
    found = functions(caught.value)
    assert ("__le__", True) in found
    assert found[-2:] == [("__getitem__", False), ("asked", False)]


@pytest.mark.parametrize("found", [np.zeros(4), KeyError("x")])
def test_errors_of_kerasfeeds_and_of_worker_processes_have_that_frame_alone(found):
    options = {"workers": 1, "worker_type": "process"} if isinstance(found, KeyError) else {"workers": 0}
    with kf.Feed(Broken(found), 4, **options) as feed, pytest.raises((kf.SpecError, KeyError)) as caught:
        list(feed)
    assert functions(caught.value)[-1] == ("batches_of", True)
    assert sum(own for _, own in functions(caught.value)) == 1


class AllBroken(kf.SceneSequence):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise KeyError("x")


@pytest.mark.parametrize("take", [list, lambda feed: feed[0]])
def test_so_have_errors_of_worker_processes_while_the_spec_is_inferred(take):
    with kf.Feed(AllBroken(), 4, workers=1, worker_type="process") as feed, pytest.raises(KeyError) as caught:
        take(feed)
    assert sum(own for _, own in functions(caught.value)) == 1
    assert "AllBroken" in "".join(caught.value.__notes__) or "__getitem__" in "".join(caught.value.__notes__)


def test_a_defect_of_kerasfeeds_keeps_its_frames(monkeypatch):
    monkeypatch.setattr(feed_cursor, "result_of", None)
    with kf.Feed(np.zeros((8, 3)), 4, workers=0) as feed, pytest.raises(TypeError) as caught:
        list(feed)
    assert ("take", True) in functions(caught.value)
