"""The conformance suite of loaders: each implementation, for each kind of sequence, equals the reference."""

import gc
import threading

import numpy as np
import optree
import pytest
import scenes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loader_kinds import HOSTS, LOADERS, PARALLEL
from waits import SECONDS, wait_until

from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan


def _epoch(loader, epoch, steps):
    futures = [loader.submit(epoch, step) for step in range(steps)]
    return [future.result(timeout=60) for future in futures]


def _assert_same(one, other):
    leaves, treespec = optree.tree_flatten(one)
    others, other_treespec = optree.tree_flatten(other)
    assert treespec == other_treespec
    for a, b in zip(leaves, others, strict=True):
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()
        else:
            assert a == b


SEQUENCES = {
    "clouds": (scenes.Clouds(), 8),
    "one scene": (scenes.Clouds(1), 8),
    "nested": (scenes.Nested(), 5),
    "augmented": (scenes.Augmented(), 8),
    "sized": (scenes.Sized(), 1),
    "vectorised": (scenes.Batched(), 8),
    "batches": (scenes.Reshuffled(), None),
    "sized batches": (scenes.Sized(), None),
    "list": ([(np.float32(k), k) for k in range(11)], 4),
    "array": (np.arange(60).reshape(20, 3), 6),
    "strings": (["a", "bc", "", "d" * 500] * 3, 5),
    "slow": (scenes.Slow(11, 0.004), 5),
}
LIGHT = ["one scene", "nested", "augmented", "vectorised", "sized batches"]
# A host loads them in its own worker processes, so it only tests the transfer of batches.
CASES = [(kind, name) for name in SEQUENCES for kind in PARALLEL]
CASES += [pytest.param("hosts", name, marks=pytest.mark.heavy) for name in ["augmented", "nested", "sized batches"]]


@pytest.mark.light(where=lambda kind, name: kind == "thread" or name in LIGHT)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_loader_equals_the_reference_bit_for_bit(make, kind, name):
    sequence, batch_size = SEQUENCES[name]
    reference, loader = make("inline", sequence, batch_size), make(kind, sequence, batch_size)
    steps = Plan(len(sequence), batch_size).steps
    for epoch in (0, 1, 7):
        for one, other in zip(_epoch(reference, epoch, steps), _epoch(loader, epoch, steps), strict=True):
            _assert_same(one, other)


def test_the_reference_equals_stacking_the_scenes(make):
    sequence = scenes.Clouds()
    loader = make("inline", sequence)
    for step in range(5):
        indices = Plan(37, 8, Shuffled(), 3).indices(0, step)
        points, labels = loader.submit(0, step).result()
        assert np.array_equal(points, np.stack([sequence[index][0] for index in indices]))
        assert labels.tolist() == indices.tolist()
        assert labels.dtype == np.int64


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_text_is_delivered_as_str_and_bytes_unchanged(make, kind):
    batch = make(kind, scenes.Nested(), 5).submit(0, 0).result()
    indices = Plan(23, 5, Shuffled(), 3).indices(0, 0)
    assert batch["name"].tolist() == [f"scene é {index}" for index in indices]
    assert batch["raw"].tolist() == [bytes([0, index, 0]) for index in indices]
    assert batch["words"].shape == (5, 2)
    assert batch["x"][1].dtype.isnative
    assert isinstance(batch["list"], list)


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_get_batch_is_used_and_equals_the_scenes(make, kind):
    plain, vectorised = make(kind, scenes.Clouds()), make(kind, scenes.Batched())
    for step in range(5):
        _assert_same(plain.submit(0, step).result(), vectorised.submit(0, step).result())


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_random_numbers_depend_only_on_seed_epoch_and_index(make, kind):
    shuffled, other_cut = make(kind, scenes.Augmented()), make(kind, scenes.Augmented(), 5, workers=2)
    found = {}
    for loader, rows in ((shuffled, 8), (other_cut, 5)):
        plan = Plan(37, rows, Shuffled(), 3)
        for step in range(plan.steps):
            for index, point in zip(plan.indices(1, step), loader.submit(1, step).result()[0], strict=True):
                assert np.array_equal(found.setdefault(int(index), point.copy()), point)
    changed = make(kind, scenes.Augmented(), seed=4)
    other_epoch = {
        int(i): p
        for i, p in zip(Plan(37, 8, Shuffled(), 3).indices(2, 0), shuffled.submit(2, 0).result()[0], strict=True)
    }
    other_seed = {
        int(i): p
        for i, p in zip(Plan(37, 8, Shuffled(), 4).indices(1, 0), changed.submit(1, 0).result()[0], strict=True)
    }
    assert all(not np.array_equal(found[i], p) for i, p in [*other_epoch.items(), *other_seed.items()])


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    length=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    workers=st.integers(1, 5),
    shards=st.integers(1, 3),
    seconds=st.sampled_from([0.0, 0.001, 0.003]),
)
def test_threads_equal_the_reference_for_any_sizes(make, length, batch_size, workers, shards, seconds):
    sequence = scenes.Slow(length, seconds)
    plan = {"shard_index": shards - 1, "shard_count": shards, "drop_remainder": True}
    steps = Plan(length, batch_size, **plan).steps
    reference = make("inline", scenes.Clouds(length), batch_size, **plan)
    loader = make("thread", sequence, batch_size, workers=workers, **plan)
    for step in range(steps):
        _assert_same(reference.submit(0, step).result(), loader.submit(0, step).result())


