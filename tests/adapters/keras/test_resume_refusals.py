"""`FeedCheckpoint`: refusals, and the content of its file; on every backend."""

import json
import warnings

import keras
import pytest
from keras_fits import BACKEND, MARKS
from resumable import make_feed, make_model, result_of, stream, undisturbed

import kerasfeed as kf
from kerasfeed.adapters.keras.saved_files import Progress, Record
from kerasfeed.adapters.keras.trained_model import iterations_of, scale_of

pytestmark = MARKS


@pytest.mark.heavy
def test_a_model_that_was_not_restored_starts_over_with_a_warning(tmp_path):
    with make_feed() as feed:
        ours = kf.FeedCheckpoint(feed, tmp_path / "feed.json")
        make_model().fit(feed, epochs=1, callbacks=[ours], verbose=0)
        again = make_model()
        with pytest.warns(
            kf.FeedWarning, match="the model is at the start of training, but .* belongs to a model with 4 iter"
        ):
            again.fit(feed, epochs=1, callbacks=[ours], verbose=0)
        assert result_of(again) == undisturbed(4)


@pytest.mark.heavy
def test_a_training_killed_before_the_first_save_starts_over_without_a_warning(tmp_path):
    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    with make_feed() as feed, pytest.raises(KeyboardInterrupt):
        make_model().fit(feed, callbacks=[Killed(), kf.BackupAndRestore(feed, tmp_path / "backup")], verbose=0)
    assert (tmp_path / "backup" / "feed.json").exists()
    with make_feed() as feed, warnings.catch_warnings():
        warnings.simplefilter("error", kf.FeedWarning)
        again = make_model()
        again.fit(feed, callbacks=[kf.BackupAndRestore(feed, tmp_path / "backup")], verbose=0)
    assert result_of(again) == undisturbed(4)


def _refused(feed, path, message, *, data=None, model=None, **fit):
    ours = kf.FeedCheckpoint(feed, path)
    with pytest.raises(ValueError, match=message):
        (model or make_model()).fit(feed if data is None else data, epochs=1, callbacks=[ours], verbose=0, **fit)


def test_the_error_for_a_file_of_another_training_names_the_difference(tmp_path):
    path = tmp_path / "feed.json"
    with make_feed() as feed, make_feed(seed=8) as other, make_feed(length=40) as longer:
        model = make_model()
        model.fit(feed, epochs=2, callbacks=[kf.FeedCheckpoint(feed, path)], verbose=0)
        _refused(other, path, "feed.json does not fit this training: .*seed was 7, is 8")
        _refused(longer, path, "length was 22, is 40; steps was 4, is 7")
        _refused(feed, path, "an epoch of fit had 4 steps, but now has 3 steps: pass steps_per_", steps_per_epoch=3)
        _refused(feed, tmp_path / "new.json", "fit was given another feed", data=other)
        beyond = feed.to_tf_dataset().map(lambda x, y: (x, y))
        new = tmp_path / "new.json"
        above, unknown = (
            "steps_per_epoch=5 of a dataset of 4 batches .* cannot be resumed",
            "the number of batches in an epoch of this dataset is unknown",
        )
        _refused(feed, new, above, data=beyond, steps_per_epoch=5, shuffle=False)
        endless = beyond.repeat()
        _refused(feed, new, unknown, data=endless, shuffle=False)
        content = json.loads(path.read_text())
        content["records"] = content["records"][1:]
        path.write_text(json.dumps(content))
        _refused(feed, path, r"counted 0 iterations, but the training began at 1\. It is another model, or was rest")


@pytest.mark.parametrize(("batch_size", "steps"), [(2, None), (3, None), (12, None), (2, 12), (3, 8)])
def test_a_dataset_that_batches_the_scenes_of_a_feed_again_is_refused(tmp_path, batch_size, steps):
    with make_feed(length=24) as feed:  # 4 batches of 6
        again = feed.to_tf_dataset().unbatch().batch(batch_size)
        fit = {"data": again.repeat() if steps else again, "steps_per_epoch": steps, "shuffle": False}
        _refused(feed, tmp_path / "feed.json", "of (2|8|12) batches in an epoch, made from a feed of 4", **fit)


