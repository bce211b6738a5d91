"""A feed in `fit`, `evaluate` and `predict`, epoch by epoch: on TensorFlow here, and the same again on JAX and PyTorch.

A metric records every label inside the compiled step.
"""

import random
import time

import keras
import numpy as np
import pytest
import scenes
from keras_fits import (
    BACKEND,
    MARKS,
    WORKERS,
    Trainer,
    batches_of,
    cut,
    make_feed,
    order_of,
)
from scenes_frameworks import (
    Numbered,
)

import kerasfeed as kf
from kerasfeed.sequences.base import scene_rng

pytestmark = MARKS


@pytest.fixture
def feed():
    with make_feed() as feed:
        yield feed


@pytest.mark.heavy
@pytest.mark.skipif(BACKEND != "tensorflow", reason="the others have no dataset to tune")
def test_the_dataset_of_keras_has_autotune_disabled(feed, monkeypatch):
    import tensorflow as tf

    made = []
    original = tf.data.Dataset.with_options
    monkeypatch.setattr(tf.data.Dataset, "with_options", lambda *a: made.append(original(*a)) or made[-1])
    Trainer().fit(feed, epochs=1)
    assert any(dataset.options().autotune.enabled is False for dataset in made)


# ---- epochs


@pytest.mark.heavy
@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_every_epoch_of_fit_is_a_new_shuffle_of_every_scene(workers, worker_type):
    for length in (24, 22):
        with make_feed(length, workers=workers, worker_type=worker_type) as feed:
            trainer = Trainer()
            trainer.fit(feed, epochs=3, shuffle=False)
            assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]
            assert len({tuple(order) for order in trainer.trained}) == 3


def test_keras_shuffles_only_the_batches_of_an_unshuffled_feed():
    random.seed(3)
    with make_feed(shuffle=False) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=3)
        assert [cut(order, 6) for order in trainer.trained] == [sorted(batches_of(feed, epoch)) for epoch in range(3)]
        assert trainer.trained != [order_of(feed, epoch) for epoch in range(3)]


def test_fit_keeps_the_order_of_a_shuffled_feed(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=3)  # shuffle=True is Keras's default
    assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]


def test_the_shards_of_an_unshuffled_feed_stay_in_step():
    with make_feed(shuffle=False, shard_index=1, shard_count=2, batch_size=3) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=2)
        assert trainer.trained == [order_of(feed, 0)] * 2


class Noted(Numbered):
    """Logs the epoch of every loaded scene, which the scene's random numbers show."""

    def __init__(self, length):
        super().__init__(length)
        self.loaded = []

    def __getitem__(self, index):
        self.loaded.append((index, float(self.rng.random())))
        return super().__getitem__(index)


@pytest.mark.heavy
@pytest.mark.parametrize("hooked", [False, True])
def test_workers_prefetch_the_next_epoch_while_keras_ends_the_current_one(hooked):
    sequence = Noted(24)
    if hooked:  # a sequence that changes between epochs must not be read ahead
        sequence = type("Hooked", (Noted,), {"on_epoch_end": lambda self: None})(24)
    with kf.Feed(sequence, 6, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        ahead = []

        def look(epoch, logs):
            expected = {
                (int(i), float(scene_rng(1, epoch + 1, int(i)).random())) for i in batches_of(feed, epoch + 1)[0]
            }
            deadline = time.monotonic() + (0.2 if hooked or epoch == 2 else 60)
            while not expected <= set(sequence.loaded) and time.monotonic() < deadline:
                time.sleep(0.01)
            ahead.append(expected <= set(sequence.loaded))

        trainer = Trainer()
        trainer.fit(feed, epochs=3, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look)])
        assert ahead == ([False] * 3 if hooked else [True, True, False])
        assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]
        trainer.fit(feed, epochs=4, initial_epoch=3)
        assert trainer.trained[-1] == order_of(feed, 3)


def test_initial_epoch_sets_the_epoch_of_the_feed(feed):
    trainer = Trainer()
    trainer.fit(feed, initial_epoch=5, epochs=7, shuffle=False)
    assert trainer.trained == [order_of(feed, 5), order_of(feed, 6)]


