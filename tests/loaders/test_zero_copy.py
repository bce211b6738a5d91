"""Batches reach every framework without a copy, and no slot is reused while anything refers to its memory."""

import contextlib
import functools
import gc
import importlib

import numpy as np
import optree
import pytest
import scenes
from field_addresses import address, addresses_made
from scenes_frameworks import Mixed, Numbered

import kerasfeed as kf

WORKERS = [(0, "thread"), (2, "thread"), (2, "process")]


@pytest.fixture(scope="module", autouse=True)
def frameworks():
    for framework in FRAMEWORKS:
        with contextlib.suppress(ImportError):
            importlib.import_module(framework)


_handed_over = []


@functools.cache
def _tf_function(dtypes):
    import tensorflow as tf

    return tf.function(lambda: tf.numpy_function(_handed_over.pop, [], dtypes))


def _tf(batch):
    tf = pytest.importorskip("tensorflow")
    leaves, treespec = optree.tree_flatten(batch)
    _handed_over.append(leaves)  # TensorFlow never frees the function, so it must not hold the batch
    del batch
    tensors = _tf_function(tuple(tf.as_dtype(leaf.dtype) for leaf in leaves))()
    return optree.tree_unflatten(treespec, tensors)


def _jax(batch):
    jax = pytest.importorskip("jax")
    return jax.device_put(batch)


