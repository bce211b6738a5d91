"""Hosts that are unavailable or exclude other arguments: the error states the reason and the remedy."""

import os
import pickle
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import subprocess_hosts
from hosts_feeds import feed_of, reference, same
from scenes_hosts import Epochs, Noisy
from subprocess_hosts import SubprocessCluster, SubprocessHosts
from waits import SECONDS

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders.failures.failure_log import FailureLog, FailurePolicy
from kerasfeed.loaders.hosts import session
from kerasfeed.loaders.hosts.host import FeedHost
from kerasfeed.loaders.hosts.session import pack, unpack

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:host :kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:scenes draw random numbers:kerasfeed.FeedWarning"),
]


def fails(match, **arguments):
    feed, _ = feed_of(Noisy(0, 32), **arguments)
    with feed, pytest.raises(kf.errors.WorkerDiedError, match=match):
        list(feed)


def test_a_feed_without_a_host_raises_after_start_timeout(monkeypatch):
    slow = "import time; FeedHost.start = lambda *_: time.sleep(60)"
    monkeypatch.setenv("KERASFEED_TEST_HOST", slow)
    fails(
        r"the feed of Noisy has had no host for start_timeout=0.3 s: asked for 1 processes", count=1, start_timeout=0.3
    )


def test_a_host_with_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(subprocess_hosts, "__version__", "9")
    fails(r"host \d \(.*\) could not start: .*kerasfeed is .* there and 9 here: install the same on all")


def test_a_host_that_is_not_started_again_ends_the_feed():
    feed, cluster = feed_of(Noisy(5.0, 32), count=1)
    with feed:
        cluster.hosts[0].restarts = 0
        cluster.processes[0].kill()
        with pytest.raises(
            kf.errors.HostLostError, match=r"host 0 .*was lost \(RuntimeError: killed by SIGKILL.*not started"
        ):
            feed[0]


