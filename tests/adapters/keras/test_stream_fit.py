"""A stream in `fit`, `evaluate` and `predict`: on TensorFlow here, and the same again on JAX and PyTorch."""

import gc
import json
import time
import weakref

import keras
import numpy as np
import pytest
from keras_fits import BACKEND, MARKS, ScalarTrainer
from resumable import make_model, result_of
from streams import endless, numbered
from waits import wait_until

import kerasfeed as kf
from kerasfeed.adapters.keras.saved_files import Progress, Record

pytestmark = MARKS
WAYS = [(0, "auto"), (2, "thread")]


def stream(make=numbered, batch_size=4, **arguments):
    arguments = {"count": 2, "workers": 2, "worker_type": "thread", **arguments}
    return kf.StreamFeed(make, batch_size, **arguments)


@pytest.mark.parametrize(("workers", "worker_type"), WAYS)
def test_an_epoch_without_steps_is_one_repetition_and_nothing_warns(workers, worker_type):
    with stream(workers=workers, worker_type=worker_type) as feed:
        trainer = ScalarTrainer()
        trainer.fit(feed, epochs=3)
    assert trainer.trained == [list(range(22))] * 3


def test_repetitions_may_differ_in_length():
    lengths = iter([5, 13, 9])

    def shrinking():
        for number in range(next(lengths)):
            yield np.full(1, number, np.float32), np.float32(number)

    with stream(shrinking, count=1) as feed:
        trainer = ScalarTrainer()
        trainer.fit(feed, epochs=3)
    assert trainer.trained == [list(range(5)), list(range(13)), list(range(9))]


@pytest.mark.heavy
@pytest.mark.parametrize(("workers", "worker_type"), [*WAYS, (2, "process")])
def test_epochs_of_an_infinite_stream_follow_each_other_without_a_break_in_one_fit(workers, worker_type):
    with stream(endless, workers=workers, worker_type=worker_type) as feed:
        trainer = ScalarTrainer()
        trainer.fit(feed, epochs=2, steps_per_epoch=3)
        trainer.fit(feed, epochs=1, steps_per_epoch=3)
    assert trainer.trained == [list(range(start, start + 12)) for start in (0, 12, 0)]


def test_epochs_with_steps_continue_in_the_next_repetition_when_one_ends():
    with stream(length_of(10), count=1) as feed:
        trainer = ScalarTrainer()
        trainer.fit(feed, epochs=2, steps_per_epoch=4)
    assert trainer.trained == [[*range(10), *range(4)], [*range(4, 10), *range(8)]]


def test_the_state_after_a_fit_with_steps_is_the_position_of_the_next_batch():
    with stream() as feed:  # 22 scenes are 6 batches
        ScalarTrainer().fit(feed, epochs=2, steps_per_epoch=4)
        state = feed.get_state()
    assert (state["epoch"], state["step"]) == (1, 2)


def length_of(length):
    def make():
        yield from numbered(0, 1, length)

    return make


def endless_from(*, start):
    yield from endless(start)


@pytest.mark.parametrize("last", [3, 15])
def test_after_a_stopped_fit_the_state_follows_the_last_trained_batch(last):
    with stream(endless_from, count=1) as feed:
        trainer = ScalarTrainer(after_batch=lambda step: setattr(trainer.model, "stop_training", step == last))
        trainer.fit(feed, epochs=2, steps_per_epoch=20)
        trainer.record.after_batch = None
        feed.set_state(feed.get_state())
        trainer.fit(feed, epochs=1, steps_per_epoch=2)
    trained = 4 * (last + 1)
    assert trainer.trained == [list(range(trained)), list(range(trained, trained + 8))]


def test_a_fit_that_another_fit_interrupts_raises_an_error():
    with stream(endless) as feed:
        other = ScalarTrainer()
        trainer = ScalarTrainer(after_batch=lambda step: other.fit(feed, epochs=1, steps_per_epoch=1))
        with pytest.raises(kf.errors.FeedClosedError, match="another fit, or loop, of the stream has begun"):
            trainer.fit(feed, epochs=1, steps_per_epoch=9)


def test_a_loop_over_a_stream_between_epochs_with_steps_ends_the_fit():
    with stream(endless, count=1) as feed:
        loop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: next(iter(feed)))
        trainer = ScalarTrainer()
        with pytest.raises(kf.errors.FeedClosedError, match="another fit, or loop, of the stream has begun"):
            trainer.fit(feed, epochs=2, steps_per_epoch=2, callbacks=[loop])
    assert trainer.trained == [list(range(8))]


