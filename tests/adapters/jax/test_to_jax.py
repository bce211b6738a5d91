"""`to_jax`: a feed's batches as `jax.Array`s."""

import gc
import socket

import numpy as np
import optree
import pytest
from field_addresses import addresses_made
from programs import finish, launch
from scenes_frameworks import Large, Mixed
from waits import wait_until

import kerasfeed as kf

jax = pytest.importorskip("jax")


@pytest.mark.parametrize("device", [None, jax.devices("cpu")[0]], ids=["default", "device"])
def test_a_batch_is_not_copied(device):
    with kf.Feed(Mixed(), 8, workers=2, worker_type="thread") as feed, addresses_made(feed) as made:
        for step, batch in enumerate(feed.to_jax(device)):
            assert [leaf.unsafe_buffer_pointer() for leaf in optree.tree_leaves(batch)] == made[step]


def test_donating_an_array_does_not_change_its_memory():
    double = jax.jit(lambda array: array * 2, donate_argnums=0)
    with kf.Feed(np.arange(4096.0, dtype=np.float32).reshape(64, 64), 4, workers=2, worker_type="thread") as feed:
        results = []
        for batch in feed.to_jax():
            alias = np.asarray(batch)
            results.append((double(batch), alias))
        for step, (result, alias) in enumerate(results):
            expected = np.arange(256 * step, 256 * (step + 1)).reshape(4, 64)
            assert np.array_equal(alias, expected)
            assert np.array_equal(np.asarray(result), 2 * expected)
        del results, result, alias, batch, expected


def test_memory_is_reused_after_the_last_array_is_deleted():
    with kf.Feed(np.zeros((4000, 1024), np.float32), 4, workers=2, worker_type="thread") as feed:
        for _ in range(2):
            for _batch in feed.to_jax():
                pass
        assert feed.stats().slots <= 32


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_busy_gpu_receives_the_batches_of_the_feed(prefetch):
    matrix, sums = jax.numpy.ones((2048, 2048)), []
    with kf.Feed(Large(160), 4, workers=2, worker_type="process", max_memory=1 << 27) as feed:
        for step, batch in enumerate(feed.to_jax(prefetch=prefetch, epochs=3)):
            for _ in range(10):
                matrix @ matrix
            sums.append(batch.sum(axis=1))
            if step % 8 == 7:  # batches keep their memory up to this point
                sums[-1].block_until_ready()
    assert np.stack(sums).tolist() == 3 * (np.arange(160).reshape(40, 4) * Large.values).tolist()


def test_the_error_for_integers_too_large_for_jax_names_their_field():
    for large in (np.int64(2**31), np.int64(-(2**31) - 1), np.uint64(2**32)):
        with kf.Feed([{"id": large}] * 2, 2, workers=0) as feed:
            with pytest.raises(OverflowError, match=r"field 'id' has values from .* set jax_enable_x64"):
                list(feed.to_jax())
            jax.config.update("jax_enable_x64", True)
            try:
                assert [int(number) for (batch,) in [feed.to_jax()] for number in batch["id"]] == [int(large)] * 2
            finally:
                jax.config.update("jax_enable_x64", False)
    with kf.Feed([np.int64(-(2**31)), np.int64(2**31 - 1)], 2, workers=0) as feed:
        assert next(iter(feed.to_jax())).tolist() == [-(2**31), 2**31 - 1]


def test_a_ragged_field_becomes_its_values_and_row_splits():
    scenes = [np.arange(length, dtype=np.int32) for length in (1, 3, 2)]
    with kf.Feed(scenes, 3, collate="ragged", workers=0) as feed:
        (batch,) = feed.to_jax()
    values, row_splits = batch
    assert isinstance(values, jax.Array)
    assert values.tolist() == [0, 0, 1, 2, 0, 1]
    assert row_splits.tolist() == [0, 1, 4, 6]


def test_arguments_are_checked():
    with kf.Feed([1.0], 1, workers=0) as feed:
        with pytest.raises(TypeError, match=r"sharding must be a jax\.sharding\.Sharding.*received 'cpu' of type str"):
            feed.to_jax("cpu")
        assert "JAX" in repr(feed.to_jax())


def test_to_jax_accepts_a_stream():
    def numbers():
        yield from (np.full(3, number, np.float32) for number in range(5))

    with kf.StreamFeed(numbers, 2, workers=1, worker_type="thread") as feed:
        assert [batch[:, 0].tolist() for batch in feed.to_jax(epochs=2)] == [[0, 1], [2, 3], [4]] * 2


def test_an_abandoned_loop_holds_no_memory():
    with kf.Feed(Mixed(), 8, workers=2, worker_type="thread") as feed:
        iterator = iter(feed.to_jax())
        next(iterator)
        gc.collect()
        wait_until(lambda: feed.stats().batches >= len(feed))
        assert feed.get_state()["step"] == 1


DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np, psutil
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
import lean_keras
import kerasfeed as kf

class Scenes(kf.SceneSequence):
    def __init__(self, count=64):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return {"x": np.full((16, 256), index, np.float32), "n": np.int32(index)}

