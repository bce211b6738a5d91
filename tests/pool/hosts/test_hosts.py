"""Feeds on hosts, here processes of this machine: the same batches through kills, freezes, late answers and joins."""

import copy
import os
import pickle
import random
import signal
import sys
import threading
import time

import numpy as np
import optree
import pytest
from scenes_hosts import Epochs, Failing, Global, Hanging, Killing, Mixed, Noisy
from subprocess_hosts import SubprocessEngine, SubprocessHosts
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.pool.hosts import fleet
from kerasfeed.pool.hosts.engine import News, pack

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:host :kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:scenes draw random numbers:kerasfeed.FeedWarning"),
]


def feed_of(scenes, *, count=2, silence=30.0, start_timeout=60.0, **arguments):
    hosts = SubprocessHosts(count, silence, start_timeout)
    feed = BaseFeed(scenes, 16, hosts=hosts, **{"shuffle": True, "seed": 3, "workers": 1, **arguments})
    return feed, hosts.engines[0]


def reference(scenes, epochs=1, **arguments):
    with BaseFeed(scenes, 16, **{"shuffle": True, "seed": 3, "workers": 0, **arguments}) as feed:
        return [batch for _ in range(epochs) for batch in feed]


def same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for array, expected in zip(optree.tree_leaves(batch), optree.tree_leaves(other), strict=True):
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert array.tolist() == expected.tolist()
            assert array.flags.writeable


# ---- the same batches


def summed(scenes):
    return np.stack([scene[0].sum(0) for scene in scenes])


CASES = {
    "pad": (Mixed(0, 150), {"collate": "pad"}),
    "mask of padding": (Mixed(0, 150), {"collate": kf.Pad(mask=True)}),
    "ragged": (Mixed(0, 150), {"collate": "ragged"}),
    "ragged, in parts": (Mixed(0.003, 70), {"collate": "ragged", "workers": 2}),
    "pad, in parts": (Mixed(0.003, 70), {"collate": "pad", "workers": 2}),
    "a function": (Noisy(0, 150), {"collate": summed}),
    "filler": (Noisy(0, 150), {"pad_remainder": True, "on_error": "mask"}),
    "skip": (Failing(0, 150), {"on_error": "skip"}),
    "replace": (Failing(0, 150), {"on_error": "replace"}),
    "mask": (Failing(0, 150), {"on_error": "mask"}),
    "a shard": (Noisy(0, 150), {"shard_index": 1, "shard_count": 2}),
    "blocks": (Noisy(0, 150), {"order": kf.BlockShuffled(8), "shuffle": False}),
    "hooks": (Epochs(0, 150), {}),
}


@pytest.mark.light(where=lambda case: case in ("pad", "hooks"))
@pytest.mark.parametrize("case", CASES)
def test_batches_on_hosts_are_those_of_the_calling_thread(case):
    scenes, arguments = copy.deepcopy(CASES[case])
    feed, _ = feed_of(scenes, **arguments)
    with feed:
        found = [batch for _ in range(2) for batch in feed]
        assert set(feed.stats().hosts.batches) <= {0, 1}
    same(found, reference(CASES[case][0], 2, **{**arguments, "workers": 0}))


@pytest.mark.heavy
def test_what_scenes_draw_from_global_generators_is_that_of_worker_processes():
    feed, _ = feed_of(Global(0, 150))
    with feed:
        found = list(feed)
        assert feed.stats().seeds_random
    same(found, reference(Global(0, 150), workers=1, worker_type="process"))


@pytest.mark.heavy
def test_a_feed_goes_on_where_another_one_stopped():
    with BaseFeed(Noisy(0, 160), 16, seed=1, shuffle=True, workers=0) as feed:
        batches = iter(feed)
        expected = [next(batches) for _ in range(4)]
        state = feed.get_state()
        expected += batches
    feed, _ = feed_of(Noisy(0, 160), seed=1)
    with feed:
        feed.set_state(state)
        same(list(feed), expected[4:])