@pytest.mark.skipif(BACKEND == "torch", reason="Keras on PyTorch executes one step at a time")
def test_the_input_monitor_counts_the_batch_kept_from_the_previous_epoch():
    with stream(endless, count=1) as feed:
        monitor = kf.InputMonitor(feed)
        wait = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: time.sleep(0.05))
        ScalarTrainer(steps_per_execution=2).fit(feed, epochs=3, steps_per_epoch=2, callbacks=[monitor, wait])
    assert [epoch.steps for epoch in monitor.epochs] == [2, 2, 2]


@pytest.mark.skipif(BACKEND == "torch", reason="Keras on PyTorch executes one step at a time")
def test_several_steps_an_execution_train_on_every_scene_of_an_infinite_stream():
    with stream(endless) as feed:
        trainer = ScalarTrainer(steps_per_execution=2)
        trainer.fit(feed, epochs=2, steps_per_epoch=4)
    assert trainer.trained == [list(range(16)), list(range(16, 32))]


@pytest.mark.heavy
def test_validation_on_a_stream_sees_one_repetition_every_time():
    with stream() as feed, stream(length_of(6), count=1) as valid:
        trainer = ScalarTrainer()
        trainer.fit(feed, epochs=2, validation_data=valid)
    assert trainer.trained == [list(range(22))] * 2
    assert trainer.record.tested == [list(range(6))] * 2


def test_validation_with_steps_begins_at_the_beginning_every_time():
    with stream() as feed, stream(endless) as valid:
        trainer = ScalarTrainer()
        trainer.fit(feed, epochs=2, validation_data=valid, validation_steps=2)
    assert trainer.record.tested == [list(range(8))] * 2


def test_evaluate_and_predict_take_one_repetition():
    with stream() as feed:
        trainer = ScalarTrainer()
        trainer.model.evaluate(feed, verbose=0, callbacks=[trainer.record])
        assert trainer.record.tested == [list(range(22))]
        predicted = trainer.model.predict(feed, verbose=0)
    assert np.asarray(predicted)[:, 0].tolist() == list(range(22))


def test_evaluate_of_the_distribution_takes_one_repetition_for_each_repeat():
    with stream() as feed:
        trainer = ScalarTrainer(loss="mae")
        found = kf.evaluate(trainer.model, feed, repeats=2)
    assert found["loss"].count == 12


@pytest.mark.parametrize("steps", [None, 4])
def test_the_input_monitor_measures_the_epochs_of_a_stream(steps):
    with stream(length_of(16), count=1) as feed:
        monitor = kf.InputMonitor(feed)
        trainer = ScalarTrainer()
        trainer.fit(feed, epochs=2, steps_per_epoch=steps, callbacks=[monitor])
    assert [epoch.scenes for epoch in monitor.epochs] == [16, 16]
    assert all(epoch.scenes_per_second > 0 for epoch in monitor.epochs)


def test_class_weights_apply():
    def halves():
        for number in range(8):
            yield np.full(1, number, np.float32), np.float32(number % 2)

    with stream(halves, count=1) as feed:
        found = ScalarTrainer(loss="mae").model.fit(feed, class_weight={0: 0.0, 1: 1.0}, verbose=0)
    np.testing.assert_allclose(found.history["loss"][0], np.mean([0, 0, 0, 2, 0, 4, 0, 6]), rtol=1e-5)


def test_an_error_of_a_generator_reaches_the_caller_of_fit_with_its_position():
    def breaking(n, count):
        yield from numbered(n, count, 6)
        raise KeyError(f"no scene in {n}")

    with stream(breaking) as feed, pytest.raises(KeyError, match="no scene in 0") as caught:
        ScalarTrainer().fit(feed)
    assert any("generator 0 of 2" in note for note in caught.value.__notes__)


def test_a_stream_that_leaves_scenes_out_is_refused_by_trainers():
    with stream(on_error="skip") as feed, pytest.raises(ValueError, match=r"skip.* plain loops, not in fit"):
        ScalarTrainer().fit(feed)


def test_an_empty_stream_says_so():
    with stream(length_of(0), count=1) as feed, pytest.raises(ValueError, match="the stream is empty"):
        ScalarTrainer().fit(feed)