def test_a_second_fit_continues_with_new_epochs(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False)
    trainer.fit(feed, epochs=2, shuffle=False)
    trainer.fit(feed, initial_epoch=4, epochs=5, shuffle=False)
    trainer.fit(feed, initial_epoch=9, epochs=10, shuffle=False)
    assert trainer.trained == [order_of(feed, epoch) for epoch in (0, 1, 2, 3, 4, 9)]
    assert next(iter(feed))[1].ravel().tolist() == batches_of(feed, 10)[0]


def test_loops_and_fits_share_one_sequence_of_epochs(feed):
    trainer = Trainer()
    assert [int(y) for _, labels in feed for y in labels.ravel()] == order_of(feed, 0)
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [order_of(feed, 1), order_of(feed, 2)]
    assert [int(y) for _, labels in feed for y in labels.ravel()] == order_of(feed, 3)


@pytest.mark.heavy
def test_a_resumed_training_resumes_the_epochs(feed, tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 3:
                raise InterruptedError("the machine went away")

    backup = tmp_path / "backup"
    trainer = Trainer()
    with pytest.raises(InterruptedError):
        trainer.fit(feed, epochs=6, shuffle=False, callbacks=[keras.callbacks.BackupAndRestore(backup), Crash()])
    assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]
    with make_feed() as again:
        trainer = Trainer(jit_compile=False)  # so that it has its own model, which keeps Keras's epoch
        trainer.fit(again, epochs=5, shuffle=False, callbacks=[keras.callbacks.BackupAndRestore(backup)])
        assert trainer.trained == [order_of(feed, 3), order_of(feed, 4)]


def test_a_fit_after_an_interrupted_fit_trains_on_whole_new_epochs(feed):
    def interrupt(batch):
        if batch == 1:
            raise KeyboardInterrupt

    trainer = Trainer(after_batch=interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(feed, epochs=3, shuffle=False)
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [order_of(feed, 1), order_of(feed, 2)]


@pytest.mark.heavy
def test_a_fit_after_a_stopped_fit_trains_on_whole_epochs(feed):
    def stop(batch):
        if batch == 1:
            trainer.model.stop_training = True

    trainer = Trainer(after_batch=stop)
    trainer.fit(feed, epochs=3, shuffle=False)
    assert trainer.trained == [order_of(feed, 0)[:12]]
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [order_of(feed, 1), order_of(feed, 2)]


@pytest.mark.parametrize("steps", [2, 4])
def test_a_smaller_steps_per_epoch_divides_an_epoch_of_the_feed(steps):
    with make_feed(48) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=8 // steps, steps_per_epoch=steps, shuffle=False)
        assert [len(order) for order in trainer.trained] == [6 * steps] * (8 // steps)
        assert sorted(index for order in trainer.trained for index in order) == list(range(48))


def test_steps_per_epoch_equal_to_the_feed_length_has_no_effect(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=3, steps_per_epoch=4, shuffle=False)
    assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]


@pytest.mark.heavy
@pytest.mark.skipif(BACKEND == "torch", reason="Keras on PyTorch takes one step an execution")
@pytest.mark.parametrize("executions", [2, 3, 4])
def test_steps_per_execution_does_not_change_the_scenes(executions):
    with make_feed(72) as feed:
        trainer = Trainer(steps_per_execution=executions)
        trainer.fit(feed, epochs=2, shuffle=False)
        assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]


def test_the_shards_of_a_step_make_up_its_global_batch():
    seen = []
    for shard in range(2):
        with make_feed(shard_index=shard, shard_count=2, batch_size=3) as feed:
            trainer = Trainer()
            trainer.fit(feed, epochs=2, shuffle=False)
            seen.append(trainer.trained)
    with make_feed() as whole:
        for epoch in range(2):
            both = [seen[shard][epoch][start : start + 3] for start in range(0, 12, 3) for shard in range(2)]
            assert [index for part in both for index in part] == order_of(whole, epoch)


# ---- evaluation and prediction


