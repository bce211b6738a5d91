"""Feeds on hosts, here processes of this machine: the same batches through kills and freezes."""

import copy
import os
import pickle
import random
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hosts_feeds import feed_of, reference, same
from scenes_hosts import Epochs, Failing, Global, Hanging, Held, KeepsDraws, Killing, Mixed, Noisy
from subprocess_hosts import SubprocessHosts
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.readers import opened_files

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:worker process:kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:host :kerasfeed.FeedWarning"),
    pytest.mark.filterwarnings("ignore:scenes draw random numbers:kerasfeed.FeedWarning"),
]
STORMS = int(4 * float(os.environ.get("KERASFEED_TEST_EXAMPLES", "1")))


# ---- the same batches


def summed(scenes):
    return np.stack([scene[0].sum(0) for scene in scenes]) + kf.current_rng().random()


CASES = {  # two hosts, except in tests with a `count`, which do not depend on the host of a batch
    "pad": (Mixed(0, 150), {"collate": "pad"}),
    "mask of padding": (Mixed(0, 150), {"collate": kf.Pad(mask=True), "count": 1}),
    "ragged": (Mixed(0, 150), {"collate": "ragged", "count": 1}),
    "ragged, in parts": (Mixed(0.003, 70), {"collate": "ragged", "workers": 2, "count": 1}),
    "pad, in parts": (Mixed(0.003, 70), {"collate": "pad", "workers": 2, "count": 1}),
    "a function": (Noisy(0, 150), {"collate": summed, "count": 1}),
    "padding": (Noisy(0, 150), {"pad_remainder": True, "on_error": "mask", "count": 1}),
    "skip": (Failing(0, 150), {"on_error": "skip"}),
    "replace": (Failing(0, 150), {"on_error": "replace"}),
    "mask": (Failing(0, 150), {"on_error": "mask"}),
    "a shard": (Noisy(0, 150), {"shard_index": 1, "shard_count": 2, "count": 1}),
    "blocks": (Noisy(0, 150), {"order": kf.BlockShuffled(8), "shuffle": False, "count": 1}),
    "hooks": (Epochs(0, 150), {}),
}


@pytest.mark.light(where=lambda case: case == "pad")
@pytest.mark.parametrize("case", CASES)
def test_hosts_give_the_same_batches_as_the_calling_thread(case):
    scenes, arguments = copy.deepcopy(CASES[case])
    feed, _ = feed_of(scenes, count=arguments.pop("count", 2), **arguments)
    with feed:
        found = [batch for _ in range(2) for batch in feed]
        batches = feed.stats().hosts.batches
        assert set(batches) <= {0, 1}
        assert sum(batches.values()) == len(found)
    same(found, reference(CASES[case][0], 2, **{**arguments, "workers": 0}))


@pytest.mark.heavy
def test_scenes_draw_the_same_global_random_numbers_on_hosts_as_in_worker_processes():
    feed, _ = feed_of(Global(0, 150))
    with feed:
        found = list(feed)
        assert feed.stats().seeds_random
    same(found, reference(Global(0, 150), workers=1, worker_type="process"))


@pytest.mark.heavy
def test_a_feed_on_hosts_resumes_from_the_state_of_a_local_feed():
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
def test_all_hosts_and_a_restarted_one_see_the_changes_of_a_hook():
    feed, cluster = feed_of(Epochs(0.001, 150))
    with feed:
        found = list(feed)
        for number in range(2):
            cluster.processes[number].kill()
            wait_until(lambda: feed.stats().respawns == number + 1 and feed.stats().hosts.alive == 2)  # noqa: B023
            found += feed
    same(found, reference(Epochs(0, 150), 3))


@pytest.mark.heavy
def test_labels_of_reads_on_hosts():
    labels = kf.labels_of(Noisy(0, 100), 1, workers=1, progress=False, hosts=SubprocessHosts())
    assert labels.tolist() == list(range(100))


@pytest.mark.heavy
def test_fit_and_a_tf_dataset_use_the_batches_of_hosts():
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
        assert copy.stats().hosts.wanted == 2


class Rooms(kf.SceneSequence):
    """Scenes of a file that `len` opens."""

    def __init__(self, path):
        self.file = kf.HDF5File(path)

    def __len__(self):
        return len(self.file["points"])

    def __getitem__(self, index):
        return self.file["points"][index]


@pytest.mark.heavy
def test_hosts_accept_files_with_other_inodes_and_times(monkeypatch, tmp_path):
    import h5py

    with h5py.File(tmp_path / "rooms.h5", "w") as file:
        file["points"] = np.arange(32)

    def of_this_machine(status):
        return opened_files.Identity(status.st_dev + 1, status.st_ino + 1, status.st_size, status.st_mtime_ns + 1)

    monkeypatch.setattr(opened_files.Identity, "of", of_this_machine)
    monkeypatch.setattr(opened_files, "_machine", lambda: 1)
    feed, _ = feed_of(Rooms(tmp_path / "rooms.h5"), count=1, shuffle=False)
    with feed:
        assert np.concatenate(list(feed)).tolist() == list(range(32))


