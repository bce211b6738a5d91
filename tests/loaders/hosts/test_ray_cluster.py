"""Hosts of a real Ray cluster on this machine: a head without CPUs, and nodes that are killed, frozen and added.

With Ray's default health checks, a frozen node is detected after 67 s, here sooner.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from programs import launch
from scenes_hosts import LENGTH, Noisy, Variable
from waits import PROGRAM_SECONDS, SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:host :kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of processes that Ray starts
]
BATCH = 16


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of two CPUs."""
    shared = set(Path("/dev/shm").iterdir())
    made = new_cluster(2)
    ray.init(address=made.address, logging_level="error", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    wait_until(lambda: set(Path("/dev/shm").iterdir()) <= shared)


def new_cluster(nodes):
    """Head without CPUs, and several nodes."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_initial_delay_ms": 500, "health_check_timeout_ms": 4000}
    head = {"num_cpus": 0, "object_store_memory": 200_000_000, "_system_config": quick}
    head |= {"include_dashboard": False, "include_log_monitor": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        add(made)
    return made


def add(cluster):
    return cluster.add_node(num_cpus=2, object_store_memory=200_000_000)


@pytest.fixture
def nodes(cluster):
    """The cluster, with two nodes again."""
    known = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for node in [node for node in cluster.worker_nodes if node.node_id not in known]:  # Ray has given it up
        cluster.remove_node(node, allow_graceful=False)
    while len(cluster.worker_nodes) < 2:
        add(cluster)
    cluster.wait_for_nodes()
    nothing_is_left(cluster)  # Ray ends the processes of the previous test a moment later
    return cluster


def pids(node, name):
    """Processes of a node of the cluster whose command line holds `name`."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    found = []
    for process in raylet.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if name in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def every(cluster, name):
    return [pid for node in cluster.worker_nodes for pid in pids(node, name)]


def feed_of(scenes, **arguments):
    hosts = {"start_timeout": 120.0, **arguments.pop("hosts", {})}
    given = {"shuffle": True, "seed": 3, "workers": 2, **arguments}
    return BaseFeed(scenes, BATCH, hosts=kf.RayHosts(**hosts), **given)


def reference(scenes, epochs=1, **arguments):
    with BaseFeed(scenes, BATCH, shuffle=True, seed=3, workers=0, **arguments) as feed:
        return [batch for _ in range(epochs) for batch in feed]


def same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for array, expected in zip(batch, other, strict=True):
            assert array.dtype == expected.dtype
            assert np.array_equal(array, expected)


def nothing_is_left(cluster):
    wait_until(lambda: not every(cluster, "kerasfeed.pool.processes.worker"))
    wait_until(lambda: not every(cluster, "ray::FeedHost"))


def kill_worker(cluster):
    os.kill(every(cluster, "kerasfeed.pool.processes.worker")[0], signal.SIGKILL)


def kill_actor(cluster):
    os.kill(every(cluster, "ray::FeedHost")[0], signal.SIGKILL)


def kill_raylet(cluster):
    node = next(node for node in cluster.worker_nodes if pids(node, "ray::FeedHost"))
    node.kill_raylet()
    cluster.worker_nodes.remove(node)
    node.kill_all_processes(check_alive=False, allow_graceful=False)


def kill_node(cluster):
    node = next(node for node in cluster.worker_nodes if pids(node, "ray::FeedHost"))
    cluster.remove_node(node, allow_graceful=False)


# ---- the same batches


def test_two_hosts_give_the_batches_of_the_calling_thread_and_leave_nothing_behind(nodes):
    with feed_of(Noisy(0.001), hosts={"count": 2}) as feed:
        found = [*feed, *feed]
        stats = feed.stats()
    same(found, reference(Noisy(0), 2))
    assert all(array.flags.writeable for array in found[0])
    assert (stats.hosts.wanted, stats.hosts.alive, set(stats.hosts.batches)) == (2, 2, {0, 1})
    assert ray.is_initialized()
    nothing_is_left(nodes)
    assert not [group for group in ray.util.placement_group_table().values() if group["state"] == "CREATED"]


def freeze_node(cluster):
    """Returns a function that wakes it up again."""
    node = next(node for node in cluster.worker_nodes if pids(node, "ray::FeedHost"))
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    frozen = [raylet, *raylet.children(recursive=True)]
    for process in frozen:
        process.suspend()

    def wake():
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()

    return wake


@pytest.mark.parametrize("kill", [kill_worker, kill_actor, kill_raylet, kill_node, freeze_node])
def test_every_batch_arrives_once_and_within_a_minute_after_a_kill(nodes, kill):
    with feed_of(Noisy(), hosts={"count": 2}) as feed:
        wait_until(lambda: feed.stats().hosts.alive == 2)
        batches = iter(feed)
        found = [next(batches) for _ in range(5)]
        killed = time.monotonic()
        wake = kill(nodes)
        try:
            found += batches
            assert time.monotonic() - killed < SECONDS
            found += feed
        finally:
            if wake is not None:
                wake()
        assert bool(feed.stats().respawns) == (kill is not kill_worker)
    same(found, reference(Noisy(0), 2))


@pytest.mark.parametrize("kill", [kill_actor, kill_node])
def test_a_killed_host_is_started_again_if_a_node_is_free(nodes, kill):
    add(nodes)
    with feed_of(Noisy(), hosts={"count": 2}) as feed:
        wait_until(lambda: feed.stats().hosts.alive == 2)
        kill(nodes)
        found = list(feed)
        wait_until(lambda: feed.stats().respawns and feed.stats().hosts.alive == 2)
        found += feed
        assert set(feed.stats().hosts.batches) == {0, 1}
    same(found, reference(Noisy(0), 2))


def test_without_a_count_every_node_is_a_host(nodes):
    with feed_of(Noisy()) as feed:
        same(list(feed), reference(Noisy(0)))
        assert feed.stats().hosts.wanted == len(nodes.worker_nodes)


# ---- errors


class Fatal(Noisy):
    def __getitem__(self, index):
        if index == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_scene_that_kills_its_worker_is_named_or_skipped(nodes):
    with (
        feed_of(Fatal(0), hosts={"count": 1}, max_failures=1) as feed,
        pytest.raises(kf.errors.WorkerDiedError, match=r"(?s)SIGKILL.*scene 40"),
    ):
        list(feed)
    with feed_of(Fatal(0), hosts={"count": 1}, max_failures=1, on_error="skip") as feed:
        found = np.concatenate([batch[1] for batch in feed])
        assert feed.stats().failed == 1
    assert sorted(found.tolist()) == [index for index in range(LENGTH) if index != 40]


def test_the_error_for_too_few_nodes_says_what_was_requested_and_what_exists(nodes):
    with (
        feed_of(Noisy(), hosts={"count": 9, "start_timeout": 3.0}) as feed,
        pytest.raises(
            kf.KerasfeedError,
            match=r"no host for start_timeout=3 s: asked for 9 nodes with {'CPU': 1.0} each, and \d nodes have",
        ),
    ):
        next(iter(feed))


def test_resources_that_ray_refuses_raise_its_error(nodes):
    with pytest.raises(ValueError, match="resources"):
        feed_of(Noisy(), hosts={"count": 2, "resources": {"CPU": 0}})


def test_scenes_see_the_variables_of_the_runtime_environment(nodes):
    given = {"env_vars": {"KERASFEED_TEST_VALUE": "1000"}}
    with feed_of(Variable(0, 64), hosts={"count": 1, "runtime_env": given}) as feed:
        assert np.concatenate(list(feed)).min() == 1000


def test_a_module_outside_the_search_path_is_sent_to_hosts(nodes, tmp_path, monkeypatch):
    (tmp_path / "my_scenes.py").write_text(
        "import kerasfeed as kf\nclass Squares(kf.SceneSequence):\n    def __len__(self):\n        return 40\n"
        "    def __getitem__(self, index):\n        return index * index\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_scenes

    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    for hosts in ({"count": 1, "ship": my_scenes}, {"count": 1}):
        with feed_of(my_scenes.Squares(), hosts=hosts) as feed:
            assert sorted(np.concatenate(list(feed)).tolist()) == [index * index for index in range(40)]


# ---- the ends


DRIVER = """
import light_keras, itertools, os, sys, time
import numpy as np, ray
import kerasfeed as kf
from scenes_hosts import Noisy
feed = kf.Feed(Noisy(), 16, workers=1, hosts=kf.RayHosts(1, sys.argv[1]))
for number, batch in enumerate(batch for epoch in itertools.count() for batch in feed.epoch(epoch)):
    print(number, flush=True)
    time.sleep(1)
"""


def driver(cluster):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )


def wait_for_batch(process, number):
    while (line := process.stdout.readline()) != f"{number}\n".encode():
        assert line, "the driver has ended"


def test_a_killed_driver_leaves_nothing_on_the_cluster(nodes):
    with driver(nodes) as process:
        wait_for_batch(process, 0)
        assert every(nodes, "ray::FeedHost")
        process.kill()
    nothing_is_left(nodes)


OWN_SESSIONS = """
    import light_keras
    import os
    os.environ["TMPDIR"] = "/tmp"  # Ray puts its sockets there, and their paths must be short
    import time
    import kerasfeed as kf, numpy as np, ray

    class Mine(kf.SceneSequence):
        held = os.path.abspath("held")  # while this is there, batches are in flight, however slow the machine is
        def __len__(self):
            return 160
        def __getitem__(self, index):
            while 40 < index < 80 and os.path.exists(self.held):  # not the scenes of the spec
                time.sleep(0.01)
            time.sleep(0.01)
            return self.rng.normal(size=3) + index

    def feed_of(**arguments):
        return kf.Feed(Mine(), 8, seed=1, workers=1, hosts=kf.RayHosts(**arguments))

    def begin():
        ray.init(address="local", include_dashboard=False, logging_level="error")

    with feed_of(address=None) as feed, feed_of(address=None) as other:
        next(iter(other))
        other.close()
        print("as workers=0:", np.array_equal(list(feed), list(kf.Feed(Mine(), 8, seed=1, workers=0))))
    print("lasts until the program ends it:", ray.is_initialized())

    ray.shutdown()
    open(Mine.held, "w").close()
    feed = feed_of(address=None)
    batches = iter(feed)
    next(batches)
    ray.shutdown()  # while batches are in flight; otherwise the feed would use the next session
    os.remove(Mine.held)
    begin()  # the user's own
    try:
        list(batches)
    except kf.errors.HostLostError as error:
        print("ended under a feed:", error)
    print("on the next one:", len(list(feed)))
    feed.close()
    print("left as it is:", ray.is_initialized())

    with feed_of() as feed:
        try:
            for number, batch in enumerate(feed):
                if number == 3:
                    ray.shutdown()
                    ended = time.monotonic()
        except kf.errors.HostLostError as error:
            print("ended in the loop:", error, time.monotonic() - ended < 5)
"""


@pytest.fixture(scope="module")
def own_sessions(tmp_path_factory):
    """Output of a program that starts and ends sessions of Ray on its own machine, by label."""
    program = launch(tmp_path_factory.mktemp("own"), OWN_SESSIONS)
    stdout, stderr = program.communicate(timeout=PROGRAM_SECONDS)
    assert not program.returncode, (stdout, stderr)
    return dict(line.split(": ", 1) for line in stdout.splitlines() if ": " in line)


def test_a_session_that_a_feed_started_lasts_for_later_feeds(own_sessions):
    assert (own_sessions["as workers=0"], own_sessions["lasts until the program ends it"]) == ("True", "True")


def test_a_feed_whose_session_was_ended_raises_and_leaves_the_next_session_alone(own_sessions):
    assert "the hosts have ended, because ray.shutdown() was called" in own_sessions["ended under a feed"]
    assert (own_sessions["on the next one"], own_sessions["left as it is"]) == ("20", "True")


def test_a_loop_raises_if_its_session_is_ended(own_sessions):
    assert own_sessions["ended in the loop"].endswith("the hosts have ended, because ray.shutdown() was called True")
