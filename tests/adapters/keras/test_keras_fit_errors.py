"""Errors of `fit`, and the state after them: on TensorFlow here, and again on JAX and PyTorch."""

import gc
import subprocess
import sys
import warnings
import weakref

import keras
import pytest
import scenes
from error_kinds import whole_text
from keras_fits import (
    BACKEND,
    MARKS,
    Trainer,
    make_feed,
    order_of,
)
from scenes_frameworks import (
    Fragile,
    environment_of,
    let_tensorflow_free_memory,
)
from waits import PROGRAM_SECONDS

import kerasfeed as kf

pytestmark = MARKS


@pytest.fixture
def feed():
    with make_feed() as feed:
        yield feed


# ---- errors


def _raised_by_fit(feed, error, text):
    with pytest.raises(error, match=text) as caught:
        Trainer().fit(feed, epochs=2)
    assert type(caught.value) is error
    return whole_text(caught.value)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("workers", "worker_type", "error"),
    [(0, "thread", ValueError("bad scan")), (2, "thread", IndexError("bad scan")), (2, "process", OSError("bad scan"))],
)
def test_an_exception_reaches_the_caller_of_fit(workers, worker_type, error):
    with kf.Feed(Fragile(None, error), 6, workers=workers, worker_type=worker_type) as feed:
        text = _raised_by_fit(feed, type(error), "bad scan")
        assert "scene 13, epoch 0, step 2" in text
        assert "in __getitem__" in text


def test_a_stop_iteration_in_a_scene_raises_scene_error():
    with kf.Feed(Fragile(None, StopIteration("early")), 6, workers=2, worker_type="thread") as feed:
        _raised_by_fit(feed, kf.SceneError, "the sequence raised StopIteration: early")


@pytest.mark.heavy
def test_fit_works_again_after_an_exception(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with kf.Feed(Fragile(flag, OSError("no disk")), 6, workers=2, worker_type="thread") as feed:
        _raised_by_fit(feed, OSError, "no disk")
        flag.unlink()
        trainer = Trainer()
        trainer.fit(feed, epochs=2, shuffle=False)
        assert [sorted(order) for order in trainer.trained] == [list(range(24))] * 2


def test_a_closed_feed_is_refused_by_fit(feed):
    feed.close()
    with pytest.raises(Exception, match="the feed is closed"):
        Trainer().fit(feed)


def test_a_feed_closed_within_an_epoch_ends_fit_with_an_error():
    feed = kf.Feed(scenes.Slow(4000, 0.0005), 2, workers=2, worker_type="thread")
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    trainer = Trainer(model=model, after_batch=lambda _: feed.close())
    with pytest.raises(Exception, match=r"(?i)closed|cancelled"):
        trainer.fit(feed)


@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [(-1, ValueError, "at least 1, received -1"), (2.5, TypeError, "an integer")],
    ids=str,
)
def test_steps_must_be_a_number_of_batches(feed, steps, error, message):
    model = Trainer().model
    with pytest.raises(error, match=f"^steps_per_epoch must be {message}"):
        model.fit(feed, steps_per_epoch=steps, verbose=0)
    with pytest.raises(error, match=f"^validation_steps must be {message}"):
        model.fit(feed, validation_data=feed, validation_steps=steps, verbose=0)
    with pytest.raises(error, match=f"^steps must be {message}"):
        model.evaluate(feed, steps=steps, verbose=0)


def test_memory_for_two_batches_suffices():
    with make_feed(max_memory=2 * 4096) as feed:
        trainer = Trainer()
        with warnings.catch_warnings():  # if a backend keeps the last batch, no memory is left for another
            warnings.filterwarnings("ignore", "the consumer keeps so many batches", kf.FeedWarning)
            trainer.fit(feed, epochs=2, shuffle=False)
        assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]
        assert feed.stats().slots <= 2


# ---- life


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:predict returns its rows in the order of the feed")
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_feed_is_released_after_fit(worker_type):
    feed = make_feed(worker_type=worker_type)
    alive = weakref.ref(feed)
    trainer = Trainer()
    trainer.fit(feed, epochs=2, validation_data=feed)
    trainer.model.evaluate(feed, verbose=0)
    trainer.model.predict(feed, verbose=0)
    del feed, trainer
    keras.backend.clear_session()
    let_tensorflow_free_memory()
    gc.collect()
    try:
        assert alive() is None
    finally:
        if alive() is not None:
            alive().close()


@pytest.mark.heavy
@pytest.mark.skipif(BACKEND != "tensorflow", reason="once is enough: it takes 4 s")
def test_a_script_that_never_closes_its_feed_exits_cleanly(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import lean_keras, keras, kerasfeed as kf\n"
        "from scenes_frameworks import Numbered\n"
        "feed = kf.Feed(Numbered(), 6, shuffle=True, workers=2, worker_type='process')\n"
        "model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse', jit_compile=False)\n"
        "model.fit(feed, epochs=2, verbose=0)\n"
        "print('trained')\n"
    )
    environment = environment_of(KERAS_BACKEND=BACKEND)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained" in done.stdout
    assert "Traceback" not in done.stderr