def test_the_error_for_a_module_that_a_host_lacks_names_it(tmp_path, monkeypatch):
    (tmp_path / "my_lost_module.py").write_text("def scene(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_lost_module

    command = subprocess_hosts._COMMAND.replace("{!r}", f"[entry for entry in {{!r}} if entry != {str(tmp_path)!r}]", 1)
    lacking = f"import pathlib; there = pathlib.Path.exists; LOST = {str(tmp_path)!r}; "
    lacking += "pathlib.Path.exists = lambda path: str(path) != LOST and there(path); "
    monkeypatch.setattr(subprocess_hosts, "_COMMAND", lacking + command)
    scenes = kf.Map(np.arange(32), my_lost_module.scene)
    feed, _ = feed_of(scenes)
    with feed, pytest.raises(kf.errors.WorkerDiedError, match=r"no module 'my_lost_module'.*ship=\(my_lost_module,\)"):
        list(feed)
    hosts = SubprocessHosts(1, ship=("my_lost_module",))
    with BaseFeed(scenes, 16, workers=1, hosts=hosts) as feed:
        assert np.concatenate(list(feed)).tolist() == list(range(32))
    import cloudpickle

    assert "my_lost_module" not in cloudpickle.list_registry_pickle_by_value()


def test_threads_that_pack_at_the_same_time_all_send_their_modules(tmp_path, monkeypatch):
    (tmp_path / "my_shipped_module.py").write_text("class Value:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_shipped_module

    class Waiting:
        """Pickled in the middle of packing; waits there, and then refers to the module."""

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
    second_inside.wait(0.2)  # if it gets there at all before the first has ended
    first_goes_on.set()
    for thread in (first, second):
        thread.join(SECONDS)
    monkeypatch.delitem(sys.modules, "my_shipped_module")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    assert [type(unpack(parcels[name])).__name__ for name in ("first", "second")] == ["Value", "Value"]


def answering(submit):
    """A host with a fake loader."""
    host = FeedHost(0, 1, kf.__version__, ())
    host._loader = SimpleNamespace(
        layout=None, failure_log=FailureLog(FailurePolicy(), 1), submit=submit, record_random=lambda used: None
    )
    return host


def test_only_one_of_two_answers_has_a_failure_of_the_first_scenes():
    meeting = threading.Barrier(2)

    def submit(epoch, step):
        meeting.wait(SECONDS)
        loaded = Future()
        loaded.set_result(7)
        return loaded

    host = answering(submit)
    host._record(5, None, None, ValueError("of a scene that was read to infer the spec"))
    with ThreadPoolExecutor(2) as executor:
        answers = list(executor.map(lambda step: host.load(0, (), None, 0, 0, step, 1), range(2)))
    assert sorted(len(answer.failures) for answer in answers) == [0, 1]


def test_an_answer_has_only_the_failures_of_its_own_batch():
    loaded = Future()
    loaded.set_result(7)
    host = answering(lambda epoch, step: loaded)
    for step in (0, 1):
        host._record(step, 0, step, ValueError("no scene"))
    answers = [host.load(0, (), None, 0, 0, step, 1) for step in (1, 0, 1)]
    assert [[index for index, *_ in answer.failures] for answer in answers] == [[1], [0], []]


def test_a_restarted_host_raises_until_it_is_started():
    with pytest.raises(RuntimeError, match="restarted"):
        FeedHost(0, 1, kf.__version__, ()).load(0, (), None, 0, 0, 0, 1)


def test_too_little_memory_for_an_answer_fails_only_its_batch(monkeypatch):
    feed, _ = feed_of(Noisy(0, 32), count=1)
    with feed:
        expected = feed[0]

        def refusing(array):
            monkeypatch.undo()
            raise MemoryError

        monkeypatch.setattr(session, "aligned_copy", refusing)
        with pytest.raises(MemoryError):
            feed[0]
        same([feed[0]], [expected])
        assert not feed.stats().respawns


def test_hosts_end_if_their_cluster_is_lost_while_they_start(monkeypatch):
    def refused(self, packed):
        raise kf.errors.HostLostError("the cluster has gone")

    monkeypatch.setattr(SubprocessCluster, "share", refused)
    hosts = SubprocessHosts()
    with (
        BaseFeed(Noisy(0, 32), 16, workers=1, hosts=hosts) as feed,
        pytest.raises(kf.errors.HostLostError, match="has gone"),
    ):
        feed[0]
    assert all(process.poll() is not None for cluster in hosts.clusters for process in cluster.processes)


@pytest.mark.heavy
def test_a_sequence_with_hooks_continues_after_its_cluster_is_lost_between_epochs():
    def gone(packed):
        raise kf.errors.HostLostError("the cluster has gone")

    feed, cluster = feed_of(Epochs(0, 32), count=1)
    with feed:
        found = list(feed)
        cluster.share = gone
        found += feed
        found += feed
    same(found, reference(Epochs(0, 32), 3))


def test_the_consumer_gets_an_error_if_the_cluster_is_lost():
    feed, cluster = feed_of(Noisy(5.0, 32))
    with feed:
        error = kf.errors.HostLostError("there are no hosts any more: it was shut down")
        threading.Timer(0.5, setattr, (cluster, "over", error)).start()
        started = time.monotonic()
        with pytest.raises(kf.errors.HostLostError, match="no hosts any more: it was shut down"):
            feed[0]
        assert time.monotonic() - started < SECONDS
        for process in cluster.processes:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"workers": 0}, ValueError, "workers=0 loads in the calling thread, but each host loads in its own worker"),
        ({"worker_type": "thread"}, ValueError, "threads live in this process, but each host loads"),
        ({"hosts": 4}, TypeError, r"hosts must be kf.RayHosts\(...\), received 4 of type int"),
        ({"hosts": kf.RayHosts}, TypeError, r"hosts needs an instance.*kf.RayHosts\(\)"),
    ],
)
def test_hosts_are_refused_with_arguments_that_exclude_them(arguments, kind, match):
    with pytest.raises(kind, match=match):
        BaseFeed(np.arange(4), 2, **{"hosts": SubprocessHosts(), **arguments})


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"address": "ray://head:10001"}, ValueError, "is an address of a Ray client, which shares no memory"),
        ({"address": 7}, TypeError, "address must be a str or None"),
        ({"address": None, "count": 2}, ValueError, "starts Ray on this machine, which is one host"),
        ({"count": 0}, ValueError, "count must be at least 1"),
        ({"silence": 30.0}, TypeError, "unexpected keyword argument 'silence'"),
        ({"start_timeout": 0}, ValueError, "start_timeout must be a positive number of seconds"),
        ({"start_timeout": "8"}, TypeError, "start_timeout must be a positive number of seconds, received '8'"),
        ({"start_timeout": True}, TypeError, "start_timeout must be a positive number of seconds, received True"),
        ({"resources": 4}, TypeError, "resources must be a dict"),
        ({"resources": {"CPU": "8"}}, TypeError, r"resources\['CPU'\] must be a number of at least 0, received '8'"),
        ({"ship": [4]}, TypeError, "ship takes modules and their names, received 4"),
        ({"ship": 4}, TypeError, "ship takes modules and their names, received 4"),
    ],
)
def test_ray_hosts_refuses_invalid_arguments(arguments, kind, match):
    with pytest.raises(kind, match=match):
        kf.RayHosts(**arguments)


def test_ray_hosts_pickle_with_modules_to_ship():
    hosts = kf.RayHosts(3, ship=(os, "random"))
    assert pickle.loads(pickle.dumps(hosts)) == hosts
    assert hosts.ship == ("os", "random")


def test_the_error_without_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install ray \(the extra .kerasfeed\[ray\]"):
        BaseFeed(Noisy(0, 32), 16, hosts=kf.RayHosts())
