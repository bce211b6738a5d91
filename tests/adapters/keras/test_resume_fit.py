"""`BackupAndRestore`, `FeedCheckpoint`: a killed training ends like an uninterrupted one, on all backends.

A kill is an exception here, after which only the files on the disk are used; `test_resume_kill.py` kills for real.
"""

import itertools
import json
import os
import warnings

import keras
import pytest
from keras_fits import (
    BACKEND,
    MARKS,
    few,
)
from resumable import chain_of, make_feed, make_model, result_of, stream, undisturbed

import kerasfeed as kf
from kerasfeed.adapters.keras import backup
from kerasfeed.adapters.keras.saved_files import Progress

pytestmark = MARKS


# Each backend tests other moments; with a stride of 1, all of them.
STRIDE = int(os.environ.get("KERASFEED_STRIDE", "7"))
OFFSET = ["tensorflow", "jax", "torch"].index(BACKEND)


class Killed(BaseException):
    """Stands for a killed process."""


class Moments:
    """The moments of a run at which its process may be killed; if one is given, it is."""

    def __init__(self):
        self.begin()

    def begin(self, kill_at=None):
        self.count = 0
        self.kill_at = kill_at

    def note(self, *_, **__):
        self.count += 1
        if self.count - 1 == self.kill_at:
            raise Killed

    def callback(self):
        hooks = ("on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end")
        return keras.callbacks.LambdaCallback(**dict.fromkeys(hooks, self.note))


@pytest.fixture
def moments(monkeypatch):
    """The moments of the present run, including those around the saving of model and record."""
    moments = Moments()

    def around(owner, name):
        original = getattr(owner, name)

        def watched(*arguments, **named):
            moments.note()
            original(*arguments, **named)
            moments.note()

        monkeypatch.setattr(owner, name, watched)

    around(backup, "write_arrays")
    around(Progress, "write")
    return moments


def whole(folder, moments, **options):
    """Run the script to its end, without a kill."""
    moments.begin()
    return train(folder, moments, **options)


def killed(folder, moments, kill_at, **options):
    """Run the script until it is killed."""
    moments.begin(kill_at)
    with pytest.raises(Killed):
        train(folder, moments, **options)


def train(folder, moments=None, *, save_freq=2, pair=False, dataset=None, model=None, feed=None, double=True, **fit):
    """Run a user's script once, from its beginning; return the batches that the model was trained on."""
    keras.utils.clear_session()
    model = make_model(**(model or {}))
    with make_feed(**(feed or {})) as fed:
        if pair:
            keras_own = keras.callbacks.BackupAndRestore(folder / "backup", save_freq, double_checkpoint=double)
            callbacks = [keras_own, kf.FeedCheckpoint(fed, folder / "feed.json", save_freq)]
        else:
            callbacks = [kf.BackupAndRestore(fed, folder / "backup", save_freq, double_checkpoint=double)]
        if moments is not None:
            callbacks = [moments.callback(), *callbacks, moments.callback()]
        data = fed if dataset is None else dataset(fed)
        fit = {"epochs": 2, "shuffle": False, **fit}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the model is at the start of training", kf.FeedWarning)
            model.fit(data, callbacks=callbacks, verbose=0, **fit)
    assert not (folder / "feed.json").exists()
    assert not (folder / "backup").exists()
    assert model._initial_epoch is None or moments is None or moments.kill_at is None
    return result_of(model)


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pair", {"jax": [False], "torch": [True]}.get(BACKEND, [False, True]))
def test_a_training_killed_twice_at_any_moment_sees_every_batch_once(pair, tmp_path, moments):
    eager = {"model": {"run_eagerly": True}, "pair": pair, "save_freq": 3}
    assert whole(tmp_path / "whole", moments, **eager) == undisturbed(8)
    count = moments.count
    assert count > 40
    for kill_at in range((OFFSET + 3 * pair) % STRIDE, count, STRIDE):
        folder = tmp_path / str(kill_at)
        killed(folder, moments, kill_at, **eager)
        killed(folder, moments, kill_at % 11, **eager)
        assert whole(folder, moments, **eager) == undisturbed(8), f"killed at moment {kill_at}"