def test_other_loops_over_a_followed_feed_are_not_mistaken_for_other_batches(tmp_path):
    with make_feed(length=24) as feed:
        dataset = feed.to_tf_dataset()
        peek = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: next(iter(feed)))
        ours = kf.FeedCheckpoint(feed, tmp_path / "feed.json")
        make_model().fit(
            dataset, validation_data=dataset, epochs=2, callbacks=[peek, ours], shuffle=False, verbose=0
        )  # fmt: skip


def test_a_file_with_other_steps_per_epoch_is_refused_without_moving_the_feed(tmp_path):
    model, path = make_model(), tmp_path / "feed.json"
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: setattr(model, "stop_training", step > 0)
    )
    with make_feed() as feed:
        model.fit(feed, epochs=1, callbacks=[kf.FeedCheckpoint(feed, path, 1), stop], verbose=0)
    with make_feed() as feed:
        _refused(feed, path, "an epoch of fit had 4 steps, but now has 3 steps", model=model, steps_per_epoch=3)
        assert [labels.ravel().astype(int).tolist() for _, labels in feed] == stream(feed, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON, or was cut short"),
        ('{"kind": "kerasfeed.Feed', "it is not JSON, or was cut short"),
        ("[1]", "it was not written by kerasfeed.FeedCheckpoint"),
        ('{"epoch": 3, "batch": 0}', "it was not written by kerasfeed.FeedCheckpoint"),
        ('{"kind": "kerasfeed.FeedCheckpoint", "version": 9}', "it has version 9, not 2"),
        ('{"kind": "kerasfeed.FeedCheckpoint", "version": 2, "records": []}', "it is damaged"),
        (b"\xff\xfe\x00", "it is not JSON"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_and_not_changed(text, message, tmp_path):
    path = tmp_path / "feed.json"
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(content)
    with make_feed() as feed:
        _refused(feed, path, f"feed.json does not give the position of the training: {message}.*Restore the file; or")
    assert path.read_bytes() == content


def test_bad_arguments_are_refused(tmp_path):
    with make_feed() as feed:
        with pytest.raises(
            TypeError, match=r"^FeedCheckpoint\(feed, ...\) resumes a kerasfeed.Feed or .*, received a list"
        ):
            kf.FeedCheckpoint([], tmp_path / "feed.json")
        with pytest.raises(
            TypeError, match=r"^BackupAndRestore\(feed, ...\) resumes a kerasfeed.Feed or .*, received a list"
        ):
            kf.BackupAndRestore([], tmp_path / "backup")
        with pytest.raises(ValueError, match="path must be a file, received the folder"):
            kf.FeedCheckpoint(feed, tmp_path)
        with pytest.raises(ValueError, match=r'save_freq must be at least 1, received 0 ."epoch" writes at the end'):
            kf.FeedCheckpoint(feed, tmp_path / "feed.json", save_freq=0)
        with pytest.raises(RuntimeError, match=r"works within model.fit"):
            kf.FeedCheckpoint(feed, tmp_path / "feed.json").on_train_begin()


def test_a_record_is_replaced_atomically_without_leftover_files(tmp_path, monkeypatch):
    path = tmp_path / "new folder" / "feed.json"
    with make_feed() as feed:
        make_model().fit(feed, epochs=1, callbacks=[kf.FeedCheckpoint(feed, path, save_freq=1)], verbose=0)
        records = Progress.read(path)
        assert [(each.iterations, each.epoch * 4 + each.done) for each in records.records] == [(n, n) for n in range(5)]
        before = path.read_bytes()
        monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            records.write(path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["feed.json"]


def test_the_file_keeps_few_records_including_the_first(tmp_path):
    path = tmp_path / "feed.json"
    with make_feed(length=240) as feed:
        make_model().fit(feed, epochs=1, callbacks=[kf.FeedCheckpoint(feed, path, save_freq=1)], verbose=0)
    numbers = [each.epoch * 40 + each.done for each in Progress.read(path).records]
    assert numbers == [0, *range(41 - len(numbers) + 1, 41)]
    assert len(numbers) < 20
    assert path.stat().st_size < 4096


def test_unknown_iteration_counts_are_refused(tmp_path):
    path = tmp_path / "feed.json"
    with make_feed() as feed:
        make_model().fit(feed, epochs=1, callbacks=[kf.FeedCheckpoint(feed, path)], verbose=0)
    records = Progress.read(path)
    places = [(each.iterations, each.epoch, each.done) for each in records.records]
    assert places == [(0, 0, 0), (1, 0, 1), (4, 1, 0)]
    found = [records.at(iterations) for iterations in range(7)]
    assert [record.epoch * 4 + record.done + behind for record, behind in found] == list(range(7))
    gan = records.with_record(Record(14, 0.0, 2, 1, {}))
    assert gan.at(14) == (gan.records[-1], 0)
    with pytest.raises(ValueError, match=r"counted 12 iterations, .* known only for 0, 1, 4, 14 iter"):
        gan.at(12)


def test_iterations_include_all_optimizers_of_a_model():
    class Two(keras.Model):
        """Trains with its own optimizer besides the one it was compiled with."""

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.other = keras.optimizers.SGD(0.1)

        def call(self, x):
            return self.dense(x)

    model = Two()
    model.compile("adam", "mse")
    model.optimizer._iterations.assign(3)
    model.other._iterations.assign(4)
    assert iterations_of(model) == 7
    plain = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="needs a model with an optimizer"):
        iterations_of(plain)


def test_the_loss_scale_is_known_before_the_optimizer_is_built():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0), "mse")
    assert scale_of(model) == 8.0
    model.optimizer.build(model.trainable_variables)
    assert scale_of(model) == 8.0
    model.optimizer.dynamic_scale.assign(4.0)
    assert scale_of(model) == 4.0
    model.compile("adam", "mse")
    assert scale_of(model) == 0.0


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the other backends make the weights as fit begins")
def test_a_backup_refuses_a_model_marked_built_without_weights(tmp_path):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.dropout = keras.layers.Dropout(0.1)  # its seed is a variable that exists before any weights

        def call(self, x):
            return self.dense(self.dropout(x))

    model = Net()
    with pytest.warns(UserWarning, match="marked as built, despite not being actually built"):
        model.build((None, 1))
    model.compile("adam", "mse")
    assert model.built
    with make_feed() as feed:
        backup = kf.BackupAndRestore(feed, tmp_path / "backup")
        with pytest.raises(ValueError, match="needs a model that is built before fit: call it on a batch"):
            model.fit(feed, epochs=1, callbacks=[backup], verbose=0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the other backends make the weights as fit begins")
def test_a_backup_refuses_a_model_with_only_some_layers_built(tmp_path):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.unused = keras.layers.Dense(2), keras.layers.Dense(1), keras.layers.Dense(1)

        def call(self, x):
            return self.second(self.first(x))

    model = Net()
    model.first(keras.ops.zeros((1, 1)))
    model.built = True
    model.compile("sgd", "mse", run_eagerly=True)
    with make_feed() as feed:
        backup = kf.BackupAndRestore(feed, tmp_path / "backup", 1)
        with pytest.raises(ValueError, match=r"a model that is built before fit.* The first batch has built second$"):
            model.fit(feed, epochs=1, callbacks=[backup], verbose=0)
        assert not (tmp_path / "backup" / "latest.npz").exists()
        model.fit(feed, epochs=1, callbacks=[backup], verbose=0)


def test_a_folder_of_a_model_without_its_feed_is_refused(tmp_path):
    folder = tmp_path / "backup"
    folder.mkdir()
    with make_feed() as feed:
        model = make_model()
        model.save_weights(folder / "latest.weights.h5")
        with pytest.raises(ValueError, match="holds a model, but not the batches it was trained on"):
            model.fit(feed, callbacks=[kf.BackupAndRestore(feed, folder)], verbose=0)


def test_an_unreadable_backup_does_not_replace_the_restored_one(tmp_path):
    folder = tmp_path / "backup"
    latest, previous = folder / "latest.npz", folder / "previous.npz"
    with make_feed() as feed:
        backup = kf.BackupAndRestore(feed, folder, 2, double_checkpoint=True, delete_checkpoint=False)
        make_model().fit(feed, epochs=1, callbacks=[backup], verbose=0)
    good = previous.read_bytes()
    latest.write_bytes(good[: len(good) // 2])
    with make_feed() as feed:
        backup = kf.BackupAndRestore(feed, folder, 1, double_checkpoint=True, delete_checkpoint=False)
        after_one = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda step, logs: kept.append(latest.read_bytes())
        )
        kept = []
        make_model().fit(feed, epochs=2, callbacks=[backup, after_one], verbose=0)
    assert kept[0] == good