@pytest.mark.heavy
def test_labels_may_be_read_on_hosts():
    labels = kf.labels_of(Noisy(0, 100), 1, workers=1, progress=False, hosts=SubprocessHosts())
    assert labels.tolist() == list(range(100))


@pytest.mark.heavy
def test_a_dataset_and_fit_take_the_batches_of_hosts():
    import keras

    feed = kf.Feed(Failing(0, 96), 16, seed=3, shuffle=True, workers=1, hosts=SubprocessHosts(), on_error="replace")
    with feed:
        found = [tuple(array.numpy() for array in batch) for batch in feed.to_tf_dataset()]
        expected = reference(Failing(0, 96), on_error="replace")
        for batch, other in zip(found, expected, strict=True):
            assert all(np.array_equal(array, each) for array, each in zip(batch, other, strict=True))
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(feed, epochs=2, verbose=0)
        assert feed.stats().batches >= 18
        assert "1 process worker on each of 2 hosts" in repr(feed)
        copy = pickle.loads(pickle.dumps(feed))
    with copy:
        assert copy.stats().hosts.wanted in (0, 2)


# ---- hosts that are lost


def storm(engine, seed, over):
    """Kill, freeze and add hosts, as `seed` draws, until `over`."""
    rng = random.Random(seed)
    frozen, places = set(), 3
    while not over.wait(rng.uniform(0.05, 0.6)):
        alive = [process for process in engine.processes.values() if process.poll() is None]
        act = rng.choice(["kill", "freeze", "freeze", "join"])
        if act == "kill" and alive:
            rng.choice(alive).kill()
        elif act == "freeze" and alive:
            process = rng.choice(alive)
            process.send_signal(signal.SIGSTOP)
            frozen.add(process)
        elif act == "join" and places < 5:
            places += 1
            engine.join(places)
        for process in [each for each in frozen if rng.random() < 0.4]:
            process.send_signal(signal.SIGCONT)  # its answers are late
            frozen.remove(process)
    for process in frozen:
        process.send_signal(signal.SIGCONT)


@pytest.mark.light(where=lambda seed: seed == 1)
@pytest.mark.parametrize("seed", range(1, 9))
def test_every_batch_comes_once_through_drawn_kills_freezes_late_answers_and_joins(seed):
    scenes = Noisy(0.002 if seed == 1 else 0.006, 480)
    feed, engine = feed_of(scenes, count=3, silence=0.3, max_failures=50)
    over = threading.Event()
    with feed:
        batches = iter(feed)
        found = [next(batches)]
        thread = threading.Thread(target=storm, args=(engine, seed, over))
        thread.start()
        try:
            found += batches
            found += feed
        finally:
            over.set()
            thread.join()
    same(found, reference(Noisy(0, 480), 2))


def test_a_host_that_is_frozen_is_not_waited_for_and_its_late_answers_are_dropped():
    feed, engine = feed_of(Noisy(0.002, 320), silence=0.3)
    with feed:
        wait_until(lambda: feed.stats().hosts.alive == 2)
        batches = iter(feed)
        found = [next(batches)]
        process = next(iter(engine.processes.values()))
        process.send_signal(signal.SIGSTOP)
        found += batches
        stats = feed.stats().hosts
        assert (stats.hedged > 0, stats.lost, stats.late) == (True, 0, 0)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: feed.stats().hosts.late)
        found += feed
    same(found, reference(Noisy(0, 320), 2))


def test_a_scene_that_kills_its_worker_is_named_with_signal_worker_and_host():
    feed, _ = feed_of(Killing("worker"))
    with feed, pytest.raises(kf.WorkerDiedError) as caught:
        list(feed)
    for part in ("scene 40", "SIGKILL", "worker process 0", "on host "):
        assert part in str(caught.value)


@pytest.mark.heavy
def test_a_scene_that_takes_longer_than_the_timeout_is_named_and_the_other_batches_come():
    feed, _engine = feed_of(Hanging(0, 96), shuffle=False, timeout=1.0)
    with feed:
        futures = [feed.submit(0, step) for step in range(6)]
        with pytest.raises(kf.SceneTimeoutError, match=r"scene 40 .*epoch 0, step 2"):
            futures.pop(2).result(SECONDS)
        same(
            [future.result(SECONDS) for future in futures],
            [batch for step, batch in enumerate(reference(Noisy(0, 96), shuffle=False)) if step != 2],
        )
        assert feed.stats().hosts.lost == 0


