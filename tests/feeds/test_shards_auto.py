"""`shard="auto"`, with fake frameworks that report what a test needs."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
import scenes

import kerasfeed as kf
from kerasfeed.feeds import sharding


class _Workers:
    """A fake MultiWorkerMirroredStrategy."""

    def __init__(self, cluster, task_type, task_id):
        spec = SimpleNamespace(as_dict=lambda: cluster)
        self.cluster_resolver = SimpleNamespace(cluster_spec=lambda: spec, task_type=task_type, task_id=task_id)


def _tensorflow(strategy):
    distribute = SimpleNamespace(
        has_strategy=lambda: strategy is not None,
        get_strategy=lambda: strategy,
        MultiWorkerMirroredStrategy=_Workers,
    )
    return SimpleNamespace(distribute=distribute)


def _keras(distribution, backend="torch"):
    return SimpleNamespace(
        distribution=SimpleNamespace(distribution=lambda: distribution),
        backend=SimpleNamespace(backend=lambda: backend),
    )


def _jax(index, count, *, initialized=True):
    return SimpleNamespace(
        distributed=SimpleNamespace(is_initialized=lambda: initialized),
        process_index=lambda: index,
        process_count=lambda: count,
    )


def _torch(index, count, *, initialized=True):
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        get_rank=lambda: index,
        get_world_size=lambda: count,
    )


@pytest.fixture
def found(monkeypatch):
    """The shard that "auto" finds if only these frameworks are imported."""

    def find(**modules):
        with monkeypatch.context() as context:
            names = {"tensorflow": "tensorflow", "keras": "keras", "jax": "jax", "torch": "torch.distributed"}
            for word, name in names.items():
                context.delitem(sys.modules, name, raising=False)
                if word in modules:
                    context.setitem(sys.modules, name, modules[word])
            return str(sharding.find_shard("auto", None, 1))

    for name in ("KERAS_DISTRIBUTION_NUM_PROCESSES", "JAX_NUM_PROCESSES", "WORLD_SIZE", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return find


ONE = "0 of 1 (auto: one process)"


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


def test_auto_is_one_shard_if_no_framework_is_imported(found):
    assert found() == ONE


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (_Workers({"worker": ["a:1", "b:1"]}, "worker", 1), "1 of 2 (auto: tf.distribute)"),
        (_Workers(CLUSTER, "chief", 0), "0 of 3 (auto: tf.distribute)"),
        (_Workers(CLUSTER, "worker", 0), "1 of 3 (auto: tf.distribute)"),
        (_Workers({**CLUSTER, "evaluator": ["d:1"]}, "evaluator", 0), ONE),
        (_Workers({"worker": ["a:1"]}, "worker", 0), ONE),
        (_Workers({}, None, None), ONE),
        (SimpleNamespace(cluster_resolver=None), ONE),
        (SimpleNamespace(cluster_resolver=_Workers(CLUSTER, "chief", 0).cluster_resolver), ONE),  # no such strategy
        (None, ONE),
    ],
)
def test_auto_uses_the_multi_worker_strategy_in_scope(found, strategy, expected):
    assert found(tensorflow=_tensorflow(strategy)) == expected


@pytest.mark.parametrize(
    ("processes", "replicas", "data_shard", "expected"),
    [
        (4, 8, 3, "3 of 4 (auto: keras.distribution)"),
        (4, 2, 1, "1 of 2 (auto: keras.distribution)"),  # two processes hold one replica, and load the same scenes
        (4, 1, 0, "0 of 1 (auto: keras.distribution)"),
        (1, 8, 0, "2 of 4 (auto: jax)"),
    ],
)
def test_auto_prefers_the_keras_distribution_to_jax(found, processes, replicas, data_shard, expected):
    distribution = SimpleNamespace(num_processes=processes, num_model_replicas=replicas, data_shard_id=data_shard)
    assert found(keras=_keras(distribution), jax=_jax(2, 4)) == expected


def test_auto_uses_jax_only_if_it_is_initialized_or_the_keras_backend(found):
    assert found(jax=_jax(1, 2)) == "1 of 2 (auto: jax)"
    assert found(jax=_jax(1, 2, initialized=False), keras=_keras(None)) == ONE
    assert found(jax=_jax(1, 2, initialized=False), keras=_keras(None, "jax")) == "1 of 2 (auto: jax)"
    assert found(jax=_jax(0, 1), torch=_torch(1, 2)) == "1 of 2 (auto: torch.distributed)"


def test_auto_uses_torch_if_its_process_group_is_initialized(found):
    assert found(torch=_torch(2, 3)) == "2 of 3 (auto: torch.distributed)"
    assert found(torch=_torch(2, 3, initialized=False)) == ONE


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("WORLD_SIZE", "4", "WORLD_SIZE=4"),
        ("JAX_NUM_PROCESSES", "2", "JAX_NUM_PROCESSES=2"),
        ("KERAS_DISTRIBUTION_NUM_PROCESSES", "2", "KERAS_DISTRIBUTION_NUM_PROCESSES=2"),
        (
            "TF_CONFIG",
            json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}),
            "TF_CONFIG: worker 2 of 3",
        ),
    ],
)
def test_auto_warns_if_only_the_environment_names_several_processes(found, monkeypatch, name, value, told):
    monkeypatch.setenv(name, value)
    with pytest.warns(kf.FeedWarning, match=re.escape(f"sets several ({told}): each of them would load every")):
        assert found() == ONE
    assert found(torch=_torch(1, 4)) == "1 of 4 (auto: torch.distributed)"  # torch.distributed knows the processes


@pytest.mark.parametrize("value", ["", "{", "[]", "{}", '{"cluster": 3, "task": {}}', '{"cluster": {}, "task": null}'])
def test_auto_ignores_invalid_environment_variables(found, monkeypatch, value):
    monkeypatch.setenv("TF_CONFIG", value)
    monkeypatch.setenv("WORLD_SIZE", value)
    assert found() == ONE


def test_auto_ignores_environment_variables_of_one_process(found, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    evaluator = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(evaluator))
    assert found() == ONE


def test_a_dataset_of_a_shard_is_refused_if_keras_would_shard_it_again(monkeypatch):
    distribution = SimpleNamespace(num_processes=2, auto_shard_dataset=True)
    monkeypatch.setattr("keras.distribution.distribution", lambda: distribution)
    with kf.Feed(scenes.Clouds(40), 4, shard=(1, 2), workers=0) as feed:
        with pytest.raises(ValueError, match=r"is one of 2 shards, and \w+ would shard its dataset once more: set"):
            feed.to_tf_dataset()
        distribution.auto_shard_dataset = False
        sharding.refuse_second_sharding(feed.shard.count)
    distribution.auto_shard_dataset = True
    sharding.refuse_second_sharding(1)
