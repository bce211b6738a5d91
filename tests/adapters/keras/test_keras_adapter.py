"""A feed as Keras's data adapter, for its trainers and for users."""

import threading
import time

import keras
import numpy as np
import pytest
from keras_fits import BACKEND, MARKS, Trainer, identity, make_feed, order_of
from resumable import make_feed as resumable_feed
from resumable import make_model
from scenes_frameworks import Numbered, run_script
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.adapters.keras.adapter import class_weights_of

pytestmark = MARKS

TOP_LEVEL = """
import lean_keras
import kerasfeed as kf

feed = kf.Feed(list(range(10)), 2, workers=0)
kept = 3
assert feed.num_batches == 5
feed.on_epoch_begin()
feed.on_epoch_end()

class Body:
    inside = 1
    count = feed.num_batches
    twice = 2 * inside

assert (kept, Body.count, Body.twice, len(feed)) == (3, 5, 2, 5)
"""


@pytest.mark.heavy
@pytest.mark.skipif(BACKEND != "tensorflow", reason="no backend takes part")
def test_keras_methods_can_be_called_at_the_top_level_of_a_script(tmp_path):
    run_script(tmp_path, TOP_LEVEL)


def test_adapter_methods_refuse_callers_outside_of_keras():
    with kf.Feed(Numbered(8), 2, workers=0) as feed:
        for method in (feed.get_numpy_iterator, feed.get_jax_iterator, feed.get_torch_dataloader, feed.get_tf_dataset):
            with pytest.raises(RuntimeError, match=r"Keras's trainers can use this: loop over the feed"):
                method()


def unbuilt():
    model = keras.Sequential([identity()])
    model.compile("sgd", "mse", jit_compile=False)
    return model


class Hooked(Numbered):
    """Counts its epochs; scenes are the current count."""

    epochs = 0

    def on_epoch_begin(self):
        self.epochs += 1

    def __getitem__(self, index):
        return np.full(1, self.epochs, np.float32), np.full(1, self.epochs, np.float32)


def test_an_epoch_started_to_build_the_model_counts_as_the_first_epoch():
    with kf.Feed(Hooked(8), 2, workers=0) as feed:
        trainer = Trainer(model=unbuilt())
        trainer.fit(feed, epochs=2, shuffle=False)
        assert trainer.trained == [[1] * 8, [2] * 8]


class Around(keras.utils.PyDataset):
    """Batches of a feed from a user's `PyDataset`."""

    def __init__(self, feed):
        super().__init__()
        self.feed = feed

    def __len__(self):
        return len(self.feed)

    def __getitem__(self, step):
        return self.feed[step]

    def on_epoch_end(self):
        self.feed.on_epoch_end()


class AroundBoth(Around):
    def on_epoch_begin(self):
        self.feed.on_epoch_begin()


@pytest.mark.parametrize("around", [Around, AroundBoth])
def test_a_pydataset_around_a_feed_advances_with_on_epoch_end(around):
    with kf.Feed(Numbered(12), 4, shuffle=True, seed=1, workers=0) as feed:
        trainer = Trainer()
        trainer.fit(around(feed), epochs=2, shuffle=False, validation_data=around(feed))
        trainer.fit(around(feed), epochs=1, shuffle=False)
        assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]
        assert (feed.get_state()["epoch"], feed.get_state()["step"]) == (3, 0)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("execution", [1, 10][: 1 if BACKEND == "torch" else 2])
def test_building_a_model_consumes_no_batch_of_a_stream(method, execution):
    model = keras.Sequential([identity()])
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=execution)
    row = kf.ArraySpec((1,), np.dtype(np.float32))
    steps = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda step, logs: steps.append(step),
        on_test_batch_begin=lambda step, logs: steps.append(step),
    )
    rows = iter([(np.full(1, number, np.float32), np.zeros(1, np.float32)) for number in range(20)])
    with kf.StreamFeed(lambda: rows, 1, output_signature=(row, row), workers=0) as feed:
        found = getattr(model, method)(feed, verbose=0, callbacks=[count])
    if method == "predict":
        assert found.ravel().tolist() == list(range(20))
    else:
        assert steps == list(range(0, 20, execution))


def test_fit_reports_that_another_thread_closed_its_feed():
    class Slow(Numbered):
        def __getitem__(self, index):
            time.sleep(0.01 if index < 4 else 0.5)
            return super().__getitem__(index)

    feed = kf.Feed(Slow(400), 2, workers=1, worker_type="thread")
    seen = []
    trainer = Trainer(after_batch=seen.append)
    closing = threading.Thread(target=lambda: (wait_until(lambda: len(seen) > 1), feed.close()))
    closing.start()
    with pytest.raises(kf.errors.FeedClosedError, match="the feed is closed"):
        trainer.fit(feed, shuffle=False)
    closing.join(SECONDS)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="another iterator of Keras may take a batch to build the model")
def test_each_prediction_on_the_dataset_reads_the_next_epoch():
    model = unbuilt()
    with kf.Feed(Numbered(8), 2, shuffle=True, seed=3, workers=0) as feed:
        data = feed.to_tf_dataset()
        for epoch in range(3):
            found = model.predict(data, verbose=0).ravel().astype(int).tolist()
            assert found == feed.indices(epoch).tolist()


def test_class_weights_must_be_numbers_as_in_keras():
    with pytest.raises(ValueError, match="setting an array element with a sequence"):
        class_weights_of(np.array([0, 1]), {0: [1.0, 5.0], 1: [2.0, 7.0]})


def test_class_weight_with_sample_weights_raises_the_error_of_keras():
    scene = (np.zeros(1, np.float32), np.zeros(1, np.float32), np.float32(1))
    with (
        kf.Feed([scene] * 8, 2, workers=0) as feed,
        pytest.raises(ValueError, match="`class_weight` and `sample_weight` at the same time"),
    ):
        Trainer().fit(feed, class_weight={0: 2.0})


@pytest.mark.skipif(BACKEND == "torch", reason="an execution is one step there")
def test_fit_with_steps_per_epoch_refuses_a_state_within_an_execution():
    model = make_model(steps_per_execution=2)
    with resumable_feed() as feed:
        feed.set_state(feed.get_state(epoch=0, step=1))
        with pytest.raises(
            ValueError, match="3 batches left, but with steps_per_epoch=4 Keras takes 2 batches at a time"
        ):
            model.fit(feed, steps_per_epoch=4, epochs=2, verbose=0)


def test_a_state_cannot_be_set_during_a_fit():
    with make_feed(workers=0) as feed:
        again = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: feed.set_state(before))
        before = feed.get_state()
        with pytest.raises(RuntimeError, match="was called during a fit"):
            Trainer().model.fit(feed, verbose=0, callbacks=[again])
        trainer = Trainer()
        trainer.fit(feed)
        assert trainer.trained == [order_of(feed, 1)] or trainer.trained == [order_of(feed, 0)]