@pytest.mark.heavy
@pytest.mark.parametrize(("kill_at", "double"), few([(0, True), (2, False), (0, False), (2, True)]))
def test_a_training_killed_while_it_writes_a_backup_resumes(kill_at, double, tmp_path, monkeypatch):
    written = []
    write_arrays = backup.write_arrays

    def killed_within(path, *arguments):
        write_arrays(path, *arguments)
        written.append(path)
        if len(written) - 1 == kill_at:
            os.truncate(path, path.stat().st_size // 2)
            raise Killed

    monkeypatch.setattr(backup, "write_arrays", killed_within)
    eager = {"save_freq": 1, "double": double, "model": {"run_eagerly": True}}
    with pytest.raises(Killed):
        train(tmp_path, **eager)
    monkeypatch.undo()
    assert train(tmp_path, **eager) == undisturbed(8)


def mapped(feed):
    return feed.to_tf_dataset().map(lambda x, y: (x + 0, y))


WAYS = {
    "every epoch": {"save_freq": "epoch"},
    "every batch": {"save_freq": 1},
    "steps below the feed's": {"steps_per_epoch": 3, "epochs": 3, "count": 9},
    "steps above the feed's": {"steps_per_epoch": 7, "count": 14},
    "threads": {"feed": {"workers": 2, "worker_type": "thread"}},
    "initial epoch": {"initial_epoch": 3, "epochs": 5, "first": 12},
    "dataset": {"dataset": lambda feed: feed.to_tf_dataset()},
    "dataset of two epochs": {"dataset": lambda feed: feed.to_tf_dataset(epochs=2), "count": 16},
    "mapped dataset": {"dataset": mapped},
    "mapped endless dataset": {"dataset": lambda feed: mapped(feed).repeat(), "steps_per_epoch": 3, "count": 6},
    "executions": {"model": {"steps_per_execution": 2}, "feed": {"length": 40}, "count": 14, "save_freq": 4},
    "accumulated gradients": {"model": {"optimizer": "accumulating"}},
    "loss scale": {"model": {"optimizer": "scaled"}, "save_freq": 1},
}  # fmt: skip
# Tests that depend on the backend's steps, datasets and optimizer variables.
BACKENDS_WAYS = {
    "jax": ["every epoch", "steps below the feed's", "dataset", "executions", "accumulated gradients", "loss scale"],
    "torch": ["every epoch", "steps below the feed's"],
}
LIGHT_WAYS = ["every epoch", "mapped dataset"]
VERSIONS_WAYS = ["steps below the feed's", "threads", "executions", "loss scale"]
OPTIMIZERS = {
    "accumulating": lambda: keras.optimizers.Adam(1e-3, gradient_accumulation_steps=3),
    # A scale so high that the first batches overflow, and are skipped.
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=2.0**126),
}