def test_a_batch_that_loses_its_host_again_and_again_is_an_error_and_the_others_are_not():
    feed, engine = feed_of(Killing("host"), count=1, max_failures=2, shuffle=False)
    with feed:
        futures = [feed.submit(0, step) for step in (0, 2)]
        assert futures[0].result(SECONDS).tolist() == list(range(16))
        match = r"several scenes .*lost the host that was to load them 2 times.*SIGKILL"
        with pytest.raises(kf.HostLostError, match=match):
            futures[1].result(SECONDS)
        assert feed.submit(0, 4).result(SECONDS).tolist() == list(range(64, 80))
        assert feed.stats().hosts.lost == 2 == len(engine.processes) - 1


# ---- errors


def fails(match, **arguments):
    feed, engine = feed_of(Noisy(0, 32), **arguments)
    with feed, pytest.raises(kf.WorkerDiedError, match=match):
        list(feed)
    return engine


def test_a_feed_that_has_no_host_in_time_says_so():
    fails(r"the feed of Noisy has had no host for start_timeout=0.3 s: 0 were started", count=0, start_timeout=0.3)


def test_a_host_with_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(fleet, "versions", lambda: "kerasfeed 9 on Python 3.0")
    fails(r"host \d \(.*\) has kerasfeed .*, and this process kerasfeed 9 on Python 3.0")


def test_a_host_that_is_refused_is_no_error_where_another_one_works(monkeypatch):
    feed, engine = feed_of(Noisy(0, 160), count=1)
    with feed:
        batches = iter(feed)
        found = [next(batches)]
        monkeypatch.setattr(fleet, "versions", lambda: "kerasfeed 9 on Python 3.0")
        engine.join(2)
        wait_until(lambda: feed.stats().hosts.lost)
        found += batches
        assert set(feed.stats().hosts.batches) == {0}
    same(found, reference(Noisy(0, 160)))


def test_a_feed_all_of_whose_hosts_are_gone_says_so():
    hosts = SubprocessHosts(1)
    with BaseFeed(Noisy(0, 160), 16, workers=1, hosts=hosts) as feed:
        batches = iter(feed)
        next(batches)
        object.__setattr__(hosts, "start_timeout", 0.3)
        hosts.engines[0].join(0)
        for process in hosts.engines[0].processes.values():
            process.kill()
        with pytest.raises(kf.HostLostError, match=r"has had no host for start_timeout=0.3 s: 1 were started"):
            list(batches) + list(feed)