def test_a_stream_is_released_with_its_workers_after_training():
    feed = stream(endless)
    ScalarTrainer().fit(feed, epochs=1, steps_per_epoch=2)
    gone = weakref.ref(feed)
    del feed
    gc.collect()
    wait_until(lambda: gone() is None)  # a worker may still hold it for the moment of a hand-over


class Killed(Exception):
    """Replaces a kill, after a batch."""


def starting(n, count, *, start):
    for number in range(n + start * count, 22, count):
        yield np.full(1, number, np.float32), np.float32(number)


KILLS = [
    (4, (6,)),
    *(
        pytest.param(steps, (1, 4, 6), marks=pytest.mark.heavy)
        for steps in ((None, 4) if BACKEND == "tensorflow" else (None,))
    ),
]


@pytest.mark.parametrize(("steps", "kills"), KILLS)
def test_a_fit_on_a_shuffled_stream_resumes_after_the_saved_batch(tmp_path, steps, kills):
    def fit(kill_at, seen):
        def after_batch(_):
            seen.append(None)
            if len(seen) == kill_at:
                raise Killed

        chain = make_model(run_eagerly=len(kills) > 1)  # not compiled for each of many trainings
        with stream(starting, 4, shuffle_buffer=5, seed=2) as feed:
            kept = kf.BackupAndRestore(feed, tmp_path / "backup", save_freq=1)
            noted = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: after_batch(batch))
            history = chain.fit(
                feed, epochs=2, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[kept, noted]
            )
        return result_of(chain), history

    whole, history = fit(None, [])
    assert json.loads(json.dumps(history.params))["epochs"] == 2
    total = whole[1]
    for kill_at in kills:
        with pytest.raises(Killed):
            fit(kill_at, [])
        seen = []
        assert fit(None, seen)[0] == whole
        assert len(seen) == total - kill_at + 1  # saved before the batch in whose end the kill came


def test_a_fit_that_ended_before_the_first_save_can_be_repeated_in_the_same_program(tmp_path):
    def leave(batch, logs):
        if batch == 2:
            raise KeyboardInterrupt

    model = make_model(run_eagerly=True)
    with stream(starting, 4, shuffle_buffer=5, seed=2) as feed:
        ours = kf.BackupAndRestore(feed, tmp_path / "backup")
        with pytest.raises(KeyboardInterrupt):
            model.fit(feed, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=leave), ours])
        with stream(starting, 4, shuffle_buffer=5, seed=2) as other:
            batches = sum(1 for _ in other)
        before = result_of(model)[1]
        model.fit(feed, verbose=0, callbacks=[ours])
    assert result_of(model)[1] == before + batches
    assert not (tmp_path / "backup").exists()


@pytest.mark.heavy
def test_a_fit_with_steps_that_was_stopped_within_an_epoch_continues_in_it(tmp_path):
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", batch))
    with stream(starting, 4, shuffle_buffer=5, seed=2) as feed:
        whole = make_model()
        whole.fit(feed, epochs=2, steps_per_epoch=4, verbose=0)
    with stream(starting, 4, shuffle_buffer=5, seed=2) as feed:
        model, ours = make_model(), kf.FeedCheckpoint(feed, tmp_path / "feed.json")
        model.fit(feed, epochs=2, steps_per_epoch=4, callbacks=[stop, ours], verbose=0)
        history = model.fit(feed, epochs=2, steps_per_epoch=4, callbacks=[ours], verbose=0)
    assert history.epoch == [0, 1]
    assert result_of(model) == result_of(whole)


def test_the_model_before_a_step_with_a_nonfinite_loss_is_kept():
    progress = Progress(None, 1, False, {})
    for done, scale in ((4, 8.0), (5, 4.0)):  # the step changes only the loss scale
        progress = progress.with_record(Record(4, scale, 0, done, {}))
    assert [progress.at(4, scale)[0].done for scale in (8.0, 4.0)] == [4, 5]


def test_a_backup_refuses_a_fit_on_another_stream(tmp_path):
    with stream(starting, 4, seed=2) as feed, stream(starting, 4, seed=2) as other:
        model = make_model()
        with pytest.raises(ValueError, match="to resume a stream, pass the feed itself"):
            model.fit(other, verbose=0, callbacks=[kf.BackupAndRestore(feed, tmp_path / "backup")])