@pytest.mark.light(where=lambda way: way in LIGHT_WAYS)
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.versions if way in VERSIONS_WAYS else ()) for way in WAYS]
)
def test_a_training_resumes_within_an_epoch(way, tmp_path, moments):
    options = {"count": 8, "first": 0, **WAYS[way]}
    if way not in BACKENDS_WAYS.get(BACKEND, WAYS):
        pytest.skip("another backend shows it")
    count, first = options.pop("count"), options.pop("first")
    name = options.get("model", {}).get("optimizer")

    def fresh():
        compiled = {"run_eagerly": "executions" not in way, **options.get("model", {})}
        return {**options, "model": {**compiled, **({"optimizer": OPTIMIZERS[name]()} if name else {})}}

    with make_feed(**options.get("feed", {})) as feed:
        expected = chain_of(stream(feed, first + count)[first:]), count
    assert whole(tmp_path / "whole", moments, **fresh()) == expected
    killed(tmp_path, moments, moments.count * 5 // 8, **fresh())
    assert whole(tmp_path, moments, **fresh()) == expected


@pytest.mark.heavy
@pytest.mark.skipif(BACKEND == "torch", reason="Keras takes one batch an execution there")
@pytest.mark.parametrize(("execution", "share"), [(2, 0.5), (3, 0.6)])
def test_epochs_that_end_within_an_execution_resume(execution, share, tmp_path, moments):
    options = {
        "model": {"steps_per_execution": execution}, "feed": {"length": 66}, "steps_per_epoch": 5, "epochs": 3,
    }  # fmt: skip
    expected = undisturbed(15, length=66)
    assert whole(tmp_path / "whole", moments, **options) == expected
    killed(tmp_path, moments, int(moments.count * share), **options)
    with pytest.warns(UserWarning, match="Your input ran out of data"):  # Keras's message for a short epoch
        assert whole(tmp_path, moments, **options) == expected


@pytest.mark.heavy
@pytest.mark.parametrize("between", [{"shuffle": True}, {"shuffle": False}])
def test_batches_shuffled_by_keras_resume_in_the_same_order(between, tmp_path, moments):
    unordered = {"feed": {"shuffle": False}, "save_freq": 1, "shuffle": True}
    expected = whole(tmp_path / "whole", moments, **unordered)
    assert expected != undisturbed(8, shuffle=False)
    killed(tmp_path / "killed", moments, 12, **unordered)
    found = whole(tmp_path / "killed", moments, **{**unordered, **between})
    # Even with a changed argument, the epoch that was begun is finished as before.
    assert (found == expected) == between["shuffle"]
    assert found[1] == 8


@pytest.mark.parametrize("trained", [1, 6])  # before the first record; after the record at the end of the epoch
def test_batches_shuffled_by_keras_resume_in_order_after_the_last_record(trained, tmp_path):
    ends = itertools.count(1)

    def stop(batch, logs):
        if next(ends) == trained:
            raise Killed

    def fit(*callbacks):
        with make_feed(shuffle=False) as feed:
            place = kf.FeedCheckpoint(feed, tmp_path / "feed.json")
            model.fit(feed, epochs=2, callbacks=[*callbacks, place], verbose=0)
        return result_of(model)

    model = make_model(run_eagerly=True)
    expected = fit()
    (tmp_path / "feed.json").unlink()
    model = make_model(run_eagerly=True)
    with pytest.raises(Killed):
        fit(keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    assert fit() == expected


@pytest.mark.heavy
def test_the_adapter_and_the_workers_can_change_within_an_epoch(tmp_path, moments):
    killed(tmp_path, moments, 12, save_freq=1)
    changed = {"dataset": lambda feed: feed.to_tf_dataset()} if BACKEND != "torch" else {}
    found = whole(tmp_path, moments, feed={"workers": 2, "worker_type": "thread"}, **changed)
    assert found == undisturbed(8)


def test_a_loop_can_resume_from_the_saved_file(tmp_path, moments):
    killed(tmp_path, moments, 16, save_freq=1)
    content = json.loads((tmp_path / "backup" / "feed.json").read_text())
    with make_feed() as feed:
        state = {**content["records"][-1]["state"], "fingerprint": content["fingerprint"]}
        feed.set_state(state)
        place = state["epoch"] * 4 + state["step"]
        assert 0 < place < 4
        assert [labels.ravel().astype(int).tolist() for _, labels in feed] == stream(feed, 4)[place:]


# ---- a user's callback


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [None, 3])
def test_get_state_in_a_callback_returns_the_position_of_training(steps):
    asked = {}

    def note(name):
        return lambda *_, **__: asked.setdefault(name, []).append(
            feed.get_state()["epoch"] * 4 + feed.get_state()["step"]
        )

    hooks = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end")
    with make_feed(workers=2, worker_type="thread") as feed:
        callback = keras.callbacks.LambdaCallback(**{name: note(name) for name in (*hooks, "on_train_end")})
        make_model().fit(feed, epochs=2, steps_per_epoch=steps, callbacks=[callback], verbose=0)
        after = feed.get_state()
    k = steps or 4
    assert asked == {
        "on_train_begin": [0],
        "on_epoch_begin": [0, k],
        "on_train_batch_begin": list(range(2 * k)),
        "on_train_batch_end": list(range(1, 2 * k + 1)),
        "on_epoch_end": [k, 2 * k],
        "on_train_end": [2 * k],
    }
    assert (after["epoch"], after["step"]) == divmod(2 * k, 4)


@pytest.mark.heavy
def test_a_fit_after_set_state_starts_at_that_state(tmp_path):
    with make_feed() as feed:
        feed.set_state(feed.get_state(epoch=1, step=2))
        model = make_model()
        history = model.fit(feed, initial_epoch=1, epochs=3, verbose=0)
        assert history.epoch == [1, 2]
        assert result_of(model) == (chain_of(stream(feed, 12)[6:]), 6)
        assert model.fit(feed, epochs=1, verbose=0).epoch == [0]
        assert result_of(model)[1] == 10


@pytest.mark.heavy
def test_a_fit_stopped_within_an_epoch_continues(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    with make_feed() as feed:
        model = make_model()
        ours = kf.FeedCheckpoint(feed, tmp_path / "feed.json")
        model.fit(feed, epochs=2, callbacks=[Stop(), ours], verbose=0)
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (0, 2)
        history = model.fit(feed, epochs=2, callbacks=[ours], verbose=0)  # the same model: nothing to restore
        assert history.epoch == [0, 1]
        assert result_of(model) == undisturbed(8)
        assert (tmp_path / "feed.json").exists()  # nothing shows that it is no longer needed


@pytest.mark.heavy
def test_a_finished_fit_warns_and_trains_nothing(tmp_path):
    with make_feed() as feed:
        model = make_model()
        ours = kf.FeedCheckpoint(feed, tmp_path / "feed.json")
        model.fit(feed, epochs=2, callbacks=[ours], verbose=0)
        with pytest.warns(kf.FeedWarning, match=r"trained for 2 epochs, according to .*feed.json, and fit.epochs=2."):
            assert model.fit(feed, epochs=2, callbacks=[ours], verbose=0).epoch == []
        assert model.fit(feed, epochs=3, callbacks=[ours], verbose=0).epoch == [2]
        assert result_of(model) == undisturbed(12)


@pytest.mark.heavy
def test_get_state_works_after_a_stopped_fit_and_not_after_an_error():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.stop_training = True

    with make_feed() as feed:
        model = make_model()
        for epoch in range(2):
            model.fit(feed, epochs=2, callbacks=[Stop()], verbose=0)
            assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (epoch, 2)
        next(iter(feed))
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (2, 1)
        broken = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: 1 / (1 - batch))
        with pytest.raises(ZeroDivisionError):
            model.fit(feed, epochs=4, callbacks=[broken], verbose=0)
        with pytest.raises(RuntimeError, match="an exception ended its fit"):
            feed.get_state()