def test_a_module_that_a_host_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_lost_module.py").write_text("def scene(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_lost_module

    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    scenes = kf.Map(np.arange(32), my_lost_module.scene)
    feed, _ = feed_of(scenes)
    with feed, pytest.raises(kf.WorkerDiedError, match=r"no module 'my_lost_module'.*ship=\(my_lost_module,\)"):
        list(feed)
    hosts = SubprocessHosts(1, ship=("my_lost_module",))
    with BaseFeed(scenes, 16, workers=1, hosts=hosts) as feed:
        assert np.concatenate(list(feed)).tolist() == list(range(32))
    import cloudpickle

    assert "my_lost_module" not in cloudpickle.list_registry_pickle_by_value()


def test_threads_that_pack_at_once_all_send_the_modules_that_they_ship(tmp_path, monkeypatch):
    (tmp_path / "my_shipped_module.py").write_text("class Value:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_shipped_module

    class Waiting:
        """Pickled in the middle of packing; waits there, and refers to the module then."""

        def __init__(self, inside, go_on):
            self.inside, self.go_on = inside, go_on

        def __reduce__(self):
            self.inside.set()
            self.go_on.wait(SECONDS)
            return my_shipped_module.Value, ()

    first_inside, first_goes_on, first_is_over, second_inside = (threading.Event() for _ in range(4))
    parcels = {}

    def packing(name, value, over):
        parcels[name] = pack(value, ["my_shipped_module"])
        over.set()

    values = {"first": Waiting(first_inside, first_goes_on), "second": Waiting(second_inside, first_is_over)}
    first = threading.Thread(target=packing, args=("first", values["first"], first_is_over))
    second = threading.Thread(target=packing, args=("second", values["second"], threading.Event()))
    first.start()
    assert first_inside.wait(SECONDS)
    second.start()
    second_inside.wait(0.2)  # where it gets there at all before the first is over
    first_goes_on.set()
    for thread in (first, second):
        thread.join(SECONDS)
    monkeypatch.delitem(sys.modules, "my_shipped_module")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    assert [type(parcels[name].unpack()).__name__ for name in ("first", "second")] == ["Value", "Value"]


def test_a_pool_that_cannot_be_made_closes_its_engine(monkeypatch):
    def refused(self, parcel):
        raise kf.HostLostError("the cluster has gone")

    monkeypatch.setattr(SubprocessEngine, "share", refused)
    closed = []
    monkeypatch.setattr(SubprocessEngine, "close", lambda self: closed.append(self))
    hosts = SubprocessHosts()
    with pytest.raises(kf.HostLostError, match="has gone"):
        BaseFeed(Noisy(0, 32), 16, workers=1, hosts=hosts)
    assert closed == hosts.engines


def test_a_cluster_that_is_gone_is_an_error_for_whoever_waits():
    feed, engine = feed_of(Noisy(5.0, 32))
    with feed:
        threading.Timer(0.5, engine.tell, (News.FAILED, "it was shut down")).start()
        started = time.monotonic()
        with pytest.raises(kf.HostLostError, match="no hosts any more: it was shut down"):
            feed[0]
        assert time.monotonic() - started < SECONDS
        for process in engine.processes.values():
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"workers": 0}, ValueError, "workers=0 loads in the calling thread, and hosts load in worker processes"),
        ({"worker_type": "thread"}, ValueError, "threads live in this process, and hosts load"),
        ({"hosts": 4}, TypeError, r"hosts must be kf.RayHosts\(...\), received 4 of type int"),
        ({"hosts": kf.RayHosts}, TypeError, r"hosts needs an instance.*kf.RayHosts\(\)"),
    ],
)
def test_hosts_that_do_not_go_with_the_rest_are_refused(arguments, kind, match):
    with pytest.raises(kind, match=match):
        BaseFeed(np.arange(4), 2, **{"hosts": SubprocessHosts(), **arguments})


def test_a_stream_says_that_it_has_no_hosts():
    with pytest.raises(TypeError, match=r"StreamFeed\(\) has no argument 'hosts'. Use kf.Feed"):
        kf.StreamFeed(lambda: iter([1]), 1, hosts=kf.RayHosts())


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"address": "ray://head:10001"}, ValueError, "is that of a Ray client, which shares no memory"),
        ({"address": 7}, TypeError, "address must be a str or None"),
        ({"address": None, "count": 2}, ValueError, "starts Ray on this machine, which is one host"),
        ({"count": 0}, ValueError, "count must be at least 1"),
        ({"silence": 0}, ValueError, "silence must be a positive number of seconds"),
        ({"resources": 4}, TypeError, "resources must be a dict"),
        ({"ship": [4]}, TypeError, "ship takes modules and their names, received 4"),
    ],
)
def test_ray_hosts_that_make_no_sense_are_refused(arguments, kind, match):
    with pytest.raises(kind, match=match):
        kf.RayHosts(**arguments)


def test_ray_hosts_pickle_with_modules_to_ship():
    hosts = kf.RayHosts(3, ship=(os, "random"))
    assert pickle.loads(pickle.dumps(hosts)) == hosts
    assert hosts.ship == ("os", "random")


def test_where_ray_is_missing_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "kerasfeed\[ray\]"'):
        BaseFeed(Noisy(0, 32), 16, hosts=kf.RayHosts())