def test_validation_does_not_change_the_training_epochs(feed):
    with kf.Feed(Numbered(10), 4, workers=2, worker_type="thread") as validation:
        trainer = Trainer()
        history = trainer.fit(feed, epochs=3, shuffle=False, validation_data=validation)
        assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]
        assert trainer.record.tested == [list(range(10))] * 3
        assert history.history["val_consumed"] == [10, 10, 10]
        assert validation.clock.current == 0


@pytest.mark.heavy
def test_validation_steps_select_the_first_batches_every_time(feed):
    with kf.Feed(Numbered(20), 4, workers=2, worker_type="thread") as validation:
        trainer = Trainer()
        trainer.fit(feed, epochs=3, shuffle=False, validation_data=validation, validation_steps=2, validation_freq=2)
        trainer.fit(feed, epochs=2, shuffle=False, validation_data=validation, validation_steps=2)
        assert trainer.trained == [order_of(feed, epoch) for epoch in range(5)]
        assert trainer.record.tested == [list(range(8))] * 3


def test_a_feed_can_be_both_training_and_validation_data(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False, validation_data=feed)
    assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]
    assert [sorted(order) for order in trainer.record.tested] == [list(range(24))] * 2


@pytest.mark.filterwarnings("ignore:predict returns its rows in the order of the feed")
def test_evaluate_and_predict_read_every_scene_and_do_not_advance(feed):
    trainer = Trainer()
    for _ in range(2):
        trainer.model.evaluate(feed, callbacks=[trainer.record], verbose=0)
        predicted = trainer.model.predict(feed, verbose=0)
        assert predicted.ravel().astype(int).tolist() == order_of(feed, 0)
    assert trainer.record.tested == [order_of(feed, 0)] * 2
    trainer.fit(feed, epochs=1, shuffle=False)
    assert trainer.trained == [order_of(feed, 0)]
    assert trainer.model.predict(feed, verbose=0).ravel().astype(int).tolist() == order_of(feed, 1)
    trainer.fit(feed, epochs=1, shuffle=False)
    assert trainer.trained[1] == order_of(feed, 1)


@pytest.mark.heavy
def test_evaluation_during_an_epoch_does_not_affect_training(feed):
    other = Trainer()

    def evaluate(batch):
        if batch == 1:
            other.model.evaluate(feed, callbacks=[other.record], verbose=0)

    trainer = Trainer(after_batch=evaluate)
    trainer.fit(feed, epochs=3, shuffle=False)
    assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]
    assert [sorted(order) for order in other.record.tested] == [list(range(24))] * 3


def test_a_callback_that_reads_the_feed_does_not_affect_the_epoch(feed):
    def peek(batch):
        assert len(next(iter(feed))[0]) == 6
        assert feed[0][0].shape == (6, 1)

    trainer = Trainer(after_batch=peek)
    trainer.fit(feed, epochs=2, shuffle=False)
    assert [sorted(order) for order in trainer.trained] == [list(range(24))] * 2
    assert trainer.trained[0] != trainer.trained[1]


@pytest.mark.heavy
def test_a_callback_cannot_start_another_epoch_of_a_sequence_with_hooks():
    with kf.Feed(scenes.Reordered(), 4, workers=0) as feed:
        trainer = Trainer(after_batch=lambda batch: next(iter(feed)))
        with pytest.raises(RuntimeError, match=r"only one epoch of it can be loaded at a time.*feed\[0\] returns"):
            trainer.fit(feed, epochs=1)
        trainer = Trainer(after_batch=lambda batch: feed[0])
        trainer.fit(feed, epochs=2)
        assert [sorted(order) for order in trainer.trained] == [list(range(40))] * 2


def test_predict_accepts_scenes_that_are_single_arrays():
    with kf.Feed(np.arange(10, dtype=np.float32)[:, None], 4, workers=1) as feed:
        assert Trainer().model.predict(feed, verbose=0).ravel().tolist() == list(range(10))
        assert Trainer().model.predict(feed, steps=2, verbose=0).ravel().tolist() == list(range(8))
