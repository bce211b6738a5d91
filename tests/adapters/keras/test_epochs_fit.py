"""The batches of every epoch of `fit`: on TensorFlow here, and again on JAX and PyTorch.

A feed's consecutive epochs are a stream, which `fit` divides into its own epochs.
"""

import keras
import pytest
from keras_fits import (
    BACKEND,
    MARKS,
    WORKERS,
    Trainer,
    few,
    make_feed,
)
from scenes_frameworks import Numbered, Stateful

import kerasfeed as kf

pytestmark = MARKS


def stream(feed, first, stop):
    """The scenes of batches [first, stop) of the stream, as a plain loop over epochs gives them."""
    batches = [labels for epoch in range(-(-stop // len(feed))) for _, labels in feed.epoch(epoch)]
    return [int(label) for labels in batches[first:stop] for label in labels.ravel()]


def epochs_of(feed, steps, first, stop):
    return [stream(feed, epoch * steps, (epoch + 1) * steps) for epoch in range(first, stop)]


@pytest.mark.parametrize(
    ("steps", "workers", "worker_type"), [(8, *WORKERS[0]), (3, *WORKERS[-1]), *((k, 2, "thread") for k in (3, 8, 6))]
)
def test_steps_per_epoch_divides_the_stream_into_epochs(steps, workers, worker_type):
    with make_feed(22, workers=workers, worker_type=worker_type) as feed:  # 4 steps, the last one short
        trainer = Trainer()
        trainer.fit(feed, epochs=3, steps_per_epoch=steps)
        assert trainer.trained == epochs_of(feed, steps, 0, 3)


@pytest.mark.parametrize("steps", [None, 3, 5, 12])
def test_initial_epoch_sets_the_start_in_the_stream(steps):
    with make_feed() as feed:
        trainer = Trainer()
        trainer.fit(feed, initial_epoch=3, epochs=5, steps_per_epoch=steps)
        assert trainer.trained == epochs_of(feed, steps or 4, 3, 5)


@pytest.mark.skipif(BACKEND == "torch", reason="Keras on PyTorch takes one step an execution")
@pytest.mark.parametrize(("steps", "executions"), few([(None, 2), (5, 3), (3, 2), (8, 3), (8, 2)]))
def test_executions_of_several_steps_end_with_the_epoch(executions, steps):
    with make_feed(30) as feed:  # 5 steps
        trainer = Trainer(steps_per_execution=executions)
        trainer.fit(feed, epochs=3, steps_per_epoch=steps)
        assert trainer.trained == epochs_of(feed, steps or 5, 0, 3)


@pytest.mark.heavy
def test_validation_and_evaluation_do_not_affect_the_training_epochs():
    with make_feed() as feed, make_feed(12, seed=5) as validation:
        other = Trainer()

        def evaluate(batch):
            if batch == 1:
                other.model.evaluate(feed, steps=2, verbose=0)

        trainer = Trainer(after_batch=evaluate)
        trainer.fit(feed, epochs=3, steps_per_epoch=6, validation_data=validation, validation_steps=1)
        assert trainer.trained == epochs_of(feed, 6, 0, 3)
        assert trainer.record.tested == [stream(validation, 0, 1)] * 3


def test_a_fit_continues_the_stream_at_its_initial_epoch():
    with make_feed() as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=2, steps_per_epoch=3)
        trainer.fit(feed, initial_epoch=2, epochs=4, steps_per_epoch=3)
        assert trainer.trained == epochs_of(feed, 3, 0, 4)


def test_without_initial_epoch_a_second_fit_starts_a_new_epoch_of_the_feed():
    with make_feed() as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=1, steps_per_epoch=3)
        trainer.fit(feed, epochs=2, steps_per_epoch=3)
        assert trainer.trained == [stream(feed, 0, 3), stream(feed, 4, 7), stream(feed, 7, 10)]
        assert [int(label) for _, labels in feed for label in labels.ravel()] == stream(feed, 12, 16)


def test_after_an_early_stop_the_next_fit_starts_a_whole_epoch():
    with make_feed() as feed:
        trainer = Trainer()
        stop = keras.callbacks.EarlyStopping(monitor="consumed", patience=0, mode="max", min_delta=100)
        trainer.fit(feed, epochs=5, steps_per_epoch=5, callbacks=[stop])
        assert trainer.trained == epochs_of(feed, 5, 0, 2)
        trainer.fit(feed, epochs=1)
        assert trainer.trained[-1] == stream(feed, 12, 16)


def test_the_batch_shuffle_of_keras_depends_only_on_seed_and_epoch():
    orders = []
    for _ in range(2):
        with make_feed(48, shuffle=False) as feed:
            trainer = Trainer()
            trainer.fit(feed, epochs=3)
            orders.append(trainer.trained)
    assert orders[0] == orders[1]
    steps = [[order[start] // 6 for start in range(0, 48, 6)] for order in orders[0]]
    assert steps == [kf.Shuffled().indices(0, 8, length=8, seed=1, epoch=epoch).tolist() for epoch in range(3)]
    with make_feed(48, shuffle=False, seed=2) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=1)
        assert trainer.trained[0] != orders[0][0]


def test_epoch_hooks_of_a_sequence_follow_the_stream():
    sequence = Stateful()  # 6 batches
    with kf.Feed(sequence, None, workers=2, worker_type="thread") as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=3, steps_per_epoch=4)
        assert trainer.trained == [[100] * 4, [100] * 2 + [201] * 2, [201] * 4]
        assert (sequence.began, sequence.ended) == (2, 2)


def test_a_feed_of_one_step_trains():
    with kf.Feed(Numbered(3), 6, shuffle=True, seed=1, workers=1, worker_type="thread") as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=2, steps_per_epoch=3)
        assert trainer.trained == epochs_of(feed, 3, 0, 2)