# ---- hosts that are lost


def storm(cluster, seed, over):
    """Kill and freeze hosts, as `seed` draws, until `over`."""
    rng = random.Random(seed)
    frozen, kills = set(), 0
    while not over.wait(rng.uniform(0.05, 0.6)):
        process = rng.choice(cluster.processes)
        act = rng.choice(["kill", "freeze"])
        if act == "kill" and kills < 8:  # otherwise, on a busy machine, hosts are killed before they have started
            kills += 1
            process.kill()
        elif act == "freeze":
            process.send_signal(signal.SIGSTOP)
            frozen.add(process)
        for process in [each for each in frozen if rng.random() < 0.6]:
            process.send_signal(signal.SIGCONT)
            frozen.remove(process)
    for process in frozen:
        process.send_signal(signal.SIGCONT)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(1, 1 + STORMS))
def test_every_batch_arrives_once_through_random_kills_and_freezes(seed):
    scenes = Noisy(0.002 if seed == 1 else 0.006, 480)
    feed, cluster = feed_of(scenes, count=3, max_failures=50)
    over = threading.Event()
    with feed:
        batches = iter(feed)
        found = [next(batches)]
        thread = threading.Thread(target=storm, args=(cluster, seed, over))
        thread.start()
        try:
            found += batches
            found += feed
        finally:
            over.set()
            thread.join()
    same(found, reference(Noisy(0, 480), 2))


def test_the_error_for_a_scene_that_kills_its_worker_names_signal_worker_and_host():
    feed, _ = feed_of(Killing("worker"), max_failures=1)
    with feed, pytest.raises(kf.errors.WorkerDiedError) as caught:
        list(feed)
    for part in ("scene 40", "SIGKILL", "worker process 0", "on host "):
        assert part in str(caught.value)


@pytest.mark.heavy
def test_a_scene_above_the_timeout_fails_only_its_own_batch():
    feed, _cluster = feed_of(Hanging(0, 96), shuffle=False, timeout=1.0)
    with feed:
        futures = [feed.submit(0, step) for step in range(6)]
        with pytest.raises(kf.errors.SceneTimeoutError, match=r"scene 40 .*epoch 0, step 2"):
            futures.pop(2).result(SECONDS)
        same(
            [future.result(SECONDS) for future in futures],
            [batch for step, batch in enumerate(reference(Noisy(0, 96), shuffle=False)) if step != 2],
        )
        assert not feed.stats().respawns


STALLS_SOON = "from kerasfeed.pool import watchdog; watchdog.STALL_SECONDS = 8.0"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("place", "text"), [("scene", r"no progress for \d+ s: .* scene 40"), ("begin", "has been loading the sequence")]
)
def test_a_host_prints_a_warning_about_a_scene_or_a_worker_that_hangs(monkeypatch, capfd, tmp_path, place, text):
    monkeypatch.setenv("KERASFEED_TEST_HOST", STALLS_SOON)
    file, printed = tmp_path / "go on", []

    def is_reported():
        printed.append(capfd.readouterr().err)
        return re.search(f"(?s)FeedWarning: .*{text}.*in wait", "".join(printed))

    feed, _ = feed_of(Held(place, file), count=1, shuffle=False)
    with feed, ThreadPoolExecutor(1) as executor:
        found = executor.submit(list, feed)
        try:
            wait_until(is_reported)
        finally:
            file.touch()
        same(found.result(SECONDS), reference(Noisy(0, 48), shuffle=False))


@pytest.mark.heavy
def test_a_batch_that_kills_hosts_fails_and_the_next_one_does_not():
    feed, _ = feed_of(Killing("host"), count=1, max_failures=2, shuffle=False)
    with feed:
        with pytest.raises(kf.errors.HostLostError, match=r"epoch 0, step 2 lost its host 2 times.*SIGKILL"):
            feed.submit(0, 2).result(SECONDS)
        assert feed.submit(0, 4).result(SECONDS).tolist() == list(range(64, 80))
        assert feed.stats().respawns == 2


@pytest.mark.heavy
def test_profile_measures_this_machine_even_with_hosts(few_processes):
    feed, _ = feed_of(Noisy(0.003, 150), count=1)
    with feed:
        found = kf.profile(feed, seconds=1)
    assert found.present.setup.worker_type == "process"
    assert found.present.least > 0


def test_scenes_that_keep_a_global_random_number_are_equal_on_all_hosts():
    with BaseFeed(KeepsDraws(), 4, workers=1, worker_type="process", seed=5) as feed:
        expected = list(feed)
    with BaseFeed(KeepsDraws(), 4, workers=1, seed=5, hosts=SubprocessHosts(2)) as feed:
        same(list(feed), expected)
