"""`shard="auto"` in programs of several real processes, one for each framework that supports several processes."""

import ast
import importlib.util
import json
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest
from scenes_frameworks import environment_of
from scenes_padding import Regression
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.orders.plan import Plan


def _free_ports(count):
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in found]


def _run_two(folder, text, environments, *arguments):
    """Run a script as two connected processes; return the last line of each as a Python value."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    programs = [
        subprocess.Popen(
            [sys.executable, str(script), str(number), *map(str, arguments)], env=environment_of(**environment),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number, environment in enumerate(environments)
    ]  # fmt: skip
    try:
        outputs = [program.communicate(timeout=PROGRAM_SECONDS) for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    for program, (stdout, stderr) in zip(programs, outputs, strict=True):
        assert program.returncode == 0, stdout[-2000:] + stderr[-6000:]
    return [ast.literal_eval(stdout.splitlines()[-1]) for stdout, _ in outputs]


def _plans(length, batch_size, *, pad):
    return [Plan(length, batch_size, kf.Shuffled(), 3, False, shard, 2, pad) for shard in range(2)]


def _steps(plan):
    return [plan.indices(0, step).tolist() for step in range(plan.steps)]


@pytest.mark.heavy
def test_two_processes_of_jax_are_two_shards_and_evaluate_as_one(tmp_path):
    pytest.importorskip("jax", reason="JAX is not installed")
    found = _run_two(
        tmp_path,
        """
        import sys
        sys.modules["tensorflow"] = None  # as on a host without it, for Keras would import it
        import lean_keras
        import keras
        import kerasfeed as kf
        from scenes_padding import Regression
        from scenes_frameworks import Numbered

        number, port = int(sys.argv[1]), sys.argv[2]
        keras.distribution.initialize(f"localhost:{port}", 2, number)

        def feed():
            return kf.Feed(Numbered(11), 2, shuffle=True, seed=3, workers=0, shard="auto", pad_remainder=True)

        with feed() as first:
            steps = [batch[1][:, 0].astype(int).tolist() for batch in first.epoch(0)]
            sources = [str(first.shard)]
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        with feed() as second:
            sources.append(str(second.shard))
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse", weighted_metrics=["mae"])
        with kf.Feed(Regression(11), 2, seed=3, shuffle=True, workers=0, shard="auto", pad_remainder=True) as part:
            exact = model.evaluate(part, verbose=0, return_dict=True)["mae"]
            model.fit(part, verbose=0)
        refused = ""
        with kf.Feed(Regression(11), 2, workers=0) as whole:
            try:
                model.fit(whole, verbose=0)
            except ValueError as error:
                refused = str(error)
        mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"])
        layout_map = keras.distribution.LayoutMap(mesh)
        layout_map["dense.*kernel"] = (None, "model")
        distribution = keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
        keras.distribution.set_distribution(distribution)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        with kf.Feed(Regression(12), 4, seed=3, shuffle=True, workers=0) as whole:
            model.fit(whole, verbose=0)
        print((steps, sources, exact, refused))
        """,
        [{"KERAS_BACKEND": "jax"}] * 2,
        *_free_ports(1),
    )
    plans = _plans(11, 2, pad=True)
    assert [steps for steps, *_ in found] == [_steps(plan) for plan in plans]
    assert [sources for _, sources, *_ in found] == [
        [f"{shard} of 2 (auto: jax)", f"{shard} of 2 (auto: keras.distribution)"] for shard in range(2)
    ]
    rooms = Regression(11)
    expected = float(abs(rooms.x.sum(axis=1) - rooms.y[:, 0]).mean())
    assert [exact for _, _, exact, _ in found] == pytest.approx([expected] * 2, rel=2e-5)
    assert all("Use kf.Feed(..., shard='auto')" in refused for *_, refused in found)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.heavy
def test_two_processes_of_torch_are_two_shards(tmp_path):
    found = _run_two(
        tmp_path,
        """
        import sys
        sys.modules["tensorflow"] = None
        sys.modules["jax"] = None
        import lean_keras
        import torch
        import kerasfeed as kf
        from scenes_frameworks import Numbered

        number, port = int(sys.argv[1]), sys.argv[2]
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://localhost:{port}", world_size=2, rank=number
        )
        with kf.Feed(Numbered(20), 3, shuffle=True, seed=3, workers=2, worker_type="thread", shard="auto") as feed:
            steps = [batch[1][:, 0].astype(int).tolist() for batch in feed.epoch(0)]
            print((steps, str(feed.shard)))
        torch.distributed.destroy_process_group()
        """,
        [{"KERAS_BACKEND": "torch"}] * 2,
        *_free_ports(1),
    )
    assert [steps for steps, _ in found] == [_steps(plan) for plan in _plans(20, 3, pad=False)]
    assert [shard for _, shard in found] == ["0 of 2 (auto: torch.distributed)", "1 of 2 (auto: torch.distributed)"]


@pytest.mark.heavy
def test_two_tensorflow_workers_are_two_shards_sharded_only_once(tmp_path):
    cluster = {"worker": [f"localhost:{port}" for port in _free_ports(2)]}
    found = _run_two(
        tmp_path,
        """
        import lean_keras
        import tensorflow as tf
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        import kerasfeed as kf
        from scenes_frameworks import Numbered

        def feed(shard):
            return kf.Feed(
                Numbered(22), 4, shuffle=True, seed=3, workers=2, worker_type="thread", shard=shard, pad_remainder=True
            )

        def steps(batches):
            parts = [strategy.experimental_local_results(batch[1]) for batch in batches]
            return [[int(value) for part in each for value in part.numpy().ravel()] for each in parts]

        with strategy.scope(), feed("auto") as auto:
            told = str(auto.shard)
        contexts = []
        def dataset(context):
            contexts.append((context.input_pipeline_id, context.num_input_pipelines))
            return feed(context).to_tf_dataset()
        whole = steps(strategy.distribute_datasets_from_function(dataset))
        with feed(contexts[0]) as part:
            cut = steps(strategy.experimental_distribute_dataset(part.to_tf_dataset()))
        print((told, contexts, whole, cut))
        """,
        [
            {
                "KERAS_BACKEND": "tensorflow",
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": number}}),
            }
            for number in range(2)
        ],
    )
    for number, (told, contexts, whole, cut) in enumerate(found):
        expected = _steps(_plans(22, 4, pad=True)[number])
        assert told == f"{number} of 2 (auto: tf.distribute)"
        assert contexts == [(number, 2)]
        assert whole == expected
        # As docs/how-to/several-hosts.md says: a batch is cut for both workers, and nothing of it is lost.
        assert [first + second for first, second in zip(cut[::2], cut[1::2], strict=True)] == expected


@pytest.mark.heavy
def test_a_mirrored_strategy_gives_whole_batches_to_its_replicas(run_forked):
    printed = run_forked(
        """
        import tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        import kerasfeed as kf
        from scenes_frameworks import Numbered

        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        contexts = []

        def feed(shard):
            return kf.Feed(
                Numbered(22), 3, shuffle=True, seed=3, workers=2, worker_type="thread", shard=shard, pad_remainder=True
            )

        def dataset(context):
            contexts.append((context.input_pipeline_id, context.num_input_pipelines))
            return feed(context).to_tf_dataset()

        found = []
        for batch in strategy.distribute_datasets_from_function(dataset):
            parts = strategy.experimental_local_results(batch[1])
            found.append([part.numpy().ravel().astype(int).tolist() for part in parts])
        with strategy.scope(), feed("auto") as auto:
            told = str(auto.shard)
        context = tf.distribute.InputContext(num_input_pipelines=3, input_pipeline_id=1)
        with feed(context) as third:
            batches = [batch[1].numpy().ravel().astype(int).tolist() for batch in third.to_tf_dataset()]
            assert batches == [third.plan.indices(0, step).tolist() for step in range(len(third))]
            print((contexts, found, told, str(third.shard)))
        """,
    )
    contexts, found, told, third = ast.literal_eval(printed.splitlines()[-1])
    assert contexts == [(0, 1)]
    assert told == "0 of 1 (auto: one process)"
    assert third == "1 of 3 (tf.distribute.InputContext)"
    expected = _steps(Plan(22, 3, kf.Shuffled(), 3, pad_remainder=True))
    # The replicas take batches of one pipeline in turn; at the end, one replica gets none.
    assert [batch for step in found for batch in step if batch] == expected


@pytest.mark.heavy
def test_a_model_of_a_mirrored_strategy_trains_for_the_given_steps(run_forked):
    printed = run_forked(
        """
        import tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        import keras
        import kerasfeed as kf
        from scenes_padding import Regression

        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        places = []
        with kf.Feed(Regression(20), 4, shuffle=True, seed=3, workers=2, worker_type="thread") as feed:
            def note(epoch, logs):
                state = feed.get_state()
                places.append((state["epoch"], state["step"], int(model.optimizer.iterations.numpy())))

            callback = keras.callbacks.LambdaCallback(on_epoch_end=note)
            backup = kf.BackupAndRestore(feed, "backup", save_freq=2)
            model.fit(feed, epochs=3, steps_per_epoch=3, callbacks=[callback, backup], verbose=0)
            print(places)
        """,
    )
    assert ast.literal_eval(printed.splitlines()[-1]) == [(0, 3, 3), (1, 1, 6), (1, 4, 9)]