def feed_of(count=64, batch_size=8, **arguments):
    return kf.Feed(Scenes(count), batch_size, workers=2, worker_type="thread", **arguments)

devices = jax.devices()
mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "model"))
rows = NamedSharding(mesh, PartitionSpec("data"))
whole = NamedSharding(mesh, PartitionSpec())
for sharding in (None, devices[3], SingleDeviceSharding(devices[2]), rows, whole):
    traced = []

    @jax.jit
    def total(batch):
        traced.append(1)
        return batch["x"].sum() + batch["n"].sum()

    with feed_of(shuffle=True, seed=1) as feed:
        expected = [batch for epoch in range(2) for batch in feed.epoch(epoch)]
        seen = 0
        for batch, numpy in zip(feed.to_jax(sharding, epochs=2), expected, strict=True):
            assert all(np.array_equal(np.asarray(batch[name]), numpy[name]) for name in ("x", "n"))
            wanted = SingleDeviceSharding(devices[3]) if sharding is devices[3] else sharding
            assert wanted is None or all(batch[name].sharding == wanted for name in ("x", "n"))
            jax.block_until_ready(total(batch))  # JAX 0.5 hangs where two computations of eight devices are under way
            seen += 1
            state = feed.get_state()
            assert state["epoch"] * 8 + state["step"] == seen
        assert seen == 16 and len(traced) == 1, (seen, traced)
with feed_of() as feed:
    batch = next(iter(feed.to_jax(rows)))
    for shard in batch["n"].addressable_shards:
        assert np.array_equal(shard.data, np.arange(8)[shard.index])
    assert {shard.data.shape for shard in batch["x"].addressable_shards} == {(2, 16, 256)}

def refused(sharding, error, *texts, **arguments):
    with feed_of(**arguments) as feed:
        try:
            next(iter(feed.to_jax(sharding)))
        except error as raised:
            for text in texts:
                assert text in str(raised), raised
        else:
            raise AssertionError("not refused")

refused(rows, ValueError, "field 'n' of a batch of 6 rows cannot be divided", "drop_remainder=True", batch_size=6)
columns = NamedSharding(mesh, PartitionSpec("data", None, "model"))
refused(columns, ValueError, "field 'n' of a batch of 8 rows cannot be divided")
refused(rows, ValueError, "on_error='skip' changes the shape", on_error="skip", max_failures=1)
refused(rows, ValueError, "field 'n' of a batch of 2 rows cannot be divided", count=66)
with feed_of(count=66, drop_remainder=True) as feed:
    assert len(list(feed.to_jax(rows))) == 8
ragged = [np.arange(1 + number % 3) for number in range(8)]
with kf.Feed(ragged, 8, collate="ragged", workers=0) as feed:
    try:
        list(feed.to_jax(rows))
    except TypeError as raised:
        assert "cannot be divided among devices: 'scene'" in str(raised)
    else:
        raise AssertionError("not refused")
with kf.Feed(ragged, 8, collate="ragged", workers=0) as feed:
    (batch,) = feed.to_jax(whole)
    assert batch.row_splits.tolist()[:4] == [0, 1, 3, 6]

process = psutil.Process()
with feed_of(2048, 64) as feed:
    loop, sizes = feed.to_jax(rows), []
    for epoch in range(12):
        for batch in loop:
            jax.block_until_ready(total(batch))
        sizes.append(process.memory_info().rss / 2**20)
    assert sizes[-1] - sizes[3] < 32, sizes  # 8 epochs of 32 batches of 1 MB
    assert feed.stats().slots <= 64, feed.stats()
print("done")
"""


def test_batches_are_divided_among_eight_devices(tmp_path):
    assert finish(launch(tmp_path, DEVICES)) == "done\n"


PROCESS = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np
rank, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import lean_keras
import kerasfeed as kf

scenes = np.repeat(np.arange(16, dtype=np.float32)[:, None], 3, 1)
rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
column = jax.jit(lambda batch: batch[:, 0], out_shardings=NamedSharding(rows.mesh, PartitionSpec()))
with kf.Feed(scenes, 4, workers=1, worker_type="thread", shard="auto") as feed:
    seen = [np.asarray(column(batch)).tolist() for batch in feed.to_jax(rows)]
assert seen == [list(range(8)), list(range(8, 16))], seen

def refused(text, scenes, **arguments):
    with kf.Feed(scenes, 4, workers=0, **arguments) as feed:
        try:
            next(iter(feed.to_jax(rows)))
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError("not refused")

refused("the feed has 1 shards", scenes)
refused("need a size divisible by the number of parts", scenes[:14], shard="auto")
jax.distributed.shutdown()
print("done")
"""


@pytest.mark.heavy
def test_processes_combine_shards_of_feeds_into_one_global_batch(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    programs = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        programs.append(launch(folder, PROCESS.replace("sys.argv[1]", str(rank)).replace("sys.argv[2]", str(port))))
    assert [finish(program).splitlines()[-1] for program in programs] == ["done", "done"]
