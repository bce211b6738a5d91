"""Events of every worker of a run: written by several processes at once, and read back with TensorFlow."""

import inspect
import os
import signal
import textwrap
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from keras_fits import BACKEND, MARKS
from programs import launch
from waits import PROGRAM_SECONDS

import kerasfeed as kf

pytestmark = MARKS
anywhere = pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras has no part in it")


def events(folder):
    """(tag, step) -> value of all event files right in a folder."""
    import tensorflow as tf

    found = {}
    for path in sorted(Path(folder).glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert (value.tag, event.step) not in found
                found[value.tag, event.step] = value.simple_value
    return found


def runs(folder):
    return sorted({str(path.parent.relative_to(folder)) for path in Path(folder).rglob("events.*")})


def test_numbers_written_by_hand_are_read_back(tmp_path):
    with kf.SummaryWriter(tmp_path, 3) as writer:
        writer.scalar("speed/scenes", 12.5, 0)
        writer.scalar("speed/scenes", np.float64(13), np.int64(7))
        writer.scalar("loss", keras.ops.ones(()), 1, run="test")
    writer.close()
    assert events(tmp_path / "worker-3") == {("speed/scenes", 0): 12.5, ("speed/scenes", 7): 13.0}
    assert events(tmp_path / "worker-3" / "test") == {("loss", 1): 1.0}
    writer.scalar("later", 2, 8)
    writer.close()
    assert events(tmp_path / "worker-3")["later", 8] == 2.0


@pytest.mark.heavy
def test_a_fit_writes_its_metrics_and_the_feeds_figures_each_epoch(tmp_path):
    scenes = [(np.full(1, k, np.float32), np.full(1, k, np.float32)) for k in range(12)]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.0))
    with kf.Feed(scenes, 4, shard_index=1, shard_count=2, workers=1, worker_type="thread", pad_remainder=True) as feed:
        monitor, writer = kf.InputMonitor(feed), kf.SummaryWriter(tmp_path, feed=feed)
        history = model.fit(
            feed, epochs=2, validation_data=(np.ones((2, 1)), np.ones((2, 1))), verbose=0, callbacks=[monitor, writer]
        )
    assert runs(tmp_path) == ["worker-1", "worker-1/train", "worker-1/validation"]
    train, validation = events(tmp_path / "worker-1" / "train"), events(tmp_path / "worker-1" / "validation")
    assert train["epoch_loss", 1] == pytest.approx(history.history["loss"][1])
    assert train["epoch_scenes_per_second", 0] == pytest.approx(monitor.epochs[0].scenes_per_second)
    assert 0 <= train["epoch_input_wait_share", 1] <= 1
    assert validation["epoch_loss", 1] == pytest.approx(history.history["val_loss"][1])
    feeds = events(tmp_path / "worker-1")
    assert {tag for tag, _ in feeds} == {f"feed/{name}" for name in (
        "batches", "copied", "slots", "slot_bytes", "respawns", "failed")}  # fmt: skip
    assert feeds["feed/batches", 1] >= 4 > feeds["feed/respawns", 1] == 0


@anywhere
def test_a_folder_that_cannot_be_written_to_is_told_as_training_begins(tmp_path):
    (tmp_path / "file").write_text("")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    with pytest.raises(Exception, match=r"file|directory"):
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[kf.SummaryWriter(tmp_path / "file", 0)])


ARGUMENTS = [
    ((5, 0), {}, TypeError, "log_dir must be a path"),
    (("logs",), {}, TypeError, r"needs the number of this worker.*SummaryWriter\(log_dir, worker=0\)"),
    (("logs", -1), {}, ValueError, "worker must be at least 0, received -1"),
    (("logs", True), {}, TypeError, "worker must be a number, or a name"),
    (("logs", "a/b"), {}, ValueError, "a name that a folder can have, received 'a/b'"),
    (("logs", 0), {"feed": [1]}, TypeError, "feed must be a kerasfeed.Feed, received a list"),
]


@anywhere
@pytest.mark.parametrize(("arguments", "options", "kind", "says"), ARGUMENTS, ids=str)
def test_bad_arguments_are_refused(arguments, options, kind, says):
    with pytest.raises(kind, match=says):
        kf.SummaryWriter(*arguments, **options)


@anywhere
def test_what_is_no_number_is_refused(tmp_path):
    with kf.SummaryWriter(tmp_path, 0) as writer:
        with pytest.raises(TypeError, match="scalar 'loss' needs one number, received 'high'"):
            writer.scalar("loss", "high", 0)
        with pytest.raises(TypeError):
            writer.scalar("loss", 1.0, 0.5)
        with pytest.raises(ValueError, match="step must be at least 0, received -1"):
            writer.scalar("loss", 1.0, -1)


def write_epochs(writer, worker):
    for epoch in range(200):
        writer.scalar("loss", 1000 * worker + epoch, epoch)
        writer.on_epoch_end(epoch, {"accuracy": worker + epoch / 1000, "per_class": np.array([epoch, worker])})


PROGRAM = """
    import os, signal, time
    from pathlib import Path
    import kerasfeed as kf

    writer = kf.SummaryWriter("../logs", 1)
    writer.scalar("loss", 0, 1000)  # loads TensorFlow
    from tensorflow.python.eager import context

    Path("../ready").touch()
    while not Path("../go").exists():  # both write at the same time
        time.sleep(0.01)
"""
ENDS_KILLED = """
    writer.scalar("never flushed", 1.0, 0)
    print(f"started: {context.context()._initialized}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.heavy
@anywhere
def test_two_processes_write_at_once_and_both_are_complete_even_if_one_is_killed(tmp_path):
    (tmp_path / "1").mkdir()
    code = [PROGRAM, inspect.getsource(write_epochs), "import numpy as np\nwrite_epochs(writer, 1)\n", ENDS_KILLED]
    other = launch(tmp_path / "1", "\n".join(map(textwrap.dedent, code)))
    try:
        with kf.SummaryWriter(tmp_path / "logs", 0) as writer:
            writer.scalar("loss", 0, 1000)
            while not (tmp_path / "ready").exists():
                assert other.poll() is None, other.communicate()
                time.sleep(0.01)
            (tmp_path / "go").touch()
            write_epochs(writer, 0)
        assert "started: False" in other.communicate(timeout=PROGRAM_SECONDS)[0]
    finally:
        other.kill()
        other.communicate()
    assert other.returncode == -signal.SIGKILL
    assert runs(tmp_path / "logs") == ["worker-0", "worker-0/train", "worker-1", "worker-1/train"]
    for worker, pid in enumerate((os.getpid(), other.pid)):
        folder = tmp_path / "logs" / f"worker-{worker}"
        found = events(folder)
        assert found.pop(("loss", 1000)) == 0
        assert found == {("loss", epoch): 1000.0 * worker + epoch for epoch in range(200)}
        train = events(folder / "train")
        assert len(train) == 600
        assert train["epoch_accuracy", 199] == pytest.approx(worker + 0.199)
        assert (train["epoch_per_class[0]", 7], train["epoch_per_class[1]", 7]) == (7, worker)
        for path in folder.rglob("events.*"):
            assert path.name.split(".")[-2] == str(pid)
