"""`to_torch`: a feed's batches as tensors of PyTorch."""

import numpy as np
import optree
import pytest
from field_addresses import addresses_made
from programs import finish, launch
from scenes_frameworks import Large, Mixed

import kerasfeed as kf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensors_are_writable_and_share_memory_with_the_batch(device):
    with kf.Feed(Mixed(), 8, workers=2, worker_type="thread") as feed, addresses_made(feed) as made:
        for step, batch in enumerate(feed.to_torch(device)):
            assert [tensor.data_ptr() for tensor in optree.tree_leaves(batch)] == made[step]
            for tensor in optree.tree_leaves(batch):
                tensor.zero_()


def test_writing_to_a_tensor_does_not_affect_other_batches():
    with kf.Feed(np.arange(12.0).reshape(12, 1), 4, workers=2, worker_type="thread") as feed:
        for _ in range(3):
            seen = []
            for batch in feed.to_torch():
                seen += batch[:, 0].tolist()
                batch += 100
            assert seen == list(range(12))


def test_memory_is_reused_only_after_the_last_tensor_is_deleted():
    with kf.Feed(np.arange(400).reshape(400, 1), 4, workers=2, worker_type="thread") as feed:
        kept = [batch[1:] for batch in feed.to_torch()][:5]
        for _ in range(3):
            for _batch in feed.to_torch():
                pass
        assert [view[:, 0].tolist() for view in kept] == [[4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(5)]
        slots = feed.stats().slots
        for _ in range(3):
            for _batch in feed.to_torch():
                pass
        assert feed.stats().slots == slots
        del kept, _batch


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int16", "uint16", "uint32", "uint64", "int64", "float16", "float32", "float64", "complex64",
     "bfloat16", "float8_e4m3fn", "float8_e5m2"],
)  # fmt: skip
def test_tensors_have_the_dtype_of_the_field(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype) if hasattr(ml_dtypes, dtype) else dtype)
    scenes = [np.array([0, 1, 1], kind)] * 2
    with kf.Feed(scenes, 2, workers=0) as feed:
        (batch,) = feed.to_torch()
    assert batch.dtype == getattr(torch, dtype)
    assert batch.to(torch.complex64).tolist() == [[0, 1, 1]] * 2


def test_read_only_arrays_are_copied():
    stored = np.arange(6.0).reshape(2, 3)
    stored.flags.writeable = False
    batches = [stored, stored[:, ::-1], np.asfortranarray(stored)]
    with kf.Feed(batches, None, workers=0) as feed:
        for batch, expected in zip(feed.to_torch(), batches, strict=True):
            assert batch.tolist() == expected.tolist()
            batch.zero_()
    assert stored.sum() == 15


def test_the_state_follows_the_consumer_while_batches_are_prefetched():
    with kf.Feed(Mixed(), 8, workers=2, worker_type="thread") as feed:
        for step, batch in enumerate(feed.to_torch("meta")):
            assert all(tensor.device.type == "meta" for tensor in batch.values())
            state = feed.get_state()
            assert state["epoch"] * len(feed) + state["step"] == step + 1


def test_a_ragged_field_becomes_its_values_and_row_splits():
    scenes = [np.arange(length, dtype=np.float32) for length in (1, 3, 2)]
    with kf.Feed(scenes, 3, collate="ragged", workers=0) as feed:
        (batch,) = feed.to_torch()
    nested = torch.nested.nested_tensor_from_jagged(batch.values, batch.row_splits)
    assert [row.tolist() for row in nested.unbind()] == [[0], [0, 1, 2], [0, 1]]


def test_arguments_are_checked():
    with kf.Feed([1.0], 1, workers=0) as feed:
        with pytest.raises(ValueError, match='pin_memory must be True, False or "auto"'):
            feed.to_torch(pin_memory="yes")
        with pytest.raises(RuntimeError, match="device"):
            feed.to_torch("no such device")
        if not torch.cuda.is_available():
            for absent in ("cuda", "cuda:1"):
                with pytest.raises(RuntimeError, match=f"PyTorch cannot use device '{absent}' here"):
                    feed.to_torch(absent)
        if not torch.accelerator.is_available():
            with pytest.raises(RuntimeError, match="PyTorch finds none"):
                feed.to_torch(pin_memory=True)
        assert "PyTorch on cpu" in repr(feed.to_torch())


def test_to_torch_accepts_streams():
    with kf.StreamFeed(lambda: iter(np.arange(4, dtype=np.float32)), 2) as feed:
        assert [batch.tolist() for batch in feed.to_torch()] == [[0, 1], [2, 3]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("pin_memory", ["auto", True])
def test_a_busy_gpu_receives_the_batches_of_the_feed(pin_memory, prefetch):
    matrix = torch.ones(2048, 2048, device="cuda")
    sums = []
    with kf.Feed(Large(160), 4, workers=2, worker_type="process", max_memory=1 << 27) as feed:
        for step, batch in enumerate(feed.to_torch("cuda", pin_memory=pin_memory, prefetch=prefetch, epochs=3)):
            for _ in range(10):
                torch.mm(matrix, matrix)
            sums.append(batch.sum(dim=1))
            if step % 8 == 7:
                sums[-1].tolist()
    assert torch.stack(sums).tolist() == 3 * (torch.arange(160).reshape(40, 4) * Large.values).tolist()


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import lean_keras, keras, numpy as np, torch
import kerasfeed as kf

scenes = kf.Zip(np.ones((32, 4), np.float32), np.ones(32, np.float32))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
device = next(model.parameters()).device
with kf.Feed(scenes, 8, workers=2, worker_type="thread") as feed:
    losses = [float(model.train_on_batch(x, y)) for x, y in feed.to_torch(device, epochs=3)]
    assert losses[-1] < losses[0] / 2, losses
    for x, y in feed.to_torch(device):
        loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("done")
"""


@pytest.mark.heavy
def test_a_keras_model_on_pytorch_accepts_the_tensors_unchanged(tmp_path):
    assert finish(launch(tmp_path, KERAS)) == "done\n"