# ---- memory and life


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_a_batch_does_not_change_while_others_are_loaded(make, kind):
    loader = make(kind, scenes.Clouds(), 4)
    kept = [loader.submit(0, step).result() for step in range(5)]
    copies = [points.copy() for points, _ in kept]
    for epoch in range(30):
        _epoch(loader, epoch, 5)
    for (points, _), copy in zip(kept, copies, strict=True):
        assert np.array_equal(points, copy)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_batches_are_aligned_writable_and_reuse_few_slots(make, kind):
    loader = make(kind, scenes.Clouds(), 4)
    for epoch in range(100):
        for points, labels in _epoch(loader, epoch, 5):
            assert points.ctypes.data % 64 == 0
            assert labels.ctypes.data % 64 == 0
            points += 1
    gc.collect()
    assert loader.stats().slots <= 16
    assert loader.stats().batches == 500


@pytest.mark.parametrize("kind", [*LOADERS, HOSTS])
def test_a_consumer_that_keeps_batches_gets_copies_and_never_waits(make, kind):
    loader = make(kind, scenes.Clouds(400), 4, max_memory=20 * 4096)
    hoard = []
    for step in range(100):
        hoard.append(loader.submit(0, step).result(timeout=30))
    assert loader.stats().slots <= 20
    if kind != "hosts":  # batches of hosts come in ordinary memory
        assert loader.stats().copied >= 80
    reference = make("inline", scenes.Clouds(400), 4)
    for step, batch in enumerate(hoard):
        _assert_same(batch, reference.submit(0, step).result())
        assert batch[0].ctypes.data % 64 == 0


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [*PARALLEL, HOSTS])
def test_workers_read_many_scenes_in_parallel_for_any_batch_size(make, kind, tmp_path):
    loader = make(kind, scenes.Meeting(tmp_path, 4), 16, workers=8)
    _ = loader.spec
    if kind == "process":
        wait_until(lambda: len(loader._sessions.present.pool.pids()) == 8)
    (tmp_path / "begin").touch()
    assert len(loader.submit(0, 0).result()[1]) == 16


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_read_scenes_in_the_order_of_requested_batches(make, workers):
    class Noted(scenes.Slow):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    read = []
    loader = make("thread", Noted(80, 0.005), 8, workers=workers)
    _ = loader.spec
    read.clear()
    for future in [loader.submit(0, step) for step in range(10)]:
        future.result(timeout=30)
    indices = [index for step in range(10) for index in loader._job.plan.indices(0, step).tolist()]
    assert max(abs(indices.index(index) - at) for at, index in enumerate(read)) <= (0 if workers == 1 else 16)


def test_workers_share_the_first_and_last_batch_and_load_others_individually(make):
    class Noted(scenes.Slow):
        def __getitem__(self, index):
            thread_of[index] = threading.get_ident()
            return super().__getitem__(index)

    thread_of = {}
    loader = make("thread", Noted(160, 0.005), 8, workers=2)
    _ = loader.spec
    _epoch(loader, 0, 20)
    batches = [loader._job.plan.indices(0, step).tolist() for step in range(20)]
    threads = [len({thread_of[index] for index in batch}) for batch in batches]
    assert threads[0] == threads[-1] == 2
    assert threads[5:15] == [1] * 10


@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_padding_bytes_of_extended_precision_are_not_compared(make, kind):
    array = np.arange(20) / np.longdouble(3)
    loader = make(kind, array, 6, workers=2)
    for step, batch in enumerate(_epoch(loader, 0, 3)):
        assert batch.tolist() == array[loader._job.plan.indices(0, step)].tolist()


def test_scenes_of_two_batches_can_wait_for_each_other(make):
    class Quick(scenes.Clouds):
        def __getitem__(self, index):
            if index in meet:
                meeting.wait(SECONDS)
            return np.int64(index)

    meet = []
    meeting = threading.Barrier(2)
    loader = make("thread", Quick(400), 16, workers=2)
    _epoch(loader, 0, 20)
    expected = [loader._job.plan.indices(0, step).tolist() for step in range(20, 25)]
    meet += [expected[0][0], expected[1][0]]  # the first scenes of two batches
    futures = [loader.submit(0, step) for step in range(20, 25)]
    assert [future.result(timeout=SECONDS).tolist() for future in futures] == expected


def test_other_threads_continue_if_a_scene_hangs(make):
    class Hanging(scenes.Clouds):
        def __getitem__(self, index):
            if index == hangs:
                over.wait(SECONDS)
            return np.int64(index)

    hangs, over = -1, threading.Event()
    loader = make("thread", Hanging(400), 4, workers=2)
    _epoch(loader, 0, 20)
    hangs = int(loader._job.plan.indices(0, 20)[0])
    futures = [loader.submit(0, step) for step in range(20, 30)]
    try:
        assert all(len(future.result(timeout=SECONDS)) == 4 for future in futures[1:])
    finally:
        over.set()
    assert len(futures[0].result(timeout=SECONDS)) == 4
