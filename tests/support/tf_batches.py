"""Helpers of the tests of `Feed.to_tf_dataset`; imports TensorFlow."""

import numpy as np
import optree

WORKERS = [(0, "thread"), (3, "thread"), (1, "process")]


def encoded(leaf):
    encoded = [text.encode() if isinstance(text, str) else text for text in leaf.flat]
    return np.array(encoded, object).reshape(leaf.shape)


def assert_batches_equal(from_tf, from_feed):
    """Compare batches leaf by leaf, in optree's order: lists have become tuples, and str has become bytes."""
    from_tf, from_feed = list(from_tf), list(from_feed)
    assert len(from_tf) == len(from_feed)
    for one, other in zip(from_tf, from_feed, strict=True):
        leaves, others = [tensor.numpy() for tensor in optree.tree_leaves(one)], optree.tree_leaves(other)
        for a, b in zip(leaves, others, strict=True):
            if b.dtype == object:
                assert a.tolist() == encoded(b).tolist()
            else:
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def indices_of(dataset):
    """The scenes of a dataset of batches (points, indices), in order."""
    return np.concatenate([batch[-1].numpy().ravel() for batch in dataset]).astype(int).tolist()


def order_of(feed, epoch):
    return np.concatenate([feed.plan.indices(epoch, step) for step in range(len(feed))]).tolist()