def _torch(batch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return optree.tree_map(torch.from_numpy, batch)


def _tf_address(tensor):
    return address(np.asarray(memoryview(tensor)))  # tensor.numpy() is a copy


FRAMEWORKS = {"tensorflow": _tf, "jax": _jax, "torch": _torch}


def _pointer(name, tensor):
    if name == "tensorflow":
        return _tf_address(tensor)
    return tensor.unsafe_buffer_pointer() if name == "jax" else tensor.data_ptr()


def _values(tensor):
    return np.asarray(tensor).copy()


@pytest.mark.heavy
@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_every_field_of_every_batch_starts_on_a_boundary_of_64_bytes(workers, worker_type):
    for batch_size in (1, 3, 7):
        with kf.Feed(Mixed(), batch_size, workers=workers, worker_type=worker_type) as feed:
            for batch in feed:
                assert all(address(leaf) % 64 == 0 for leaf in batch.values())
                assert all(leaf.flags.c_contiguous and leaf.flags.writeable for leaf in batch.values())


def test_batches_beyond_max_memory_are_aligned():
    with kf.Feed(Mixed(), 2, max_memory=4 * 4096, workers=2, worker_type="thread") as feed:
        with pytest.warns(kf.FeedWarning, match="the consumer keeps so many batches"):
            kept = list(feed)
        assert feed.stats().copied > 0
        assert all(address(leaf) % 64 == 0 for batch in kept for leaf in batch.values())
        assert [int(batch["b"][0, 0]) for batch in kept] == list(range(0, 40, 2))


@pytest.mark.light(where=lambda name, worker_type: worker_type != "process" or name == "tensorflow")
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_conversion_does_not_copy_a_batch(name, workers, worker_type):
    with kf.Feed(Mixed(), 8, workers=workers, worker_type=worker_type) as feed:
        for batch in feed:
            tensors = FRAMEWORKS[name](batch)
            for key, leaf in batch.items():
                assert _pointer(name, tensors[key]) == address(leaf)


def test_the_tf_dataset_does_not_copy_a_batch():
    pytest.importorskip("tensorflow")
    with kf.Feed(Mixed(), 8, workers=2, worker_type="thread") as feed, addresses_made(feed) as made:
        for step, batch in enumerate(feed.to_tf_dataset()):
            assert [_tf_address(leaf) for leaf in optree.tree_leaves(batch)] == made[step]


def test_from_generator_does_not_copy_a_batch():
    tf = pytest.importorskip("tensorflow")
    with kf.Feed(Mixed(), 8, workers=2, worker_type="thread") as feed:
        addresses = []

        def batches():
            for batch in feed:
                addresses.append({key: address(leaf) for key, leaf in batch.items()})
                yield batch

        signature = {key: tf.TensorSpec(spec.shape, spec.dtype) for key, spec in feed.element_spec.items()}
        for step, batch in enumerate(tf.data.Dataset.from_generator(batches, output_signature=signature)):
            assert {key: _tf_address(leaf) for key, leaf in batch.items()} == addresses[step]


def _views(name, tensors):
    """Views of views, which users keep without the batch itself."""
    points = tensors[0]
    if name == "numpy":
        return points.reshape(-1)[::2][3:].view()
    if name == "tensorflow":
        return np.asarray(memoryview(points))[1:].T[1:]
    if name == "jax":
        return np.asarray(points)[1:].T[1:]
    return points[1:].transpose(0, 1)[1:].numpy()[::2]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["numpy", *FRAMEWORKS])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_memory_is_not_reused_while_a_view_of_a_view_refers_to_it(name, worker_type):
    with kf.Feed(scenes.Clouds(200), 4, shuffle=True, seed=1, workers=2, worker_type=worker_type) as feed:
        kept = []
        for step, batch in enumerate(feed):
            tensors = FRAMEWORKS.get(name, lambda batch: batch)(batch)
            if step % 5 == 0:
                view = _views(name, tensors)
                kept.append((view, np.array(view)))
            del batch, tensors
        for _ in range(3):
            for batch in feed:
                tensors = FRAMEWORKS.get(name, lambda batch: batch)(batch)
                del batch, tensors
        assert len(kept) == 10
        assert all(np.array_equal(view, copy) for view, copy in kept)
        del kept


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_memory_is_not_reused_while_a_tensor_refers_to_it(name):
    with kf.Feed(scenes.Clouds(200), 4, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        kept = [FRAMEWORKS[name](batch) for batch in feed]
        for _ in range(2):
            for batch in feed:
                FRAMEWORKS[name](batch)
        order = [feed.plan.indices(0, step) for step in range(len(feed))]
    gc.collect()
    for (points, labels), indices in zip(kept, order, strict=True):
        assert _values(labels).tolist() == indices.tolist()
        assert np.array_equal(_values(points)[:, 0, 0], 100.0 * indices)


@pytest.mark.heavy
def test_tensorflow_computations_do_not_write_into_a_batch():
    tf = pytest.importorskip("tensorflow")
    with kf.Feed(Numbered(64), 32, workers=1, worker_type="thread") as feed:
        for x, y in feed.to_tf_dataset().map(lambda x, y: (x * 0 - 1, y)):
            assert np.array_equal(x.numpy(), -np.ones((32, 1)))
            assert len(set(y.numpy().ravel())) == 32

        @tf.function
        def negate(x):
            return tf.negative(x) - 1

        for x, y in feed.to_tf_dataset():
            negate(x)
            assert np.array_equal(x, y)


def test_jax_computations_do_not_write_into_a_batch():
    jax = pytest.importorskip("jax")
    negate = jax.jit(lambda x: -x - 1, donate_argnums=0)
    with kf.Feed(Numbered(64), 32, workers=1, worker_type="thread") as feed:
        for x, y in feed:
            array = jax.device_put(x)
            assert np.array_equal(np.asarray(negate(array)), -y - 1)
            assert np.array_equal(x, y)
            del array


CONSUMERS = ["numpy", *FRAMEWORKS]


@pytest.mark.heavy
@pytest.mark.parametrize("name", CONSUMERS)
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_memory_is_reused_over_many_batches(name, worker_type):
    consume = FRAMEWORKS.get(name, lambda batch: batch)
    with kf.Feed(Numbered(2000), 4, workers=2, worker_type=worker_type) as feed:
        total = 0.0
        for _ in range(4):
            for batch in feed:
                tensors = consume(batch)
                total += float(np.asarray(tensors[0]).sum())
        del batch, tensors
        assert total == 4 * sum(range(2000))
        stats = feed.stats()
        assert stats.batches == 2000
        assert stats.slots <= 4 * feed.max_queue_size
        assert stats.copied == 0


@pytest.mark.heavy
def test_memory_is_reused_over_many_batches_of_a_dataset():
    pytest.importorskip("tensorflow")
    with kf.Feed(Numbered(2000), 4, workers=2, worker_type="thread") as feed:
        total = sum(float(np.sum(x)) for x, _ in feed.to_tf_dataset(epochs=4))
        assert total == 4 * sum(range(2000))
        assert feed.stats().slots <= 4 * feed.max_queue_size
        assert feed.stats().copied == 0


def test_a_consumer_that_keeps_every_batch_gets_every_scene_from_a_growing_pool():
    for convert in FRAMEWORKS.values():
        with kf.Feed(Numbered(400), 2, workers=2, worker_type="thread") as feed:
            kept = [convert(batch) for batch in feed]
            assert feed.stats().slots >= 200
            assert np.concatenate([_values(x).ravel() for x, _ in kept]).tolist() == list(range(400))
        del kept
